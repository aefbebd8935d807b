"""An SVG drawing of boxes and the arrows between them, in the direction in which rows flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from dask_elastic.topology.box_layout import Box, Point, place

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


@dataclass(frozen=True)
class DrawnBox:
    """A box of a diagram.

    Parameters
    ----------
    name, kind : str
        Its name, and one of the kinds in `COLOURS`.
    lines : sequence of str
        What is written below the name; long lines are shortened.
    title : str
        The text that appears when the pointer is on the box.
    label : str
        What is written at the arrows that lead to the box; nothing if empty.
    """

    name: str
    kind: str
    lines: Sequence[str]
    title: str
    label: str = ""


def svg(name: str, boxes: Iterable[DrawnBox], edges: Iterable[tuple[str, str]]) -> str:
    """Return a diagram as an SVG document.

    Parameters
    ----------
    name : str
        The title of the document.
    boxes : iterable of DrawnBox
        The boxes.
    edges : iterable of (str, str)
        Pairs of names, from where to where rows flow; those that close a cycle are dashed.

    Returns
    -------
    str
        The document, with all text escaped.

    Examples
    --------
    >>> boxes = [DrawnBox("rows", "source", ["source"], "rows"), DrawnBox("out", "sink", ["sink"], "out")]
    >>> svg("words", boxes, [("rows", "out")])[:4]
    '<svg'
    """
    drawn = {box.name: box for box in boxes}
    edges = [*edges]
    sizes = {box.name: _size(box) for box in drawn.values()}
    labels = {edge: label for edge in edges if (label := drawn[edge[1]].label)}
    widths = {edge: _text_width(label, 11) + 10 for edge, label in labels.items()}
    layout = place(sizes, edges, widths)
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}" font-family="{escape(FONT)}">',
        f"<title>{escape(name)}</title>",
    ]
    for edge, points in layout.routes.items():
        parts.append(_arrow(points, edge in layout.backward, widths.get(edge, 0.0)))
    parts += [
        _edge_label(labels[edge], widths[edge], points[-1]) for edge, points in layout.routes.items() if edge in labels
    ]
    parts += [_drawn(box, layout.centres[box.name], sizes[box.name]) for box in drawn.values()]
    parts.append("</svg>")
    return "\n".join(parts)


def shortened(text: str, most: int) -> str:
    r"""Return a text on one line, and without its end if it is too long.

    Examples
    --------
    >>> shortened("per\nword", 6)
    'per w…'
    """
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _size(box: DrawnBox) -> Box:
    widest = max(_text_width(shortened(line, LONGEST_DETAIL), 11) for line in box.lines)
    width = max(widest, _text_width(shortened(box.name, LONGEST_NAME), 13) * 1.05, 60.0) + 2 * PADDING
    return Box(width, LINE * (len(box.lines) + 1) + PADDING)


def _drawn(box: DrawnBox, centre: Point, size: Box) -> str:
    fill, border, ink = COLOURS[box.kind]
    left, top = centre[0] - size.width / 2, centre[1] - size.height / 2
    parts = [
        "<g>",
        f"<title>{escape(box.title)}</title>",
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{size.width:.1f}" height="{size.height:.1f}" rx="8" '
        f'fill="{fill}" stroke="{border}" stroke-width="1.2"/>',
        f'<text x="{left + PADDING:.1f}" y="{top + LINE + 3:.1f}" font-size="13" font-weight="600" fill="{ink}">'
        f"{escape(shortened(box.name, LONGEST_NAME))}</text>",
    ]
    for number, line in enumerate(box.lines, 2):
        parts.append(
            f'<text x="{left + PADDING:.1f}" y="{top + LINE * number + 2:.1f}" font-size="11" fill="{ink}" '
            f'fill-opacity="0.8">{escape(shortened(line, LONGEST_DETAIL))}</text>'
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


def _text_width(text: str, size: int) -> float:
    # The mean width of letters in `FONT`; wide scripts need up to twice as much.
    return sum(1.0 if ord(letter) > 0x2E80 else 0.57 for letter in text) * size
