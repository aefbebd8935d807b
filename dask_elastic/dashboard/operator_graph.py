"""The graph of a job's operators: boxes coloured by backpressure, and edges with their rows per second."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from bokeh.models import Div

from dask_elastic.control.job_flow import BACKPRESSURED, HARDLY, Edge, JobFlow, OperatorFlow
from dask_elastic.dashboard.quantities import count, duration, plural, rate
from dask_elastic.dashboard.style_sheet import text_style
from dask_elastic.topology.box_layout import Box, BoxLayout, Point, place

IDLE, BUSY, WAITING = "#7ca1c9", "#c9513a", "#7a4fb5"
"""Flink's colours of idle, busy and backpressured; violet in place of black, which a dark page would hide."""

UNMEASURED = "#7d8590"

TALL, LOW = 62.0, 38.0
"""Heights of the box of an operator with threads of its own, and of a fused one."""

LETTER = 6.9
"""Mean width of a letter of a name, in pixels."""

LONGEST_NAME = 22
LABEL = 24.0
"""Space between layers for the rows per second, beside the gap."""

MARGIN = 13.0
SMALLEST = 0.75
"""Smallest scale of the drawing; a page that is narrower still scrolls it, so that names stay readable."""

MOST_WIDE = 4.2
"""Width of the edge with the most rows per second, in pixels."""


class OperatorGraph:
    """Sources, stateless and stateful operators and sinks from left to right, with a legend."""

    def __init__(self) -> None:
        self.root = Div(name="graph", sizing_mode="stretch_width", stylesheets=text_style())

    def update(self, flow: JobFlow) -> None:
        """Show the newest loads and rates; nothing for a job without a known structure."""
        drawn = drawing(flow)
        text = f'<h2>Operators and rows per second</h2><div class="scroll">{drawn}</div>{legend()}' if drawn else ""
        if text != self.root.text:
            self.root.text = text


def drawing(flow: JobFlow) -> str:
    """Draw the operators of a job.

    Parameters
    ----------
    flow : JobFlow
        The operators, their loads, and the rows per second between them.

    Returns
    -------
    str
        An ``<svg>`` element; empty without operators.

    Examples
    --------
    >>> drawing(JobFlow())
    ''
    """
    if not flow.operators:
        return ""
    layout = _layout(tuple((one.name, one.kind, one.fused) for one in flow.operators), tuple(flow.rates))
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    bottlenecks = flow.bottlenecks()
    most = max((value for value in flow.rates.values() if math.isfinite(value)), default=0.0)
    component = {one.name: one.component for one in flow.operators}
    edges = [
        _edge(edge, layout.routes[edge], flow.rates[edge], most, component.get(edge[0]) == component.get(edge[1]))
        for edge in layout.routes
    ]
    labels = [_edge_label(layout.routes[edge], flow.rates[edge]) for edge in layout.routes]
    boxes = [_box(one, layout.centres[one.name], one.name in bottlenecks) for one in flow.operators]
    return (
        f'<svg class="graph" role="img" width="{width:.0f}" viewBox="{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} '
        f'{height:.0f}" style="min-width: {SMALLEST * width:.0f}px"><title>Operators</title>'
        f"{''.join(edges)}{''.join(labels)}{''.join(boxes)}</svg>"
    )


@functools.lru_cache(maxsize=32)
def _layout(operators: tuple[tuple[str, str, bool], ...], edges: tuple[Edge, ...]) -> BoxLayout:
    """Return the layout; cached, because it changes only when a job is submitted with another topology."""
    boxes = {name: Box(_width(name, kind), LOW if fused else TALL) for name, kind, fused in operators}
    known = [edge for edge in edges if edge[0] in boxes and edge[1] in boxes]
    return place(boxes, known, dict.fromkeys(known, LABEL))


def _width(name: str, kind: str) -> float:
    # A source has its lag beside its kind; stateless operators have no line for their load.
    least = {"source": 132.0, "map": 104.0, "filter": 104.0}
    return max(least.get(kind, 127.0), min(len(name), LONGEST_NAME) * LETTER + 22.0)


def colored(operator: OperatorFlow) -> tuple[str, float]:
    """Return the colour of an operator, and its strength from 0 to 1.

    An operator that hardly works has the colour of idle; others have that of the larger of their two shares of time,
    the stronger the larger it is. Mixed colours would be grey.

    Examples
    --------
    >>> colored(OperatorFlow("a", "compute", "a", busy=0.2, backpressured=0.7)) == (WAITING, 0.7)
    True
    """
    if operator.busy is None or operator.backpressured is None:
        return UNMEASURED, 0.0
    share, color = max((operator.busy, BUSY), (operator.backpressured, WAITING))
    return (color, share) if share > HARDLY else (IDLE, 0.0)


def _box(operator: OperatorFlow, centre: Point, bottleneck: bool) -> str:
    width, height = _width(operator.name, operator.kind), LOW if operator.fused else TALL
    left, top = centre[0] - width / 2, centre[1] - height / 2
    measured = operator.backpressured is not None
    color, strength = colored(operator)
    dash = ' stroke-dasharray="4 3"' if operator.fused else ""
    stroke = 2.6 if bottleneck else 1.4
    name = escape(_short(operator.name, LONGEST_NAME))
    parts = [
        f'<g class="operator"><title>{escape(_details(operator))}</title>',
        f'<rect class="paper" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>',
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" fill="{color}" '
        f'fill-opacity="{0.1 + 0.35 * strength:.2f}" stroke="{color}" stroke-width="{stroke}"{dash}/>',
        _text(left + 10, top + 15.5, name, "name"),
        _text(left + 10, top + 29.5, escape(_kind(operator)), "kind"),
    ]
    if not operator.fused:
        state = "bottleneck" if bottleneck else _state(operator)
        parts.append(_text(left + 10, top + 44.5, escape(state), "state"))
        parts.append(_bar(operator, left + 10, top + TALL - 12, width - 20) if measured else "")
    if operator.dead_letters:
        parts.append(_badge(f"{count(operator.dead_letters)} dead", left + width, top))
    return "".join([*parts, "</g>"])


def _kind(operator: OperatorFlow) -> str:
    if operator.lag is not None and operator.lag >= 0.0005:
        return f"{operator.kind}, lag {duration(operator.lag)}"
    return operator.kind


def _state(operator: OperatorFlow) -> str:
    """Return the larger of the two shares that give the box its colour, in words."""
    if operator.backpressured is None or operator.busy is None:
        return "not measured"
    if operator.backpressured > max(operator.busy, HARDLY):
        return f"backpressured {operator.backpressured:.0%}"
    return f"busy {operator.busy:.0%}"


def _details(operator: OperatorFlow) -> str:
    lines = [f"{operator.kind} {operator.name}"]
    if operator.fused:
        lines.append(f"runs in the threads of {operator.component}")
    if operator.backpressured is not None and operator.busy is not None:
        idle = max(0.0, 1.0 - operator.busy - operator.backpressured)
        of = f"{operator.component}: " if operator.fused else ""
        lines.append(f"{of}busy {operator.busy:.0%}, backpressured {operator.backpressured:.0%}, idle {idle:.0%}")
    if operator.lag is not None:
        lines.append(f"lag {duration(operator.lag)}")
    if operator.dead_letters:
        lines.append(plural(operator.dead_letters, "dead letter"))
    return "\n".join(lines)


def _bar(operator: OperatorFlow, left: float, top: float, width: float) -> str:
    """Draw the shares of time side by side: busy, backpressured, idle."""
    busy, waiting = (operator.busy or 0.0) * width, (operator.backpressured or 0.0) * width
    parts = ((BUSY, busy), (WAITING, waiting), (IDLE, max(0.0, width - busy - waiting)))
    drawn, at = [], left
    for color, share in parts:
        if share > 0.2:
            drawn.append(f'<rect x="{at:.1f}" y="{top:.1f}" width="{share:.1f}" height="5" fill="{color}"/>')
        at += share
    return "".join(drawn)


def _badge(text: str, right: float, top: float) -> str:
    width = 6.0 * len(text) + 10
    left, middle = right - width + 6, right + 6 - width / 2
    return (
        f'<rect x="{left:.1f}" y="{top - 11:.1f}" width="{width:.1f}" height="14" rx="7" fill="{BUSY}"/>'
        f'<text class="badge" x="{middle:.1f}" y="{top - 0.5:.1f}" text-anchor="middle">{escape(text)}</text>'
    )


def _text(left: float, base: float, text: str, look: str) -> str:
    return f'<text class="{look}" x="{left:.1f}" y="{base:.1f}">{text}</text>'


def _edge(edge: Edge, points: Sequence[Point], value: float, most: float, direct: bool) -> str:
    curve = f"M{_at(points[0])}"
    for before, after in pairwise([*points[:-1], (points[-1][0] - 6, points[-1][1])]):
        middle = (before[0] + after[0]) / 2
        curve += f" C{_at((middle, before[1]))} {_at((middle, after[1]))} {_at(after)}"
    end_x, end_y = points[-1]
    # The square root keeps a thin stream beside a wide one visible.
    share = math.sqrt(value / most) if most > 0 and math.isfinite(value) else 0.0
    width = 1.0 + (MOST_WIDE - 1.0) * share
    style = ' stroke-dasharray="4 3"' if direct else ""
    text = escape(f"{edge[0]} → {edge[1]}: {rate(value)}" + (", by direct calls" if direct else ""))
    return (
        f'<g class="edge"><title>{text}</title><path d="{curve}" fill="none" stroke-width="{width:.1f}"{style}/>'
        f'<path class="head" d="M{end_x:.1f},{end_y:.1f} l-8,-4.5 v9 z"/></g>'
    )


def _edge_label(points: Sequence[Point], value: float) -> str:
    """Write the rows per second halfway to the next point, where edges that begin or end at one box lie apart."""
    if not math.isfinite(value):
        return ""
    (left, top), (right, bottom) = points[0], points[1]
    text, across, down = escape(rate(value)), (left + right) / 2 - 3, (top + bottom) / 2
    width = 6.1 * len(text) + 6
    return (
        f'<rect class="paper" x="{across - width / 2:.1f}" y="{down - 8:.1f}" width="{width:.1f}" height="15" '
        f'rx="4" fill-opacity="0.88"/><text class="rate" x="{across:.1f}" y="{down + 3.5:.1f}" '
        f'text-anchor="middle">{text}</text>'
    )


def _at(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def legend() -> str:
    """Return the legend of the colours, as HTML."""
    marks = (
        (BUSY, "busy: processes rows"),
        (WAITING, f"backpressured: outputs wait for credit (from {BACKPRESSURED:.0%} on: high)"),
        (IDLE, "idle: no rows to process"),
    )
    swatches = "".join(
        f'<span class="mark"><span class="swatch" style="background: {c}"></span>{t}</span>' for c, t in marks
    )
    return f'<p class="marks">{swatches}<span class="mark">dashed: by direct calls in one thread</span></p>'
