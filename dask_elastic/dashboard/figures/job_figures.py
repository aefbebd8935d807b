"""Makes the figures of a job, for the page and for panels."""

from __future__ import annotations

from typing import Any

from bokeh.models import AdaptiveTicker, ColumnDataSource, DataRange1d

from dask_elastic.dashboard import colors
from dask_elastic.dashboard.figures.cores_figure import CoresFigure
from dask_elastic.dashboard.figures.line_figure import Line, LineFigure
from dask_elastic.dashboard.quantities import COUNT_TICKS, DURATION_TICKS, SIZE_TICKS

Options = dict[str, Any]


def cores_by_executor(x_range: DataRange1d, **options: Any) -> CoresFigure:
    """Make the figure of cores by executor."""
    return CoresFigure("executor", x_range, colors.executor_colors, **options)


def cores_by_node(x_range: DataRange1d, **options: Any) -> CoresFigure:
    """Make the figure of cores by node."""
    return CoresFigure("node", x_range, colors.node_colors, **options)


def latency(source: ColumnDataSource, x_range: DataRange1d, **options: Any) -> LineFigure:
    """Make the figure of measured, predicted and target latency."""
    lines = [
        Line("latency_p99", "p99", colors.TAIL, width=1.2),
        Line("predicted", "predicted mean", colors.PREDICTED, dash="dashed", width=1.6),
        Line("target", "target", colors.TARGET, width=1.4, step=True),
        Line("latency", "mean", colors.MEASURED, width=2.2),
    ]
    return LineFigure("Latency, end to end", source, lines, x_range, DURATION_TICKS, log=True, **options)


def throughput(source: ColumnDataSource, x_range: DataRange1d, **options: Any) -> LineFigure:
    """Make the figure of the rows that sources read."""
    lines = [Line("throughput", "read by sources", colors.THROUGHPUT, width=2.0, filled=True)]
    return LineFigure("Throughput, rows per second", source, lines, x_range, COUNT_TICKS, **options)


def lag(source: ColumnDataSource, x_range: DataRange1d, **options: Any) -> LineFigure:
    """Make the figure of the lag of sources."""
    lines = [Line("lag", "lag", colors.LAG, filled=True)]
    return LineFigure("Lag of sources behind due rows", source, lines, x_range, DURATION_TICKS, **options)


def queue(source: ColumnDataSource, x_range: DataRange1d, **options: Any) -> LineFigure:
    """Make the figure of waiting tuples."""
    lines = [Line("queue", "waiting", colors.QUEUE, filled=True)]
    return LineFigure("Waiting tuples", source, lines, x_range, COUNT_TICKS, **options)


def state(source: ColumnDataSource, x_range: DataRange1d, **options: Any) -> LineFigure:
    """Make the figure of state size."""
    lines = [Line("state_bytes", "state", colors.STATE, filled=True)]
    made = LineFigure("State", source, lines, x_range, SIZE_TICKS, **options)
    made.figure.yaxis.ticker = AdaptiveTicker(base=1024, mantissas=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
    return made


def moves(source: ColumnDataSource, x_range: DataRange1d, **options: Any) -> LineFigure:
    """Make the figure of shard moves since the previous row."""
    lines = [Line("moved", "moved", colors.MOVES, step=True, filled=True)]
    return LineFigure("Shard moves", source, lines, x_range, COUNT_TICKS, **options)
