"""Cells: the parts of event time for which a key has one partial aggregate each, and the cells that rows are in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.control_records.state_records import Grid
from dask_elastic.executor.windows.event_times import Times, bounds_of_spans
from dask_elastic.state.session import Located
from dask_elastic.state.slot_search import Mask
from dask_elastic.topology.aggregates.ragged import offsets_of, spans
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import MOST, EventWindow, Windowing
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.window_side import WindowSide

Numbers: TypeAlias = npt.NDArray[np.int64]
_FEW = 64

APART = 2**62 + 2**61
"""Added to the numbers of instances beside slices, so that both kinds of cells have numbers of their own."""


class Assigned(NamedTuple):
    """The cells that rows are in.

    Parameters
    ----------
    rows : ndarray of int64 or None
        The row of each pair of a row and a cell; None if every row is in one cell, in order.
    cells : ndarray of int64 or None
        The cell of each pair, by its position in the following; None if there is one cell.
    numbers, starts, ends : ndarray of int64
        Of each cell: a number that no other cell has, its begin, and its end.
    closed : ndarray of bool
        Of each cell, whether it is an instance that was closed before.
    counts : RowCounts
        What became of the rows.
    late : ndarray of bool or None
        The rows that come too late for all instances that contain them; None if there are none.
    of_instances : bool
        Whether the cells are instances, where others are slices.
    """

    rows: Numbers | None
    cells: Numbers | None
    numbers: Numbers
    starts: Numbers
    ends: Numbers
    closed: Mask
    counts: RowCounts
    late: Mask | None
    of_instances: bool = False

    def pairs(self, count: int) -> int:
        """Return the number of pairs, given that of the rows."""
        return count if self.rows is None else len(self.rows)

    def of_groups(self, located: Located) -> Numbers:
        """Return the cell of each group of pairs."""
        if self.cells is None:
            return np.zeros(len(located), np.int64)
        return self.cells.take(located.first)


class _Spans(NamedTuple):
    """The instances of one window that contain each of several spans of time, by number."""

    window: EventWindow
    first: Numbers
    last: Numbers

    def on_side(self, side: WindowSide) -> _Spans:
        """Return only the instances on one side of an event time."""
        before = (side.begin - 1 - self.window.start) // self.window.frequency
        if side.later:
            return self._replace(first=np.maximum(self.first, before + 1))
        return self._replace(last=np.minimum(self.last, before))

    def ended(self, reached: int) -> Numbers:
        """Return how many of them end at a time or before."""
        return np.clip(_last_ended(self.window, reached) - self.first + 1, 0, self.total)

    def exactly(self, lengths: Numbers) -> _Spans:
        """Return only the instances that are as long as the spans."""
        return self._replace(first=np.where(lengths == self.window.length, self.first, self.last + 1))

    @property
    def total(self) -> Numbers:
        """How many there are."""
        found: Numbers = np.maximum(self.last - self.first + 1, 0)
        return found


class EventCells:
    """The cells of windows over event time.

    Cells are slices, of which each instance is a sequence, so that overlapping instances share the partial aggregates;
    or they are the instances themselves, if no row is in two of them, or where these are not to share.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.
    separate : bool
        Whether cells are instances, also if they might be slices.

    Attributes
    ----------
    merges : bool
        Whether cells are slices, and results are merged.
    grid : Grid
        The event times at which instances can begin, end, or take rows no more.
    places : int
        The slices that a key is expected to have at a time, at most; 0 if cells are not slices.

    Notes
    -----
    Enorm, sections 4.2 and 5.1. The length of slices is the greatest common divisor of the lengths, the frequencies,
    and the differences of the starts.

    Examples
    --------
    >>> cells = EventCells(Windowing((EventWindow(0, 30, 10),), ("at",)))
    >>> cells.merges, cells.grid
    (True, Grid(step=10, offset=0))
    >>> found = cells.of_points(np.array([3, 25]), reached=20)
    >>> found.starts.tolist(), found.counts
    ([0, 10, 20], RowCounts(on_time=4, corrected=0, late=2, outside=0, untimed=0))
    """

    def __init__(self, windowing: Windowing, separate: bool = False) -> None:
        self.windows = tuple(window for window in windowing.windows if isinstance(window, EventWindow))
        self.lateness = windowing.allowed_lateness
        self._exact = windowing.exact
        self._overlapping = windowing.spans == "overlapping"
        self.slice = windowing.slice
        self.offset = self.windows[0].start % self.slice
        self.grid = Grid(math.gcd(self.slice, self.lateness), self.offset)
        self.merges = windowing.shares and not separate
        self._apart = APART if windowing.shares and separate else 0
        longest = max(window.length for window in self.windows) // self.slice
        # Half a window more than an instance and its corrections need, for rows ahead of the watermark.
        self.places = longest + longest // 2 + 2 + -(-self.lateness // self.slice) if self.merges else 0

    def of(self, times: list[Times], reached: int, side: WindowSide | None = None) -> Assigned:
        """Return the cells of rows, given their times, or begin and end of the spans for which they stand."""
        if len(times) == 1:
            return self.of_points(times[0], reached, side)
        return self.of_spans(times[0], times[1], reached, side)

    def of_points(self, times: Times, reached: int, side: WindowSide | None = None) -> Assigned:
        """Return the cells of rows at points in time.

        Parameters
        ----------
        times : ndarray of int64
            The time of each row; at least one.
        reached : int
            The event time up to which instances are closed.
        side : WindowSide, optional
            Which instances count; only if cells are instances.

        Returns
        -------
        Assigned
            The cells.
        """
        numbers, index = self._slices(times)
        starts = self.offset + numbers * self.slice
        rows_of = np.array([len(times)]) if index is None else np.bincount(index, minlength=len(numbers))
        found = [self._containing(window, starts, starts + self.slice) for window in self.windows]
        found, counts, late = self._counted(found, rows_of, reached, side)
        late_rows = None if late is None else (late[np.zeros(len(times), np.intp) if index is None else index])
        if self.merges:
            taken = np.logical_or.reduce([spans_.total > spans_.ended(reached) for spans_ in found])
            return self._in_slices(numbers, starts, index, taken, len(times), counts, late_rows)
        # Beside slices, closed instances are corrected apart.
        since = reached if self._apart else reached - self.lateness
        return self._in_instances(found, index, len(times), reached, since, counts, late_rows)

    def of_closed(self, times: Times, reached: int) -> Assigned:
        """Return the closed instances that rows at points in time still correct; see `of_points`."""
        numbers, index = self._slices(times)
        starts = self.offset + numbers * self.slice
        found = [self._containing(window, starts, starts + self.slice) for window in self.windows]
        closed = [one._replace(last=np.minimum(one.last, _last_ended(one.window, reached))) for one in found]
        return self._in_instances(closed, index, len(times), reached, reached - self.lateness, RowCounts(), None)

    def of_spans(self, begins: Times, ends: Times, reached: int, side: WindowSide | None = None) -> Assigned:
        """Return the cells of rows that each stand for a span of time; see `of_points`."""
        found = self._containing_spans(begins, ends)
        found, counts, late = self._counted(found, np.ones(len(begins), np.int64), reached, side)
        since = reached - self.lateness
        return self._in_instances(found, np.arange(len(begins)), len(begins), reached, since, counts, late)

    def _containing_spans(self, begins: Times, ends: Times) -> list[_Spans]:
        bounds = bounds_of_spans(begins, ends, self._overlapping)
        found = [self._containing(window, *bounds) for window in self.windows]
        return [spans_.exactly(ends - begins) for spans_ in found] if self._exact else found

    def sides(self, times: list[Times], begin: int) -> tuple[Mask, Mask]:
        """Return which rows are in instances that begin before an event time, and which in those that begin later.

        Parameters
        ----------
        times : list of ndarray of int64
            The times of rows, or begin and end of the spans for which they stand.
        begin : int
            The event time.

        Returns
        -------
        ndarray of bool, ndarray of bool
            One element per row each. A row may be on both sides, or in no instance.
        """
        found = self._containing_spans(times[0], times[1] if len(times) > 1 else times[0] + 1)
        earlier, later = (
            [spans_.on_side(WindowSide(begin, is_later)).total > 0 for spans_ in found] for is_later in (False, True)
        )
        return np.logical_or.reduce(earlier), np.logical_or.reduce(later)

    def on_side(self, starts: Numbers, of_instances: Mask, side: WindowSide) -> Mask:
        """Return which cells are on one side of an event time.

        Parameters
        ----------
        starts : ndarray of int64
            The begins of the cells.
        of_instances : ndarray of bool
            Which of them are instances beside slices.
        side : WindowSide
            The side.

        Returns
        -------
        ndarray of bool
            One element per cell. A slice is on the side of its instances, which are all on one.
        """
        later = starts >= side.begin
        if self.merges:
            slices = self.offset + (starts - self.offset) // self.slice * self.slice
            later = np.where(of_instances, later, ~self.sides([slices, slices + self.slice], side.begin)[0])
        return later if side.later else ~later

    def numbers_of(self, starts: Numbers, ends: Numbers) -> Numbers:
        """Return the numbers of instances, given their bounds; only if cells are instances."""
        found = np.zeros(len(starts), np.int64)
        for position, window in enumerate(self.windows):
            instances, rest = np.divmod(starts - window.start, window.frequency)
            own = (rest == 0) & (ends - starts == window.length)
            found[own] = instances[own] * len(self.windows) + position + self._apart
        return found

    def last_end(self, begin: int) -> int:
        """Return the latest end of an instance that begins before an event time."""
        return max(
            window.start + (begin - 1 - window.start) // window.frequency * window.frequency + window.length
            for window in self.windows
        )

    def closing(self, starts: Numbers, since: int, until: int) -> list[tuple[int, int]]:
        """Return the instances that end later than `since` and not later than `until`, and contain any of some slices.

        Parameters
        ----------
        starts : ndarray of int64
            The begins of slices.
        since, until : int
            The span of event time.

        Returns
        -------
        list of (int, int)
            Begin and end of each, in the order of ends, then begins.
        """
        found: set[tuple[int, int]] = set()
        numbers, _ = self._slices(starts)
        distinct = self.offset + numbers * self.slice
        for window in self.windows:
            within = self._containing(window, distinct, distinct + self.slice)
            firsts = np.maximum(within.first, _last_ended(window, since) + 1)
            lasts = np.minimum(within.last, _last_ended(window, until))
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                for number in range(first, last + 1):
                    begin = window.start + number * window.frequency
                    found.add((begin, begin + window.length))
        return sorted(found, key=lambda instance: (instance[1], instance[0]))

    def expired(self, starts: Numbers, ends: Numbers, reached: int) -> Mask:
        """Return the cells that no instance needs any more.

        Parameters
        ----------
        starts, ends : ndarray of int64
            Begin and end of each cell.
        reached : int
            The event time up to which instances are closed.

        Returns
        -------
        ndarray of bool
            One element per cell.
        """
        if not self.merges:
            return ends <= reached - self.lateness
        numbers, index = self._slices(starts)
        begins = self.offset + numbers * self.slice
        found = [self._containing(window, begins, begins + self.slice) for window in self.windows]
        ended = reached - self.lateness
        expired: Mask = np.logical_and.reduce([spans_.total == spans_.ended(ended) for spans_ in found])
        return np.broadcast_to(expired, len(starts)) if index is None else expired.take(index)

    def _slices(self, times: Times) -> tuple[Numbers, npt.NDArray[np.intp] | None]:
        """Return the numbers of slices, and the position of each row's slice among them; None if all share one."""
        least, most = int(times.min()), int(times.max())
        if least < -MOST or most > MOST:
            raise ValueError(f"a time is {least if least < -MOST else most} us since 1970, which is beyond 2**62")
        first, last = (least - self.offset) // self.slice, (most - self.offset) // self.slice
        if first == last:
            return np.array([first]), None
        if last - first < max(_FEW, len(times)):
            # Subtracted before the division, so that no second array of numbers is made.
            index = (times - (self.offset + first * self.slice)) // self.slice
            return np.arange(first, last + 1), index
        numbers, index = np.unique((times - self.offset) // self.slice, return_inverse=True)
        return numbers, index.reshape(-1)

    @staticmethod
    def _containing(window: EventWindow, begins: Times, ends: Times) -> _Spans:
        last = (begins - window.start) // window.frequency
        first = -((window.start + window.length - ends) // window.frequency)
        return _Spans(window, first, last)

    def _counted(
        self, found: list[_Spans], rows_of: Numbers, reached: int, side: WindowSide | None
    ) -> tuple[list[_Spans], RowCounts, Mask | None]:
        """Return the instances on a side, the counts of pairs of rows and these, and the spans whose rows are late.

        Rows are late that come too late for all instances of either side; they are returned for one of the sides.
        """
        if side is not None:
            (_, _, late_rows), found = self._counted(found, rows_of, reached, None), [o.on_side(side) for o in found]
        total = np.add.reduce([spans_.total for spans_ in found])
        closed = np.add.reduce([spans_.ended(reached) for spans_ in found])
        late = np.add.reduce([spans_.ended(reached - self.lateness) for spans_ in found]) if self.lateness else closed
        counts = RowCounts(
            int(((total - closed) * rows_of).sum()),
            int(((closed - late) * rows_of).sum()),
            int((late * rows_of).sum()),
            int(rows_of[total == 0].sum()),
        )
        if side is not None:
            return found, counts, late_rows if side.later else None
        return found, counts, ((late == total) & (total > 0)) if counts.late else None

    def _in_slices(
        self,
        numbers: Numbers,
        starts: Numbers,
        index: npt.NDArray[np.intp] | None,
        taken: Mask,
        count: int,
        counts: RowCounts,
        late: Mask | None,
    ) -> Assigned:
        rows = None
        if not taken.all():
            # Slices between those of the rows are in the table as well.
            kept = np.empty(0, np.int64) if index is None else np.flatnonzero(taken.take(index))
            if len(kept) < count:
                rows, index = kept, None if index is None else index.take(kept)
        closed = np.zeros(len(numbers), np.bool_)
        return Assigned(rows, index, numbers, starts, starts + self.slice, closed, counts, late)

    def _in_instances(
        self,
        found: list[_Spans],
        index: npt.NDArray[np.intp] | None,
        count: int,
        reached: int,
        since: int,
        counts: RowCounts,
        late: Mask | None,
    ) -> Assigned:
        """Return the instances that end later than `since`, each as a cell."""
        parts = [self._later(position, spans_, since) for position, spans_ in enumerate(found)]
        owners, numbers, starts, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if len(found) > 1:
            order = np.argsort(owners, kind="stable")
            owners, numbers, starts, ends = (column[order] for column in (owners, numbers, starts, ends))
        lengths = np.bincount(owners, minlength=len(found[0].first))
        rows, cells = _pairs(lengths, index, count)
        return Assigned(rows, cells, numbers, starts, ends, ends <= reached, counts, late, bool(self._apart))

    def _later(self, position: int, found: _Spans, since: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return the instances of one window that end later: the position of the span, number, begin and end."""
        window = found.window
        firsts = np.maximum(found.first, _last_ended(window, since) + 1)
        lengths = np.maximum(found.last - firsts + 1, 0)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        instances = spans(firsts, lengths)
        starts = window.start + instances * window.frequency
        numbers = instances * len(self.windows) + position + self._apart
        return owners, numbers, starts, starts + window.length


def grid_of(computes: Sequence[Compute]) -> Grid | None:
    """Return the event times at which a component needs state records; None for any.

    Parameters
    ----------
    computes : sequence of Compute
        Its computes.

    Returns
    -------
    Grid or None
        None also if any has timers, several have windows over event time, or none has.
    """
    closing = [operator.windowing for operator in computes if operator.clocks]
    windowing = closing[0] if len(closing) == 1 else None
    if windowing is None or not isinstance(windowing.windows[0], EventWindow):
        return None
    return EventCells(windowing).grid


def _last_ended(window: EventWindow, reached: int) -> int:
    """Return the number of the last instance that ends at a time or before."""
    return max(-MOST, min(MOST, (reached - window.length - window.start) // window.frequency))


def _pairs(lengths: Numbers, index: npt.NDArray[np.intp] | None, count: int) -> tuple[Numbers | None, Numbers | None]:
    """Return the row and the cell of each pair, given how many cells each span has, and the span of each row."""
    if index is None:
        cells = int(lengths[0])
        if cells == 1:
            return None, None
        return np.repeat(np.arange(count), cells), np.tile(np.arange(cells), count)
    of_row = lengths.take(index)
    first = offsets_of(lengths)[:-1].take(index)
    if (lengths == 1).all() or (of_row == 1).all():
        return None, first
    return np.repeat(np.arange(count), of_row), spans(first, of_row)
