"""On which side of an event time the windows of rows begin, as the home of an executor finds out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.executor.windows.cells import EventCells
from dask_elastic.executor.windows.event_times import Times, bounds_of_spans, microseconds
from dask_elastic.migration.strategy import unmerged
from dask_elastic.state.slot_search import Mask
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import Windowing
from dask_elastic.vocab.arrow_arrays import numpy_of
from dask_elastic.vocab.errors import SchemaMismatch


class RowSides:
    """The sides of an event time on which the windows of rows begin.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.

    Attributes
    ----------
    in_both : float
        The share of rows that are in windows of both sides, until the earlier ones have closed.

    Examples
    --------
    >>> from dask_elastic.topology.windowing import EventWindow
    >>> sides = RowSides(Windowing((EventWindow(0, 30, 10),), ("at",)))
    >>> rows = pa.record_batch({"at": pa.array([5, 25, 45], pa.timestamp("us"))})
    >>> earlier, later = sides.divide(rows, 20)
    >>> earlier.tolist(), later.tolist(), sides.latest(rows), sides.last_end(20)
    ([True, True, False], [False, True, True], 45, 40)
    """

    def __init__(self, windowing: Windowing) -> None:
        self._cells = EventCells(windowing)
        self._columns = windowing.time
        self._overlapping = windowing.spans == "overlapping"
        self.in_both = max(max(0.0, 1 - window.frequency / window.length) for window in self._cells.windows)

    def latest(self, rows: pa.RecordBatch) -> int | None:
        """Return the latest time at which an instance with any of the rows can begin, in microseconds; None without.

        That is the latest time of the rows, or begin of the spans for which they stand; the last microsecond of these
        if instances that begin within them contain them.
        """
        name = self._columns[0]
        if rows.schema.names.count(name) != 1:
            # The task that processes the rows says so.
            return None
        if self._overlapping:
            return self._latest_of_spans(rows)
        column = rows.column(name)
        if column.null_count == len(column) or not pa.types.is_temporal(column.type):
            return None
        try:
            return int(microseconds(pa.repeat(pc.max(column), 1), name)[0])
        except (SchemaMismatch, ValueError):
            return None

    def _latest_of_spans(self, rows: pa.RecordBatch) -> int | None:
        if (times := self._times(rows)) is None:
            return None
        timed = np.logical_and.reduce([rows.column(name).is_valid() for name in self._columns])
        latest, _ = bounds_of_spans(times[0], times[1], overlapping=True)
        return int(latest[timed].max()) if timed.any() else None

    def divide(self, rows: pa.RecordBatch, begin: int) -> tuple[Mask, Mask]:
        """Return which rows are in windows that begin before an event time, and which in later ones.

        Rows in no window, without a time, or with one that is too large are with the later ones: the task that gets
        them counts or reports them.

        Parameters
        ----------
        rows : RecordBatch
            The rows.
        begin : int
            The event time, in microseconds since the Unix epoch.

        Returns
        -------
        ndarray of bool, ndarray of bool
            One element per row each. A row may be in windows of both sides.
        """
        times = self._times(rows)
        if times is None:
            return np.zeros(rows.num_rows, np.bool_), np.ones(rows.num_rows, np.bool_)
        earlier, later = self._cells.sides(times, begin)
        for name in self._columns:
            if rows.column(name).null_count:
                untimed = numpy_of(rows.column(name).is_null())
                earlier, later = earlier & ~untimed, later & ~untimed
        return earlier, later | ~earlier

    def last_end(self, begin: int) -> int:
        """Return the latest end of a window that begins before an event time."""
        return self._cells.last_end(begin)

    def _times(self, rows: pa.RecordBatch) -> list[Times] | None:
        try:
            return [microseconds(rows.column(name), name) for name in self._columns]
        except (KeyError, SchemaMismatch, ValueError):
            return None


def row_sides(computes: Sequence[Compute]) -> RowSides | None:
    """Return the sides of the windows of an executor; None if its partials cannot be merged.

    Parameters
    ----------
    computes : sequence of Compute
        Its computes.
    """
    if len(computes) != 1 or unmerged(computes[0]) is not None:
        return None
    assert computes[0].windowing is not None
    return RowSides(computes[0].windowing)
