"""The consolidation plan: the cheapest way to form complete windows from partials and from each other.

Goal
    Every window that closes within a horizon is formed from pieces that lie end to end: partials of one slice each, and
    complete windows that are formed anyway. The number of pieces is the least there is, or the number of their keys.
Heuristic
    None, the plan is optimal. The moments at which windows begin and end are the vertices of a DAG, partials and
    windows its edges; a window is the shortest path from its begin to its end that is not the window itself. No choice
    for one window takes anything from another, so the sum of the shortest paths is the least total. What lies in a
    window repeats with the windows that are shorter, so each pattern is searched once.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.windows.window import Window, checked, whole

Span: TypeAlias = tuple[int, int]
Keys: TypeAlias = Mapping[int, float] | Callable[[int, int], float]

MOST_WINDOWS = 200_000
"""How many windows one plan may form."""


class Piece(NamedTuple):
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


class Recipe(NamedTuple):
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
        The plan; no other one has a lower cost. Which of equal ones is taken is the same each time.

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
    if not (keys is None or callable(keys) or isinstance(keys, Mapping)):
        raise PlanningError(f"keys is {keys!r}: give numbers by length, or a function of a span's begin and end.")
    until = _horizon(chosen, horizon)
    price = _Price(keys, chosen, size)
    return ConsolidationPlan(chosen, size, until, _recipes(chosen, until, price))


class _Price:
    """What it costs to merge a result: the number of its keys, or 1.

    By count or by lengths `of_length` has it for all lengths that occur; it is None where the time matters as well.
    """

    def __init__(self, keys: Keys | None, windows: tuple[Window, ...], size: int):
        self.size = size
        self._keys = keys
        self.of_length: dict[int, float] | None = None
        if not callable(keys):
            self.of_length = _by_length(keys, [size, *(window.length for window in windows)])
        self.rate = min(cost / length for length, cost in self.of_length.items()) if self.of_length else 0.0
        """What results cost at least for each unit of time that they span."""

    def window(self, begin: int, end: int) -> float:
        """Return the cost of one result over a span."""
        if self.of_length is not None:
            return self.of_length[end - begin]
        assert callable(self._keys)
        return _checked_keys(self._keys(begin, end), begin, end)

    def partials(self, begin: int, end: int) -> float:
        """Return the cost of all partials of a span."""
        if self.of_length is not None:
            return self.of_length[self.size] * ((end - begin) // self.size)
        return math.fsum(self.window(at, at + self.size) for at in range(begin, end, self.size))


def _by_length(keys: Mapping[int, float] | None, lengths: list[int]) -> dict[int, float]:
    """Return the cost of a result of each length."""
    if keys is None:
        return dict.fromkeys(lengths, 1)
    missing = [length for length in lengths if length not in keys]
    if missing:
        raise PlanningError(f"keys has no number for results of length {missing[0]}: it has {sorted(keys)}.")
    return {length: _checked_keys(keys[length], 0, length) for length in lengths}


def _checked_keys(count: Any, begin: int, end: int) -> float:
    """Return a number of keys if it is one."""
    if isinstance(count, int | float | np.number) and 0 <= count < math.inf:
        return cast(float, count)
    raise PlanningError(f"keys is {count!r} for the span from {begin} to {end}: give a number of 0 or more.")


_Result: TypeAlias = tuple[int, float, Piece]
"""Where a result ends, what it costs to merge, and the piece that it is."""


class _Graph:
    """The DAG of results up to the horizon, made moment by moment as searches come by."""

    def __init__(self, windows: tuple[Window, ...], until: int, price: _Price):
        self._until = until
        self._price = price
        self._leaving: dict[int, list[_Result]] = {}
        lengths: dict[tuple[int, int], list[int]] = {}
        for window in windows:
            lengths.setdefault((window.start % window.frequency, window.frequency), []).append(window.length)
            lengths.setdefault(((window.start + window.length) % window.frequency, window.frequency), [])
        self._ticks = [(at, every, begun) for (at, every), begun in lengths.items()]
        """The moments at which windows begin or end, and the lengths of those that begin."""

    def leaving(self, moment: int) -> list[_Result]:
        """Return the results that begin at a moment: windows, and the partials up to where a window begins or ends."""
        found = self._leaving.get(moment)
        if found is None:
            found = self._leaving[moment] = self._results(moment)
        return found

    def _results(self, moment: int) -> list[_Result]:
        ends: set[int] = set()
        following = None
        for at, every, begun in self._ticks:
            left = (at - moment) % every
            if not left:
                ends.update([moment + length for length in begun])
                left = every
            if following is None or left < following:
                following = left
        assert following is not None
        run = Piece(moment, moment + following, following // self._price.size)
        complete = [(end, self._price.window(moment, end), Piece(moment, end)) for end in ends if end <= self._until]
        return [*complete, (run.end, self._price.partials(moment, run.end), run)]

    def cheapest(self, begin: int, goals: Iterable[int]) -> Iterator[tuple[int, float, tuple[Piece, ...]]]:
        """Yield each goal, what the shortest path to it costs, and its pieces; the direct way is none.

        A search in the order of costs. Every goal is there twice: as a moment on the way, and as the end of a path that
        has more than one piece or is made of partials.
        """
        waiting = dict.fromkeys(goals, math.inf)
        furthest = max(waiting)
        last: dict[int, Piece] = {}
        least: dict[int, float] = {}
        rate, bound = self._price.rate, math.inf
        # Of equal costs the piece that begins first comes first, and of one span the partials.
        queue: list[tuple[float, int, int, bool, int, Piece]] = [(0, begin, begin, False, 0, Piece(begin, begin))]
        while waiting:
            cost, _, moment, at_goal, _, piece = heapq.heappop(queue)
            if at_goal and moment in waiting:
                del waiting[moment]
                yield moment, cost, _path(last, begin, piece)
                bound = max([reached - rate * goal for goal, reached in waiting.items()], default=0)
            # To be of use a way has to beat one that is known to some goal, at the lowest cost of what is left.
            if at_goal or moment in last or cost - rate * moment >= bound:
                continue
            last[moment] = piece
            for end, weight, step in self.leaving(moment):
                total = cost + weight
                if end < furthest and total - rate * end < bound and total <= least.get(end, math.inf):
                    least[end] = total
                    heapq.heappush(queue, (total, moment, end, False, -step.partials, step))
                if end in waiting and (moment > begin or step.partials) and total <= waiting[end]:
                    waiting[end] = total
                    bound = max([reached - rate * goal for goal, reached in waiting.items()])
                    heapq.heappush(queue, (total, moment, end, True, -step.partials, step))


def _path(last: dict[int, Piece], begin: int, piece: Piece) -> tuple[Piece, ...]:
    """Return the pieces from a begin to the end of a piece, in the order of time; partials in a row are one."""
    pieces = [piece]
    while piece.begin != begin:
        piece = last[piece.begin]
        if piece.partials and pieces[-1].partials:
            after = pieces.pop()
            pieces.append(Piece(piece.begin, after.end, piece.partials + after.partials))
        else:
            pieces.append(piece)
    pieces.reverse()
    return tuple(pieces)


def _recipes(windows: tuple[Window, ...], until: int, price: _Price) -> tuple[Recipe, ...]:
    """Return how the windows are formed; those in which the same lies are formed alike, so one of them is looked at."""
    wanted = _wanted(windows, until)
    alike = _alike(windows, wanted, price)
    goals: dict[int, list[int]] = {}
    for length, of_length in alike.items():
        for ends in of_length:
            goals.setdefault(ends[0] - length, []).append(ends[0])
    graph = _Graph(tuple(dict.fromkeys(windows)), until, price)
    found = {
        (begin, end): Recipe(begin, end, wanted[end - begin][end], pieces, cost)
        for begin, ends in goals.items()
        for end, cost, pieces in graph.cheapest(begin, ends)
    }
    recipes: list[Recipe] = []
    for length, of_length in alike.items():
        for ends in of_length:
            first = found[ends[0] - length, ends[0]]
            recipes.append(first)
            if len(ends) > 1:
                recipes += _again(first, ends[1:], [wanted[length][end] for end in ends[1:]])
    # Of the windows that end together the short ones, which come first here, are pieces of the long ones.
    recipes.sort(key=attrgetter("end"))
    return tuple(recipes)


def _again(recipe: Recipe, ends: list[int], positions: list[tuple[int, ...]]) -> Iterator[Recipe]:
    """Return the recipes for windows with other ends, in which the same lies."""
    later = [end - recipe.end for end in ends]

    def moved(moment: int) -> list[int]:
        return [moment + step for step in later]

    # Most of the time of a plan goes into making these, and without a call in Python for each it is a third less.
    piece_of, recipe_of = partial(tuple.__new__, Piece), partial(tuple.__new__, Recipe)
    pieces = [map(piece_of, zip(moved(one.begin), moved(one.end), repeat(one.partials))) for one in recipe.pieces]
    return map(recipe_of, zip(moved(recipe.begin), ends, positions, zip(*pieces, strict=True), repeat(recipe.cost)))


def _alike(
    windows: tuple[Window, ...], wanted: dict[int, dict[int, tuple[int, ...]]], price: _Price
) -> dict[int, list[list[int]]]:
    """Return by length the ends of windows in which the same lies, lists that begin with the first one."""
    period = _periods(windows)
    alike = {}
    for length, ends in wanted.items():
        classes: dict[int, list[int]] = {}
        for end in ends:
            classes.setdefault(end % period[length] if price.of_length else end, []).append(end)
        alike[length] = list(classes.values())
    return alike


def _periods(windows: tuple[Window, ...]) -> dict[int, int]:
    """Return for each length after which time the shorter windows, which may lie in one of it, repeat."""
    period, periods = 1, {}
    for length in sorted({window.length for window in windows}):
        periods[length] = period
        period = math.lcm(period, *(window.frequency for window in windows if window.length == length))
    return periods


def _wanted(windows: tuple[Window, ...], until: int) -> dict[int, dict[int, tuple[int, ...]]]:
    """Return by length the ends within the horizon, with the positions of the windows whose instances they are."""
    wanted: dict[int, dict[int, tuple[int, ...]]] = {length: {} for length in sorted({w.length for w in windows})}
    for position, window in enumerate(windows):
        ends = wanted[window.length]
        here = dict.fromkeys(window.ends(0, until), (position,))
        ends.update(here | {end: (*ends[end], position) for end in ends.keys() & here} if ends else here)
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
