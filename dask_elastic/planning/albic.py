"""ALBIC: balance by the solver, and one more pair of talking groups together in every round.

Goal
    Load distance within a bound, and traffic between bins that falls round by round, within the budget.
Heuristic
    Pairs with much traffic that share a bin move as one; sets of them are cut where they get too heavy to balance or to
    move. The pair with most traffic that does not share a bin is put together. The solver does the rest.
Not done
    More than one new pair a round, so it comes to rest in rounds even without a budget.

Notes
-----
ALBIC, section 4.3.2 (Algorithm 2). It stops recursing when the bound on a part's load has come down to 0, when each
group is a part and the plain program is solved. Step 3 never pins to a draining node, which is usually the least
loaded, and drops a pin that exceeds the budget. Bounds are shares of the mean load: the paper's are percentages of a
node at a mean that it does not give, taken as 50. Where the answer is no better than staying, all stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dask_elastic.planning.check import approach
from dask_elastic.planning.cola import partition
from dask_elastic.planning.milp import Milp
from dask_elastic.planning.problem import Draft, Floats, Ints, Placement, PlacementProblem
from dask_elastic.planning.quality import better, collocation, load_distance
from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True)
class Albic:
    """Plan by the solver over parts of groups that talk to each other.

    Parameters
    ----------
    max_distance : float
        maxLD, the load distance that is allowed, as a share of the mean load.
    max_part : float
        maxPL, the load of a part at most, as a share of the mean load.
    step : float
        stepPL, by how much `max_part` is lowered where the distance is not reached, above 0.
    score : float
        sF, how many times the mean traffic to a downstream group a pair must have to count.
    time_limit : float, optional
        Seconds for each run of the solver.
    node_limit : int, optional
        Nodes for each run of the solver.

    Raises
    ------
    PlanningError
        If an option is out of range.

    Notes
    -----
    ALBIC, Algorithm 2. The seed draws among pairs of equal traffic, and is the partitioner's and the solver's.

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
    time_limit: float | None = 2.0
    node_limit: int | None = None

    gradual = True

    def __post_init__(self) -> None:
        for name, value in (("max_distance", self.max_distance), ("max_part", self.max_part), ("score", self.score)):
            if not value >= 0:
                raise PlanningError(f"{name} is {value!r}: give 0 or more.")
        if not self.step > 0:
            raise PlanningError(f"step is {self.step!r}: give more than 0.")
        Milp(self.time_limit, self.node_limit)

    def objective(self, problem: PlacementProblem, bin: Ints, seed: int = 0) -> tuple[float, ...]:
        """Return what is minimised: what is left to drain, distance beyond the bound, traffic, distance."""
        distance = load_distance(problem, bin)
        beyond = max(distance - self.max_distance * problem.mean, 0.0)
        return problem.to_drain(bin), beyond, 1 - collocation(problem, bin), distance

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Placement:
        """Return the placement of this round."""
        stay = Draft(problem).bin
        key = self.objective(problem, stay)
        together, apart = _pairs(problem, self.score)
        best, part = stay, self.max_part
        while True:
            label = self._parts(problem, together, part, seed) if part > 0 else np.arange(problem.groups)
            bin = self._solve(problem, label, apart if part > 0 else apart[:0], seed)
            found = self.objective(problem, bin)
            if better(found, key):
                best, key = bin, found
            if part <= 0 or found[1] <= 0:
                return problem.placement(best)
            part -= self.step
            part = part if part > 1e-9 else 0.0

    def _parts(self, problem: PlacementProblem, together: Ints, most: float, seed: int) -> Ints:
        """Return the part of each group (step 2): sets of pairs on one bin, cut to what can be balanced and moved."""
        links = sp.coo_matrix((np.ones(len(together)), together.T), shape=(problem.groups, problem.groups))
        count, label = connected_components(links, directed=False)
        label = label.astype(np.int64)
        waiting = np.flatnonzero(np.bincount(label, minlength=count) > 1).tolist()
        while waiting:
            members = np.flatnonzero(label == waiting.pop())
            parts, weight = self._cut(problem, members, most)
            if parts > 1:
                found = partition(problem.traffic, members, weight, parts, seed)
                made = np.where(found == 0, label[members], count + found - 1)
                label[members] = made
                count += int(found.max())
                # The partitioner balances one weight: the other may still be too much.
                waiting += [int(one) for one in np.unique(made) if (made == one).sum() > 1]
        return np.unique(label, return_inverse=True)[1].astype(np.int64)

    def _cut(self, problem: PlacementProblem, members: Ints, most: float) -> tuple[int, Floats]:
        """Return into how many parts a set must be cut, and the weights by which it is most too large."""
        needs = [(_ratio(float(problem.weight[members].sum()), most * problem.mean), problem.weight)]
        if problem.max_cost is not None:
            needs.append((_ratio(float(problem.state_bytes[members].sum()), problem.max_cost), problem.state_bytes))
        if problem.max_moves is not None:
            needs.append((_ratio(float(problem.size[members].sum()), problem.max_moves), problem.size.astype(float)))
        ratio, weight = max(needs, key=lambda need: need[0])
        return math.ceil(min(ratio, len(members)) * (1 - 1e-9)), weight

    def _solve(self, problem: PlacementProblem, label: Ints, apart: Ints, seed: int) -> Ints:
        """Solve the program over parts (step 4), with one more pair together where that is affordable (step 3)."""
        whole = _contracted(problem, label)
        pinned = self._pin(whole, label, apart, seed)
        solver = Milp(self.time_limit, self.node_limit)
        bin = solver.plan(pinned if pinned is not None else whole, seed).bin
        return approach(problem, bin[label])

    def _pin(self, whole: PlacementProblem, label: Ints, apart: Ints, seed: int) -> PlacementProblem | None:
        """Return the problem with the parts of a pair on one bin for good, None where they cannot be."""
        if not len(apart):
            return None
        first, second = label[apart[np.random.default_rng(seed).integers(len(apart))]].tolist()
        target = self._target(whole, label, first, second)
        moving = np.array([part for part in (first, second) if whole.current[part] != target], dtype=np.int64)
        draft = Draft(whole)
        for part in moving.tolist():
            if whole.draining[target] or not draft.allows(part, target):
                return None
            draft.move(part, target)
        current, fixed = whole.current.copy(), whole.pinned.copy()
        current[moving] = target
        fixed[[first, second]] = True
        moves = None if whole.max_moves is None else whole.max_moves - draft.moves
        cost = None if whole.max_cost is None else max(whole.max_cost - draft.cost, 0.0)
        return replace(whole, current=current, pinned=fixed, max_moves=moves, max_cost=cost)

    def _target(self, whole: PlacementProblem, label: Ints, first: int, second: int) -> int:
        """Return the bin for a pair: that of the only one in a set, else the less loaded of those that do not drain."""
        one, other = int(whole.current[first]), int(whole.current[second])
        if whole.draining[one] or whole.draining[other]:
            return other if whole.draining[one] else one
        many = np.bincount(label)[[first, second]] > 1
        if many[0] != many[1]:
            return one if many[0] else other
        shares = whole.shares(whole.current)
        return one if shares[one] <= shares[other] else other


def _ratio(amount: float, most: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / most if most > 0 else math.inf


def _pairs(problem: PlacementProblem, score: float) -> tuple[Ints, Ints]:
    """Return the pairs that share a bin, and those with most traffic that do not (step 1)."""
    none = np.empty((0, 2), dtype=np.int64)
    if problem.traffic is None or not problem.traffic.nnz:
        return none, none
    traffic = problem.traffic.tocoo()
    row, column = traffic.row.astype(np.int64), traffic.col.astype(np.int64)
    mean = np.asarray(problem.traffic.sum(axis=1)).ravel() / np.maximum(_downstream(problem), 1)
    there = problem.placed[row] & problem.placed[column] & (row != column)
    counts = there & (traffic.data > score * mean[row])
    same = problem.current[row] == problem.current[column]
    pairs = np.stack([row, column], axis=1)
    apart = counts & ~same
    if not apart.any():
        return pairs[counts & same], none
    return pairs[counts & same], pairs[apart & (traffic.data >= traffic.data[apart].max())]


def _downstream(problem: PlacementProblem) -> Ints:
    """Return the number of groups downstream of each group: those of the operators that its own one sends to."""
    row, column = problem.traffic.nonzero()
    if problem.operator is None:
        # Of one operator that all belong to, those count that anything is sent to.
        return np.full(problem.groups, len(np.unique(column)))
    kinds, kind = np.unique(problem.operator, return_inverse=True)
    edges = np.unique(np.stack([kind[row], kind[column]], axis=1), axis=0)
    sizes = np.bincount(kind, minlength=len(kinds))
    below = np.bincount(edges[:, 0], sizes[edges[:, 1]], minlength=len(kinds)).astype(np.int64)
    result: Ints = below[kind]
    return result


def _contracted(problem: PlacementProblem, label: Ints) -> PlacementProblem:
    """Return the problem in which each part is one group."""
    parts = int(label.max(initial=-1)) + 1
    first = np.zeros(parts, dtype=np.int64)
    first[label[::-1]] = np.arange(problem.groups)[::-1]
    loads = np.zeros((parts, problem.loads.shape[1]))
    np.add.at(loads, label, problem.loads)
    return replace(
        problem,
        load=loads,
        current=problem.current[first],
        state_bytes=np.bincount(label, problem.state_bytes, minlength=parts).astype(np.float64),
        size=np.bincount(label, problem.size, minlength=parts).astype(np.int64),
        pinned=np.bincount(label, problem.pinned, minlength=parts) > 0,
        traffic=None,
        operator=None,
        history=None,
    )
