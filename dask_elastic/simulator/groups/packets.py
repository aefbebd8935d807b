"""Packets between simulated nodes while key groups move; see `dask_elastic.migration.group_move`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True, slots=True)
class GroupFence:
    """Executor to every node, behind its outputs of the groups that leave it."""

    executor: ExecutorId
    version: int


@dataclass(frozen=True, slots=True)
class GroupFencePassed:
    """Node to executor: all of these outputs have been received."""

    executor: ExecutorId
    version: int
    node: int


GroupPacket: TypeAlias = GroupFence | GroupFencePassed
"""What nodes send each other behind rows; state and commands travel beside them."""
