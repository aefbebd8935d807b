"""Lines over time; all lines of a page share one data source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bokeh import models
from bokeh.core.properties import value
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    DataRange1d,
    GlyphRenderer,
    LegendItem,
)

from dask_elastic.dashboard.colors import MARK
from dask_elastic.dashboard.figures.time_figure import (
    SPAN_SECONDS,
    anchor,
    clock_milliseconds,
    legend_of,
    time_figure,
    time_hover,
)
from dask_elastic.dashboard.time_series import COLUMNS, Rows, TimeSeries


class SeriesSource:
    """The data source of a page's lines."""

    def __init__(self) -> None:
        self.source = ColumnDataSource({"time": [], **{name: [] for name in COLUMNS}})

    def begin(self, series: TimeSeries, rows: Rows) -> None:
        """Replace all rows, for another job."""
        self.source.data = {"time": clock_milliseconds(rows.times), **rows.series}

    def extend(self, rows: Rows) -> None:
        """Append rows."""
        self.source.stream({"time": clock_milliseconds(rows.times), **rows.series}, rollover=SPAN_SECONDS)


@dataclass(frozen=True)
class Line:
    """The style of a line.

    Parameters
    ----------
    column : str
        The column drawn, one of `COLUMNS`.
    label : str
        Label in the legend.
    color : str
        Colour, as ``"#rrggbb"``.
    dash : str
        Bokeh's name of the dash pattern.
    width : float
        Width in pixels.
    filled : bool
        Whether to fill the area below.
    step : bool
        Whether a value holds until the next one.
    """

    column: str
    label: str
    color: str
    dash: str = "solid"
    width: float = 1.8
    filled: bool = False
    step: bool = False


class LineFigure:
    """Lines with a common axis.

    Parameters
    ----------
    title : str
        Title, with the unit.
    source : ColumnDataSource
        The source of a `SeriesSource`.
    lines : sequence of Line
        The lines, from back to front.
    x_range : DataRange1d
        The time range.
    ticks : str
        JavaScript that formats a value, for the axis and the hover tool.
    log : bool
        Whether the axis is logarithmic.
    **options
        For Bokeh's figure.
    """

    def __init__(
        self,
        title: str,
        source: ColumnDataSource,
        lines: Sequence[Line],
        x_range: DataRange1d,
        ticks: str,
        log: bool = False,
        **options: Any,
    ):
        y_range = DataRange1d() if log else DataRange1d(start=0)
        kind = "log" if log else "linear"
        self.figure = time_figure(title, x_range, y_range=y_range, y_axis_type=kind, **options)
        self.figure.yaxis.formatter = CustomJSTickFormatter(code=ticks)
        if not log:
            self.figure.yaxis.ticker = BasicTicker(desired_num_ticks=4)
        drawn = [self._draw(line, source) for line in lines]
        y_range.renderers = drawn
        if len(lines) > 1:
            items = [
                LegendItem(label=value(line.label), renderers=[made]) for line, made in zip(lines, drawn, strict=True)
            ]
            self.figure.add_layout(
                legend_of(location="left", orientation="horizontal", items=items, spacing=12), "above"
            )
        rows = [(line.label, f"@{line.column}{{custom}}") for line in lines]
        hover = time_hover(anchor(self.figure, source), rows)
        written = CustomJSHover(code=f"const tick = value; {ticks}")
        hover.formatters |= {f"@{line.column}": written for line in lines}
        self.figure.add_tools(hover)

    def _draw(self, line: Line, source: ColumnDataSource) -> GlyphRenderer:
        where = {"x": "time", "y": line.column}
        look = {"line_color": line.color, "line_width": line.width, "line_dash": line.dash}
        if line.filled:
            kind = models.VAreaStep(step_mode="after") if line.step else models.VArea()
            kind.update(x="time", y1=value(0), y2=line.column, fill_color=line.color, fill_alpha=0.15)
            self.figure.add_glyph(source, kind)
        glyph = models.Step(mode="after", **where, **look) if line.step else models.Line(**where, **look)
        return self.figure.add_glyph(source, glyph)

    def mark(self, marks: ColumnDataSource) -> None:
        """Draw a thin vertical line at each decision that changed cores."""
        glyph = models.VSpan(x="time", line_color=MARK, line_alpha="alpha")
        self.figure.add_glyph(marks, glyph, level="underlay")
