"""ALBIC: balances by the solver, and collocates one more pair of communicating groups in every round.

Goal
    A load distance within a bound, and less traffic between bins from round to round, within the budget.
Heuristic
    Pairs with much traffic that share a bin move as one; sets of pairs are cut where they are too heavy to balance or
    to move. The pair with the most traffic between two bins is collocated. The solver balances the rest.
Not done
    More than one new pair per round, so that several rounds are needed even without a budget.

Notes
-----
ALBIC, section 4.3.2 (Algorithm 2), with the third erratum: the recursion stops when the bound on a part's load reaches
0, where each group is a part and the plain program is solved; step 3 never pins to a draining node, which is usually
the least loaded, and drops a pin that exceeds the budget. The pair with the most traffic that can be pinned and
improves collocation is taken; otherwise a pair that never fits would end all improvement. While bins drain, a plan
without a new pair is tried too, so that draining comes first. Bounds are shares of the mean load: the paper's are
percentages of a node at a mean that it does not give, taken as 50 (fifth erratum). Where the answer is no better than
staying, nothing moves. Where no answer within the budget can come within the bound, which is known beforehand (see
`dask_elastic.planning.placement.relief`), only the plain program is solved, with which the recursion would end: pairs
wait until there is balance. The partitioner breaks ties by the numbers of groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dask_elastic.planning.placement.check import approach
from dask_elastic.planning.placement.draft import Draft
from dask_elastic.planning.placement.milp import Milp
from dask_elastic.planning.placement.parts import above, contracted, divided, parts
from dask_elastic.planning.placement.problem import SLACK, Ints, Placement, PlacementProblem
from dask_elastic.planning.placement.quality import better, collocation, load_distance
from dask_elastic.planning.placement.relief import relieved
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number, is_whole

_READ = 256
"""Pairs that are read at a time."""


@dataclass(frozen=True)
class Albic:
    """Plan by the solver over parts of groups that communicate.

    Parameters
    ----------
    max_distance : float
        maxLD, the allowed load distance, as a share of the mean load.
    max_part : float
        maxPL, the greatest load of a part, as a share of the mean load.
    step : float
        stepPL, above 0: the decrease of `max_part` each time the distance is not reached.
    score : float
        sF: a pair counts if its traffic exceeds this multiple of the mean traffic to a downstream group.
    time_limit : float, optional
        Seconds for an answer. The first run of the solver gets half of them, each further run half of the rest.
    node_limit : int, optional
        Branch-and-bound nodes per run of the solver. They bound its work, not its time.
    pair_limit : int, optional
        Pairs that are tried until one gains, in each step; all of them if left out.
    least_gain : float
        As for `Milp`: a share of the mean load below which the solver does not balance.

    Raises
    ------
    PlanningError
        If an option is out of range.

    Notes
    -----
    ALBIC, Algorithm 2. The seed orders pairs of equal traffic, and is passed to the partitioner and the solver.

    Examples
    --------
    >>> traffic = np.eye(4)[[2, 3, 0, 1]]
    >>> problem = PlacementProblem([1, 1, 1, 1], [0, 0, 1, 1], 2, traffic=traffic, max_moves=2)
    >>> placement = Albic().plan(problem)
    >>> collocation(problem, placement.bin), placement.moves
    (1.0, 2)
    """

    max_distance: float = 0.2
    max_part: float = 0.5
    step: float = 0.1
    score: float = 1.5
    time_limit: float | None = 5.0
    node_limit: int | None = None
    pair_limit: int | None = None
    least_gain: float = 0.0

    gradual = True
    by_number = ("groups", "bins")

    def __post_init__(self) -> None:
        for name, value in (("max_distance", self.max_distance), ("max_part", self.max_part), ("score", self.score)):
            if not (is_number(value) and value >= 0):
                raise PlanningError(f"{name} is {value!r}: give 0 or more.")
        if not (is_number(self.step) and self.step > 0):
            raise PlanningError(f"step is {self.step!r}: give more than 0.")
        Milp(self.time_limit, self.node_limit, least_gain=self.least_gain)
        if self.pair_limit is not None and not (is_whole(self.pair_limit) and self.pair_limit >= 1):
            raise PlanningError(f"pair_limit is {self.pair_limit!r}: give 1 or more, or None to try all pairs.")

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: load left to drain, distance above the bound, counted traffic, distance."""
        return self._objective(replace(problem, traffic=above(problem, self.score)), bin)

    def _objective(self, counting: PlacementProblem, bin: Ints) -> tuple[float, ...]:
        """Return what is minimised, given a problem with the counted traffic only."""
        distance = load_distance(counting, bin)
        beyond = max(distance - self.max_distance * counting.mean, 0.0)
        return counting.to_drain(bin), beyond, 1 - collocation(counting, bin), distance

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement of this round."""
        counting = replace(problem, traffic=above(problem, self.score))
        best = Draft(problem).bin
        key = self._objective(counting, best)
        together, apart = divided(problem, counting.traffic)
        most, seconds = 0.0 if self._beyond_budget(problem) else self.max_part, self.time_limit
        while True:
            problem.pause()
            last = most <= 0
            label = np.arange(problem.groups) if last else parts(problem, together, most, seed)
            whole = contracted(problem, label)
            pinned = None if last else self._pinned(counting, whole, label, apart, seed)
            for choice in (whole,) if pinned is None else (pinned, whole):
                share = seconds if seconds is None or last else seconds / 2
                bin, used = self._solved(problem, choice, label, share, seed)
                seconds = None if seconds is None else max(seconds - used, 0.0)
                found = self._objective(counting, bin)
                gains = better(found, key)
                if gains:
                    best, key = bin, found
                # A pair that takes budget from draining waits, and a pair without gain must not end the improvement.
                if found[1] > 0 or (gains and found[0] <= 0):
                    break
            if last or found[1] <= 0:
                return problem.placement(best)
            most = max(most - self.step, 0.0) if most - self.step > SLACK else 0.0

    def _beyond_budget(self, problem: PlacementProblem) -> bool:
        """Return whether no answer within the budget comes within the bound: then the plain one comes nearest."""
        found = relieved(problem)
        return found is not None and found.least > (1 + SLACK) * self.max_distance * problem.mean

    def _solved(
        self, problem: PlacementProblem, whole: PlacementProblem, label: Ints, seconds: float | None, seed: int
    ) -> tuple[Ints, float]:
        """Solve the program over parts (step 4); return the bins of the groups and the seconds used."""
        placement, used = Milp(seconds, self.node_limit, least_gain=self.least_gain).run(whole, seed)
        return approach(problem, placement.bin[label]), used

    def _pinned(
        self, counting: PlacementProblem, whole: PlacementProblem, label: Ints, apart: Ints, seed: int
    ) -> PlacementProblem | None:
        """Return the problem with the parts of one more pair pinned to one bin (step 3); None if no pair gains."""
        if not len(apart):
            return None
        whole.pause()
        sent = np.asarray(counting.traffic[apart[:, 0], apart[:, 1]]).ravel()
        whole.pause()
        order = np.lexsort((np.random.default_rng(seed).random(len(apart)), -sent))
        now = collocation(counting, counting.current)
        tried: set[tuple[int, int]] = set()
        for first, second in _rows(label, apart, order):
            if (first, second) not in tried:
                if len(tried) == self.pair_limit:
                    break
                tried.add((first, second))
                whole.pause()
                pinned = self._pin(whole, label, first, second)
                # Collocating two parts may separate them from others.
                if pinned is not None and collocation(counting, pinned.current[label]) > now:
                    return pinned
        return None

    def _pin(self, whole: PlacementProblem, label: Ints, first: int, second: int) -> PlacementProblem | None:
        """Return the problem with two parts pinned to one bin; None if budget, capacity or bound forbid it."""
        target = _target(whole, label, first, second)
        load = whole.weight[[first, second]].sum() / whole.strength[target]
        if whole.draining[target] or load > (1 + self.max_distance) * whole.mean:
            return None
        moving = np.array([part for part in (first, second) if whole.current[part] != target], dtype=np.int64)
        draft = Draft(whole)
        for part in moving.tolist():
            if not draft.allows(part, target):
                return None
            draft.move(part, target)
        current, fixed = whole.current.copy(), whole.pinned.copy()
        current[moving] = target
        fixed[[first, second]] = True
        moves = None if whole.max_moves is None else whole.max_moves - draft.moves
        cost = None if whole.max_cost is None else max(whole.max_cost - draft.cost, 0.0)
        return replace(whole, current=current, pinned=fixed, max_moves=moves, max_cost=cost)


def _rows(label: Ints, apart: Ints, order: Ints) -> Iterator[tuple[int, int]]:
    """Yield the parts of pairs in an order; few of very many are read."""
    for begin in range(0, len(order), _READ):
        yield from map(tuple, label[apart[order[begin : begin + _READ]]].tolist())


def _target(whole: PlacementProblem, label: Ints, first: int, second: int) -> int:
    """Return the bin for a pair: that of the part that is pinned or a set of several, else the less loaded live one."""
    one, other = int(whole.current[first]), int(whole.current[second])
    if whole.draining[one] or whole.draining[other]:
        return other if whole.draining[one] else one
    if whole.pinned[first] != whole.pinned[second]:
        return one if whole.pinned[first] else other
    many = np.bincount(label)[[first, second]] > 1
    if many[0] != many[1]:
        return one if many[0] else other
    shares = whole.shares(whole.current)
    return one if shares[one] <= shares[other] else other
