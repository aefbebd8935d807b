"""How many rows a source sends at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dask_elastic.meters.batch_cost import BatchCost
from dask_elastic.meters.rate import Rate
from dask_elastic.vocab.batch import MAX_BATCH_ROWS

JOIN_SECONDS = 0.02
"""How often the source looks up how many rows it may join; rows of this time are always joined."""

KEPT = 0.9
"""Factor on the weight of a batch with each later batch, in the estimate of the bytes per row."""

FIXED_COSTS = 4
"""Rows of as many times the fixed cost of a send are always joined, too: it takes up to a quarter of the time."""

LEAST_ROWS = 1_024
"""Batches up to this many rows are not cut: that would cost more than it saves."""


class SendSize:
    """Rows up to which waiting batches are joined, and larger ones cut.

    A few joined batches fill the windows of the receivers. Rows of `JOIN_SECONDS` never wait long for each other. If a
    send has a high fixed cost, such as that of a map that calls a service, the rows of a few such times are joined.

    Parameters
    ----------
    join_bytes : callable
        Returns the bytes of outputs for which waiting batches are joined; None before the first output.

    Examples
    --------
    >>> window = 64_000
    >>> size = SendSize(lambda: window)
    >>> size.emitted(rows=100, nbytes=3_200)
    >>> size.joins(now=0.0)
    2000
    >>> parts = size.parts(10_000, clock=lambda: 0.0)
    >>> next(parts)
    (0, 2000)
    >>> window = 128_000
    >>> list(parts)
    [(2000, 4000), (6000, 4000)]
    """

    __slots__ = ("_cost", "_join_bytes", "_looked_up", "_most", "_nbytes", "_rate", "_rows", "_sent_at", "_took")

    def __init__(self, join_bytes: Callable[[], int | None]):
        self._join_bytes = join_bytes
        # Decaying sums, from which the bytes of outputs per row are estimated.
        self._nbytes = self._rows = 0.0
        self._rate = Rate(window=1.0)
        self._cost = BatchCost()
        self._most = LEAST_ROWS
        self._looked_up: float | None = None
        # Seconds between the last two sends. The rate's window is too short for rows that left in a longer time.
        self._sent_at: float | None = None
        self._took = 0.0

    def emitted(self, rows: int, nbytes: int) -> None:
        """Note that so many rows had outputs of `nbytes`."""
        self._nbytes = self._nbytes * KEPT + nbytes
        self._rows = self._rows * KEPT + rows

    def took(self, rows: int, busy: float) -> None:
        """Note for how many seconds the source was busy with so many rows, without waiting for credit."""
        self._cost.add(rows, busy)

    def sent(self, rows: int, now: float) -> None:
        """Note that so many rows were sent."""
        self._rate.add(rows, now)
        self._took = 0.0 if self._sent_at is None else now - self._sent_at
        self._sent_at = now

    def joins(self, now: float) -> int:
        """Return up to how many rows waiting batches are joined; looked up every `JOIN_SECONDS`."""
        if self._looked_up is None or now - self._looked_up > JOIN_SECONDS:
            return self._look_up(now)
        return self._most

    def parts(self, rows: int, clock: Callable[[], float]) -> Iterator[tuple[int, int]]:
        """Cut a batch: the first parts make windows grow, and so the later parts.

        Parameters
        ----------
        rows : int
            The rows of the batch.
        clock : callable
            Returns the time in seconds.

        Yields
        ------
        tuple of (int, int)
            Where a part begins, and how many rows it has.
        """
        start = 0
        while start < rows:
            most = max(self._look_up(clock()), LEAST_ROWS)
            yield start, min(most, rows - start)
            start += most

    def _look_up(self, now: float) -> int:
        fixed = self._cost.expected(0) or 0.0
        per_second = self._rate.per_second(now) / max(1.0, self._took / self._rate.window)
        recent = per_second * max(JOIN_SECONDS, FIXED_COSTS * fixed)
        nbytes = self._join_bytes()
        fills = nbytes * self._rows / self._nbytes if nbytes and self._nbytes else LEAST_ROWS
        self._most, self._looked_up = int(min(max(recent, fills, 1), MAX_BATCH_ROWS)), now
        return self._most
