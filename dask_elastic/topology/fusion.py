"""Fusion of operators into components, by their partitioning attributes and the rates between them.

Goal
    Components whose operators share at least one partitioning attribute, with few tuples between components.
Heuristic
    Greedy: fuse the pair of neighbours with the best score until no pair can be fused.
Not done
    Load, which the number of a component's instances accounts for, and fusion of some instances only. Operators that
    always run in one task are grouped by `dask_elastic.topology.component`.

Notes
-----
Enorm, section 4.4.1 (Algorithm 1 and the alternative score) and 7.6 (the baseline). The printed algorithm ignores
cycles: on large random jobs its component graph is mostly cyclic, which can deadlock aligned watermarks and barriers
(ERRATA, Enorm 2). This implementation refuses fusions that make a cycle. The motivating job gives {op1, op2, op3},
{op4}, {op5} with either score (ERRATA, Enorm 3).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import Final, TypeAlias, TypeVar

import numpy as np

from dask_elastic.vocab.errors import TopologyError
from dask_elastic.vocab.numbers import is_number, is_whole

Name = TypeVar("Name", bound=Hashable)
"""The name of an operator."""


class All(Enum):
    """The type of `ALL`."""

    ALL = "all attributes"

    def __repr__(self) -> str:
        return self.name


ALL: Final = All.ALL
"""The attributes of an operator that accepts any partitioning: all attributes."""

Attributes: TypeAlias = Collection[Hashable] | All

SCORES = ("communication", "attributes", "baseline")
"""The scores of `fuse`: tuples between two operators, attributes that they share, or the paper's baseline."""


def fuse(
    attributes: Mapping[Name, Attributes],
    rates: Mapping[tuple[Name, Name], float],
    score: str = "communication",
    allow_cycles: bool = False,
    seed: int = 0,
) -> list[frozenset[Name]]:
    """Fuse operators into components.

    Parameters
    ----------
    attributes : mapping of operator to set, or `ALL`
        The partitioning attributes of each operator: an empty set if it cannot be parallelised, `ALL` if it accepts any
        partitioning. Their order breaks ties.
    rates : mapping of (upstream, downstream) to float
        Tuples per second between operators; the pairs are the edges of the job's graph.
    score : {"communication", "attributes", "baseline"}
        The order of fusions: by the tuples between neighbours, by the number of shared attributes, or the baseline,
        which grows components from the first operator and then from random ones, by shared attributes.
    allow_cycles : bool
        Whether components may form cycles, as in the printed algorithm.
    seed : int
        The seed of the baseline's random start operators; other scores ignore it.

    Returns
    -------
    list of frozenset
        A partition of the operators, in the order of the components' first operators. In a component of several
        operators, all share at least one attribute.

    Raises
    ------
    TopologyError
        If the score is unknown, a rate is negative, not finite or names an operator that `attributes` lacks, or the
        operators themselves form a cycle and cycles are not allowed.

    Notes
    -----
    Enorm, Algorithm 1. As printed, scores are between operators even after fusion, and "communication" never fuses
    operators that exchange no tuples. The paper does not define whether the baseline may add operators that are already
    fused. Here it may, together with their component; otherwise it would yield more components than "communication",
    which has the most according to section 7.6.

    Examples
    --------
    >>> attributes = {"op1": ALL, "op2": {"area"}, "op3": {"area"}, "op4": set(), "op5": set()}
    >>> rates = {("op1", "op2"): 50, ("op1", "op3"): 50, ("op2", "op4"): 1, ("op3", "op5"): 1}
    >>> [sorted(component) for component in fuse(attributes, rates)]
    [['op1', 'op2', 'op3'], ['op4'], ['op5']]
    """
    if not isinstance(attributes, Mapping):
        raise TopologyError(f"attributes is {attributes!r}: give a mapping from operators to attributes.")
    if score not in SCORES:
        raise TopologyError(f"unknown score {score!r}{_nearest(score, SCORES)}: choose one of {', '.join(SCORES)}.")
    names = list(attributes)
    edges = _edges(names, rates)
    draft = _Draft(_masks(attributes), None if allow_cycles else _Reach(names, edges))
    if score == "baseline":
        _grow(draft, edges, np.random.default_rng(_checked_seed(seed)))
    elif score == "attributes":
        _merge(draft, [(source, target, draft.common(source, target)) for source, target, _ in edges])
    else:
        _merge(draft, edges)
    return [frozenset(names[number] for number in members) for members in draft.components()]


def communication(components: Iterable[frozenset[Name]], rates: Mapping[tuple[Name, Name], float]) -> float:
    """Return the fraction of tuples that are sent between components.

    Parameters
    ----------
    components : iterable of frozenset
        A partition of the operators.
    rates : mapping of (upstream, downstream) to float
        Tuples per second between operators.

    Returns
    -------
    float
        From 0 to 1; 0 without tuples.

    Raises
    ------
    TopologyError
        If a rate is negative, not finite or names an operator that no component has.

    Notes
    -----
    Enorm, section 7.6 and figure 15, which shows it in percent.

    Examples
    --------
    >>> communication([frozenset("ab"), frozenset("c")], {("a", "b"): 30, ("b", "c"): 10})
    0.25
    """
    owner = {name: number for number, members in enumerate(components) for name in members}
    pairs = [(owner[names[0]], owner[names[1]], rate) for names, rate in _checked(owner, rates)]
    total = math.fsum(rate for _, _, rate in pairs)
    return math.fsum(rate for source, target, rate in pairs if source != target) / total if total else 0.0


def cycle(
    components: Iterable[frozenset[Name]], rates: Mapping[tuple[Name, Name], float]
) -> list[frozenset[Name]] | None:
    """Return a cycle of components, or None.

    Parameters
    ----------
    components : iterable of frozenset
        A partition of the operators.
    rates : mapping of (upstream, downstream) to float
        Tuples per second between operators; the pairs are the edges.

    Returns
    -------
    list of frozenset, or None
        The components of one cycle, each followed by one that reads it.

    Raises
    ------
    TopologyError
        If a rate is negative, not finite or names an operator that no component has.

    Examples
    --------
    >>> rates = {("a", "b"): 1, ("b", "c"): 1, ("a", "c"): 1}
    >>> cycle([frozenset("ab"), frozenset("c")], rates) is None
    True
    >>> [sorted(component) for component in cycle([frozenset("ac"), frozenset("b")], rates)]
    [['a', 'c'], ['b']]
    """
    whole = list(components)
    owner = {name: number for number, members in enumerate(whole) for name in members}
    edges = [(owner[names[0]], owner[names[1]]) for names, _ in _checked(owner, rates)]
    found = _cycle(len(whole), [edge for edge in edges if edge[0] != edge[1]])
    return None if found is None else [whole[number] for number in found]


class _Reach:
    """The transitive closure of the component graph; sets of components are bits of integers.

    Raises
    ------
    TopologyError
        If the operators form a cycle before any is fused.
    """

    def __init__(self, names: Sequence[Hashable], edges: list[tuple[int, int, float]]):
        found = _cycle(len(names), [edge[:2] for edge in edges])
        if found is not None:
            path = " -> ".join(repr(names[number]) for number in [*found, found[0]])
            raise TopologyError(f"the operators form a cycle, {path}: remove an edge, or pass allow_cycles=True.")
        self._successors, self._downstream, self._upstream = ([0] * len(names) for _ in range(3))
        for source, target, _ in edges:
            self._successors[source] |= 1 << target
        order = TopologicalSorter({number: _numbers(bits) for number, bits in enumerate(self._successors)})
        for source in order.static_order():
            for target in _numbers(self._successors[source]):
                self._downstream[source] |= 1 << target | self._downstream[target]
        for source, bits in enumerate(self._downstream):
            for target in _numbers(bits):
                self._upstream[target] |= 1 << source

    def has_detour(self, source: int, target: int) -> bool:
        """Return whether another path leads from a component to its successor; fusing the two would make a cycle."""
        return bool(self._successors[source] & self._upstream[target])

    def contract(self, source: int, target: int) -> None:
        """Merge a component's successor into it."""
        joined, removed = 1 << source, 1 << target
        below = (self._downstream[source] | self._downstream[target]) & ~(joined | removed)
        above = (self._upstream[source] | self._upstream[target]) & ~(joined | removed)
        self._successors[source] = (self._successors[source] | self._successors[target]) & ~(joined | removed)
        self._downstream[source], self._upstream[source] = below, above
        for number in _numbers(above):
            if self._successors[number] & removed:
                self._successors[number] = self._successors[number] & ~removed | joined
            self._downstream[number] = self._downstream[number] & ~removed | joined | below
        for number in _numbers(below):
            self._upstream[number] = self._upstream[number] & ~removed | joined | above


class _Draft:
    """Components under construction, each identified by one of its operators, its leader.

    Parameters
    ----------
    masks : list of int
        The attributes of each operator, as the bits of an integer.
    reach : _Reach, optional
        The closure of the component graph; None if cycles are allowed.
    """

    def __init__(self, masks: list[int], reach: _Reach | None):
        self._shared = masks
        self._reach = reach
        self.leader = list(range(len(masks)))
        self.members = [[number] for number in self.leader]

    def common(self, first: int, second: int) -> int:
        """Return the number of attributes that two components share."""
        return (self._shared[first] & self._shared[second]).bit_count()

    def makes_cycle(self, source: int, target: int) -> bool:
        """Return whether fusing a component with its successor would make a forbidden cycle."""
        return self._reach is not None and self._reach.has_detour(source, target)

    def join(self, source: int, target: int) -> None:
        """Fuse a component with its successor."""
        self._shared[source] &= self._shared[target]
        for number in self.members[target]:
            self.leader[number] = source
        self.members[source] += self.members[target]
        self.members[target] = []
        if self._reach is not None:
            self._reach.contract(source, target)

    def components(self) -> list[list[int]]:
        """Return the operators of each component, in the order of their first operators."""
        return sorted(sorted(members) for members in self.members if members)


def _merge(draft: _Draft, edges: list[tuple[int, int, float]]) -> None:
    """Fuse the ends of the edge with the best score until no edge has a score above 0.

    An edge whose fusion would make a cycle is retried after the next fusion, which may contain the detour. An edge
    whose ends share no attribute is dropped, since fusions never add shared attributes.
    """
    queue = [(-score, place) for place, (_, _, score) in enumerate(edges) if score > 0]
    heapq.heapify(queue)
    waiting: list[tuple[float, int]] = []
    while queue:
        entry = heapq.heappop(queue)
        source, target, _ = edges[entry[1]]
        source, target = draft.leader[source], draft.leader[target]
        if source == target or not draft.common(source, target):
            continue
        if draft.makes_cycle(source, target):
            waiting.append(entry)
            continue
        draft.join(source, target)
        while waiting:
            heapq.heappush(queue, waiting.pop())


def _grow(draft: _Draft, edges: list[tuple[int, int, float]], random: np.random.Generator) -> None:
    """Grow components downstream, from the first operator and then from random operators that are not fused."""
    following: list[list[int]] = [[] for _ in draft.leader]
    for source, target, _ in edges:
        following[source].append(target)
    for start in [0, *random.permutation(np.arange(1, len(following))).tolist()][: len(following)]:
        if draft.members[start] != [start]:
            continue
        while (best := _best_downstream(draft, start, following)) is not None:
            draft.join(start, best)


def _best_downstream(draft: _Draft, start: int, following: list[list[int]]) -> int | None:
    """Return the downstream component that shares most attributes with `start`, the first one on ties, or None."""
    best, most = None, 0
    for target in dict.fromkeys(draft.leader[place] for member in draft.members[start] for place in following[member]):
        common = draft.common(start, target)
        if target != start and common > most and not draft.makes_cycle(start, target):
            best, most = target, common
    return best


def _masks(attributes: Mapping[Name, Attributes]) -> list[int]:
    """Return the attributes of each operator as bits; `ALL` has one more bit than there are attributes."""
    bits: dict[Hashable, int] = {}
    masks = []
    for name, given in attributes.items():
        if isinstance(given, All):
            masks.append(-1)
            continue
        if isinstance(given, str) or not isinstance(given, Collection):
            raise TopologyError(f"the attributes of {name!r} are {given!r}: give a set of attributes, or ALL.")
        strange = [attribute for attribute in given if not isinstance(attribute, Hashable)]
        if strange:
            raise TopologyError(f"attributes of {name!r} has {strange[0]!r}: name attributes by text or numbers.")
        masks.append(sum(1 << bits.setdefault(attribute, len(bits)) for attribute in set(given)))
    everything = (1 << len(bits) + 1) - 1
    return [mask & everything for mask in masks]


def _edges(names: list[Name], rates: Mapping[tuple[Name, Name], float]) -> list[tuple[int, int, float]]:
    """Return the edges by operator number, in the order in which Algorithm 1 visits them."""
    number = {name: place for place, name in enumerate(names)}
    edges = [(number[pair[0]], number[pair[1]], rate) for pair, rate in _checked(number, rates)]
    return sorted(edges, key=lambda edge: edge[0])


def _checked(
    known: Mapping[Name, int], rates: Mapping[tuple[Name, Name], float]
) -> Iterator[tuple[tuple[Name, Name], float]]:
    """Check and yield the rates."""
    if not isinstance(rates, Mapping):
        raise TopologyError(f"rates is {rates!r}: give a mapping from pairs of operators to tuples per second.")
    for pair, rate in rates.items():
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TopologyError(f"rates has the key {pair!r}: give pairs of operators, (upstream, downstream).")
        for name in pair:
            if name not in known:
                near = _nearest(name, known)
                raise TopologyError(f"the rate of {pair!r} names {name!r}, which is not an operator{near}.")
        if not (is_number(rate) and 0 <= rate < math.inf):
            raise TopologyError(f"the rate of {pair!r} is {rate!r}: give tuples per second, 0 or more.")
        yield pair, rate


def _checked_seed(seed: int) -> int:
    if not is_whole(seed) or seed < 0:
        raise TopologyError(f"seed is {seed!r}: give a whole number of 0 or more.")
    return int(seed)


def _cycle(count: int, edges: Iterable[tuple[int, int]]) -> list[int] | None:
    """Return a cycle, each vertex followed by its successor, or None."""
    graph: dict[int, list[int]] = {number: [] for number in range(count)}
    for source, target in edges:
        graph[source].append(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[int] = error.args[1][:0:-1]
        least = found.index(min(found))
        return found[least:] + found[:least]
    return None


def _numbers(bits: int) -> Iterator[int]:
    """Yield the positions of the set bits, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _nearest(name: object, known: Iterable[object]) -> str:
    """Return a hint at the most similar known name, or an empty string."""
    near = get_close_matches(str(name), [str(one) for one in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
