"""Control events of an executor; `ElasticExecutor.handle` takes one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.shared_methods import SharedMethods
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from dask_elastic.executor.groups.handed_groups import HandedGroups


class SetCores(SharedMethods):
    """Command: have this many cores on each node."""

    by_node: Mapping[int, int]


class MoveShard(SharedMethods):
    """Command: move a shard to a task."""

    shard: int
    target: int


class ChangeSharing(SharedMethods):
    """Command: add rows of windows to instances, or to slices that instances share, from an event time on.

    Parameters
    ----------
    separate : bool
        Whether rows are added to instances.
    since : int or None
        The event time in microseconds since the Unix epoch; None for at once.
    """

    separate: bool
    since: int | None


class BalanceDue(SharedMethods):
    """The shards are due to be balanced over the tasks.

    Parameters
    ----------
    computing : float or None
        Share of their busy time for which the tasks at home kept a processor busy since the last such event; None if
        that was not measured.
    """

    computing: float | None = None


class ClockTicked(SharedMethods):
    """The home's clock has advanced: timers in processing time may be due."""


class LabelBack(SharedMethods):
    """A shard's label has returned from its source task at home, behind the shard's last output."""

    task: int
    shard: int


class StateInstalled(SharedMethods):
    """The shard's state or ownership has been sent to the node of `task`."""

    shard: int
    task: int


class StateSetAside(SharedMethods):
    """All portions of a shard's state in the primary copy have been set aside for an instant move, or none had to."""

    shard: int


class TaskEnded(SharedMethods):
    """A drained task's thread has ended."""

    task: int


class InputEnded(SharedMethods):
    """An upstream instance has sent its last batch.

    Parameters
    ----------
    origin : ExecutorId
        The instance.
    version : int
        As for `InputWatermark`.
    """

    origin: ExecutorId
    version: int = 0


class InputWatermark(SharedMethods):
    """An upstream instance has sent a watermark, behind its earlier batches.

    Parameters
    ----------
    watermark : Watermark
        The watermark.
    version : int
        The version of the first tier under which it was sent; 0 if key groups never move.
    """

    watermark: Watermark
    version: int = 0


class EndMark(SharedMethods):
    """An upstream instance sends nothing more to this home under older versions of the first tier than `version`.

    A control record of an input. What follows goes to the next home, or to the next executors of some key groups; the
    driver handles it in the first case, the executor in the second.
    """

    origin: ExecutorId
    version: int


class HoldGroups(SharedMethods):
    """Command: take part in a move of key groups; rows of groups to come wait.

    `GroupsHeld` follows, and `GroupsExchanged` at its end.

    Parameters
    ----------
    version : int
        The version of the first tier that the move leads to.
    gains : tuple of int
        The groups to come.
    loses : mapping of int to int
        The next executor of each group that is to leave.
    drains : bool
        Whether everything is processed before a group leaves, and not only its rows.
    """

    version: int
    gains: tuple[int, ...]
    loses: Mapping[int, int]
    drains: bool = False


class MarksDue(SharedMethods):
    """The upstream instances were asked to send end marks; `GroupsDrained` follows."""

    version: int


class GroupsGiven(SharedMethods):
    """The groups that leave have left."""

    version: int


class GroupsInstalled(SharedMethods):
    """The state of groups that were to come is in the store."""

    handed: HandedGroups


class ForgetGroups(SharedMethods):
    """Command: a move of groups was cancelled before any upstream instance has switched."""

    version: int


class BarriersAligned(SharedMethods):
    """All inputs have sent the barrier of a checkpoint; the driver holds what comes behind it until `Cut`."""

    checkpoint: int


class CheckpointAbandoned(SharedMethods):
    """A checkpoint was given up: without a cut so far, none is made."""

    checkpoint: int


class FlushDue(SharedMethods):
    """Command: flush all remote tasks into the primary copy; `token` identifies the request."""

    token: int


class NodeLeft(SharedMethods):
    """All remote tasks on a node are lost: the node has died, hangs, or cannot be reached.

    The driver calls `Links.cut` at once. If it emits outputs of remote tasks in a thread of its own, it queues this
    event behind them: outputs of the replay must not overtake those that are just leaving.

    Parameters
    ----------
    node : int
        The node, never the executor's home.
    replacements : mapping of int to int
        Tasks to start instead, by node. If empty, the remaining tasks take over; if none remains, one starts at home.
    died : bool
        Whether its process is known to have ended. If another node dies of the same rows, that is a `PoisonBatch`.
    """

    node: int
    replacements: Mapping[int, int] = field(default_factory=dict)
    died: bool = False


class NodeReturned(SharedMethods):
    """A lost node may get tasks again; follows each `NodeLeft` once."""

    node: int


Event = (
    SetCores
    | ChangeSharing
    | MoveShard
    | BalanceDue
    | ClockTicked
    | LabelBack
    | StateInstalled
    | StateSetAside
    | TaskEnded
    | InputEnded
    | InputWatermark
    | EndMark
    | HoldGroups
    | MarksDue
    | GroupsGiven
    | GroupsInstalled
    | ForgetGroups
    | BarriersAligned
    | CheckpointAbandoned
    | FlushDue
    | NodeLeft
    | NodeReturned
)
