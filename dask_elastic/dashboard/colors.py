"""Colours: each operator has a hue, its executors are shades of it; nodes have a separate palette."""

from __future__ import annotations

from collections.abc import Sequence

HUES = ("#3b82c4", "#e08e2b", "#2f9e77", "#c4609a", "#8f6fc0", "#c9513a", "#4fa8b8", "#8a8f3c")
"""Distinguishable with colour blindness, and on light and dark backgrounds."""

NODES = ("#34568b", "#7ca1c9", "#4f8a8b", "#a3c9a8", "#84739e", "#bfa5c9", "#6b7a8f", "#b4bdca")

STACKED_NAMES = 12
"""Largest number of names that are stacked; more colours cannot be distinguished, so more names make a heat map."""

MEASURED, TAIL, PREDICTED, TARGET = "#3b82c4", "#8f6fc0", "#e08e2b", "#c9513a"
THROUGHPUT, LAG = "#2f9e77", "#e08e2b"
QUEUE, STATE, MOVES, MARK = "#c4609a", "#4fa8b8", "#8f6fc0", "#7d8590"

LIGHTEST = 0.55
"""Lightness of the last shade of a hue: 0 is the hue, 1 is white."""


def operator_of(executor: str) -> str:
    """Return the operator of an executor's name.

    Examples
    --------
    >>> operator_of("per_route[3]")
    'per_route'
    """
    return executor.rpartition("[")[0] or executor


def operators_of(executors: Sequence[str]) -> list[str]:
    """Return the distinct operators of executors, in order of first occurrence."""
    return list(dict.fromkeys(operator_of(name) for name in executors))


def executor_colors(executors: Sequence[str]) -> list[str]:
    """Return a colour for each executor: the hue of its operator, lighter for each further executor.

    Parameters
    ----------
    executors : sequence of str
        Names such as ``"per_route[0]"``.

    Returns
    -------
    list of str
        Colours as ``"#rrggbb"``.

    Examples
    --------
    >>> executor_colors(["a[0]", "b[0]", "a[1]"])
    ['#3b82c4', '#e08e2b', '#a7c7e4']
    """
    hues = {name: HUES[place % len(HUES)] for place, name in enumerate(operators_of(executors))}
    counts = {name: sum(operator_of(one) == name for one in executors) for name in hues}
    seen = dict.fromkeys(hues, 0)
    colors = []
    for name in map(operator_of, executors):
        colors.append(lightened(hues[name], LIGHTEST * seen[name] / max(1, counts[name] - 1)))
        seen[name] += 1
    return colors


def node_colors(nodes: Sequence[str]) -> list[str]:
    """Return a colour for each node; after eight nodes the colours repeat, slightly lighter."""
    rounds = [place // len(NODES) for place in range(len(nodes))]
    return [lightened(NODES[place % len(NODES)], 0.3 * lap) for place, lap in enumerate(rounds)]


def lightened(color: str, share: float) -> str:
    """Mix a colour with a share of white, from 0 to 1.

    Examples
    --------
    >>> lightened("#000000", 0.5)
    '#808080'
    """
    parts = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * min(share, 1.0)):02x}" for part in parts)
