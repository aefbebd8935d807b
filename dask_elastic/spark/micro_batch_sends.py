"""The handoffs of the current micro-batch of each streaming query: refuses a second one under the same name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_elastic.vocab.errors import HandoffError


class MicroBatch(NamedTuple):
    """A micro-batch that `foreachBatch` passes to its function.

    Parameters
    ----------
    query : str
        Spark's id of the streaming query.
    run : str or None
        Spark's id of this start of the query. A later one may repeat the micro-batch.
    epoch : int
        The number of the micro-batch.
    """

    query: str
    run: str | None
    epoch: int


class Destination(NamedTuple):
    """Where a handoff sends rows, and under which name.

    Parameters
    ----------
    job, run : str
        The job.
    source : str
        The source.
    query : str
        The name of the writing query.
    """

    job: str
    run: str
    source: str
    query: str


@dataclass
class _Sends:
    batch: MicroBatch
    destinations: set[Destination] = field(default_factory=set)


class MicroBatchSends:
    """Refuses two handoffs of one micro-batch to one source under one name.

    The ledger could not tell the second one from a repetition of the first: it would ignore equal rows, and fail the
    job on others.

    Examples
    --------
    >>> sends, batch = MicroBatchSends(), MicroBatch("q", "run", 0)
    >>> with sends.once(batch, Destination("flights", "1", "rows", "q")):
    ...     pass
    >>> with sends.once(batch, Destination("flights", "1", "rows", "late")):
    ...     pass
    """

    def __init__(self) -> None:
        self._sends: dict[str, _Sends] = {}
        self._lock = threading.Lock()

    @contextmanager
    def once(self, batch: MicroBatch, destination: Destination) -> Iterator[None]:
        """Run a handoff in a block; a block that fails does not count, so that it may be run again.

        Parameters
        ----------
        batch : MicroBatch
            The micro-batch.
        destination : Destination
            Where its rows go.

        Raises
        ------
        HandoffError
            If the rows of the micro-batch were, or are being, sent there already.
        """
        with self._lock:
            sends = self._sends.get(batch.query)
            if sends is None or sends.batch != batch:
                sends = self._sends[batch.query] = _Sends(batch)
            if destination in sends.destinations:
                raise HandoffError(
                    f"job {destination.job!r}, source {destination.source!r}: the function of foreachBatch has already "
                    f"handed over rows of epoch {batch.epoch} as query {destination.query!r}, and an epoch has its "
                    "rows once. Give each handoff of a micro-batch a name: handoff(frame, epoch, job, query='late')."
                )
            sends.destinations.add(destination)
        try:
            yield
        except BaseException:
            sends.destinations.discard(destination)
            raise
