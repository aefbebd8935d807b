"""Calls that move key groups between executors: of clients, of the scheduler to the nodes of a job, between nodes."""

from __future__ import annotations

from typing import NamedTuple

from dask_elastic.runtime.protocol.calls import A, Call
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.part_calls import PartCall

# a client to the scheduler


class MovedGroups(NamedTuple):
    """A move of key groups that has ended.

    Parameters
    ----------
    groups : int
        How many have moved.
    nbytes : int
        Bytes of their state.
    pause : float
        Seconds for which rows of a group waited at most.
    seconds : float
        Seconds from the request to the end.

    Examples
    --------
    >>> moved = MovedGroups(groups=2, nbytes=4096, pause=0.012, seconds=0.03)
    >>> moved.groups, moved.pause
    (2, 0.012)
    """

    groups: int
    nbytes: int
    pause: float
    seconds: float


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
        Bytes of state that have come there from other executors.
    pause : float
        Seconds for which rows of a group that moves waited there at most.
    """

    nbytes: int
    pause: float


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


class InstallGroups(GroupCall[None]):
    """Install groups that an executor of another node gives to one there.

    Parameters
    ----------
    executor : int
        The executor that gets them.
    groups : tuple of int
        The groups.
    state : tuple of Payload
        Their state, as an Arrow IPC stream; empty before the first batch.
    input_schema : bytes or None
        The schema of the input, as an Arrow IPC message.
    event_time : int or None
        The event time of their last state record.
    taken : float
        The newest processing time of a row.
    """

    executor: int
    groups: tuple[int, ...]
    state: tuple[Payload, ...]
    input_schema: bytes | None
    event_time: int | None
    taken: float
