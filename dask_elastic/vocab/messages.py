"""What the home of an executor and its remote tasks say to each other, in band with the tuples.

Everything travels in one FIFO per pair of nodes, so that tuples and control records never overtake each other
(Elasticutor, sections 3.1 and 3.2). Beside each message goes a `Stamp`, by which the other end knows what is stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.vocab.batch import Batch, Delivery

ALL_SHARDS = -1
"""In place of a shard: no one of them, but all that a task owns."""


class Stamp(NamedTuple):
    """Which life of a link a message belongs to, and its number within that life and direction.

    Parameters
    ----------
    incarnation : int
        How often the home had given the remote node up when the message's life of the link began.
    sequence : int
        Counts the messages of one direction, from 0.
    """

    incarnation: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StartTask:
    """Home to remote: begin a task, which owns `shards` from the beginning."""

    task: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StopTask:
    """Home to remote: the task has been drained and ends."""

    task: int


@dataclass(frozen=True, slots=True)
class SubBatch:
    """Home to remote: one unit of work, numbered per task from 0; of a `silent` one the outputs have left already."""

    task: int
    number: int
    batch: Batch
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """Home to remote: the labelling tuple of a shard's reassignment; `stays` when the target is on the same node."""

    task: int
    shard: int
    stays: bool


@dataclass(frozen=True, slots=True)
class Install:
    """Home to remote: the task owns the shard from here on; `state` is its primary copy, None to keep what is there."""

    task: int
    shard: int
    state: pa.RecordBatch | None


@dataclass(frozen=True, slots=True)
class FlushRequest:
    """Home to remote: send the task's dirty state now, or that of one `shard`, which is about to leave it."""

    task: int
    token: int
    shard: int = ALL_SHARDS


@dataclass(frozen=True, slots=True)
class Outputs:
    """Remote to home: all outputs of sub-batch `number`, in order, routed as far as the next receivers."""

    task: int
    number: int
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Remote to home: sub-batch `number` is processed; it waited for and kept busy the core for so many seconds."""

    task: int
    number: int
    busy: float
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Flush:
    """Remote to home: the state that changed up to sub-batch `through`; `token` answers a `FlushRequest`, else -1.

    It is that of all shards of the task, or of the one that was asked for.
    """

    task: int
    through: int
    state: pa.RecordBatch | None
    token: int
    shard: int = ALL_SHARDS


@dataclass(frozen=True, slots=True)
class LabelReturned:
    """Remote to home: every earlier tuple of the shard is processed and its outputs have been sent.

    `state` is what changed in the shard. It brings the shard's primary copy up to sub-batch `through` of the task, in
    one message: a home that had the state but not its number would replay what the state contains.
    """

    task: int
    shard: int
    through: int
    state: pa.RecordBatch | None


ToRemote = StartTask | StopTask | SubBatch | Label | Install | FlushRequest
ToHome = Outputs | Done | Flush | LabelReturned
