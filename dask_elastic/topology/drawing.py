"""Renderings of a topology: text, SVG, and HTML for notebooks."""

from __future__ import annotations

from html import escape
from itertools import pairwise

import pyarrow.compute as pc

from dask_elastic.topology.box_layout import Box, Point, place
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import Compute, MapOperator, Operator, SinkOperator, SourceOperator

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
# Fill, border and text of each kind of box; legible in light and dark notebooks.
COLOURS = {
    "source": ("#e3f0e6", "#4b9560", "#17391f"),
    "map": ("#f3f4f6", "#8a919c", "#23272e"),
    "filter": ("#f3f4f6", "#8a919c", "#23272e"),
    "compute": ("#fdecd9", "#e08a2c", "#4a2a06"),
    "sink": ("#e4ecf9", "#5580c4", "#16294a"),
}
ARROW = "#8a919c"
MARGIN = 12.0
HEAD = 12.0
LINE = 16.0
PADDING = 11.0
LONGEST_NAME = 30
LONGEST_DETAIL = 38
MOST_DETAILS = 5


def describe(topology: OperatorGraph) -> str:
    """Return the topology as text, one line per operator.

    Parameters
    ----------
    topology : OperatorGraph
        The topology, valid or not.

    Returns
    -------
    str
        Lines with aligned columns.
    """
    operators = topology.operators
    count = f"{len(operators)} operator{'' if len(operators) == 1 else 's'}"
    rows = []
    for operator in operators:
        producers = ", ".join(producer.name for producer in topology.inputs(operator.name))
        rows.append(
            (
                operator.name,
                operator.kind,
                "; ".join(_short(line, LONGEST_NAME * 2) for line in _details(operator)),
                f"<- {producers}" if producers else "",
            )
        )
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = [f"Topology {topology.name!r}: {count}"]
    for name, kind, details, producers in rows:
        line = f"  {name:{widths[0]}}  {kind:{widths[1]}}  {details:{widths[2]}}   {producers}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def html(topology: OperatorGraph) -> str:
    """Return the topology as HTML for a notebook.

    Parameters
    ----------
    topology : OperatorGraph
        The topology, valid or not.

    Returns
    -------
    str
        An HTML element that contains the drawing.
    """
    caption = f'<div style="font: 600 13px {FONT}; margin: 4px 0">{escape(topology.name)}</div>'
    return f'<div style="overflow-x: auto">{caption}{svg(topology)}</div>'


def svg(topology: OperatorGraph) -> str:
    """Return a drawing of the topology as an SVG document.

    Parameters
    ----------
    topology : OperatorGraph
        The topology, valid or not; edges that close a cycle are dashed.

    Returns
    -------
    str
        The document, with all text escaped.
    """
    boxes = {operator.name: _box(operator) for operator in topology.operators}
    labels = {edge: label for edge in topology.edges if (label := _label(topology.operator(edge[1])))}
    widths = {edge: _text_width(label, 11) + 10 for edge, label in labels.items()}
    layout = place(boxes, topology.edges, widths)
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}" font-family="{escape(FONT)}">',
        f"<title>{escape(topology.name)}</title>",
    ]
    for edge, points in layout.routes.items():
        parts.append(_arrow(points, edge in layout.backward, widths.get(edge, 0.0)))
    parts += [
        _edge_label(labels[edge], widths[edge], points[-1]) for edge, points in layout.routes.items() if edge in labels
    ]
    parts += [_drawn(operator, layout.centres[operator.name], boxes[operator.name]) for operator in topology.operators]
    parts.append("</svg>")
    return "\n".join(parts)


def _details(operator: Operator) -> list[str]:
    """Return what an operator does, as one short line or several."""
    if isinstance(operator, SourceOperator):
        source = operator.source
        lines = [type(source).__name__]
        if source.rate is not None:
            lines.append(f"{source.rate:,g} rows/s")
        if source.event_time is not None:
            lines.append(f"event time {source.event_time}")
        return lines
    if isinstance(operator, SinkOperator):
        return [type(operator.sink).__name__]
    if isinstance(operator, Compute):
        return [f"by {', '.join(operator.keys)}", *_logic(operator)]
    logic = operator.function if isinstance(operator, MapOperator) else operator.predicate
    lines = [_expression(logic) if isinstance(logic, pc.Expression) else _function(logic)]
    if operator.columns is not None:
        lines.append(f"reads {', '.join(operator.columns)}")
    return lines


def _logic(operator: Compute) -> list[str]:
    if operator.aggregates is not None:
        return [f"{output} = {aggregate!r}" for output, aggregate in operator.aggregates.items()]
    lines = [_function(operator.function)]
    if operator.state:
        lines.append(f"state {', '.join(operator.state)}")
    return lines


def _expression(expression: pc.Expression) -> str:
    text = str(expression)
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _function(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "a lambda" if name == "<lambda>" else f"{name}()"


def _lines(operator: Operator) -> list[str]:
    """Return the lines below a box's name: its kind, and the details that are not shown elsewhere."""
    details = _details(operator)
    shown_elsewhere = isinstance(operator, Compute) or details[0] == f"{operator.name}()"
    first = operator.kind if shown_elsewhere else f"{operator.kind} {details[0]}"
    lines = [first, *details[1:]]
    if len(lines) > MOST_DETAILS:
        lines = [*lines[: MOST_DETAILS - 1], f"and {len(lines) - MOST_DETAILS + 1} more"]
    return lines


def _label(consumer: Operator) -> str:
    return _short(", ".join(consumer.keys), LONGEST_NAME) if isinstance(consumer, Compute) else ""


def _box(operator: Operator) -> Box:
    lines = _lines(operator)
    widest = max(_text_width(_short(line, LONGEST_DETAIL), 11) for line in lines)
    width = max(widest, _text_width(_short(operator.name, LONGEST_NAME), 13) * 1.05, 60.0) + 2 * PADDING
    return Box(width, LINE * (len(lines) + 1) + PADDING)


def _drawn(operator: Operator, centre: Point, box: Box) -> str:
    fill, border, ink = COLOURS[operator.kind]
    left, top = centre[0] - box.width / 2, centre[1] - box.height / 2
    full = "\n".join((f"{operator.kind} {operator.name}", *_details(operator)))
    parts = [
        "<g>",
        f"<title>{escape(full)}</title>",
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8" '
        f'fill="{fill}" stroke="{border}" stroke-width="1.2"/>',
        f'<text x="{left + PADDING:.1f}" y="{top + LINE + 3:.1f}" font-size="13" font-weight="600" fill="{ink}">'
        f"{escape(_short(operator.name, LONGEST_NAME))}</text>",
    ]
    for number, line in enumerate(_lines(operator), 2):
        parts.append(
            f'<text x="{left + PADDING:.1f}" y="{top + LINE * number + 2:.1f}" font-size="11" fill="{ink}" '
            f'fill-opacity="0.8">{escape(_short(line, LONGEST_DETAIL))}</text>'
        )
    return "\n".join([*parts, "</g>"])


def _arrow(points: list[Point], backward: bool, label_width: float) -> str:
    end = points[-1]
    if backward:
        curve = f"M{_at(points[0])} C{_at(points[1])} {_at(points[2])} {_at((end[0], end[1] + 6))}"
        head = f"M{_at(end)} l-4,7 h8 z"
        style = ' stroke-dasharray="5 4"'
    else:
        stops = [*points[:-1], (end[0] - HEAD - label_width, end[1])]
        curve = f"M{_at(stops[0])}"
        for before, after in pairwise(stops):
            middle = (before[0] + after[0]) / 2
            curve += f" C{_at((middle, before[1]))} {_at((middle, after[1]))} {_at(after)}"
        curve += f" L{_at((end[0] - 6, end[1]))}"
        head = f"M{_at(end)} l-7,-4 v8 z"
        style = ""
    return (
        f'<path d="{curve}" fill="none" stroke="{ARROW}" stroke-width="1.4"{style}/>\n<path d="{head}" fill="{ARROW}"/>'
    )


def _edge_label(label: str, width: float, end: Point) -> str:
    # Next to the arrow's head, where edges to one box no longer cross.
    left, top = end[0] - HEAD - width, end[1] - 8
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="16" rx="8" fill="#fff7ee" '
        f'stroke="#e08a2c" stroke-width="0.8"/>\n'
        f'<text x="{left + width / 2:.1f}" y="{top + 11.5:.1f}" font-size="11" text-anchor="middle" '
        f'fill="#4a2a06">{escape(label)}</text>'
    )


def _at(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _text_width(text: str, size: int) -> float:
    # The mean width of letters in `FONT`; wide scripts need up to twice as much.
    return sum(1.0 if ord(letter) > 0x2E80 else 0.57 for letter in text) * size
