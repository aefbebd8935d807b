"""How a source with a rate is spread over time: small slices of rows, each with the time at which it is due."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.vocab.errors import TopologyError

SLICE_SECONDS = 0.005
"""How much time one slice stands for: short beside every latency target, long beside the cost of a slice."""


def rows_within(rate: float | None, seconds: float, most: int) -> int:
    """Say how many rows of a paced stream fall into some seconds.

    Parameters
    ----------
    rate : float or None
        Rows per second; None is unlimited.
    seconds : float
        The length of the span.
    most : int
        The answer is never above this.

    Returns
    -------
    int
        At least 1, so that slow streams proceed row by row.

    Examples
    --------
    >>> rows_within(20_000, 0.005, most=65_536), rows_within(3, 0.005, most=65_536), rows_within(None, 0.005, most=10)
    (100, 1, 10)
    """
    if rate is None:
        return most
    return max(1, int(min(rate * seconds, most)))


def cut(rows: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into consecutive slices without copying.

    Parameters
    ----------
    rows : RecordBatch
        The rows to cut; an empty batch gives no slice.
    most : int
        How many rows a slice holds at most.

    Yields
    ------
    RecordBatch
        The slices, in order; the batch itself when it is small enough.

    Examples
    --------
    >>> [piece.num_rows for piece in cut(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), 2)]
    [2, 1]
    """
    if 0 < rows.num_rows <= most:
        yield rows
        return
    for start in range(0, rows.num_rows, most):
        yield rows.slice(start, most)


class Pace:
    """Cuts the batches of one source instance into slices that are due at a steady rate.

    Parameters
    ----------
    rate : float or None
        Rows per second of this instance; None is as fast as possible.
    started : float
        The time, in seconds on the caller's clock, at which the first row is due.
    slice_seconds : float, default 0.005
        How much time one slice stands for.
    max_rows : int, default 65536
        How many rows a slice holds at most, whatever the rate.

    Raises
    ------
    TopologyError
        When the rate is not a positive number.

    Notes
    -----
    A slice is due when its first row is: `started + rows before it / rate`. The time is counted from the number of
    rows and never from the slice before, so rounding does not add up and a source that fell behind is due at once
    until it has caught up. Latency is measured from the due time, not from the moment a late source got round to
    emitting: otherwise a system that cannot keep up would look fast.

    Examples
    --------
    >>> pace = Pace(rate=200, started=10.0, slice_seconds=0.01)
    >>> rows = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
    >>> [(piece.num_rows, due) for piece, due in pace.slice(rows)]
    [(2, 10.0), (1, 10.01)]
    >>> [(piece.num_rows, due) for piece, due in pace.slice(rows)]
    [(2, 10.015), (1, 10.025)]
    """

    def __init__(
        self, rate: float | None, started: float, *, slice_seconds: float = SLICE_SECONDS, max_rows: int = 65_536
    ):
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise TopologyError(f"rate is {rate}; give a positive number of rows per second, or None for no limit.")
        self.rate = rate
        self.started = started
        self.rows = 0
        self._slice_rows = rows_within(rate, slice_seconds, max_rows)

    @property
    def due(self) -> float | None:
        """When the next row is due, in seconds on the caller's clock; None for a source without a rate."""
        return None if self.rate is None else self.started + self.rows / self.rate

    def came(self, asked: float, now: float) -> None:
        """Note when rows came that nobody could have emitted before: whatever comes late is due when it comes.

        Parameters
        ----------
        asked, now : float
            When they were asked for, and when they came. What the source was behind by when it asked, it stays behind.

        Examples
        --------
        >>> pace = Pace(rate=200, started=10.0)
        >>> pace.came(asked=9.0, now=13.0)
        >>> pace.due
        13.0
        >>> pace.came(asked=14.0, now=14.5)
        >>> pace.due
        13.5
        """
        if self.due is not None:
            self.started += max(0.0, now - max(asked, self.due))

    def slice(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, float | None]]:
        """Cut one batch, the next of the stream.

        Parameters
        ----------
        rows : RecordBatch
            The batch; the rows of an abandoned iterator that were not yielded do not count as emitted.

        Yields
        ------
        tuple of RecordBatch and float or None
            A slice, and when it is due; None means at once.
        """
        for piece in cut(rows, self._slice_rows):
            due = self.due
            self.rows += piece.num_rows
            yield piece, due
