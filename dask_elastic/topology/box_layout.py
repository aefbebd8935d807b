"""The layout of a drawn topology: boxes in layers from left to right, with few crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Edge: TypeAlias = tuple[str, str]
Point: TypeAlias = tuple[float, float]

GAP_ACROSS = 52.0
GAP_DOWN = 22.0
SWEEPS = 6


@dataclass(frozen=True)
class Box:
    """The size of a box.

    Parameters
    ----------
    width, height : float
        Its size, in pixels.
    """

    width: float
    height: float


@dataclass(frozen=True)
class BoxLayout:
    """The positions of boxes and edges.

    Parameters
    ----------
    centres : dict of str to point
        The centre of each box.
    routes : dict of edge to list of points
        The points of each edge, its ends included.
    backward : frozenset of edge
        The edges that close a cycle, which run from right to left.
    width, height : float
        The size of the drawing.
    """

    centres: dict[str, Point]
    routes: dict[Edge, list[Point]]
    backward: frozenset[Edge]
    width: float
    height: float


@dataclass(frozen=True)
class _Waypoint:
    """The point at which an edge crosses an intermediate layer."""

    edge: Edge
    layer: int


_Node: TypeAlias = str | _Waypoint


def place(boxes: Mapping[str, Box], edges: Sequence[Edge], label_widths: Mapping[Edge, float]) -> BoxLayout:
    """Place boxes in layers so that edges run from left to right.

    Parameters
    ----------
    boxes : mapping of str to Box
        The boxes by name.
    edges : sequence of (str, str)
        The edges.
    label_widths : mapping of edge to float
        The width of each edge's label.

    Returns
    -------
    BoxLayout
        The layout; deterministic.

    Examples
    --------
    >>> layout = place({"a": Box(10, 10), "b": Box(10, 10)}, [("a", "b")], {})
    >>> layout.centres["a"][0] < layout.centres["b"][0]
    True

    Notes
    -----
    Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981: layers by
    longest path, waypoints for long edges, order by barycentres.
    """
    edges = list(dict.fromkeys(edges))
    rank = _layers(list(boxes), edges)
    backward = frozenset((source, target) for source, target in edges if rank[source] >= rank[target])
    chains = {edge: _chain(edge, rank) for edge in edges if edge not in backward}
    layers: list[list[_Node]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for name in boxes:
        layers[rank[name]].append(name)
    for waypoint in (node for chain in chains.values() for node in chain if isinstance(node, _Waypoint)):
        layers[waypoint.layer].append(waypoint)
    neighbours = _neighbours(chains)
    _sort(layers, neighbours)
    across = _columns(layers, boxes, chains, rank, label_widths)
    down = _rows(layers, boxes, neighbours)
    top = min((down[name] - box.height / 2 for name, box in boxes.items()), default=0.0)
    top = min([top, *(down[node] for layer in layers for node in layer)])
    centres = {name: (across[rank[name]], down[name] - top) for name in boxes}
    routes = {edge: _backward_route(edge, centres, boxes) for edge in backward}
    for (source, target), chain in chains.items():
        between = [(across[node.layer], down[node] - top) for node in chain if isinstance(node, _Waypoint)]
        start = (centres[source][0] + boxes[source].width / 2, centres[source][1])
        end = (centres[target][0] - boxes[target].width / 2, centres[target][1])
        routes[source, target] = [start, *between, end]
    width = max((centres[name][0] + box.width / 2 for name, box in boxes.items()), default=0.0)
    height = max((centres[name][1] + box.height / 2 for name, box in boxes.items()), default=0.0)
    height = max([height, *(point[1] for route in routes.values() for point in route)])
    return BoxLayout(centres, {edge: routes[edge] for edge in edges}, backward, width, height)


def _chain(edge: Edge, rank: Mapping[str, int]) -> list[_Node]:
    source, target = edge
    return [source, *(_Waypoint(edge, layer) for layer in range(rank[source] + 1, rank[target])), target]


def _layers(names: list[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Return the layer of each box by longest path; a cycle is cut at its first box."""
    missing = dict.fromkeys(names, 0)
    consumers: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        missing[target] += 1
        consumers[source].append(target)
    rank: dict[str, int] = {}
    least = dict.fromkeys(names, 0)
    ready = [name for name in names if not missing[name]]
    position = 0
    while len(rank) < len(names):
        if position == len(ready):
            ready.append(next(name for name in names if name not in rank))
        name = ready[position]
        position += 1
        rank[name] = least[name]
        for target in consumers[name]:
            if target in rank:
                continue
            missing[target] -= 1
            least[target] = max(least[target], rank[name] + 1)
            if not missing[target]:
                ready.append(target)
    return rank


def _neighbours(chains: Mapping[Edge, list[_Node]]) -> dict[_Node, tuple[list[_Node], list[_Node]]]:
    found: dict[_Node, tuple[list[_Node], list[_Node]]] = {}
    for chain in chains.values():
        for left, right in pairwise(chain):
            found.setdefault(left, ([], []))[1].append(right)
            found.setdefault(right, ([], []))[0].append(left)
    return found


def _sort(layers: list[list[_Node]], neighbours: Mapping[_Node, tuple[list[_Node], list[_Node]]]) -> None:
    """Order each layer by the mean position of its neighbours, alternating between left and right neighbours."""
    place_of: dict[_Node, float] = {node: place for layer in layers for place, node in enumerate(layer)}
    for sweep in range(SWEEPS):
        side = sweep % 2
        for layer in layers if side == 0 else reversed(layers):
            middle: dict[_Node, float] = {}
            for node in layer:
                beside = neighbours.get(node, ([], []))[side]
                middle[node] = sum(place_of[other] for other in beside) / len(beside) if beside else place_of[node]
            layer.sort(key=middle.__getitem__)
            place_of.update({node: place for place, node in enumerate(layer)})


def _columns(
    layers: list[list[_Node]],
    boxes: Mapping[str, Box],
    chains: Mapping[Edge, list[_Node]],
    rank: Mapping[str, int],
    label_widths: Mapping[Edge, float],
) -> list[float]:
    """Return the centre of each layer from left to right, with space for the labels of edges that end there."""
    gaps = [GAP_ACROSS] * len(layers)
    for edge in chains:
        gaps[rank[edge[1]]] = max(gaps[rank[edge[1]]], label_widths.get(edge, 0.0) + GAP_ACROSS)
    centres: list[float] = []
    right = -gaps[0] if gaps else 0.0
    for layer, gap in zip(layers, gaps, strict=True):
        width = max(boxes[node].width for node in layer if isinstance(node, str))
        centres.append(right + gap + width / 2)
        right += gap + width
    return centres


def _rows(
    layers: list[list[_Node]],
    boxes: Mapping[str, Box],
    neighbours: Mapping[_Node, tuple[list[_Node], list[_Node]]],
) -> dict[_Node, float]:
    """Return the vertical position of each node: near its neighbours, in the order of its layer, without overlap."""
    down: dict[_Node, float] = {}
    for layer in layers:
        _spread(layer, dict.fromkeys(layer, 0.0), boxes, down)
    for sweep in range(SWEEPS):
        side = sweep % 2
        for layer in layers if side == 0 else reversed(layers):
            wanted: dict[_Node, float] = {}
            for node in layer:
                beside = neighbours.get(node, ([], []))[side]
                wanted[node] = sum(down[other] for other in beside) / len(beside) if beside else down[node]
            _spread(layer, wanted, boxes, down)
    return down


def _spread(
    layer: list[_Node], wanted: Mapping[_Node, float], boxes: Mapping[str, Box], down: dict[_Node, float]
) -> None:
    lowest: float | None = None
    before = 0.0
    for node in layer:
        half = boxes[node].height / 2 if isinstance(node, str) else 0.0
        here = wanted[node] if lowest is None else max(wanted[node], lowest + before + GAP_DOWN + half)
        down[node] = here
        lowest, before = here, half
    # Resolving overlaps only moves nodes down; shift the whole layer back by the mean.
    drift = sum(down[node] - wanted[node] for node in layer) / len(layer)
    for node in layer:
        down[node] -= drift


def _backward_route(edge: Edge, centres: Mapping[str, Point], boxes: Mapping[str, Box]) -> list[Point]:
    source, target = edge
    out, into = (centres[name][0] for name in edge)
    start, end = (centres[name][1] + boxes[name].height / 2 for name in (source, target))
    if source == target:
        out, into = out + boxes[source].width / 4, into - boxes[source].width / 4
    below = max(start, end) + 1.5 * GAP_DOWN
    return [(out, start), (out, below), (into, below), (into, end)]
