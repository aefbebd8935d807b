"""A heat map of cores over time, one line per name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BasicTicker,
    ColorBar,
    ColumnDataSource,
    CustomJSHover,
    DataRange1d,
    FixedTicker,
    HoverTool,
    Image,
    Line,
    LinearColorMapper,
    Range1d,
)
from bokeh.palettes import interp_palette
from numpy.typing import NDArray

from dask_elastic.dashboard.colors import operator_of
from dask_elastic.dashboard.figures.time_figure import CLOCK, INK, SPAN_SECONDS, time_figure
from dask_elastic.dashboard.workers.links import open_on_tap

Cores = NDArray[np.float64]

COLUMNS = 720
"""Columns of the image; when they are full, the image is shifted."""

LABELS = 14
"""Largest number of labels on the axis."""

PALETTE = interp_palette(["#d3e8ef", "#7fc0c9", "#3d8fb5", "#2b5a94", "#1b2452"], 128)
"""From light (few cores) to dark (many cores)."""


LONGEST_LABEL = 10
"""Letters of a label that fit beside the frame, which begins at the same place in all figures."""


def shortened(label: str) -> str:
    """Return a label that fits beside the frame: the end of an address, the beginning and the end of a name.

    Examples
    --------
    >>> shortened("per_route"), shortened("per_route[13]"), shortened("10.11.12.13:4000")
    ('per_route', 'per_…e[13]', '…2.13:4000')
    """
    if len(label) <= LONGEST_LABEL:
        return label
    head = 0 if ":" in label else 4
    return f"{label[:head]}…{label[head + 1 - LONGEST_LABEL :]}"


class HeatMap:
    """An image with a line for each name; only new columns are sent to the browser.

    Parameters
    ----------
    names : sequence of str
        The name of each line, from the top.
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
        times: NDArray[np.float64],
        cores: Cores,
        title: str,
        x_range: DataRange1d,
        **options: Any,
    ):
        self._next = 0
        self._left = float(times[0])
        self._step = float(np.median(np.diff(times))) if len(times) > 1 else 1000.0
        if self._column(times[-1]) >= COLUMNS:
            self._left += (self._column(times[-1]) + 1 - SPAN_SECONDS) * self._step
        self._image = np.zeros((len(names), COLUMNS), dtype=np.uint8)
        # The newest row, which may be older than the image.
        self._newest: NDArray[np.uint8] | None = None
        self._mapper = LinearColorMapper(low=1, high=2, palette=PALETTE, low_color="rgba(0,0,0,0)")
        self.figure = time_figure(title, x_range, y_range=Range1d(len(names), 0), **options)
        self.source = ColumnDataSource()
        self._times = ColumnDataSource({"time": times})
        self.anchor = self.figure.add_glyph(self._times, Line(x="time", y=value(0), line_alpha=0.0))
        self._paint(times, cores)
        self._show()
        self._add_picture(names)
        self._label(names)

    def _add_picture(self, names: Sequence[str]) -> None:
        image = Image(image="image", x="left", y=value(0), dw="width", dh="lines", color_mapper=self._mapper)
        picture = self.figure.add_glyph(self.source, image)
        ticker = BasicTicker(desired_num_ticks=4, min_interval=1)
        bar = ColorBar(color_mapper=self._mapper, ticker=ticker, orientation="horizontal", width=180, height=6)
        bar.update(padding=2, background_fill_alpha=0.0, major_label_text_color=INK, major_tick_line_color=INK)
        # Above, as beside the frame it would shift the time axis.
        self.figure.add_layout(bar, "above")
        name_of_line = CustomJSHover(args={"names": list(names)}, code="return names[Math.floor(value)] ?? ''")
        hover = HoverTool(
            renderers=[picture],
            tooltips=[("", "$y{custom}"), ("time", f"$x{{{CLOCK}}}"), ("cores", "@image")],
            formatters={"$x": "datetime", "$y": name_of_line},
            point_policy="follow_mouse",
        )
        self.figure.add_tools(hover)

    def _label(self, names: Sequence[str]) -> None:
        """Label each line if there is room, else each operator, else every n-th line."""
        lines = range(len(names))
        starts = [line for line in lines if not line or operator_of(names[line]) != operator_of(names[line - 1])]
        labels = {line + 0.5: names[line] for line in lines}
        if len(labels) > LABELS and len(starts) <= LABELS:
            ends = [*starts[1:], len(names)]
            labels = {(first + end) / 2: operator_of(names[first]) for first, end in zip(starts, ends, strict=True)}
        shown = [*labels][:: -(-len(labels) // LABELS)]
        self.figure.yaxis.ticker = FixedTicker(ticks=shown)
        self.figure.yaxis.major_label_overrides = {place: shortened(labels[place]) for place in shown}
        self.figure.yaxis.major_tick_line_color = None
        self.figure.ygrid.grid_line_alpha = 0.5
        self.figure.yaxis.major_label_text_font_size = "8pt"
        self.figure.xgrid.visible = False
        self.figure.ygrid.ticker = FixedTicker(ticks=starts if len(starts) <= LABELS else [])

    def link(self, addresses: Sequence[str]) -> None:
        """Open Dask's page of a worker when its line is clicked; the names are those of the workers."""
        open_on_tap(self.figure, addresses, "place = Math.floor(cb_obj.y);")

    def extend(self, times: NDArray[np.float64], cores: Cores) -> None:
        """Append rows."""
        self._times.stream({"time": times}, rollover=SPAN_SECONDS)
        if self._column(times[-1]) >= COLUMNS:
            self._shift(self._column(times[-1]) + 1 - SPAN_SECONDS)
            self._paint(times, cores)
            self._show()
            return
        first = self._next
        self._paint(times, cores)
        if self._next > first:
            fresh = self._image[:, first : self._next]
            self.source.patch({"image": [((0, slice(None), slice(first, self._next)), fresh.ravel())]})

    def _paint(self, times: NDArray[np.float64], cores: Cores) -> None:
        """Fill the columns up to each time; a column without a row repeats the one before it."""
        for moment, line in zip(times, cores.clip(0, 255).astype(np.uint8), strict=True):
            until = min(max(self._column(moment) + 1, self._next), COLUMNS)
            last = line if self._newest is None else self._newest
            self._image[:, self._next : until] = last[:, None]
            if until > 0:
                self._image[:, until - 1] = line
            self._next, self._newest = until, line
        self._mapper.high = max(self._mapper.high, int(cores.max(initial=2)))

    def _column(self, moment: float) -> int:
        return int((moment - self._left) / self._step + 0.5)

    def _shift(self, columns: int) -> None:
        """Drop the oldest columns."""
        self._image = np.roll(self._image, -columns, axis=1) if columns < COLUMNS else np.zeros_like(self._image)
        self._next = max(0, self._next - columns)
        self._image[:, self._next :] = 0
        self._left += columns * self._step

    def _show(self) -> None:
        self.source.data = {
            "image": [self._image.copy()],
            "left": [self._left],
            "width": [COLUMNS * self._step],
            "lines": [len(self._image)],
        }
