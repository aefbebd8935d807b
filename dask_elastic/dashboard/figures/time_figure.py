"""The common parts of all figures with a time axis."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    DatetimeTickFormatter,
    GlyphRenderer,
    HoverTool,
    Legend,
    LegendItem,
    Line,
    Title,
)
from bokeh.plotting import figure
from numpy.typing import NDArray

LETTER, LINE_WIDTH = 6.0, 480
"""Width of a letter of a legend, and of the narrowest figure on the page, in pixels."""

SPAN_SECONDS = 600
"""Seconds of the past that a figure shows, unless the viewer moves it."""

CLOCK = "%H:%M:%S"

LEFT, RIGHT = 84, 16
"""Pixels beside each figure's frame. They are the same for all, so that the time axes of a column of figures align."""

INK = "#747d88"
"""Colour of text and lines in figures: legible on light and on dark pages."""


def shared_time_range() -> DataRange1d:
    """Make a time range that follows the newest row of its anchors; figures that share it move together."""
    return DataRange1d(follow="end", follow_interval=SPAN_SECONDS * 1000, range_padding=0, renderers=[])


def clock_milliseconds(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert times to milliseconds that Bokeh draws in the scheduler's local time, as in Dask's logs.

    Parameters
    ----------
    seconds : array of float
        Seconds since 1970.

    Returns
    -------
    array of float
        Milliseconds since 1970, plus the offset of the time zone.
    """
    offset = time.localtime(float(seconds[-1])).tm_gmtoff if len(seconds) else 0
    milliseconds: NDArray[np.float64] = (seconds + offset) * 1000.0
    return milliseconds


def time_figure(title: str, x_range: DataRange1d, **options: Any) -> figure:
    """Make an empty figure with a time axis and tools that appear under the mouse.

    Parameters
    ----------
    title : str
        Title, with the unit.
    x_range : DataRange1d
        The range of `shared_time_range`.
    **options
        For Bokeh's figure.
    """
    made = figure(
        # A text would not become a title while validation is off, which Dask's pages set for the whole process.
        title=Title(text=title, text_color=INK),
        x_range=x_range,
        x_axis_type="datetime",
        tools="xpan,xbox_zoom,reset",
        toolbar_location="above",
        min_border_left=LEFT,
        min_border_right=RIGHT,
        min_border_bottom=20,
        **options,
    )
    made.toolbar.autohide = True
    made.toolbar.logo = None
    clock = dict.fromkeys(("microseconds", "milliseconds", "seconds", "minsec", "minutes"), CLOCK)
    made.xaxis.formatter = DatetimeTickFormatter(**clock, hourmin="%H:%M", hours="%H:%M")
    made.xgrid.grid_line_alpha = 0.12
    made.ygrid.grid_line_alpha = 0.2
    made.axis.minor_tick_line_color = None
    made.outline_line_alpha = 0.4
    made.axis.axis_line_color = made.axis.major_tick_line_color = made.axis.major_label_text_color = INK
    made.grid.grid_line_color = INK
    return made


def legend_of(**options: Any) -> Legend:
    """Make a small transparent legend."""
    look: dict[str, Any] = {
        "label_text_font_size": "9pt",
        "label_text_color": INK,
        "background_fill_alpha": 0.0,
        "border_line_alpha": 0.0,
        "padding": 2,
        "margin": 2,
        "spacing": 0,
        "glyph_width": 14,
        "glyph_height": 14,
        "label_height": 14,
        "label_standoff": 4,
    }
    return Legend(**{**look, **options})


def names_legend(items: Sequence[LegendItem], names: Sequence[str], **options: Any) -> Legend:
    """Make a legend above a figure, in as many lines as the names need.

    Parameters
    ----------
    items : sequence of LegendItem
        The items.
    names : sequence of str
        Their labels.
    **options
        For Bokeh's legend.
    """
    widest = max(map(len, names), default=1) * LETTER + 24
    columns = max(1, int(LINE_WIDTH // widest))
    # Bokeh ignores the number of columns of a legend that fits in one line.
    lines = {"ncols": columns} if len(names) > columns else {}
    return legend_of(location="left", orientation="horizontal", items=list(items), spacing=10, **lines, **options)


def time_hover(renderer: GlyphRenderer, rows: list[tuple[str, str]]) -> HoverTool:
    """Make a hover tool that shows the values at one time.

    Parameters
    ----------
    renderer : GlyphRenderer
        The line on which the mouse finds times, such as an `anchor`.
    rows : list of (str, str)
        Label and Bokeh's format of each value.
    """
    return HoverTool(
        renderers=[renderer],
        mode="vline",
        line_policy="none",
        point_policy="follow_mouse",
        tooltips=[("time", "@time{%H:%M:%S}"), *rows],
        formatters={"@time": "datetime"},
    )


def anchor(made: figure, source: ColumnDataSource) -> GlyphRenderer:
    """Draw an invisible line through all times, for the time range and the hover tool."""
    line = made.add_glyph(source, Line(x="time", y=value(1), line_alpha=0.0), level="underlay")
    made.x_range.renderers = [*made.x_range.renderers, line]
    return line
