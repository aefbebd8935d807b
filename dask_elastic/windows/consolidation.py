"""The consolidation plan: the cheapest way to form complete windows from partials and from each other.

Goal
    Every window that closes within a horizon is formed from pieces that lie end to end: partials of one slice each, and
    complete windows that are formed anyway. The number of pieces is the least there is, or the number of their keys.
Heuristic
    None, the plan is optimal. The moments at which windows begin and end are the vertices of a DAG, partials and
    windows its edges; a window is the shortest path from its begin to its end that is not the window itself. No choice
    for one window takes anything from another, so the sum of the shortest paths is the least total. What lies in a
    window repeats with the windows that are shorter: each pattern is searched, and written down, once.
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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, repeat
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.windows.price import Keys, Price
from dask_elastic.windows.window import Window, checked, whole

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


class Pattern(NamedTuple):
    """How all windows are formed that have one length and in which the same lies.

    Parameters
    ----------
    recipe : Recipe
        How the first of them is formed; the others are, at their own time.
    ends : range
        Where they end, ascending.
    """

    recipe: Recipe
    ends: range

    def recipes(self) -> Iterable[Recipe]:
        """Return the recipe of each window, in the order of time."""
        first = self.recipe
        if len(self.ends) == 1:
            return (first,)

        def moved(moment: int) -> range:
            later = moment - first.end
            return range(self.ends.start + later, self.ends.stop + later, self.ends.step)

        # Most of the time of a long list goes into this, and without a call in Python for each it is a third less.
        piece_of, recipe_of = partial(tuple.__new__, Piece), partial(tuple.__new__, Recipe)
        pieces = [map(piece_of, zip(moved(one.begin), moved(one.end), repeat(one.partials))) for one in first.pieces]
        fields = moved(first.begin), self.ends, repeat(first.windows), zip(*pieces, strict=True), repeat(first.cost)
        return map(recipe_of, zip(*fields, strict=False))  # those that repeat have no end


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
    patterns : tuple of Pattern
        How each span that is a complete window is formed; spans in which the same lies are formed alike. The short ones
        come first.
    """

    windows: tuple[Window, ...]
    slice: int
    horizon: int
    patterns: tuple[Pattern, ...]

    @cached_property
    def recipes(self) -> tuple[Recipe, ...]:
        """One for each span that is a complete window, in an order in which what a recipe reads is there already."""
        # Of the windows that end together the short ones, which come first here, are pieces of the long ones.
        return tuple(sorted(chain.from_iterable(one.recipes() for one in self.patterns), key=attrgetter("end")))

    @property
    def formed(self) -> int:
        """How many complete windows are formed."""
        return sum(len(pattern.ends) for pattern in self.patterns)

    @property
    def merges(self) -> int:
        """How many results are merged in all."""
        return sum(pattern.recipe.merges * len(pattern.ends) for pattern in self.patterns)

    @property
    def cost(self) -> float:
        """What all merges cost: `merges`, or the number of keys merged where the plan was made by keys."""
        return math.fsum(pattern.recipe.cost * len(pattern.ends) for pattern in self.patterns)

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
    price = Price(keys, chosen, size)
    until = _horizon(chosen, horizon)
    return ConsolidationPlan(chosen, size, until, _patterns(chosen, until, price))


_Result: TypeAlias = tuple[int, float, int]
"""Where a result ends, what it costs to merge, and how many partials it is; 0 for a complete window."""
_Step: TypeAlias = tuple[int, int]
"""Where the last result of a way begins, and how many partials it is."""


class _Graph:
    """The DAG of results up to the horizon, made moment by moment as searches come by."""

    def __init__(self, windows: tuple[Window, ...], until: int, price: Price):
        self._until = until
        self._price = price
        self._leaving: dict[int, list[_Result]] = {}
        phases = {(window.start % window.frequency, window.frequency, window.length) for window in windows}
        self._begins = sorted(phases)
        """When windows begin, how often, and how long they are."""
        self._ticks = sorted({((at + age) % every, every) for at, every, length in phases for age in (0, length)})
        """The moments at which windows begin or end, and how often they come."""

    def leaving(self, moment: int) -> list[_Result]:
        """Return the results that begin at a moment: windows, and the partials up to where a window begins or ends."""
        found = self._leaving.get(moment)
        if found is None:
            found = self._leaving[moment] = self._results(moment)
        return found

    def _results(self, moment: int) -> list[_Result]:
        following = min([(at - moment) % every or every for at, every in self._ticks])
        ends = [moment + length for at, every, length in self._begins if (moment - at) % every == 0]
        complete = [(end, self._price.window(moment, end), 0) for end in ends if end <= self._until]
        run = moment + following
        return [*complete, (run, self._price.partials(moment, run), following // self._price.size)]

    def cheapest(self, begin: int, end: int, rate: float) -> tuple[float, tuple[Piece, ...]]:
        """Return what the cheapest way from a begin to an end costs, and its pieces; the direct way is none.

        A search that goes on where a way costs the least together with what the rest of it costs at the rate, which is
        the least there is: A*.
        """
        last: dict[int, _Step] = {}
        least: dict[int, float] = {}
        # Of equal costs the furthest comes first, of those the result that begins first, and of one span the partials.
        queue: list[tuple[float, int, int, int, float]] = [(0, -begin, begin, 0, 0)]
        while True:
            _, moment, came_from, partials, cost = heapq.heappop(queue)
            moment = -moment
            if moment in last:
                continue
            last[moment] = came_from, -partials
            if moment == end:
                return cost, _path(last, begin, end)
            for reached, weight, partials in self.leaving(moment):
                if reached < end or (reached == end and (moment > begin or partials)):
                    total = cost + weight
                    if reached not in least or total <= least[reached]:
                        least[reached] = total
                        ahead = total - rate * (reached - begin)
                        heapq.heappush(queue, (ahead, -reached, moment, -partials, total))


def _path(last: dict[int, _Step], begin: int, end: int) -> tuple[Piece, ...]:
    """Return the pieces from a begin to an end, in the order of time; partials in a row are one."""
    pieces: list[Piece] = []
    at = end
    while at != begin:
        came_from, partials = last[at]
        if partials and pieces and pieces[-1].partials:
            after = pieces.pop()
            pieces.append(Piece(came_from, after.end, partials + after.partials))
        else:
            pieces.append(Piece(came_from, at, partials))
        at = came_from
    pieces.reverse()
    return tuple(pieces)


def _patterns(windows: tuple[Window, ...], until: int, price: Price) -> tuple[Pattern, ...]:
    """Return how the windows are formed, the short ones first.

    What lies in a window repeats with the windows that are shorter, so one search serves for all windows with the same
    phase; where the time matters as well no two are alike.
    """
    graph = _Graph(windows, until, price)
    repeats = 1 if price.of_length else until
    patterns = []
    for length in sorted({window.length for window in windows}):
        frequencies = [window.frequency for window in windows if window.length == length]
        period = math.lcm(repeats, *frequencies)
        rate = price.least_rate(length)
        alike: dict[int, Recipe] = {}
        for end, positions in _ends(windows, length, min(period, until)).items():
            phase = end % repeats
            if phase in alike:
                recipe = _moved(alike[phase], end, positions)
            else:
                cost, pieces = graph.cheapest(end - length, end, rate)
                recipe = alike[phase] = Recipe(end - length, end, positions, pieces, cost)
            patterns.append(Pattern(recipe, range(end, until + 1, period)))
        repeats = period
    return tuple(patterns)


def _moved(recipe: Recipe, end: int, positions: tuple[int, ...]) -> Recipe:
    """Return the recipe for a window with another end, in which the same lies."""
    later = end - recipe.end
    pieces = tuple(Piece(one.begin + later, one.end + later, one.partials) for one in recipe.pieces)
    return Recipe(recipe.begin + later, end, positions, pieces, recipe.cost)


def _ends(windows: tuple[Window, ...], length: int, until: int) -> dict[int, tuple[int, ...]]:
    """Return where windows of a length end, with the positions of the windows whose instances they are."""
    ends: dict[int, tuple[int, ...]] = {}
    for position, window in enumerate(windows):
        if window.length == length:
            for end in window.ends(0, until):
                ends[end] = (*ends.get(end, ()), position)
    return ends


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
