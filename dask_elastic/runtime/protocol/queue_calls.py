"""Calls about output queues: sinks offer rows to the scheduler, readers take them from the workers that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dask_elastic.runtime.protocol.calls import Call
from dask_elastic.runtime.protocol.codec import Payload

# a sink to the scheduler


class OpenQueue(Call[None]):
    """Note that a job writes a queue, so that its readers learn of the job's end.

    Parameters
    ----------
    job, queue : str
        The job and the name of the queue.
    generation : int
        The job's generation.
    limit : int
        How many items may wait in the queue.
    by_get : bool
        Whether an item is taken as soon as a client gets it from the Dask queue of that name.
    """

    job: str
    generation: int
    queue: str
    limit: int
    by_get: bool = False


class OfferRows(Call[bool]):
    """Append rows that a worker holds to a queue; the answer is False when the queue stays full for `wait` seconds.

    Parameters
    ----------
    job, queue : str
        The job and the name of the queue.
    generation, limit : int
        See `OpenQueue`.
    address : str
        The worker.
    item : int
        The worker's number for the rows.
    wait : float
        Seconds.
    count, nbytes : int
        The number of rows, and of the bytes that they have as an Arrow IPC stream.
    rows : bytes or None
        This stream, for the Dask queue; None if it is too large for the scheduler.
    """

    job: str
    generation: int
    queue: str
    limit: int
    address: str
    item: int
    wait: float
    count: int = 0
    nbytes: int = 0
    rows: bytes | None = None


# a reader to the scheduler


class QueueItem(NamedTuple):
    """Rows in a queue that a worker holds until a reader has taken them.

    Parameters
    ----------
    number : int
        The place in the queue, counted from 1.
    address : str
        The worker.
    item : int
        The worker's number for the rows.
    """

    number: int
    address: str
    item: int


@dataclass(frozen=True)
class QueueItems:
    """The items of a queue that a reader has not taken.

    Parameters
    ----------
    items : tuple of QueueItem
        In order.
    ended : bool
        Whether no more will come.
    job : str
        The job that writes the queue; empty when no job does.
    generation : int
        The job's generation.
    ledger : str
        Identifies the count of the items: a writer that has restarted counts anew.
    """

    items: tuple[QueueItem, ...] = ()
    ended: bool = False
    job: str = ""
    generation: int = 0
    ledger: str = ""


class NextRows(Call[QueueItems]):
    """Return the items of a queue behind a number of a ledger, after waiting up to `wait` seconds for one.

    Items of another ledger are new.
    """

    queue: str
    ledger: str
    after: int
    wait: float


class TakeRows(Call[None]):
    """Note that a reader has taken every item up to a number of a ledger."""

    queue: str
    ledger: str
    through: int


# a reader, and the scheduler, to a worker


class HeldRows(Call[Payload]):
    """Return rows that a sink's worker holds, as an Arrow IPC stream."""

    job: str
    generation: int
    item: int


class DropRows(Call[None]):
    """Forget rows that a reader has taken."""

    job: str
    generation: int
    items: tuple[int, ...]
