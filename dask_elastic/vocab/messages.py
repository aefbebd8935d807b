"""Messages between the home of an executor and its remote tasks, in band with the tuples.

All messages travel in one FIFO per pair of nodes, so that tuples and control records never overtake each other
(Elasticutor, sections 3.1 and 3.2). Each message has a `Stamp`, by which the receiver recognises stale messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.vocab.batch import Batch, Delivery

ALL_SHARDS = -1
"""In place of a shard: all shards that the task owns."""


class Stamp(NamedTuple):
    """The incarnation of the link that a message belongs to, and its number in that incarnation and direction.

    Parameters
    ----------
    incarnation : int
        How often the home had declared the remote node lost when this incarnation of the link began.
    sequence : int
        The number of the message in its direction, from 0.
    """

    incarnation: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StartTask:
    """Home to remote: start a task, which initially owns `shards`."""

    task: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StopTask:
    """Home to remote: stop the task, which has been drained."""

    task: int


@dataclass(frozen=True, slots=True)
class SubBatch:
    """Home to remote: one unit of work, numbered per task from 0; `silent` if its outputs were already emitted."""

    task: int
    number: int
    batch: Batch
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """Home to remote: the labelling tuple of a shard's move; `stays` if the target task is on the same node."""

    task: int
    shard: int
    stays: bool


@dataclass(frozen=True, slots=True)
class Install:
    """Home to remote: the task owns the shard from now on; `state` is its primary copy.

    Without `state` the task keeps what its node has of the shard, or, if `fresh`, begins without state.
    """

    task: int
    shard: int
    state: pa.RecordBatch | None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class FlushRequest:
    """Home to remote: flush the task's dirty state now, or that of one `shard` that is about to move."""

    task: int
    token: int
    shard: int = ALL_SHARDS


@dataclass(frozen=True, slots=True)
class Outputs:
    """Remote to home: all outputs of sub-batch `number`, in order, routed to the next receivers."""

    task: int
    number: int
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Remote to home: sub-batch `number` is processed; it waited for the core, then took `busy` seconds.

    `counts` is what became of its rows, the numbers of a `ComputeTally` for each compute; empty without windows, unless
    there are several computes. `costs` is what its windows cost, the fields of a `WindowCosts`; empty without windows.
    """

    task: int
    number: int
    busy: float
    waited: float = 0.0
    counts: tuple[int, ...] = ()
    costs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """Remote to home: the state that changed up to sub-batch `through`, of all shards of the task or of `shard`.

    `token` is that of the `FlushRequest` that it answers, -1 without a request.
    """

    task: int
    through: int
    state: pa.RecordBatch | None
    token: int
    shard: int = ALL_SHARDS


@dataclass(frozen=True, slots=True)
class LabelReturned:
    """Remote to home: every earlier tuple of the shard is processed, and its outputs have been sent.

    `state` is the dirty state of the shard, which brings its primary copy up to sub-batch `through` of the task. Both
    travel in one message: a home with the state but without `through` would replay rows that the state contains.
    """

    task: int
    shard: int
    through: int
    state: pa.RecordBatch | None


ToRemote = StartTask | StopTask | SubBatch | Label | Install | FlushRequest
ToHome = Outputs | Done | Flush | LabelReturned
