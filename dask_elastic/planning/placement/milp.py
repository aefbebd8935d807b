"""Balance as a mixed-integer linear program, solved by HiGHS from a greedy start.

Goal
    The least load distance within the budget, and empty draining bins; within a limit of time or nodes.
Heuristic
    Where a budget allows few moves, an answer that reaches the bound of all answers needs no solver. Else Flux, then
    moves and swaps that bring the bin furthest from the mean nearer to it, give a first answer. The solver starts from
    it; unless it soon proves the optimum, it continues with a few bins at a time, and finally with all of them again.
    The best answer is returned, so a solver that fails or runs out of time does no harm.
Not done
    Traffic between groups, which would make the program quadratic.

Notes
-----
ALBIC, section 4.3.1, corrected by its first and second erratum. d_u and d_l are 0 at least, or the program is
unbounded. Constraint (5) is dropped: with it, skewed loads under a small budget have no solution. The mean is exact,
over the bins that stay, by capacity. No group moves to a draining bin, since Lemma 1 does not hold. The load on
draining bins, which the text minimises but the printed program omits, is a term of the objective, w1 ≫ w3 ≫ w2; and
where the load distance stalls while load is left there, draining comes first, since Lemma 4.2 does not hold either. The
deviation d is over the bins that stay, as the text's objective says, not over all nodes as in constraint (3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.descent import STEPS, descend, looked_at
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.neighbourhood import BINS, improve
from dask_elastic.planning.placement.problem import Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.program import BALANCE_FIRST, DRAIN_FIRST, Limits, Program, Weights
from dask_elastic.planning.placement.quality import better, load_distance
from dask_elastic.planning.placement.relief import Relief, relieved
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number

_WORTH = 1e-5
"""No state moves for a gain below this share of the mean load."""

_STALLED = 0.01
"""Balance stalls where a period lowers the load distance by no more than this share of the mean load."""

_MOST_PAIRS = 20_000
"""With more pairs of group and bin, the first relaxation takes longer than any sensible limit."""

_SOLVER, _FIRST, _PARTS = 0.75, 0.1, 0.8
"""Shares of the time: of the whole for the solver; of that for the first program over all bins; of the rest for the
search by parts. The remainder is for all bins again."""

_LOOKS = 2e6
"""The most exchanges that a descent considers per second of the limit: at most a tenth of what it could."""


@dataclass(frozen=True)
class Milp:
    """Plan by a mixed-integer linear program.

    Parameters
    ----------
    time_limit : float, optional
        Seconds for an answer. The answer then depends on the machine: give None, and `node_limit`, where answers must
        be the same everywhere.
    node_limit : int, optional
        Nodes of the branch-and-bound tree, of the whole and of each part. It bounds work, not time: a node of a large
        program takes a second or more, so give `time_limit` as well where a caller waits.
    gap : float
        The relative difference to the optimum at which the solver stops.
    least_gain : float
        A share of the mean load: where no answer within the budget lowers the load distance by more, nothing moves.

    Raises
    ------
    PlanningError
        If a limit or the least gain is negative, or the gap is not between 0 and 1.

    Notes
    -----
    ALBIC, section 4.3.1; several resources as in its section 3: the bottleneck is balanced, the others are limited. New
    groups exceed a capacity only where no other placement is found; then nothing is proven. Where the gain is below a
    hundred-thousandth of the mean load, nothing moves, unless Flux would move something.

    Examples
    --------
    >>> problem = PlacementProblem([5, 4, 3, 3, 3], current=[0, 0, 0, 0, 0], bins=2)
    >>> placement = Milp().plan(problem)
    >>> sorted(problem.shares(placement.bin).tolist()), placement.proven
    ([9.0, 9.0], True)
    """

    time_limit: float | None = 5.0
    node_limit: int | None = None
    gap: float = 1e-6
    least_gain: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("time_limit", self.time_limit), ("node_limit", self.node_limit)):
            if value is not None and not (is_number(value) and value >= 0):
                raise PlanningError(f"{name} is {value!r}: give 0 or more, or None for no limit.")
        if not (is_number(self.gap) and 0 <= self.gap < 1):
            raise PlanningError(f"gap is {self.gap!r}: give 0 or more, and less than 1.")
        if not (is_number(self.least_gain) and self.least_gain >= 0):
            raise PlanningError(f"least_gain is {self.least_gain!r}: give 0 or more.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: load of new groups above capacity, load distance, and load left to drain."""
        return problem.excess(bin), _clean(problem, load_distance(problem, bin)), problem.to_drain(bin)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the best of the greedy answers and of the solver's answers from them."""
        return self.run(problem, seed)[0]

    def run(self, problem: PlacementProblem, seed: int = 0) -> tuple[Placement, float]:
        """Return the placement, and the seconds used of the limit.

        Parameters
        ----------
        problem : PlacementProblem
            The problem.
        seed : int
            The solver's seed.

        Returns
        -------
        tuple of Placement and float
            The answer, and the solver's seconds in terms of `time_limit`.
        """
        relief = relieved(problem)
        if relief is not None and self._is_best(problem, relief):
            return problem.placement(relief.bin, proven=True), 0.0
        if relief is not None and self._gains_little(problem, relief):
            return problem.placement(problem.current), 0.0
        starts = self._starts(problem)
        stranded = bool(problem.draining[starts[0]].any())
        if problem.mean <= 0 and not stranded:
            return problem.placement(starts[0], proven=True), 0.0
        seconds = None if self.time_limit is None else _SOLVER * self.time_limit
        # Without a budget no later round drains the rest.
        drain_first = stranded and problem.max_moves is None and problem.max_cost is None
        half = seconds / 2 if seconds is not None and stranded and not drain_first else seconds
        found, proven, used = self._best(problem, starts, seed, drain_first, half)
        if stranded and not drain_first and self._stalls(problem, starts[0], found):
            rest = None if seconds is None else max(seconds - used, 0.0)
            found, proven, more = self._best(problem, starts, seed, True, rest)
            used += more
        return problem.placement(found, proven), used / _SOLVER

    def _is_best(self, problem: PlacementProblem, relief: Relief) -> bool:
        """Return whether an answer reaches the least distance that the budget allows, and gains something."""
        reached = load_distance(problem, relief.bin) <= relief.least + _WORTH * problem.mean
        return reached and self._worthwhile(problem, problem.current, relief.bin)

    def _gains_little(self, problem: PlacementProblem, relief: Relief) -> bool:
        """Return whether no answer within the budget gains enough."""
        return load_distance(problem, problem.current) - relief.least < self.least_gain * problem.mean

    def _starts(self, problem: PlacementProblem) -> list[Ints]:
        """Return the starts: staying, both variants of Flux, and descents from Flux, drained bins and staying."""
        flux = Flux().plan(problem).bin
        answers = [Draft(problem).bin, Flux(passes=1).plan(problem).bin, flux]
        for wanted, drained in ((flux, False), (None, True), (None, False)):
            draft = Draft(problem, wanted)
            if wanted is not None:
                draft.take(wanted)
            if drained:
                draft.drain()
            steps = STEPS if self.time_limit is None else min(STEPS, int(_LOOKS * self.time_limit / looked_at(draft)))
            descend(draft, steps)
            answers.append(draft.bin)
        return answers

    def _stalls(self, problem: PlacementProblem, stay: Ints, found: Ints) -> bool:
        """Return whether load is left to drain and the load distance has hardly fallen."""
        now, then = self.objective(problem, stay), self.objective(problem, found)
        return then[2] > 0 and not better(then[:1], now[:1]) and now[1] - then[1] <= _STALLED * problem.mean

    def _best(
        self, problem: PlacementProblem, starts: Sequence[Ints], seed: int, drain_first: bool, seconds: float | None
    ) -> tuple[Ints, bool, float]:
        """Return the best answer, whether it is proven optimal, and the solver's seconds."""

        def key(bin: Ints) -> tuple[float, ...]:
            excess, distance, left = self.objective(problem, bin)
            pair = (left, distance) if drain_first else (distance, left)
            return excess, *pair, _spread(problem, bin)

        best = starts[0]
        for other in starts[1:]:
            problem.pause()
            best = other if better(key(other), key(best)) else best
        proven, used = key(best)[:3] == (0, 0, 0), 0.0
        if not proven:
            weights = DRAIN_FIRST if drain_first else BALANCE_FIRST
            solved, proven, used = self._solved(problem, best, weights, seed, seconds)
            best = solved if better(key(solved), key(best)) else best
        if self._worthwhile(problem, starts[0], best):
            return best, proven, used
        # A gain of Flux is taken, however small.
        for other in starts[1:3]:
            if better(key(other)[:3], key(starts[0])[:3]):
                return other, proven, used
        return starts[0], proven, used

    def _solved(
        self, problem: PlacementProblem, start: Ints, weights: Weights, seed: int, seconds: float | None
    ) -> tuple[Ints, bool, float]:
        """Solve from an answer, first without load above capacity; return as `_best` does."""
        used = 0.0
        if problem.excess(start) > 0:
            half = None if seconds is None else seconds / 2
            fits, proven, used = self._at_once(problem, start, weights, seed, half, strict=True)
            if problem.excess(fits) == 0:
                return fits, proven, used
            seconds = None if seconds is None else max(seconds - used, 0.0)
        best, proven, more = self._searched(problem, start, weights, seed, seconds)
        return best, proven and problem.excess(start) == 0, used + more

    def _searched(
        self, problem: PlacementProblem, start: Ints, weights: Weights, seed: int, seconds: float | None
    ) -> tuple[Ints, bool, float]:
        """Solve from an answer: all bins at once, then a few at a time, then all again; return as `_best` does."""
        bins, endless = int(problem.live.sum()), seconds is None and self.node_limit is None
        whole, few = endless or problem.groups * bins <= _MOST_PAIRS, endless or bins <= BINS
        best, proven, used = start, False, 0.0
        if whole:
            share = seconds if few or seconds is None else _FIRST * seconds
            best, proven, used = self._at_once(problem, start, weights, seed, share)
        if proven or (whole and few):
            return best, proven, used
        share = None if seconds is None else _PARTS * (seconds - used)
        best, more = improve(problem, best, weights, Limits(share, self.node_limit, self.gap), seed)
        used += more
        if whole and seconds is not None:
            best, proven, more = self._at_once(problem, best, weights, seed, max(seconds - used, 0.0))
            used += more
        return best, proven, used

    def _at_once(
        self,
        problem: PlacementProblem,
        start: Ints,
        weights: Weights,
        seed: int,
        seconds: float | None,
        strict: bool = False,
    ) -> tuple[Ints, bool, float]:
        """Solve the program over all bins from an answer; return as `_best` does."""
        answer = Program(problem, weights, start, strict=strict).solve(Limits(seconds, self.node_limit, self.gap), seed)
        best = start if answer.bin is None else approach(problem, answer.bin)
        return best, answer.proven and best is answer.bin, answer.seconds

    def _worthwhile(self, problem: PlacementProblem, stay: Ints, found: Ints) -> bool:
        """Return whether an answer gains enough over staying to move any state."""
        now, then = self.objective(problem, stay), self.objective(problem, found)
        fits, nearer = better(then[:1], now[:1]), now[1] - then[1] > _WORTH * problem.mean
        return fits or nearer or better(then[2:], now[2:])


def _spread(problem: PlacementProblem, bin: Ints) -> float:
    """Return the difference of the highest and the lowest share of a bin."""
    shares = problem.shares(bin)[problem.live]
    return _clean(problem, float(shares.max() - shares.min()))


def _clean(problem: PlacementProblem, value: float) -> float:
    """Return 0 for rounding errors, else the value."""
    return 0.0 if value <= 1e-12 * problem.mean else value
