"""The consolidation plan: the cheapest way to form complete windows from partials and from each other.

Goal
    Every window that closes within a horizon is formed from pieces that lie end to end: partials of one slice each, and
    complete windows that are formed anyway. The number of pieces is the least there is, or the number of their keys.
Heuristic
    None, the plan is optimal. The moments at which windows begin and end are the vertices of a DAG, partials and
    windows its edges; a window is the shortest path from its begin to its end that is not the window itself. No choice
    for one window takes anything from another, so the sum of the shortest paths is the least total.
Not done
    Results over spans that nobody asked for, which might serve several windows, and differences of windows.

Notes
-----
Enorm, section 6.1 and figures 7 and 8: 86 pieces where 240 partials were merged, for windows that are aligned at
multiples of their lengths (ERRATA, Enorm 1: the alternative of a 5 and a 15-minute window for 20 minutes exists for two
of the three windows in an hour).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.windows.window import Window, checked, whole

Keys: TypeAlias = Mapping[int, float] | Callable[[int, int], float]
Span: TypeAlias = tuple[int, int]

MOST_WINDOWS = 200_000
"""How many windows one plan may form."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a window is merged from: a complete window, or partials in a row.

    Parameters
    ----------
    begin, end : int
        The span of event time.
    partials : int
        How many partials it is; 0 for a complete window.
    """

    begin: int
    end: int
    partials: int = 0

    @property
    def results(self) -> int:
        """How many results there are to merge."""
        return self.partials or 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one complete window is formed.

    Parameters
    ----------
    begin, end : int
        The window's span of event time.
    windows : tuple of int
        Whose instance it is, as positions among the windows of the plan; several where their instances coincide.
    pieces : tuple of Piece
        What to merge, in the order of time.
    cost : float
        What that costs: results, or keys where the plan was made by keys.
    """

    begin: int
    end: int
    windows: tuple[int, ...]
    pieces: tuple[Piece, ...]
    cost: float

    @property
    def merges(self) -> int:
        """How many results are merged."""
        return sum(piece.results for piece in self.pieces)


@dataclass(frozen=True)
class ConsolidationPlan:
    """How all windows that end within a horizon are formed.

    Parameters
    ----------
    windows : tuple of Window
        The windows.
    slice : int
        The length of a partial.
    horizon : int
        The span of event time that the plan is for; windows that end later than 0 and not later than it.
    recipes : tuple of Recipe
        One for each span that is a complete window, in an order in which what a recipe reads is there already.
    """

    windows: tuple[Window, ...]
    slice: int
    horizon: int
    recipes: tuple[Recipe, ...]

    @property
    def merges(self) -> int:
        """How many results are merged in all."""
        return sum(recipe.merges for recipe in self.recipes)

    @property
    def cost(self) -> float:
        """What all merges cost: `merges`, or the number of keys merged where the plan was made by keys."""
        return math.fsum(recipe.cost for recipe in self.recipes)

    @property
    def naive_merges(self) -> int:
        """How many partials are merged when every window is formed from partials alone (Enorm, figure 8)."""
        return sum(
            len(window.ends(0, self.horizon)) * (window.length // self.slice) for window in dict.fromkeys(self.windows)
        )


def plan(
    windows: Sequence[Window], slice: int, horizon: int | None = None, keys: Keys | None = None
) -> ConsolidationPlan:
    """Plan how complete windows are formed from partials and from each other at the least cost.

    Parameters
    ----------
    windows : sequence of Window
        The windows of one operator. Their starts tell their phases: the plan is for a stream that has long been going,
        so that earlier windows are there to merge.
    slice : int
        The length of a partial, in the windows' unit; partials lie at its multiples.
    horizon : int, optional
        Plan for the windows that end later than 0 and not later than this. Left out, it is the span after which the
        windows' pattern repeats, the least common multiple of their frequencies.
    keys : mapping or callable, optional
        How many keys a result has, where keys rather than results shall be few: by length, with an entry for the slice
        and one for the length of each window, or as a function of a span's begin and end.

    Returns
    -------
    ConsolidationPlan
        The plan; no other one has a lower cost. Of equal costs the one whose last pieces are longer is taken.

    Raises
    ------
    PlanningError
        If there is no window, a window is no multiple of the slice, a number is out of range, a length has no number of
        keys, or the plan would hold more than `MOST_WINDOWS` windows.

    Notes
    -----
    Enorm, section 6.1. A window that is one piece long counts for one result, which the operator still has to take and
    pass on. Windows of the same span are formed once.

    Examples
    --------
    >>> hour = plan([Window.tumbling(minutes) for minutes in (5, 10, 15, 20)], slice=1, horizon=60)
    >>> hour.merges, hour.naive_merges
    (86, 240)
    >>> hour.recipes[7]
    Recipe(begin=0, end=20, windows=(3,), pieces=(Piece(begin=0, end=10, partials=0), Piece(begin=10, end=20,
    partials=0)), cost=2)
    """
    chosen, size = checked(windows, slice)
    until = _horizon(chosen, horizon)
    graph = _Graph(tuple(dict.fromkeys(chosen)), until, _Price(keys, chosen, size))
    return ConsolidationPlan(chosen, size, until, _recipes(_wanted(chosen, until), graph))


class _Price:
    """What it costs to merge a result: the number of its keys, or 1."""

    def __init__(self, keys: Keys | None, windows: tuple[Window, ...], size: int):
        self.size = size
        self._keys = keys
        if isinstance(keys, Mapping):
            for length in (size, *(window.length for window in windows)):
                if length not in keys:
                    raise PlanningError(f"keys has no number for results of length {length}: it has {sorted(keys)}.")

    def window(self, begin: int, end: int) -> float:
        """Return the cost of one result over a span."""
        if self._keys is None:
            return 1
        count = self._keys[end - begin] if isinstance(self._keys, Mapping) else self._keys(begin, end)
        if not 0 <= count < math.inf:
            raise PlanningError(f"keys is {count!r} for the span from {begin} to {end}: give a number of 0 or more.")
        return count

    def partials(self, begin: int, end: int) -> float:
        """Return the cost of all partials of a span."""
        if self._keys is None:
            return (end - begin) // self.size
        return math.fsum(self.window(at, at + self.size) for at in range(begin, end, self.size))


_Result: TypeAlias = tuple[int, float, Piece]
"""Where a result ends, what it costs to merge, and the piece that it is."""


class _Graph:
    """The DAG of results up to the horizon, made moment by moment as searches come by."""

    def __init__(self, windows: tuple[Window, ...], until: int, price: _Price):
        self._until = until
        self._price = price
        self._leaving: dict[int, list[_Result]] = {}
        self._begins = [(window.start, window.frequency, window.length) for window in windows]
        ticks = [(at, every) for start, every, length in self._begins for at in (start, start + length)]
        # A window that tumbles ends where it begins.
        self._ticks = sorted({(at % every, every) for at, every in ticks})

    def leaving(self, moment: int) -> list[_Result]:
        """Return the results that begin at a moment: windows, and the partials up to where a window begins or ends."""
        found = self._leaving.get(moment)
        if found is None:
            found = self._leaving[moment] = self._results(moment)
        return found

    def _results(self, moment: int) -> list[_Result]:
        ends = {moment + length for start, every, length in self._begins if (moment - start) % every == 0}
        ahead = min([every - (moment - at) % every for at, every in self._ticks])
        run = Piece(moment, moment + ahead, ahead // self._price.size)
        return [
            *((end, self._price.window(moment, end), Piece(moment, end)) for end in sorted(ends) if end <= self._until),
            (run.end, self._price.partials(moment, run.end), run),
        ]

    def cheapest(self, begin: int, goals: set[int]) -> Iterator[tuple[int, float, tuple[Piece, ...]]]:
        """Yield each goal, what the shortest path to it costs, and its pieces; the direct way is none.

        A search in the order of costs. Every goal is there twice: as a moment on the way, and as the end of a path that
        has more than one piece or is made of partials.
        """
        waiting, furthest = set(goals), max(goals)
        last: dict[int, Piece] = {}
        least: dict[int, float] = {}
        # Of equal costs the piece that begins first comes first, and of one span the partials.
        queue: list[tuple[float, int, int, bool, int, Piece]] = [(0, begin, begin, False, 0, Piece(begin, begin))]
        while waiting:
            cost, _, moment, at_goal, _, piece = heapq.heappop(queue)
            if at_goal and moment in waiting:
                waiting.remove(moment)
                yield moment, cost, _path(last, begin, piece)
            if at_goal or moment in last:
                continue
            last[moment] = piece
            for end, weight, step in self.leaving(moment):
                total = cost + weight
                if end < furthest and total <= least.get(end, math.inf):
                    least[end] = total
                    heapq.heappush(queue, (total, moment, end, False, -step.partials, step))
                if end in waiting and (moment > begin or step.partials):
                    heapq.heappush(queue, (total, moment, end, True, -step.partials, step))


def _path(last: dict[int, Piece], begin: int, piece: Piece) -> tuple[Piece, ...]:
    """Return the pieces from a begin to the end of a piece, in the order of time."""
    pieces = [piece]
    while pieces[-1].begin != begin:
        pieces.append(last[pieces[-1].begin])
    return tuple(reversed(pieces))


def _recipes(wanted: dict[Span, tuple[int, ...]], graph: _Graph) -> tuple[Recipe, ...]:
    """Return how the wanted windows are formed, by a search from each moment at which some of them begin."""
    goals: dict[int, set[int]] = {}
    for begin, end in wanted:
        goals.setdefault(begin, set()).add(end)
    recipes = [
        Recipe(begin, end, wanted[begin, end], pieces, cost)
        for begin, ends in goals.items()
        for end, cost, pieces in graph.cheapest(begin, ends)
    ]
    # Of the windows that end together the short ones are pieces of the long ones.
    return tuple(sorted(recipes, key=lambda recipe: (recipe.end, -recipe.begin)))


def _wanted(windows: tuple[Window, ...], until: int) -> dict[Span, tuple[int, ...]]:
    """Return the spans that end within the horizon, with the windows whose instances they are."""
    wanted: dict[Span, tuple[int, ...]] = {}
    for position, window in enumerate(windows):
        for end in window.ends(0, until):
            span = (end - window.length, end)
            wanted[span] = (*wanted.get(span, ()), position)
    return wanted


def _horizon(windows: tuple[Window, ...], horizon: int | None) -> int:
    """Return the horizon, or the time after which the pattern repeats, if the windows up to there can be listed."""
    until = math.lcm(*(window.frequency for window in windows)) if horizon is None else whole("horizon", horizon)
    if until < 1:
        raise PlanningError(f"horizon is {until}: give a whole number above 0.")
    count = sum(until // window.frequency for window in windows)
    if count > MOST_WINDOWS:
        span = "the pattern of the windows repeats after" if horizon is None else "horizon is"
        raise PlanningError(
            f"{span} {until}, with {count} windows to form, above {MOST_WINDOWS}: plan for a shorter span."
        )
    return until
