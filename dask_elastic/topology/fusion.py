"""Which operators to fuse, by what they are partitioned on and by how much they send each other.

Goal
    Components whose operators can all be partitioned on one attribute at least, with few tuples between components.
Heuristic
    The pair of neighbours with the best score is fused, again and again, until no pair can be.
Not done
    Load, which the number of a component's instances takes care of, and the fusing of some instances only. What runs in
    one task in any case is fused by `dask_elastic.topology.component`.

Notes
-----
Enorm, section 4.4.1 (Algorithm 1 and the alternative score) and 7.6 (the baseline). The printed algorithm ignores
cycles, and on random large jobs its component graph is mostly cyclic, which can deadlock aligned watermarks and
barriers (ERRATA, Enorm 2): a fusion that makes a cycle is forbidden here. The motivating job gives {op1, op2, op3},
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
from dask_elastic.vocab.numbers import is_number

Operator = TypeVar("Operator", bound=Hashable)


class All(Enum):
    """The type of `ALL`."""

    ALL = "all attributes"

    def __repr__(self) -> str:
        return self.name


ALL: Final = All.ALL
"""What an operator is partitioned on that takes its tuples in any partitioning: all attributes there are."""

Attributes: TypeAlias = Collection[Hashable] | All

SCORES = ("communication", "attributes", "baseline")
"""What `fuse` can go by: tuples between two operators, attributes that they share, or the paper's baseline."""


def fuse(
    attributes: Mapping[Operator, Attributes],
    rates: Mapping[tuple[Operator, Operator], float],
    score: str = "communication",
    allow_cycles: bool = False,
    seed: int = 0,
) -> list[frozenset[Operator]]:
    """Fuse operators into components.

    Parameters
    ----------
    attributes : mapping of operator to set, or `ALL`
        What each operator is partitioned on; an empty set for one that cannot be parallelised, `ALL` for one that can
        be in any way. Their order decides between equal scores.
    rates : mapping of (upstream, downstream) to float
        Tuples per second from operator to operator; these pairs are the edges of the job's graph.
    score : {"communication", "attributes", "baseline"}
        Which neighbours are fused first: those with most tuples between them, those that share most attributes, or, as
        the baseline, those of the first operator and then of random ones, by attributes.
    allow_cycles : bool
        Whether components may depend on each other in a circle, as the printed algorithm lets them.
    seed : int
        What draws the operators that the baseline begins with; no other score needs it.

    Returns
    -------
    list of frozenset
        The components, each operator in one of them, in the order of their first operators. The operators of a
        component with two or more have an attribute in common.

    Raises
    ------
    TopologyError
        If the score is unknown, a rate names an operator that has no attributes, is negative or not finite, or the
        operators themselves form a cycle and cycles are not allowed.

    Notes
    -----
    Enorm, Algorithm 1. As printed, scores are of operators, also after they are fused, and operators that send each
    other nothing are not fused for communication. The text on the baseline leaves open whether it takes in operators
    that are fused already. Here it does, with all of their component; otherwise it ends with more components than
    "communication", which by section 7.6 has the most.

    Examples
    --------
    >>> attributes = {"op1": ALL, "op2": {"area"}, "op3": {"area"}, "op4": set(), "op5": set()}
    >>> rates = {("op1", "op2"): 50, ("op1", "op3"): 50, ("op2", "op4"): 1, ("op3", "op5"): 1}
    >>> [sorted(component) for component in fuse(attributes, rates)]
    [['op1', 'op2', 'op3'], ['op4'], ['op5']]
    """
    if not isinstance(attributes, Mapping):
        raise TopologyError(f"attributes is {attributes!r}: give the attributes of each operator, by its name.")
    if score not in SCORES:
        raise TopologyError(f"no score is named {score!r}{_nearest(score, SCORES)}: choose one of {', '.join(SCORES)}.")
    names = list(attributes)
    edges = _edges(names, rates)
    draft = _Draft(_masks(attributes), None if allow_cycles else _Reach(names, edges))
    if score == "baseline":
        _grow(draft, edges, np.random.default_rng(seed))
    elif score == "attributes":
        _merge(draft, [(source, target, draft.common(source, target)) for source, target, _ in edges])
    else:
        _merge(draft, edges)
    return [frozenset(names[number] for number in members) for members in draft.components()]


def communication(components: Iterable[frozenset[Operator]], rates: Mapping[tuple[Operator, Operator], float]) -> float:
    """Return which part of all tuples goes from one component to another; 0 where there are none.

    Raises
    ------
    TopologyError
        If a rate names an operator of no component, or is negative or not finite.

    Notes
    -----
    Enorm, section 7.6 and figure 15, which has it in percent.

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
    components: Iterable[frozenset[Operator]], rates: Mapping[tuple[Operator, Operator], float]
) -> list[frozenset[Operator]] | None:
    """Return components that depend on each other in a circle, each on the one before it, or None.

    Raises
    ------
    TopologyError
        If a rate names an operator of no component, or is negative or not finite.

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
    found = _circle(len(whole), [edge for edge in edges if edge[0] != edge[1]])
    return None if found is None else [whole[number] for number in found]


class _Reach:
    """Which components lead to which; sets of components are the bits of whole numbers.

    Raises
    ------
    TopologyError
        If the operators form a cycle before any is fused.
    """

    def __init__(self, names: Sequence[Hashable], edges: list[tuple[int, int, float]]):
        found = _circle(len(names), [edge[:2] for edge in edges])
        if found is not None:
            way = " -> ".join(repr(names[number]) for number in [*found, found[0]])
            raise TopologyError(f"the operators form a cycle, {way}: leave an edge out, or give allow_cycles=True.")
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

    def by_detour(self, source: int, target: int) -> bool:
        """Return whether a component leads to its successor by way of another one, which fusing makes a cycle."""
        return bool(self._successors[source] & self._upstream[target])

    def contract(self, source: int, target: int) -> None:
        """Let a component take the place of one of its successors."""
        joined, gone = 1 << source, 1 << target
        below = (self._downstream[source] | self._downstream[target]) & ~(joined | gone)
        above = (self._upstream[source] | self._upstream[target]) & ~(joined | gone)
        self._successors[source] = (self._successors[source] | self._successors[target]) & ~(joined | gone)
        self._downstream[source], self._upstream[source] = below, above
        for number in _numbers(above):
            if self._successors[number] & gone:
                self._successors[number] = self._successors[number] & ~gone | joined
            self._downstream[number] = self._downstream[number] & ~gone | joined | below
        for number in _numbers(below):
            self._upstream[number] = self._upstream[number] & ~gone | joined | above


class _Draft:
    """Components under construction, each known by the number of one of its operators.

    Parameters
    ----------
    masks : list of int
        The attributes of each operator, as bits.
    reach : _Reach, optional
        Who leads to whom; None if cycles do not matter.
    """

    def __init__(self, masks: list[int], reach: _Reach | None):
        self._shared = masks
        self._reach = reach
        self.leader = list(range(len(masks)))
        self.members = [[number] for number in self.leader]

    def common(self, first: int, second: int) -> int:
        """Return how many attributes two components have in common."""
        return (self._shared[first] & self._shared[second]).bit_count()

    def makes_cycle(self, source: int, target: int) -> bool:
        """Return whether fusing a component with its successor is forbidden."""
        return self._reach is not None and self._reach.by_detour(source, target)

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
        """Return the operators of each component, in the order of their first ones."""
        return sorted(sorted(members) for members in self.members if members)


def _merge(draft: _Draft, edges: list[tuple[int, int, float]]) -> None:
    """Fuse the ends of the edge with the best score, while there is one above 0.

    An edge that would make a cycle waits for the next fusion, which may take in the detour. One whose ends have no
    attribute in common never will again.
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
    """Let the first operator, then random lone ones, take in what is downstream while something fits."""
    following: list[list[int]] = [[] for _ in draft.leader]
    for source, target, _ in edges:
        following[source].append(target)
    for start in [0, *random.permutation(np.arange(1, len(following))).tolist()][: len(following)]:
        if draft.members[start] != [start]:
            continue
        while (best := _best_downstream(draft, start, following)) is not None:
            draft.join(start, best)


def _best_downstream(draft: _Draft, start: int, following: list[list[int]]) -> int | None:
    """Return the component downstream of another that has most attributes in common with it; the first of equals."""
    best, most = None, 0
    for target in dict.fromkeys(draft.leader[place] for member in draft.members[start] for place in following[member]):
        common = draft.common(start, target)
        if target != start and common > most and not draft.makes_cycle(start, target):
            best, most = target, common
    return best


def _masks(attributes: Mapping[Operator, Attributes]) -> list[int]:
    """Return the attributes of each operator as bits; `ALL` has one more than any set can name."""
    bits: dict[Hashable, int] = {}
    masks = []
    for name, given in attributes.items():
        if isinstance(given, All):
            masks.append(-1)
            continue
        if isinstance(given, str) or not isinstance(given, Collection):
            raise TopologyError(f"the attributes of {name!r} are {given!r}: give a set of attributes, or ALL.")
        masks.append(sum(1 << bits.setdefault(attribute, len(bits)) for attribute in set(given)))
    everything = (1 << len(bits) + 1) - 1
    return [mask & everything for mask in masks]


def _edges(names: list[Operator], rates: Mapping[tuple[Operator, Operator], float]) -> list[tuple[int, int, float]]:
    """Return the edges by the operators' numbers, in the order in which Algorithm 1 looks at them."""
    number = {name: place for place, name in enumerate(names)}
    edges = [(number[pair[0]], number[pair[1]], rate) for pair, rate in _checked(number, rates)]
    return sorted(edges, key=lambda edge: edge[0])


def _checked(
    known: Mapping[Operator, int], rates: Mapping[tuple[Operator, Operator], float]
) -> Iterator[tuple[tuple[Operator, Operator], float]]:
    """Yield the rates, or say which one is wrong."""
    if not isinstance(rates, Mapping):
        raise TopologyError(f"rates is {rates!r}: give tuples per second by pairs of operators.")
    for pair, rate in rates.items():
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TopologyError(f"the rates have {pair!r}: give pairs of operators, upstream and downstream.")
        for name in pair:
            if name not in known:
                near = _nearest(name, known)
                raise TopologyError(f"the rate of {pair!r} names {name!r}, which is no operator{near}.")
        if not (is_number(rate) and 0 <= rate < math.inf):
            raise TopologyError(f"the rate of {pair!r} is {rate!r}: give tuples per second, 0 or more.")
        yield pair, rate


def _circle(count: int, edges: Iterable[tuple[int, int]]) -> list[int] | None:
    """Return a cycle, each vertex before those that it leads to, or None."""
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
    """Yield the places of the bits that are set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _nearest(name: object, known: Iterable[object]) -> str:
    """Return a hint at the known name that is spelt most alike, if there is one."""
    near = get_close_matches(str(name), [str(one) for one in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
