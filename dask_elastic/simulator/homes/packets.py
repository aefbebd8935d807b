"""Packets between simulated nodes while a home moves; see `dask_elastic.migration.home_move`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dask_elastic.executor.homes.handover import Handover
from dask_elastic.executor.homes.outgoing_copy import CopiedRows
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True, slots=True)
class Copied:
    """Old home to new home: a portion of the state, behind `position` others of the same copy."""

    executor: ExecutorId
    number: int
    position: int
    rows: tuple[CopiedRows, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """New home to old home: it has installed so many portions of a copy."""

    executor: ExecutorId
    number: int
    portions: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Old home to a node that does not become the new one: the copy is of no use."""

    executor: ExecutorId
    number: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Old home to new home: hold what arrives for the executor."""

    executor: ExecutorId


@dataclass(frozen=True, slots=True)
class Prepared:
    """New home to old home: it holds what arrives."""

    executor: ExecutorId


@dataclass(frozen=True, slots=True)
class Switch:
    """Old home to every node: its instances send to the homes in this table from now on."""

    component: str
    table: HomeTable


@dataclass(frozen=True, slots=True)
class Fence:
    """Old home to every node, behind the executor's outputs: credit for these goes to the new home from now on."""

    executor: ExecutorId
    home: int


@dataclass(frozen=True, slots=True)
class FencePassed:
    """Node to old home, behind the credit that it has returned there."""

    executor: ExecutorId
    node: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Old home to new home: the executor, the newest checkpoint and change of cores that it knew of, and its cores."""

    executor: ExecutorId
    handover: Handover
    over: int
    newest_change: int
    cores: dict[int, int]


@dataclass(frozen=True, slots=True)
class Installed:
    """New home to old home: the executor has begun there."""

    executor: ExecutorId


CopyPacket: TypeAlias = Copied | Taken | Dropped
HomePacket: TypeAlias = CopyPacket | Prepare | Prepared | Switch | Fence | FencePassed | HandedOver | Installed
