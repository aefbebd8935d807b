"""Cores over time by name: stacked steps for few names, a heat map for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from bokeh.models import Column, DataRange1d
from numpy.typing import NDArray

from dask_elastic.dashboard.colors import STACKED_NAMES
from dask_elastic.dashboard.figures.heat_map import HeatMap
from dask_elastic.dashboard.figures.stack_figure import StackFigure
from dask_elastic.dashboard.figures.time_figure import clock_milliseconds
from dask_elastic.dashboard.quantities import plural
from dask_elastic.dashboard.time_series import Rows, TimeSeries
from dask_elastic.dashboard.workers.links import short_address


class CoresFigure:
    """Shows the cores of each executor, or on each node.

    Parameters
    ----------
    what : str
        ``"executor"`` or ``"node"``.
    x_range : DataRange1d
        The time range.
    colors : callable
        Returns a colour for each name.
    **options
        For Bokeh's figure.

    Attributes
    ----------
    drawn : StackFigure or HeatMap or None
        The figure shown at the moment.
    """

    def __init__(self, what: str, x_range: DataRange1d, colors: Callable[[Sequence[str]], list[str]], **options: Any):
        self.root = Column(name=f"cores_{what}", sizing_mode=options.get("sizing_mode"))
        self.drawn: StackFigure | HeatMap | None = None
        self._what = what
        self._x_range = x_range
        self._colors = colors
        self._options = options

    def begin(self, series: TimeSeries, rows: Rows) -> None:
        """Draw another job, or a job whose executors or nodes changed."""
        previous = self.drawn
        self.drawn = self._draw(series, rows)
        if self._what == "node":
            self.drawn.link(series.nodes)
        kept = [one for one in self._x_range.renderers if previous is None or one is not previous.anchor]
        self._x_range.renderers = [*kept, self.drawn.anchor]
        self.root.children = [self.drawn.figure]

    def _draw(self, series: TimeSeries, rows: Rows) -> StackFigure | HeatMap:
        names = series.executors if self._what == "executor" else [*map(short_address, series.nodes)]
        times, cores, title = clock_milliseconds(rows.times), self._cores(rows), f"Cores by {self._what}"
        if len(names) <= STACKED_NAMES:
            return StackFigure(names, self._colors(names), times, cores, title, self._x_range, **self._options)
        title = f"{title}: {plural(len(names), self._what)}, darker has more cores"
        return HeatMap(names, times, cores, title, self._x_range, **self._options)

    def extend(self, rows: Rows) -> None:
        """Append rows of the same names."""
        if self.drawn is not None:
            self.drawn.extend(clock_milliseconds(rows.times), self._cores(rows))

    def _cores(self, rows: Rows) -> NDArray[np.float64]:
        return rows.executors if self._what == "executor" else rows.nodes
