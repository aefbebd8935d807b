"""What can happen to an executor besides the flow of batches; `ElasticExecutor.handle` takes one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark


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
    """A shard's label came back from its source task at home, behind the shard's last output."""

    task: int
    shard: int


@dataclass(frozen=True, slots=True)
class StateInstalled:
    """The shard's new node has been sent what `task` needs."""

    shard: int
    task: int


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A drained task's thread has ended."""

    task: int


@dataclass(frozen=True, slots=True)
class InputEnded:
    """An upstream instance has sent its last batch."""

    origin: ExecutorId


@dataclass(frozen=True, slots=True)
class InputWatermark:
    """An upstream instance says how far its event time has come, behind the batches that it sent before."""

    said: Watermark


@dataclass(frozen=True, slots=True)
class FlushDue:
    """The primary copy is to be brought up to date; `token` names the request."""

    token: int


@dataclass(frozen=True, slots=True)
class NodeGone:
    """All remote tasks on a node are lost: it is dead, it hangs, or it cannot be reached.

    The driver calls `Links.cut` at once. If it emits outputs of remote tasks in a thread of its own, it lets this event
    queue behind them: those of the replay shall not overtake what is just leaving.

    Parameters
    ----------
    node : int
        The node, never the executor's home.
    replacements : mapping of int to int
        Tasks to start instead, by node. Without any those that are left take over, and one at home if none is.
    died : bool
        Whether its process is known to have ended. If another dies of the same rows, that is an error (`PoisonBatch`).
    """

    node: int
    replacements: Mapping[int, int] = field(default_factory=dict)
    died: bool = False


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A node that was lost may be given tasks again; comes once for each `NodeGone`, and behind it."""

    node: int


Event = (
    SetCores
    | MoveShard
    | BalanceDue
    | LabelBack
    | StateInstalled
    | TaskEnded
    | InputEnded
    | InputWatermark
    | FlushDue
    | NodeGone
    | NodeBack
)
