"""Cells of sessions: parts of event time as long as the gap, so that all rows of a key in one are in one session."""

from __future__ import annotations

import numpy as np

from dask_elastic.executor.windows.cells import Assigned, EventCells
from dask_elastic.executor.windows.event_times import Times
from dask_elastic.state.session import Located
from dask_elastic.state.slot_search import Mask
from dask_elastic.state.slots import Column
from dask_elastic.topology.windowing import SessionWindow, Windowing
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.window_side import WindowSide


class SessionCells:
    """The cells of session windows.

    Two rows of a key in one cell are less than the gap apart. So a session is a sequence of cells, and what a cell
    keeps are the times of its first and its last row: two cells are in one session if the first row of the later one
    follows the last row of the earlier one within less than the gap.

    Parameters
    ----------
    windowing : Windowing
        One session window.

    Notes
    -----
    A row is late if a session of it alone would be closed, also if it joins one that is open: so what becomes of it
    depends on no other row. A row that is not late, but older than the watermark, may
    follow a session within the gap that is closed already: it begins another session.

    Examples
    --------
    >>> cells = SessionCells(Windowing((SessionWindow(10),), ("at",)))
    >>> found = cells.of_points(np.array([3, 17, 19]), reached=13)
    >>> found.rows.tolist(), found.numbers.tolist(), found.counts.late
    ([1, 2], [1, 1], 1)
    """

    merges = True
    grid = None
    places = 0

    def __init__(self, windowing: Windowing) -> None:
        window = windowing.windows[0]
        assert isinstance(window, SessionWindow)
        self.gap = window.gap
        self.lateness = windowing.allowed_lateness

    def of(self, times: list[Times], reached: int, side: WindowSide | None = None) -> Assigned:
        """Return the cells of rows; see `EventCells.of`."""
        return self.of_points(times[0], reached)

    def of_points(self, times: Times, reached: int) -> Assigned:
        """Return the cells of rows; see `EventCells.of_points`."""
        late = times <= reached - self.gap - self.lateness
        count = int(np.count_nonzero(late))
        corrected = int(np.count_nonzero(times <= reached - self.gap)) - count if self.lateness else 0
        rows = np.flatnonzero(~late) if count else None
        taken = times if rows is None else times.take(rows)
        numbers = taken // self.gap
        counts = RowCounts(on_time=len(taken) - corrected, corrected=corrected, late=count)
        closed = np.zeros(len(taken), np.bool_)
        return Assigned(rows, np.arange(len(taken)), numbers, taken, taken, closed, counts, late if count else None)


def bounds_of_rows(times: Times, located: Located, known: Mask, before: list[Column]) -> list[Times]:
    """Return the times of the first and the last row of each cell."""
    ordered, starts = times.take(located.grouping.order), located.grouping.starts
    first, last = np.minimum.reduceat(ordered, starts), np.maximum.reduceat(ordered, starts)
    return [
        np.where(known, np.minimum(before[0], first), first),
        np.where(known, np.maximum(before[1], last), last),
    ]


def make_cells(windowing: Windowing) -> EventCells | SessionCells:
    """Return the cells of windows.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.

    Returns
    -------
    EventCells or SessionCells
        The cells.
    """
    first = windowing.windows[0]
    return SessionCells(windowing) if isinstance(first, SessionWindow) else EventCells(windowing)
