"""Calls that move the home of an executor: of the scheduler to the two homes, and of the old home to the new one."""

from __future__ import annotations

from typing import NamedTuple

from dask_elastic.checkpoint.chain import Chain
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.vocab.identity import ExecutorId

# the scheduler to a worker


class HomeCopied(NamedTuple):
    """How the state of an executor was copied to its next home.

    Parameters
    ----------
    nbytes : int
        Bytes of state that were sent.
    rounds : int
        How often what had changed meanwhile was sent.
    """

    nbytes: int
    rounds: int


class CopyHome(PartCall[HomeCopied]):
    """Copy the state of an executor from there to a node that may become its home; the executor goes on meanwhile.

    The answer comes when what has changed since is small, or no longer becomes less. The copy is kept up to date until
    `MoveHome` uses it, or `CancelHome` ends it. Any error leaves the executor where it is.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    table : HomeTable
        Where its executors are after the move. Its version is the number of the copy.
    """

    operator: str
    executor: int
    table: HomeTable


class PrepareHome(PartCall[None]):
    """Hold what arrives for an executor whose home the node becomes; after the answer, `MoveHome` may be called.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    tables : dict of str to HomeTable
        Where the executors of every operator with executors are, before the move: the node may have joined later than
        others moved.
    """

    operator: str
    executor: int
    tables: dict[str, HomeTable]


class CancelHome(PartCall[None]):
    """End what `CopyHome` and `PrepareHome` have begun at either home, because the executor stays where it is.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    version : int
        The version of the table of the move: copies of later ones go on.
    """

    operator: str
    executor: int
    version: int


class HomeMoved(NamedTuple):
    """How the home of an executor has moved.

    Parameters
    ----------
    nbytes : int
        Bytes of state that were sent.
    paused_bytes : int
        Those that were sent during the pause.
    pause : float
        Seconds from the first upstream instance that used the new home until the executor had begun there.
    cores : dict of int to int
        The cores with which the executor has begun, by node.
    """

    nbytes: int
    paused_bytes: int
    pause: float
    cores: dict[int, int]


class MoveHome(PartCall[HomeMoved]):
    """Move the home of an executor from there to a node that is prepared; the answer comes at the end of the move.

    Errors are `MoveRefused` if the executor stays, which it may do because its inputs have ended. All other errors end
    the job's generation.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    table : HomeTable
        Where its executors are after the move.
    cores : int
        Cores with which it begins at its new home, at least one. Others are given to it afterwards.
    """

    operator: str
    executor: int
    table: HomeTable
    cores: int


# the old home to the new one


class InputStanding(NamedTuple):
    """How far an input of an executor is.

    Parameters
    ----------
    origin : ExecutorId
        The upstream instance.
    is_open, timed, idle : bool
        Whether it has not ended, has event time, and is idle.
    time : int or None
        Its watermark.
    """

    origin: ExecutorId
    is_open: bool
    timed: bool
    idle: bool
    time: int | None


class WatermarkStanding(NamedTuple):
    """Event time reached, and whether the executor is idle; see `Watermarks.standing`."""

    time: int | None
    idle: bool


class CreditInUse(NamedTuple):
    """Outputs that a receiver has not processed: their bytes, and how many batches they are."""

    target: ExecutorId
    nbytes: int
    batches: int


class StateRowsSent(NamedTuple):
    """Rows of one compute; see `CopiedRows`.

    Parameters
    ----------
    operator : str
        The compute.
    changed : bool
        Whether they have changed since the last checkpoint.
    rows : Payload
        The rows, as an Arrow IPC stream.
    """

    operator: str
    changed: bool
    rows: Payload


class CopyState(PartCall[None]):
    """Install a portion of the state of an executor that may come.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    number : int
        The number of the copy.
    position : int
        How many portions of it are before this one.
    portion : tuple of StateRowsSent
        The portion, which has a few MiB at most.
    """

    operator: str
    executor: int
    number: int
    position: int
    portion: tuple[StateRowsSent, ...]


class InstallHome(PartCall[dict[int, int]]):
    """Continue an executor there with what its old home hands over; the answer is its cores by node.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    copy : int
        The number of the copy of the state.
    portions : int
        How many portions of it were sent before.
    rest : tuple of StateRowsSent
        The last portion; empty if there is no further one.
    schemas : dict of str to (bytes or None)
        The schema of the input of each compute, as an Arrow IPC message.
    chains : dict of str to (Chain or None)
        The files of the last checkpoints of each compute; empty if the job takes none.
    event_time : int or None
        The event time of the last state record.
    counts : tuple of int
        What became of the rows, the numbers of a `ComputeTally` for each compute.
    inputs : tuple of InputStanding
        The inputs.
    inputs_time : int or None
        See `Inputs.time`.
    watermarks : tuple of WatermarkStanding
        See `Watermarks.standing`.
    sharing : tuple of (bool, tuple of (int, bool))
        See `Sharing.standing`.
    clocks : tuple of (int or None, int)
        See `StateRecords.standing`.
    taken : float
        The newest processing time of a row.
    incarnations : dict of int to int
        See `Links.incarnations`.
    cores : int
        The cores with which it begins there.
    rows : int
        Tuples processed so far.
    over : int
        The newest checkpoint that is over.
    newest_change : int
        The newest change of cores.
    credit : tuple of CreditInUse
        The credit in use at each receiver of outputs.
    """

    operator: str
    executor: int
    copy: int
    portions: int
    rest: tuple[StateRowsSent, ...]
    schemas: dict[str, bytes | None]
    chains: dict[str, Chain | None]
    event_time: int | None
    counts: tuple[int, ...]
    inputs: tuple[InputStanding, ...]
    inputs_time: int | None
    watermarks: tuple[WatermarkStanding, ...]
    sharing: tuple[bool, tuple[tuple[int, bool], ...]]
    clocks: tuple[int | None, int]
    taken: float
    incarnations: dict[int, int]
    cores: int
    rows: int
    over: int
    newest_change: int
    credit: tuple[CreditInUse, ...]
