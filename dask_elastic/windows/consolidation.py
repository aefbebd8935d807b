"""The consolidation plan: the cheapest way to merge partials and shorter windows into complete windows.

Goal
    Form every window that closes within a horizon from adjoining inputs: partials of one slice each, and complete
    windows that the plan forms anyway. Minimise the number of inputs, or of their keys.
Heuristic
    None, the plan is optimal. The vertices of a DAG are the times at which windows begin and end, its edges are
    partials and windows. A window is formed along the shortest path from its begin to its end, the window's own edge
    excluded. Windows do not compete for inputs, so the sum of the shortest paths is the minimum. The shorter windows
    inside a window repeat periodically, so each pattern is searched and stored once.
Not done
    Intermediate results that are not windows but might serve several of them, and differences of windows.

Notes
-----
Enorm, section 6.1 and figures 7 and 8: 86 inputs instead of 240 partials, for windows that are aligned at multiples of
their lengths (ERRATA, Enorm 1: the alternative of a 5 and a 15-minute window for 20 minutes exists for two
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
from dask_elastic.windows.merge_cost import Keys, MergeCost
from dask_elastic.windows.window import Window, as_whole, check_windows

MOST_WINDOWS = 200_000
"""The most windows that one plan may form."""

MOST_STEPS, MOST_STEPS_IN_ALL = 200_000, 4_000_000
"""The most vertices that the search for one window, and all searches of one plan, may visit."""


class MergeInput(NamedTuple):
    """One input of a window: a complete window, or a run of adjoining partials.

    Parameters
    ----------
    begin, end : int
        The span of event time.
    partials : int
        The number of partials; 0 for a complete window.

    Examples
    --------
    >>> MergeInput(0, 10).results, MergeInput(10, 13, partials=3).results
    (1, 3)
    """

    begin: int
    end: int
    partials: int = 0

    @property
    def results(self) -> int:
        """The number of results to merge."""
        return self.partials or 1


class Recipe(NamedTuple):
    """How to form one complete window.

    Parameters
    ----------
    begin, end : int
        The window's span of event time.
    windows : tuple of int
        The windows of which this is an instance, by their position in the plan; several if instances coincide.
    inputs : tuple of MergeInput
        The results to merge, in the order of time.
    cost : float
        The number of results merged, or of their keys if the plan minimises keys.

    Examples
    --------
    >>> recipe = plan([Window.tumbling(5), Window.tumbling(15)], slice=1).recipes[-1]
    >>> recipe.begin, recipe.end, recipe.merges
    (0, 15, 3)
    """

    begin: int
    end: int
    windows: tuple[int, ...]
    inputs: tuple[MergeInput, ...]
    cost: float

    @property
    def merges(self) -> int:
        """The number of results merged."""
        return sum(part.results for part in self.inputs)


class Pattern(NamedTuple):
    """Periodic windows of one length that all have the same recipe, shifted in time.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the first window.
    ends : range
        The ends of all windows, ascending.

    Examples
    --------
    >>> [(pattern.recipe.merges, pattern.ends) for pattern in plan([Window.tumbling(5)], slice=1, horizon=20).patterns]
    [(5, range(5, 21, 5))]
    """

    recipe: Recipe
    ends: range

    def recipes(self) -> Iterable[Recipe]:
        """Return the recipe of each window.

        Returns
        -------
        iterable of Recipe
            In the order of time.
        """
        first = self.recipe
        if len(self.ends) == 1:
            return (first,)

        def moved(moment: int) -> range:
            later = moment - first.end
            return range(self.ends.start + later, self.ends.stop + later, self.ends.step)

        # This dominates the time of long plans; constructing tuples without a Python call saves a third.
        input_of, recipe_of = partial(tuple.__new__, MergeInput), partial(tuple.__new__, Recipe)
        inputs = [map(input_of, zip(moved(one.begin), moved(one.end), repeat(one.partials))) for one in first.inputs]
        fields = moved(first.begin), self.ends, repeat(first.windows), zip(*inputs, strict=True), repeat(first.cost)
        return map(recipe_of, zip(*fields, strict=False))  # `repeat` is infinite


@dataclass(frozen=True)
class ConsolidationPlan:
    """How to form all windows that end within a horizon.

    Parameters
    ----------
    windows : tuple of Window
        The windows.
    slice : int
        The length of a partial.
    horizon : int
        The plan covers the windows that end later than 0 and not later than this.
    patterns : tuple of Pattern
        How to form each complete window, shorter windows first.

    Examples
    --------
    >>> hour = plan([Window.tumbling(5), Window.tumbling(15)], slice=1, horizon=60)
    >>> hour.formed, hour.merges, hour.naive_merges
    (16, 72, 120)
    """

    windows: tuple[Window, ...]
    slice: int
    horizon: int
    patterns: tuple[Pattern, ...]

    @cached_property
    def recipes(self) -> tuple[Recipe, ...]:
        """One recipe per complete window, each after the recipes of the windows that it reads."""
        # The sort is stable: among windows that end together, shorter ones come first, which longer ones may read.
        return tuple(sorted(chain.from_iterable(one.recipes() for one in self.patterns), key=attrgetter("end")))

    @property
    def formed(self) -> int:
        """The number of complete windows formed."""
        return sum(len(pattern.ends) for pattern in self.patterns)

    @property
    def merges(self) -> int:
        """The number of results merged in total."""
        return sum(pattern.recipe.merges * len(pattern.ends) for pattern in self.patterns)

    @property
    def cost(self) -> float:
        """The cost of all merges: `merges`, or the number of keys merged if the plan minimises keys."""
        return math.fsum(pattern.recipe.cost * len(pattern.ends) for pattern in self.patterns)

    @property
    def naive_merges(self) -> int:
        """The number of partials merged if every window is formed from partials alone (Enorm, figure 8)."""
        return sum(
            len(window.ends(0, self.horizon)) * (window.length // self.slice) for window in dict.fromkeys(self.windows)
        )


def plan(
    windows: Sequence[Window], slice: int, horizon: int | None = None, keys: Keys | None = None
) -> ConsolidationPlan:
    """Plan how to merge partials and shorter windows into complete windows at the least cost.

    Parameters
    ----------
    windows : sequence of Window
        The windows of one operator. Their starts only set their phases: the plan is for the steady state of a stream,
        in which earlier windows are available.
    slice : int
        The length of a partial, in the windows' unit; partials begin at its multiples.
    horizon : int, optional
        Plan the windows that end later than 0 and not later than this. By default the period of the windows, the least
        common multiple of their frequencies.
    keys : mapping or callable, optional
        If given, minimise the number of keys merged instead of the number of results. The number of keys of a result: a
        mapping by length, with entries for the slice and for the length of each window, or a function of a result's
        begin and end.

    Returns
    -------
    ConsolidationPlan
        A plan of minimum cost; deterministic.

    Raises
    ------
    PlanningError
        If there is no window, a window is not a multiple of the slice, a number is out of range, `keys` lacks a length,
        or the plan would form more than `MOST_WINDOWS` windows.

    Notes
    -----
    Enorm, section 6.1. A window with a single input counts as one result, since the operator still receives and emits
    it. Windows of the same span are formed once.

    Examples
    --------
    >>> hour = plan([Window.tumbling(minutes) for minutes in (5, 10, 15, 20)], slice=1, horizon=60)
    >>> hour.merges, hour.naive_merges
    (86, 240)
    >>> hour.recipes[7]
    Recipe(begin=0, end=20, windows=(3,), inputs=(MergeInput(begin=0, end=10, partials=0), MergeInput(begin=10, end=20,
    partials=0)), cost=2)
    """
    chosen, size = check_windows(windows, slice)
    merge_cost = MergeCost(keys, chosen, size)
    until = _horizon(chosen, horizon)
    return ConsolidationPlan(chosen, size, until, _patterns(chosen, until, merge_cost))


_Result: TypeAlias = tuple[int, float, int]
"""The end of a result, its cost, and its number of partials; 0 for a complete window."""
_Step: TypeAlias = tuple[int, int]
"""The begin of the last result of a path, and its number of partials."""


class _Graph:
    """The DAG of results up to the horizon; the edges of a vertex are computed when a search first reaches it."""

    def __init__(self, windows: tuple[Window, ...], until: int, merge_cost: MergeCost):
        self._until = until
        self._merge_cost = merge_cost
        self._edges: dict[int, list[_Result]] = {}
        self._steps = 0
        phases = {(window.start % window.frequency, window.frequency, window.length) for window in windows}
        self._begins = sorted(phases)
        """Phase, frequency and length of the windows."""
        self._ticks = sorted({((at + age) % every, every) for at, every, length in phases for age in (0, length)})
        """Phase and period of the times at which windows begin or end."""

    def edges(self, moment: int) -> list[_Result]:
        """Return the results that begin at a time: windows, and the run of partials up to the next vertex."""
        found = self._edges.get(moment)
        if found is None:
            found = self._edges[moment] = self._results(moment)
        return found

    def _results(self, moment: int) -> list[_Result]:
        following = min([(at - moment) % every or every for at, every in self._ticks])
        ends = [moment + length for at, every, length in self._begins if (moment - at) % every == 0]
        complete = [(end, self._merge_cost.window(moment, end), 0) for end in ends if end <= self._until]
        run = moment + following
        return [*complete, (run, self._merge_cost.partials(moment, run), following // self._merge_cost.size)]

    def cheapest(self, begin: int, end: int, rate: float) -> tuple[float, tuple[MergeInput, ...]]:
        """Return the cost and the inputs of the cheapest path from `begin` to `end`, the direct edge excluded.

        A* search. `rate` is a lower bound of the cost per unit of time, which makes the heuristic admissible.
        """
        last: dict[int, _Step] = {}
        least: dict[int, float] = {}
        # Ties: the furthest vertex first, then the result that begins first, then partials before a window.
        queue: list[tuple[float, int, int, int, float]] = [(0, -begin, begin, 0, 0)]
        while True:
            _, moment, came_from, partials, cost = heapq.heappop(queue)
            moment = -moment
            if moment in last:
                continue
            self._steps += 1
            if len(last) >= MOST_STEPS or self._steps > MOST_STEPS_IN_ALL:
                raise PlanningError(
                    f"windows have one of length {end - begin} with too many ways to form it ({len(last)} times were "
                    "looked at): use a larger slice, or shorter windows."
                )
            last[moment] = came_from, -partials
            if moment == end:
                return cost, _path(last, begin, end)
            for reached, weight, partials in self.edges(moment):
                if reached < end or (reached == end and (moment > begin or partials)):
                    total = cost + weight
                    if reached not in least or total <= least[reached]:
                        least[reached] = total
                        ahead = total - rate * (reached - begin)
                        heapq.heappush(queue, (ahead, -reached, moment, -partials, total))


def _path(last: dict[int, _Step], begin: int, end: int) -> tuple[MergeInput, ...]:
    """Return the inputs from `begin` to `end`, in the order of time; adjoining partials become one input."""
    inputs: list[MergeInput] = []
    at = end
    while at != begin:
        came_from, partials = last[at]
        if partials and inputs and inputs[-1].partials:
            after = inputs.pop()
            inputs.append(MergeInput(came_from, after.end, partials + after.partials))
        else:
            inputs.append(MergeInput(came_from, at, partials))
        at = came_from
    inputs.reverse()
    return tuple(inputs)


def _patterns(windows: tuple[Window, ...], until: int, merge_cost: MergeCost) -> tuple[Pattern, ...]:
    """Return how to form the windows, shorter ones first.

    The shorter windows inside a window repeat periodically, so one search serves all windows of the same phase. If the
    cost depends on the time, every window needs its own search.
    """
    graph = _Graph(windows, until, merge_cost)
    repeats = 1 if merge_cost.of_length else until
    patterns = []
    for length in sorted({window.length for window in windows}):
        frequencies = [window.frequency for window in windows if window.length == length]
        period = math.lcm(repeats, *frequencies)
        rate = merge_cost.least_rate(length)
        alike: dict[int, Recipe] = {}
        for end, positions in _ends(windows, length, min(period, until)).items():
            phase = end % repeats
            if phase in alike:
                recipe = _moved(alike[phase], end, positions)
            else:
                cost, inputs = graph.cheapest(end - length, end, rate)
                recipe = alike[phase] = Recipe(end - length, end, positions, inputs, cost)
            patterns.append(Pattern(recipe, range(end, until + 1, period)))
        repeats = period
    return tuple(patterns)


def _moved(recipe: Recipe, end: int, positions: tuple[int, ...]) -> Recipe:
    """Return the recipe shifted to another end."""
    later = end - recipe.end
    inputs = tuple(MergeInput(one.begin + later, one.end + later, one.partials) for one in recipe.inputs)
    return Recipe(recipe.begin + later, end, positions, inputs, recipe.cost)


def _ends(windows: tuple[Window, ...], length: int, until: int) -> dict[int, tuple[int, ...]]:
    """Return the ends of the windows of a length, with the positions of the windows that end there."""
    ends: dict[int, tuple[int, ...]] = {}
    for position, window in enumerate(windows):
        if window.length == length:
            for end in window.ends(0, until):
                ends[end] = (*ends.get(end, ()), position)
    return ends


def _horizon(windows: tuple[Window, ...], horizon: int | None) -> int:
    """Return the horizon, by default the period of the windows; refuse more than `MOST_WINDOWS` windows."""
    until = math.lcm(*(window.frequency for window in windows)) if horizon is None else as_whole("horizon", horizon)
    if until < 1:
        raise PlanningError(f"horizon is {until}: give an integer above 0.")
    count = sum(until // window.frequency for window in windows)
    if count > MOST_WINDOWS:
        span = "the period of the windows is" if horizon is None else "horizon is"
        raise PlanningError(
            f"{span} {until}, which gives {count} windows, above {MOST_WINDOWS}: pass a shorter horizon."
        )
    return until
