"""Measures what it costs to add a row to one instance more, while rows are added to slices.

Goal
    E, the cost of a pair of a row and a partial, in jobs with small batches: nearly all of their time is that of the
    batch, so that it takes thousands of them to tell what a row costs, and instances may take sixty of these.
Method
    Now and then, the rows of a batch are added to a few of their instances, and to one, from no state and without
    writing any. The difference of both times is that of the pairs that are more.
Not done
    What reading and writing the state costs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_elastic.executor.windows.added_rows import Rows
from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cells import EventCells
from dask_elastic.executor.windows.event_times import Times
from dask_elastic.executor.windows.known_cells import MOST_CELLS, KnownCells
from dask_elastic.routing.hashing import checks_of
from dask_elastic.state.index import Words
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.chosen_rows import taken
from dask_elastic.vocab.errors import NumericOverflow
from dask_elastic.vocab.state_record import END_OF_TIME
from dask_elastic.vocab.window_costs import WindowCosts

FIRST = 8
"""A task has processed so many batches before the first rehearsal."""

SHARE = 0.02
"""Rehearsals take up to this share of the time of the task's windows, except for the first one."""

MOST_INSTANCES, MOST_PAIRS = 8, 1 << 16
"""Rows are added to so many instances at most, as pairs of a row and an instance to so many."""


class RehearsedRows:
    """Adds rows to instances for the sake of measuring; of one task, not shared between threads.

    Parameters
    ----------
    operator : Compute
        A compute with windows whose plan may change.
    known : KnownCells
        The keys of the task.
    clock : callable
        Returns the CPU seconds of the thread.
    """

    def __init__(self, operator: Compute, known: KnownCells, clock: Callable[[], float]) -> None:
        assert operator.windowing is not None
        self._cells = EventCells(operator.windowing, separate=True)
        self._keys = operator.keys
        self._known = known
        self._clock = clock
        self._batches = 0
        self._taken = self._spent = 0.0

    @staticmethod
    def measures(operator: Compute) -> bool:
        """Return whether it measures what is not known otherwise, and calls no function of users."""
        windowing, aggregates = operator.windowing, operator.aggregates
        if windowing is None or aggregates is None or not windowing.changes_sharing:
            return False
        return not any(one.calls_functions for one in aggregates.values())

    def took(self, seconds: float) -> None:
        """Note the CPU seconds in which a batch was added to slices, with its updates."""
        self._batches += 1
        self._taken += seconds

    def of(self, bound: BoundWindows, rows: Rows, hashes: Words, times: Times, reached: int) -> WindowCosts | None:
        """Add the rows of a batch, if it is time to; nothing is kept.

        Called before they are added to slices: if anything raises, the batch has not been processed.

        Parameters
        ----------
        bound : BoundWindows
            What depends on the schema.
        rows : RecordBatch or ChosenRows
            The rows.
        hashes : ndarray of uint64
            The hashes of their keys.
        times : ndarray of int64
            Their times.
        reached : int
            The event time up to which instances are closed.

        Returns
        -------
        WindowCosts or None
            What was measured; None if it is not time to.
        """
        if self._batches < FIRST or self._spent > SHARE * self._taken:
            return None
        began = self._clock()
        try:
            return self._measured(bound, rows, hashes, times, reached)
        except NumericOverflow:
            # A sum from no state may be beyond its type where that of the instance is not.
            return None
        finally:
            self._spent += self._clock() - began

    def _measured(
        self, bound: BoundWindows, rows: Rows, hashes: Words, times: Times, reached: int
    ) -> WindowCosts | None:
        middle = np.partition(times, len(times) // 2)[len(times) // 2]
        # Later rows are in later instances, of which there may be thousands.
        behind = middle - (middle - self._cells.offset) % self._cells.slice + self._cells.slice
        if times.max() >= behind:
            chosen = np.flatnonzero(times < behind)
            rows, hashes, times = taken(rows, chosen), hashes.take(chosen), times.take(chosen)
        ends = [end for _, end in self._cells.closing(middle[np.newaxis], reached, END_OF_TIME)]
        most = min(MOST_INSTANCES, len(ends), MOST_PAIRS // len(times))
        if most < 2:
            return None
        by_index = len(ends) > MOST_CELLS
        if not self._spent:
            # The first time takes longer.
            self._added(bound, rows, hashes, times, ends[-2], by_index)
        few, seconds_of_few = self._added(bound, rows, hashes, times, ends[-2], by_index)
        since = ends[-most - 1] if most < len(ends) else reached
        many, seconds_of_many = self._added(bound, rows, hashes, times, since, by_index)
        if many <= few:
            return None
        return WindowCosts(tried=float(many - few), trying=max(0.0, seconds_of_many - seconds_of_few))

    def _added(
        self, bound: BoundWindows, rows: Rows, hashes: Words, times: Times, since: int, by_index: bool
    ) -> tuple[int, float]:
        """Add rows to the instances that end later than `since`; returns the pairs, and the CPU seconds."""
        began = self._clock()
        assigned = self._cells.of_points(times, since)
        if assigned.rows is not None:
            rows, hashes = taken(rows, assigned.rows), hashes.take(assigned.rows)
        if not len(hashes):
            return 0, 0.0
        checks = checks_of(rows, bound.keys, self._keys)
        cells = np.zeros(len(hashes), np.int64) if assigned.cells is None else assigned.cells
        grouping = self._known.grouped(hashes, checks, assigned.numbers, cells, by_index)
        bound.bundle.update([field.initially(grouping.count) for field in bound.bundle.fields], rows, grouping)
        return len(hashes), self._clock() - began
