"""Calls that move key groups between executors: of clients, of the scheduler to the nodes of a job, between nodes."""

from __future__ import annotations

from typing import NamedTuple

from dask_elastic.runtime.protocol.calls import A, Call
from dask_elastic.runtime.protocol.home_calls import StateRowsSent
from dask_elastic.runtime.protocol.part_calls import PartCall

# a client to the scheduler


class MovedGroups(NamedTuple):
    """A move of key groups that has ended.

    Parameters
    ----------
    groups : int
        How many have moved.
    nbytes : int
        Bytes of state that moved; those of rows that changed meanwhile, several times.
    pause : float
        Seconds for which rows of a group waited at most.
    seconds : float
        Seconds from the request to the end.
    paused_bytes : int
        Bytes of state that moved while rows waited.

    Examples
    --------
    >>> moved = MovedGroups(groups=2, nbytes=4096, pause=0.012, seconds=0.03, paused_bytes=128)
    >>> moved.groups, moved.pause
    (2, 0.012)
    """

    groups: int
    nbytes: int
    pause: float
    seconds: float
    paused_bytes: int


class MoveGroups(Call[MovedGroups]):
    """Move key groups of an operator to an executor; answered when they are there.

    Parameters
    ----------
    job, operator : str
        Names of the job and of the operator.
    groups : tuple of int
        The groups.
    executor : int
        Their next executor.
    strategy : str or None
        How they move; None for the way that the job was submitted with.
    """

    job: str
    operator: str
    groups: tuple[int, ...]
    executor: int
    strategy: str | None


# the scheduler to a worker


class GroupCall(PartCall[A]):
    """A call about a move of groups; see `dask_elastic.migration.group_move`.

    Parameters
    ----------
    operator : str
        The operator.
    version : int
        The version of its table of groups that the move leads to.
    """

    operator: str
    version: int


class CopyGroups(GroupCall[None]):
    """Copy the state of the groups that are to leave executors there, while these are processed; answered when done.

    Errors leave all groups where they are, `StateMemoryExceeded` for example if there is no memory for the copy.

    Parameters
    ----------
    executors : dict of int to int
        The next executor of each group that moves.
    """

    executors: dict[int, int]


class HoldGroups(GroupCall[None]):
    """Have the executors there hold what arrives for the groups that they gain.

    Errors leave all groups where they are, `MoveRefused` for example if an executor has got its last row.

    Parameters
    ----------
    executors : dict of int to int
        The next executor of each group that moves.
    drains : bool
        Whether all executors of the operator process everything before any group moves.
    """

    executors: dict[int, int]
    drains: bool


class GroupsMoved(NamedTuple):
    """What a node has done in a move of groups.

    Parameters
    ----------
    nbytes : int
        Bytes of state that were copied from there before groups left, and that have come there with groups.
    pause : float
        Seconds for which rows of a group that moves waited there at most.
    paused_bytes : int
        Bytes of state that have come there while rows waited.
    """

    nbytes: int
    pause: float
    paused_bytes: int


class SwitchGroups(GroupCall[GroupsMoved]):
    """Have the upstream instances there use the next table.

    Answered when the executors there have given and got their groups, or if the instances pause, when the executors
    have processed everything.

    Parameters
    ----------
    executors : dict of int to int
        The next executor of each group that moves.
    pauses : bool
        Whether the instances send no batch until `ResumeGroups`.
    """

    executors: dict[int, int]
    pauses: bool


class GiveGroups(GroupCall[GroupsMoved]):
    """Have the executors there, which are drained, give their groups; answered when they have got theirs as well."""


class ResumeGroups(GroupCall[GroupsMoved]):
    """Have the upstream instances there send batches again."""


class ForgetGroups(GroupCall[None]):
    """End a move there that was cancelled before any instance has switched."""


# an executor to another one


class InstallCopied(GroupCall[None]):
    """Install a portion of the state of groups that may come from an executor of another node to one there.

    Parameters
    ----------
    executor : int
        The executor that may get them.
    source : int
        The executor that has them.
    groups : tuple of int
        The groups.
    position : int
        How many portions are before this one.
    rows : tuple of StateRowsSent
        The rows.
    """

    executor: int
    source: int
    groups: tuple[int, ...]
    position: int
    rows: tuple[StateRowsSent, ...]


class InstallGroups(GroupCall[None]):
    """Install groups that an executor of another node gives to one there.

    Parameters
    ----------
    executor : int
        The executor that gets them.
    source : int
        The executor that gives them.
    groups : tuple of int
        The groups.
    portions : int
        How many portions of their state were sent before, by `InstallCopied`.
    rest : tuple of StateRowsSent
        The rest of it.
    schemas : dict of str to (bytes or None)
        The schema of the input of each compute, as an Arrow IPC message.
    event_time : int or None
        The event time of their last state record.
    taken : float
        The newest processing time of a row.
    """

    executor: int
    source: int
    groups: tuple[int, ...]
    portions: int
    rest: tuple[StateRowsSent, ...]
    schemas: dict[str, bytes | None]
    event_time: int | None
    taken: float
