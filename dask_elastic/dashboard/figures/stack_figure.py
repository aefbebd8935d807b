"""A figure of cores over time as stacked steps, for few names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    DataRange1d,
    GlyphRenderer,
    LegendItem,
    Line,
    Step,
    VAreaStep,
)
from numpy.typing import NDArray

from dask_elastic.dashboard.figures.time_figure import SPAN_SECONDS, names_legend, time_figure, time_hover
from dask_elastic.dashboard.workers.links import open_on_tap

Cores = NDArray[np.float64]

OUTLINE = "#5b6470"


class StackFigure:
    """Stacked steps with a legend.

    Parameters
    ----------
    names : sequence of str
        The names stacked, from the bottom.
    colors : sequence of str
        A colour for each name.
    times : array of float, shape (rows,)
        Milliseconds, as `clock_milliseconds` returns them.
    cores : array of float, shape (rows, names)
        Number of cores.
    title : str
        Title of the figure.
    x_range : DataRange1d
        The time range.
    **options
        For Bokeh's figure.
    """

    def __init__(
        self,
        names: Sequence[str],
        colors: Sequence[str],
        times: NDArray[np.float64],
        cores: Cores,
        title: str,
        x_range: DataRange1d,
        **options: Any,
    ):
        self.figure = time_figure(title, x_range, y_range=DataRange1d(start=0), **options)
        self.figure.yaxis.ticker = BasicTicker(desired_num_ticks=5, min_interval=1)
        self.source = ColumnDataSource(_columns(times, cores))
        areas = [self._area(place, color) for place, color in enumerate(colors)]
        highest = {"x": "time", "y": f"top{len(names) - 1}"}
        self.figure.add_glyph(self.source, Step(**highest, mode="after", line_color=OUTLINE, line_width=1.2))
        self.anchor = self.figure.add_glyph(self.source, Line(**highest, line_alpha=0.0))
        items = [LegendItem(label=value(name), renderers=[area]) for name, area in zip(names, areas, strict=True)]
        self.figure.add_layout(names_legend(items, names), "above")
        rows = [(name, f"@count{place}") for place, name in enumerate(names)]
        self.figure.add_tools(time_hover(self.anchor, [*rows[::-1], ("total", f"@{highest['y']}")]))

    def link(self, addresses: Sequence[str]) -> None:
        """Open Dask's page of a worker when its area is clicked; the names are those of the workers."""
        find = """
            const {time} = source.data;
            let row = time.length - 1;
            while (row > 0 && time[row] > cb_obj.x) row--;
            for (let at = 0; cb_obj.y >= 0 && time[row] <= cb_obj.x && `top${at}` in source.data; at++)
                if (cb_obj.y < source.data[`top${at}`][row]) { place = at; break; }
        """
        open_on_tap(self.figure, addresses, find, source=self.source)

    def _area(self, place: int, color: str) -> GlyphRenderer:
        below = f"top{place - 1}" if place else value(0)
        area = VAreaStep(x="time", y1=below, y2=f"top{place}", step_mode="after", fill_color=color, fill_alpha=0.85)
        return self.figure.add_glyph(self.source, area)

    def extend(self, times: NDArray[np.float64], cores: Cores) -> None:
        """Append rows."""
        self.source.stream(_columns(times, cores), rollover=SPAN_SECONDS)


def _columns(times: NDArray[np.float64], cores: Cores) -> dict[str, NDArray[np.float64]]:
    tops = cores.cumsum(axis=1)
    counts = {f"count{place}": cores[:, place] for place in range(cores.shape[1])}
    return {"time": times, **{f"top{place}": tops[:, place] for place in range(cores.shape[1])}, **counts}
