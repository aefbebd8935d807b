"""Balance as a mixed-integer linear program, solved by HiGHS from a greedy start.

Goal
    The least load distance that the budget can buy, and bins that drain emptied; within a limit of time or nodes.
Heuristic
    Flux, then moves and swaps that bring the bin furthest from the mean nearer to it, give a first answer. The solver
    starts from it, and the better of the two is returned, so a solver that fails or runs out of time does no harm.
Not done
    Traffic between groups, which would make the program quadratic.

Notes
-----
ALBIC, section 4.3.1, mended. d_u and d_l are 0 at least, or the program is unbounded. Constraint (5) is dropped: with
it, skewed loads under a small budget have no solution. The mean is exact, over the bins that stay, by capacity. No
group goes to a draining bin, for Lemma 1 does not hold. The load on draining bins, which the text minimises and the
print forgets, is a term of the objective, w1 ≫ w3 ≫ w2; and where the load distance stalls while load is left there,
draining comes first, for Lemma 4.2 does not hold either. The deviation d is over the bins that stay, as the text's
objective says, not over all nodes as in constraint (3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
import scipy.sparse as sp

from dask_elastic.planning.check import approach
from dask_elastic.planning.flux import Flux
from dask_elastic.planning.problem import Draft, Floats, Ints, Mask, Placement, PlacementProblem
from dask_elastic.planning.quality import better
from dask_elastic.vocab.errors import PlanningError

_BALANCE_FIRST = (1.0, 1e-4, 1e-6)
_DRAIN_FIRST = (1e-3, 1.0, 1e-6)
_STEPS = 500
# A program of more pairs of group and bin takes longer than any sensible limit for its first relaxation.
_MOST_PAIRS = 20_000
_LEAST_BINS = 4


@dataclass(frozen=True)
class Milp:
    """Plan by a mixed-integer linear program.

    Parameters
    ----------
    time_limit : float, optional
        Seconds for the solver. What it finds by then depends on the machine: give `node_limit` instead where answers
        must be the same everywhere.
    node_limit : int, optional
        Nodes of the branch-and-bound tree.
    gap : float
        The relative difference to the optimum with which the solver is content.

    Raises
    ------
    PlanningError
        If a limit is negative or the gap is not between 0 and 1.

    Notes
    -----
    ALBIC, section 4.3.1; several resources as in its section 3: the bottleneck is balanced, the others are limited.

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

    def __post_init__(self) -> None:
        for name, value in (("time_limit", self.time_limit), ("node_limit", self.node_limit)):
            if value is not None and not value >= 0:
                raise PlanningError(f"{name} is {value!r}: give 0 or more, or None for no limit.")
        if not 0 <= self.gap < 1:
            raise PlanningError(f"gap is {self.gap!r}: give 0 or more, and less than 1.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: load distance, what is left to drain, and the spread from lowest to highest bin."""
        away = problem.shares(bin)[problem.live] - problem.mean
        spread = float(away.max() - away.min())
        return _clean(problem, float(np.abs(away).max())), problem.to_drain(bin), _clean(problem, spread)

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the better of the solver's answer and the greedy one."""
        stay = Draft(problem).bin
        if problem.mean <= 0 and not problem.draining[stay].any():
            return problem.placement(stay, proven=True)
        starts = [stay, *_starts(problem)]
        found, proven = self._best(problem, starts, seed, drain_first=False)
        distance, left, _ = self.objective(problem, found)
        start = self.objective(problem, stay)
        stalls = not better((distance,), start[:1], self.gap) and not better((left,), start[1:2])
        # Without a budget there is no later round that would drain the rest.
        free = problem.max_moves is None and problem.max_cost is None
        if left > 0 and (stalls or free):
            found, proven = self._best(problem, starts, seed, drain_first=True)
        return problem.placement(found, proven)

    def _best(
        self, problem: PlacementProblem, starts: Sequence[Ints], seed: int, drain_first: bool
    ) -> tuple[Ints, bool]:
        """Return the best of the greedy answers and what the solver makes of it."""
        best, key = starts[0], self._key(problem, starts[0], drain_first)
        for other in starts[1:]:
            found = self._key(problem, other, drain_first)
            if better(found, key, self.gap):
                best, key = other, found
        if key[0] == 0 and key[1] == 0:
            return best, True
        program = _Program(problem, _DRAIN_FIRST if drain_first else _BALANCE_FIRST, best)
        solved, proven = program.solve(self, seed)
        if solved is None:
            return best, False
        reached = approach(problem, solved)
        proven = proven and reached is solved
        if better(self._key(problem, reached, drain_first), key, self.gap):
            best, key = reached, self._key(problem, reached, drain_first)
        # No state is moved for the spread alone: it decides between answers that move some anyway.
        worthwhile = better(key[:2], self._key(problem, starts[0], drain_first)[:2], self.gap)
        return (best if worthwhile else starts[0]), proven

    def _key(self, problem: PlacementProblem, bin: Ints, drain_first: bool) -> tuple[float, ...]:
        distance, left, spread = self.objective(problem, bin)
        return (left, distance, spread) if drain_first else (distance, left, spread)


def _clean(problem: PlacementProblem, value: float) -> float:
    """Return 0 for what is only rounding."""
    return 0.0 if value <= 1e-12 * problem.mean else value


def _starts(problem: PlacementProblem) -> list[Ints]:
    """Return the greedy answers: Flux in both readings, and descents from Flux, from drained bins and from none."""
    flux = Flux().plan(problem)
    answers = [Flux(passes=1).plan(problem).bin, flux.bin]
    for wanted, drained in ((flux.bin, False), (None, True), (None, False)):
        draft = Draft(problem, wanted)
        if wanted is not None:
            draft.take(wanted)
        if drained:
            draft.drain()
        descend(draft)
        answers.append(draft.bin)
    return answers


def descend(draft: Draft, steps: int = _STEPS) -> None:
    """Bring the bin furthest from the mean nearer to it by one move or swap, again and again.

    Parameters
    ----------
    draft : Draft
        The placement to work on.
    steps : int
        How many moves or swaps at most.
    """
    live = np.flatnonzero(draft.problem.live)
    for _ in range(steps):
        away = np.abs(draft.shares[live] - draft.problem.mean)
        if not _step(draft, int(live[np.argmax(away)]), float(away.max())):
            return


def _step(draft: Draft, worst: int, distance: float) -> bool:
    """Make the exchange with one other bin that leaves the two nearest to the mean, if it leaves both nearer."""
    problem = draft.problem
    movable = ~problem.pinned
    inside = np.flatnonzero((draft.bin == worst) & movable)
    outside = np.flatnonzero((draft.bin != worst) & movable)
    live = np.flatnonzero(problem.live)
    others = live[live != worst]
    # A move out exchanges a group for nothing at a bin, a move in nothing for a group.
    out = np.append(inside, -1)
    back = np.concatenate([outside, np.full(len(others), -1)])
    partner = np.concatenate([draft.bin[outside], others])
    value = _after(draft, worst, out, back, partner)
    # What drains gives groups and gets none.
    value[:-1, problem.draining[partner]] = np.inf
    value[-1, len(outside) :] = np.inf
    noise = 1e-9 * problem.mean
    candidates = np.argwhere(value < distance - noise)
    ranked = candidates[np.argsort(value[tuple(candidates.T)], kind="stable")]
    for row, column in ranked[:50].tolist():
        if _exchange(draft, worst, int(partner[column]), int(out[row]), int(back[column])):
            return True
    return False


def _after(draft: Draft, worst: int, out: Ints, back: Ints, partner: Ints) -> Floats:
    """Return the greater distance from the mean of the two bins, for each group out and each group back."""
    problem = draft.problem
    weight = np.append(problem.weight, 0.0)
    change = weight[back][None, :] - weight[out][:, None]
    shares, strength, mean = draft.shares, problem.strength, problem.mean
    here = np.abs(shares[worst] + change / strength[worst] - mean)
    there = np.abs((shares[partner] - mean)[None, :] - change / strength[partner][None, :])
    there[:, problem.draining[partner]] = 0
    result: Floats = np.maximum(here, there)
    return result


def _exchange(draft: Draft, worst: int, partner: int, out: int, back: int) -> bool:
    """Swap two groups, either of which may be none, or leave all as it was."""
    if back < 0:
        if not draft.allows(out, partner):
            return False
        draft.move(out, partner)
        return True
    if out < 0:
        if not draft.allows(back, worst):
            return False
        draft.move(back, worst)
        return True
    # A swap may need the room that the other group leaves: put one aside, and back again where the swap fails.
    first, second = (out, partner, worst), (back, worst, partner)
    if draft.problem.weight[out] > draft.problem.weight[back]:
        first, second = second, first
    for one, other in ((first, second), (second, first)):
        if draft.allows(one[0], one[1]):
            draft.move(one[0], one[1])
            if draft.allows(other[0], other[1]):
                draft.move(other[0], other[1])
                return True
            draft.move(one[0], one[2])
    return False


class _Program:
    """The program in HiGHS' terms: a 0-1 variable for each group and bin it may be on, the bins' shares, and d, U, L.

    U = d − d_u and L = d − d_l are the upper and the lower deviation. Shares are in units of the mean.
    """

    def __init__(self, problem: PlacementProblem, weights: tuple[float, float, float], start: Ints):
        self.problem = problem
        self.unit = problem.mean if problem.mean > 0 else 1.0
        self.weights = weights
        self.start = start
        self.live = np.flatnonzero(problem.live)
        choices = self._choices(start)
        self.group, self.bin = (index.astype(np.int64) for index in np.nonzero(choices))
        self.pairs = len(self.group)

    def _choices(self, start: Ints) -> Mask:
        """Return which bin each group may be on; of very many bins only those with the lowest loads."""
        problem = self.problem
        open_bins = problem.live.copy()
        most = max(_LEAST_BINS, _MOST_PAIRS // max(problem.groups, 1))
        self.whole = len(self.live) <= most
        if not self.whole:
            order = np.argsort(problem.shares(problem.current)[self.live], kind="stable")
            open_bins[self.live[order[most:]]] = False
        choices: Mask = np.repeat(open_bins[None, :], problem.groups, axis=0)
        choices[problem.pinned & problem.placed] = False
        placed = np.flatnonzero(problem.placed)
        choices[placed, problem.current[placed]] = True
        choices[np.arange(problem.groups), start] = True
        return choices

    def solve(self, limits: Milp, seed: int) -> tuple[Ints | None, bool]:
        """Return the solver's bins, or None where it has none, and whether they are proven best."""
        make: Any = highspy.Highs
        solver = make()
        for name, value in self._options(limits, seed).items():
            solver.setOptionValue(name, value)
        solver.passModel(self._model(self.start))
        guess = highspy.HighsSolution()
        guess.col_value = self._values(self.start).tolist()
        solver.setSolution(guess)
        solver.run()
        proven = self.whole and solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        values = np.asarray(solver.getSolution().col_value, dtype=np.float64)
        if len(values) < self.pairs:
            return None, False
        chosen = np.flatnonzero(values[: self.pairs] > 0.5)
        if len(chosen) != self.problem.groups or (self.group[chosen] != np.arange(self.problem.groups)).any():
            return None, False
        return self.bin[chosen], proven

    def _options(self, limits: Milp, seed: int) -> dict[str, Any]:
        options: dict[str, Any] = {
            "output_flag": False,
            "random_seed": int(seed) % (2**31 - 1),
            "mip_rel_gap": limits.gap,
            "mip_abs_gap": 1e-9,
            "mip_feasibility_tolerance": 1e-7,
        }
        if limits.time_limit is not None:
            # The greedy start and the making of the program take their part.
            options["time_limit"] = 0.8 * float(limits.time_limit)
        if limits.node_limit is not None:
            options["mip_max_nodes"] = int(limits.node_limit)
        return options

    def _values(self, bin: Ints) -> Floats:
        """Return the columns' values for a placement."""
        shares = self.problem.shares(bin)[self.live] / self.unit
        upper, lower = float((shares - self._mean()).max()), float((self._mean() - shares).max())
        chosen = (bin[self.group] == self.bin).astype(np.float64)
        return np.concatenate([chosen, shares, [max(upper, lower, 0.0), upper, lower]])

    def _mean(self) -> float:
        return self.problem.mean / self.unit

    def _costs(self) -> Floats:
        problem, (balance, drain, spread) = self.problem, self.weights
        whole = problem.to_drain(problem.current)
        stranded = problem.draining[self.bin] * problem.burden[self.group] / (whole if whole > 0 else 1.0)
        return np.concatenate([drain * stranded, np.zeros(len(self.live)), [balance, spread, spread]])

    def _model(self, start: Ints) -> Any:
        rows, low, high = self._rows(start)
        matrix = sp.vstack(rows, format="csc")
        columns = matrix.shape[1]
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = columns, matrix.shape[0]
        lp.col_cost_ = self._costs()
        lower, upper = np.zeros(columns), np.full(columns, np.inf)
        upper[: self.pairs] = 1
        lower[-2:] = -np.inf
        upper[self.pairs : -3] = self._ceiling(start)
        lp.col_lower_, lp.col_upper_ = lower, upper
        lp.row_lower_, lp.row_upper_ = np.concatenate(low), np.concatenate(high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
        lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
        lp.a_matrix_.value_ = matrix.data
        whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [whole] * self.pairs + [real] * (columns - self.pairs)
        return lp

    def _ceiling(self, start: Ints) -> Floats:
        """Return the greatest shares that the bins may have; groups that had no bin may exceed a capacity."""
        problem, resource = self.problem, self.problem.bottleneck
        most = np.maximum(problem.limit[:, resource], problem.totals(start)[:, resource])
        result: Floats = (most / problem.strength / self.unit)[self.live]
        return result

    def _rows(self, start: Ints) -> tuple[list[Any], list[Floats], list[Floats]]:
        """Return blocks of rows with their lower and upper bounds."""
        problem, live = self.problem, self.live
        width = self.pairs + len(live) + 3
        position = np.full(problem.bins, -1)
        position[live] = np.arange(len(live))
        inside = np.flatnonzero(position[self.bin] >= 0)
        at = position[self.bin[inside]]

        def block(height: int, *entries: tuple[Any, Any, Any]) -> Any:
            row, column, value = (np.concatenate([np.atleast_1d(e[i]) for e in entries]) for i in range(3))
            return sp.coo_matrix((value, (row, column)), shape=(height, width))

        every, one = np.arange(len(live)), np.ones(len(live))
        shares = self.pairs + every
        d, up, down = width - 3, width - 2, width - 1
        load = problem.weight[self.group[inside]] / problem.strength[self.bin[inside]] / self.unit
        mean, free, zero = np.full(len(live), self._mean()), np.full(len(live), np.inf), np.zeros(len(live))
        single = np.ones(problem.groups)
        rows = [
            block(problem.groups, (self.group, np.arange(self.pairs), np.ones(self.pairs))),
            block(len(live), (at, inside, load), (every, shares, -one)),
            block(len(live), (every, shares, one), (every, np.full(len(live), up), -one)),
            block(len(live), (every, shares, one), (every, np.full(len(live), down), one)),
            block(2, ([0, 1], [d, d], [1.0, 1.0]), ([0, 1], [up, down], [-1.0, -1.0])),
        ]
        low, high = [single, zero, -free, mean, np.zeros(2)], [single, zero, mean, free, np.full(2, np.inf)]
        for resource in range(problem.loads.shape[1]):
            most = np.maximum(problem.limit[:, resource], problem.totals(start)[:, resource])[live]
            if resource != problem.bottleneck and np.isfinite(most).any():
                rows.append(block(len(live), (at, inside, problem.loads[self.group[inside], resource] / most[at])))
                low.append(-free)
                high.append(one)
        for budget, prices in ((problem.max_moves, problem.size), (problem.max_cost, problem.state_bytes)):
            if budget is not None:
                stays = np.flatnonzero((self.bin == problem.current[self.group]) & problem.placed[self.group])
                unit = float(max(prices.max(initial=0), 1))
                kept = prices[self.group[stays]] / unit
                rows.append(block(1, (np.zeros(len(stays), dtype=np.int64), stays, kept)))
                low.append(np.array([float(prices[problem.placed].sum() - budget) / unit]))
                high.append(np.array([np.inf]))
        return rows, low, high
