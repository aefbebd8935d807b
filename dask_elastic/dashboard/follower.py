"""Keeps a viewer's figures up to date with a time series: all rows once, then only new rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dask_elastic.dashboard.time_series import Rows, TimeSeries


class Drawable(Protocol):
    """Something that draws a time series."""

    def begin(self, series: TimeSeries, rows: Rows) -> None:
        """Draw a time series from all of its rows, replacing what was drawn before."""

    def extend(self, rows: Rows) -> None:
        """Append rows of the same time series."""


class Follower:
    """Records how far one viewer's figures have drawn a time series.

    Parameters
    ----------
    drawn : sequence of Drawable
        The viewer's figures.
    """

    def __init__(self, drawn: Sequence[Drawable]):
        self._drawn = drawn
        self._series: TimeSeries | None = None
        self._layout_version = 0
        self._end = 0

    def update(self, series: TimeSeries) -> None:
        """Draw the new rows; draw all rows if the time series or its layout is another one."""
        begins = series is not self._series or series.layout_version != self._layout_version
        if begins:
            self._series, self._layout_version, self._end = series, series.layout_version, 0
        rows = series.since(self._end)
        self._end = series.end
        for figure in self._drawn if len(rows) else ():
            if begins:
                figure.begin(series, rows)
            else:
                figure.extend(rows)
