"""Calls that move the home of an executor: of the scheduler to the two homes, and of the old home to the new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.vocab.identity import ExecutorId

# the scheduler to a worker


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class CancelHome(PartCall[None]):
    """End what `PrepareHome` has begun there, because the executor stays where it is.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    """

    operator: str
    executor: int


class HomeMoved(NamedTuple):
    """How the home of an executor has moved.

    Parameters
    ----------
    nbytes : int
        Bytes of state that were sent.
    pause : float
        Seconds from the first upstream instance that used the new home until the executor had begun there.
    cores : dict of int to int
        The executor's cores by node, which may be fewer than before if a node was lost meanwhile.
    """

    nbytes: int
    pause: float
    cores: dict[int, int]


@dataclass(frozen=True)
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
    """

    operator: str
    executor: int
    table: HomeTable


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


@dataclass(frozen=True)
class InstallHome(PartCall[dict[int, int]]):
    """Continue an executor there with what its old home hands over; the answer is its cores by node.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        Which of its executors.
    state : tuple of Payload
        The state, as Arrow IPC streams.
    input_schema : bytes or None
        The schema of the input, as an Arrow IPC message.
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
    cores : dict of int to int
        The cores by node.
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
    state: tuple[Payload, ...]
    input_schema: bytes | None
    event_time: int | None
    counts: tuple[int, ...]
    inputs: tuple[InputStanding, ...]
    inputs_time: int | None
    watermarks: tuple[WatermarkStanding, ...]
    sharing: tuple[bool, tuple[tuple[int, bool], ...]]
    clocks: tuple[int | None, int]
    taken: float
    incarnations: dict[int, int]
    cores: dict[int, int]
    rows: int
    over: int
    newest_change: int
    credit: tuple[CreditInUse, ...]
