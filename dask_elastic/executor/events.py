"""What can happen to an executor besides the flow of batches; `ElasticExecutor.handle` takes one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ALL_SHARDS


@dataclass(frozen=True, slots=True)
class SetCores:
    """The executor is to have so many cores on each node."""

    by_node: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class MoveShard:
    """A shard is to move to a task."""

    shard: int
    target: int


@dataclass(frozen=True, slots=True)
class BalanceDue:
    """It is time to balance the shards over the tasks."""


@dataclass(frozen=True, slots=True)
class LabelBack:
    """A shard's label came back from its source task, behind the shard's last output."""

    task: int
    shard: int


@dataclass(frozen=True, slots=True)
class StateInstalled:
    """The shard's new node has been sent what it needs."""

    shard: int


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A drained task's thread has ended."""

    task: int


@dataclass(frozen=True, slots=True)
class InputEnded:
    """An upstream instance has sent its last batch."""

    origin: ExecutorId


@dataclass(frozen=True, slots=True)
class FlushDue:
    """The primary copy is to be brought up to date; `token` names the request."""

    token: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """A remote task's dirty state, or that of one `shard`, has been applied to the primary copy."""

    task: int
    through: int
    token: int
    shard: int = ALL_SHARDS


Event = SetCores | MoveShard | BalanceDue | LabelBack | StateInstalled | TaskEnded | InputEnded | FlushDue | Flushed
