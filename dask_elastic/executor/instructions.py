"""Instructions of an executor to its driver, which carries them out in order.

Notes
-----
The order also holds between threads: a driver that calls the executor from several threads carries out the instructions
of one call, except `Wake`, `Run` and `Release`, before those of a later call. Otherwise a shard may reach a node before
the task that it is for.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ALL_SHARDS


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake a sleeping task: its queue has an item."""

    task: int


@dataclass(frozen=True, slots=True)
class Run:
    """Run an idle task at home in the calling thread, for one sub-batch that is expected to be short."""

    task: int


@dataclass(frozen=True, slots=True)
class Release:
    """Release credit to an upstream instance; `wanted_more` if the task would have taken more rows, had they waited.

    `is_part` if other rows of the batch are not settled, of which one release will be the last.
    """

    origin: ExecutorId
    nbytes: int
    wanted_more: bool = False
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task on a core of a node; it owns `shards` from its start."""

    task: int
    node: int
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InstallState:
    """Send a shard's primary copy, or without `copy` its ownership, to the node of `task`; `StateInstalled` follows."""

    shard: int
    task: int
    node: int
    copy: bool


@dataclass(frozen=True, slots=True)
class SetAside:
    """Take a shard's state out of the primary copy, portion by portion; `StateSetAside` follows.

    Other events are handled in between: the driver calls `InstantMoves.set_portion_aside` until none is left.
    """

    shard: int


@dataclass(frozen=True, slots=True)
class OpenShard:
    """Let `task` begin a shard without state; `StateInstalled` follows."""

    shard: int
    task: int
    node: int


@dataclass(frozen=True, slots=True)
class RequestFlush:
    """Request the dirty state of a remote task, or of one `shard` of it."""

    task: int
    node: int
    token: int
    shard: int = ALL_SHARDS


@dataclass(frozen=True, slots=True)
class Finished:
    """All inputs have ended; all their rows are processed, all outputs emitted, all state is in the primary copy."""


@dataclass(frozen=True, slots=True)
class EmitWatermark:
    """A watermark is due: take it with `Watermarks.take` and send it, before the next one is taken."""


@dataclass(frozen=True, slots=True)
class FlushComplete:
    """Every remote task has answered the flush request `token`."""

    token: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The primary copy has exactly the rows before the barriers of a checkpoint: copy it, then pass the barrier on."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class GroupsHeld:
    """What arrives for groups to come waits, and tasks have done what they had taken before."""

    version: int


@dataclass(frozen=True, slots=True)
class GroupsDrained:
    """Everything that must be processed before groups leave is processed, and its outputs have left."""

    version: int


@dataclass(frozen=True, slots=True)
class GroupsExchanged:
    """The executor has given and got all groups of a move."""

    version: int


Instruction = (
    Wake
    | Run
    | Release
    | StartTask
    | InstallState
    | SetAside
    | OpenShard
    | RequestFlush
    | FlushComplete
    | EmitWatermark
    | Cut
    | GroupsHeld
    | GroupsDrained
    | GroupsExchanged
    | Finished
)
