"""Which cores each executor gets: Elasticutor, section 4.2, Algorithm 1, mended.

Goal
    Every executor has the cores it wants, data-intensive ones at home, and as little state moves as can be.
Heuristic
    Counting settles what data-intensive executors get at home. The others take cores where least state moves, the most
    data-intensive first; then single ones and pairs change by a core while that saves. Small problems: exact search.
Mended (second and third erratum to Elasticutor)
    Free cores are donors. Remote cores of data-intensive executors are repaired. Nobody is left with less than it
    wants; who must leave a node gets another core. Costs are those of the whole change, not of one step.
Not done
    Surplus cores are not released for their own sake: a core that nobody needs stays where it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.vocab.errors import Infeasible, PlanningError

Cores = NDArray[np.int64]
Amounts = NDArray[np.float64]

_NONE, _ELSEWHERE = -2, -1
"""Instead of a node: no core is meant; one on a node that holds no state of the executor."""

_GAIN = 1e-9
"""Less than this part of an executor's state is no saving but rounding."""

_ROUNDS = 4
"""How often the local search looks at all executors that move state."""

_TRIFLE = 2.0**-42
"""Among assignments that cost the same, few cores shall change: such a part of all state is the price of a quarter."""

_TABLE, _PASSES = 1 << 22, 1 << 24
"""The exact search makes tables of no more entries than the one, and passes over no more than the other."""


@dataclass(frozen=True, eq=False)
class CoreAssignment:
    """Who has which cores.

    Parameters
    ----------
    assignment : numpy.ndarray of int, nodes × executors
        Cores of each node that each executor has.
    cost : float
        Bytes of state that move to get there.
    threshold : float
        The data intensity above which executors have all cores at home, as it was after doubling.
    """

    assignment: Cores
    cost: float
    threshold: float

    def __post_init__(self) -> None:
        _counts("assignment", self.assignment, 2)
        if not (math.isfinite(self.cost) and self.cost >= 0 and self.threshold > 0):
            raise PlanningError(f"cost is {self.cost!r}, threshold {self.threshold!r}: neither may be negative or NaN.")


def migration_cost(old: ArrayLike, new: ArrayLike, state_bytes: ArrayLike) -> float:
    """Return the bytes of state that leave their node when an assignment changes.

    Parameters
    ----------
    old, new : array of int, nodes × executors
        Cores before and after.
    state_bytes : array of float
        State of each executor, spread evenly over its cores.

    Returns
    -------
    float
        Bytes. An executor without cores before has no state to move; one without cores after moves all of it.

    Raises
    ------
    PlanningError
        If shapes disagree or an entry is negative, not finite or, among the cores, not whole.

    Notes
    -----
    Elasticutor, section 4.2: C(X | X̃) = Σ_j Σ_i max(0, s_j x̃_ij / X̃_j - s_j x_ij / X_j).

    Examples
    --------
    >>> migration_cost([[2], [0]], [[2], [2]], [300.0])
    150.0
    """
    before = _counts("old", old, 2)
    after, state = _counts("new", new, 2, before.shape), _amounts("state_bytes", state_bytes, before.shape[1:])
    nodes, executors = np.nonzero(before)
    stays = after[nodes, executors] / np.maximum(after.sum(axis=0), 1)[executors]
    leaves = np.maximum(before[nodes, executors] / before.sum(axis=0)[executors] - stays, 0.0)
    return float((leaves * state[executors]).sum())


def assign_cores(
    current: ArrayLike,
    wanted: ArrayLike,
    capacity: ArrayLike,
    state_bytes: ArrayLike,
    home: ArrayLike,
    intensity: ArrayLike,
    threshold: float = 512 * 1024,
    doublings: int = 40,
) -> CoreAssignment:
    """Give every executor the cores it wants while little state moves and data-intensive executors stay at home.

    Parameters
    ----------
    current : array of int, nodes × executors
        Cores that each executor has now. It may break any of the constraints.
    wanted : array of int
        Cores k that each executor wants. One that has a core keeps at least one, whatever it wants.
    capacity : array of int
        Cores of each node.
    state_bytes : array of float
        State of each executor.
    home : array of int
        Node of each executor's main process.
    intensity : array of float
        Data intensity of each executor: bytes in and out per second and core.
    threshold : float
        Executors of a higher data intensity than this must have all cores at home.
    doublings : int
        How often the threshold may be doubled where not all of them fit there.

    Returns
    -------
    CoreAssignment
        An assignment that keeps (a) the capacity of each node, (b) at least the cores wanted, and (c) the cores of
        data-intensive executors at home; with its cost and the threshold used.

    Raises
    ------
    Infeasible
        If more cores are wanted than exist, or data-intensive executors do not fit at home after all doublings.
    PlanningError
        If shapes disagree, an entry is negative or not finite, a core count is not whole, or a home is no node.

    Notes
    -----
    Elasticutor, section 4.2, with the second, third and fifth erratum. A threshold can be kept exactly when what
    data-intensive executors want fits at each home and all that is wanted fits in the cluster: doubling needs no
    search. (b) is a lower bound: an executor keeps a surplus that nobody needs, and may get a core more than it wants
    where that saves moving state. An assignment that keeps the constraints is returned as it is. With few ways to fill
    the nodes (4 nodes of 8 cores, say) the result is optimal, and among the cheapest one that changes few cores.

    Examples
    --------
    >>> plan = assign_cores([[2, 1], [0, 1]], [2, 3], [4, 2], [600.0, 600.0], home=[0, 1], intensity=[0.0, 0.0])
    >>> plan.assignment.tolist(), plan.cost, plan.threshold
    ([[2, 2], [0, 2]], 0.0, 524288.0)
    """
    cores = _counts("current", current, 2)
    node, executor = cores.shape[:1], cores.shape[1:]
    needed = np.maximum(_counts("wanted", wanted, 1, executor), np.minimum(cores.sum(axis=0), 1))
    limits, homes = _counts("capacity", capacity, 1, node), _counts("home", home, 1, executor)
    if (homes >= node[0]).any():
        raise PlanningError(f"home contains {int(homes.max())}, but the last of {node[0]} nodes is {node[0] - 1}.")
    state = _amounts("state_bytes", state_bytes, executor)
    problem = _Problem(cores, needed, limits, state, homes, _amounts("intensity", intensity, executor))
    reached, intensive = _locality(problem, threshold, doublings)
    if _keeps(problem, intensive, cores):
        return CoreAssignment(cores.copy(), 0.0, reached)
    assignment = _exact(problem, intensive, _Search(problem, intensive).run())
    assert _keeps(problem, intensive, assignment), "an assignment breaks its constraints"
    return CoreAssignment(assignment, migration_cost(cores, assignment, state), reached)


class _Problem(NamedTuple):
    """The arguments, checked; `needed` is what was wanted, or the last core."""

    current: Cores
    needed: Cores
    capacity: Cores
    state: Amounts
    home: Cores
    intensity: Amounts


def _locality(problem: _Problem, threshold: float, doublings: int) -> tuple[float, NDArray[np.bool_]]:
    """Return the lowest threshold that can be kept, and who is data-intensive by it."""
    if not threshold > 0 or doublings < 0:
        raise PlanningError(f"threshold is {threshold!r}, doublings {doublings!r}: give above 0, and 0 or more.")
    wanted, existing = int(problem.needed.sum()), int(problem.capacity.sum())
    if wanted > existing:
        raise Infeasible("(b) X >= k", f"{wanted} cores are wanted, but {existing} exist; want fewer or add nodes.")
    reached = float(threshold)
    for doubling in range(doublings + 1):
        reached *= 2 if doubling else 1
        intensive = problem.intensity > reached
        at_home = np.bincount(problem.home[intensive], problem.needed[intensive], len(problem.capacity))
        crowded = np.flatnonzero(at_home > problem.capacity)
        if not crowded.size:
            return reached, intensive
    node = int(crowded[0])
    raise Infeasible(
        "(c) computation locality",
        f"executors at home on node {node} with an intensity above {reached:g} bytes/s want {int(at_home[node])} cores "
        f"there, but it has {int(problem.capacity[node])}; allow more than {doublings} doublings or want fewer.",
    )


def _keeps(problem: _Problem, intensive: NDArray[np.bool_], assignment: Cores) -> bool:
    """Tell whether an assignment keeps (a), (b) and (c)."""
    totals, bound = assignment.sum(axis=0), np.flatnonzero(intensive)
    fits = (assignment.sum(axis=1) <= problem.capacity).all() and (totals >= problem.needed).all()
    return bool(fits and (assignment[problem.home[bound], bound] == totals[bound]).all())


class _Search:
    """An assignment while it is changed; sparse, since executors have cores on few nodes."""

    def __init__(self, problem: _Problem, intensive: NDArray[np.bool_]):
        self._problem = problem
        self._state: list[float] = problem.state.tolist()
        self._home: list[int] = problem.home.tolist()
        self._intensive: list[bool] = intensive.tolist()
        self._free: list[int] = (problem.capacity - problem.current.sum(axis=1)).tolist()
        self._totals: list[int] = problem.current.sum(axis=0).tolist()
        self._spare: list[int] = (problem.current.sum(axis=0) - problem.needed).tolist()
        self._columns: list[dict[int, int]] = [{} for _ in self._totals]
        self._members: list[set[int]] = [set() for _ in self._free]
        for node, executor in np.argwhere(problem.current).tolist():
            self._columns[executor][node] = int(problem.current[node, executor])
            self._members[node].add(executor)
        self._shares = [[(node, n / self._totals[j]) for node, n in c.items()] for j, c in enumerate(self._columns)]
        self._costs, self._version = [0.0] * len(self._totals), [0] * len(self._totals)
        self._touched: set[int] = set()
        self._vacant = [node for node in reversed(range(len(self._free))) if self._free[node] > 0]

    def run(self) -> Cores:
        """Return an assignment that keeps the constraints and costs little."""
        for executor in np.flatnonzero(self._intensive).tolist():
            home, column = self._home[executor], self._columns[executor]
            for node in set(column) - {home}:
                self._change(executor, node, -column[node])
            if self._spare[executor] < 0:
                self._change(executor, home, -self._spare[executor])
        for node in range(len(self._free)):
            while self._free[node] < 0:
                self._change(min(self._losses(node, forced=True))[1], node, -1)
        self._fill()
        costly = [j for j in self._touched if not self._intensive[j] and self._costs[j] > _GAIN * self._state[j]]
        for _ in range(_ROUNDS):
            costly = [j for j in sorted(costly, key=lambda j: (-self._costs[j], j)) if self._improve(j)]
        matrix = self._problem.current.copy()
        for executor in self._touched:
            before = {node: 0 for node, _ in self._shares[executor]}
            for node, count in (before | self._columns[executor]).items():
                matrix[node, executor] = count
        return matrix

    def _losses(self, node: int, forced: bool = False) -> list[tuple[float, int]]:
        """Return who may give a core on a node, with the state it moves; if forced, even who then needs another."""
        return [
            (self._if(j, _NONE if self._spare[j] > 0 else _ELSEWHERE, node) - self._costs[j], j)
            for j in self._members[node]
            if self._spare[j] > 0 or (forced and not self._intensive[j])
        ]

    def _fill(self) -> None:
        """Give cores to those that have too few, data-intensive ones first."""
        self._donors = [offer for executor in range(len(self._totals)) for offer in self._offers(executor)]
        heapify(self._donors)
        short = (executor for executor, spare in enumerate(self._spare) if spare < 0)
        for executor in sorted(short, key=lambda j: (-self._problem.intensity[j], j)):
            while self._spare[executor] < 0:
                node, donor = self._cheapest(executor)
                if donor != _NONE:
                    self._change(donor, node, -1)
                    for offer in self._offers(donor):
                        heappush(self._donors, offer)
                self._change(executor, node, 1)

    def _offers(self, executor: int) -> list[tuple[float, int, int, int]]:
        """Return what it costs to take each core an executor can spare, valid while the executor has its version."""
        cost, version = self._costs[executor], self._version[executor]
        nodes = self._columns[executor] if self._spare[executor] > 0 else ()
        return [(self._if(executor, _NONE, node) - cost, executor, node, version) for node in nodes]

    def _cheapest(self, executor: int) -> tuple[int, int]:
        """Return the node and the donor, or none, of the core that an executor gets for the least state moved."""
        home, cost = self._home[executor], self._costs[executor]
        options: list[tuple[float, bool, bool, int, int]] = []
        for node in {home, *self._columns[executor], *(node for node, _ in self._shares[executor])}:
            loss, donor = (0.0, _NONE) if self._free[node] > 0 else min(self._losses(node), default=(math.inf, _NONE))
            moved = self._if(executor, node, _NONE) - cost + loss
            options.append((moved, donor != _NONE, node != home, node, donor))
        while self._donors and self._donors[0][3] != self._version[self._donors[0][1]]:
            heappop(self._donors)
        vacant = self._vacant_node()
        loss, donor, node = (0.0, _NONE, vacant) if vacant != _NONE else self._donors[0][:3]
        options.append((self._if(executor, _ELSEWHERE, _NONE) - cost + loss, donor != _NONE, True, node, donor))
        return min(options)[3:]

    def _improve(self, executor: int) -> bool:
        """Add, drop or replace one core of an executor; what it adds is free, or another one's who may replace it."""
        column, cost, total = self._columns[executor], self._costs[executor], self._totals[executor]
        short = [node for node, share in self._shares[executor] if column.get(node, 0) < share * total]
        best, vacant = -_GAIN * self._state[executor], self._vacant_node()
        chosen: list[tuple[int, int, int]] = []
        for add in (*short, _NONE):
            for drop in (*column, _NONE):
                own = self._if(executor, add, drop) - cost
                if own >= best or add == drop or (add == _NONE and self._spare[executor] <= 0):
                    continue
                if add == _NONE or self._free[add] > 0:
                    best, chosen = own, [(executor, drop, -1), (executor, add, 1)]
                    continue
                for other in self._members[add] - {executor}:
                    for take in (_NONE,) if self._intensive[other] else {drop, vacant, _NONE}:
                        if take == _NONE and self._spare[other] <= 0:
                            continue
                        change = own + self._if(other, take, add) - self._costs[other]
                        if change < best:
                            best = change
                            chosen = [(other, add, -1), (executor, drop, -1), (executor, add, 1), (other, take, 1)]
        for who, node, by in chosen:
            if node != _NONE:
                self._change(who, node, by)
        return bool(chosen)

    def _vacant_node(self) -> int:
        while self._vacant and self._free[self._vacant[-1]] <= 0:
            self._vacant.pop()
        return self._vacant[-1] if self._vacant else _NONE

    def _if(self, executor: int, add: int, drop: int) -> float:
        """Return the state that an executor moves when it has a core more on one node and a core less on another."""
        shares = self._shares[executor]
        total = self._totals[executor] + (add != _NONE) - (drop != _NONE)
        if total <= 0:
            return self._state[executor] if shares else 0.0
        column, moved = self._columns[executor], 0.0
        for node, share in shares:
            left = share - (column.get(node, 0) + (node == add) - (node == drop)) / total
            if left > 0:
                moved += left
        return moved * self._state[executor]

    def _change(self, executor: int, node: int, by: int) -> None:
        column = self._columns[executor]
        column[node] = column.get(node, 0) + by
        self._members[node].add(executor)
        if not column[node]:
            del column[node]
            self._members[node].discard(executor)
        self._totals[executor] += by
        self._spare[executor] += by
        self._free[node] -= by
        if by < 0:
            self._vacant.append(node)
        self._version[executor] += 1
        self._touched.add(executor)
        self._costs[executor] = self._if(executor, _NONE, _NONE)


def _exact(problem: _Problem, intensive: NDArray[np.bool_], found: Cores) -> Cores:
    """Make `found` the best assignment, by dynamic programming, where the nodes can be filled in few ways."""
    executors, nodes = range(len(problem.needed)), np.flatnonzero(problem.capacity)
    left = problem.capacity[nodes]
    shape = tuple((left + 1).tolist())
    if len(executors) * (len(nodes) + 1) * math.prod(shape) > _TABLE:
        return found
    grid = np.indices(shape).reshape(len(nodes), -1)
    costs = _column_costs(problem, intensive, nodes, grid)
    least = costs.reshape(-1, *shape)
    for axis in range(1, least.ndim):
        least = np.minimum.accumulate(least, axis=axis)
    least = least.reshape(costs.shape)
    known = costs[executors, np.ravel_multi_index(tuple(found[nodes]), shape)].sum()
    bound = least[:, -1] + (known - least[:, -1].sum()) + known * _GAIN
    # Of use is a column if none with fewer cores is cheaper, and if it is not too dear for a better assignment.
    choices = [np.flatnonzero((costs[j] <= least[j]) & (costs[j] <= bound[j])) for j in executors]
    # All cores are left for the first, so that it costs no pass over the grid: it is the one with the most columns.
    order = sorted(executors, key=lambda j: (-len(choices[j]), j))
    if sum(len(choices[j]) for j in order[1:]) * math.prod(shape) > _PASSES:
        return found
    # The least cost of the executors that are left, by the cores that are left.
    rest = [np.zeros(shape)]
    for j in reversed(order[1:]):
        rest.append(_with_one_more(rest[-1], grid[:, choices[j]], costs[j, choices[j]]))
    for j in order:
        columns = choices[j][(grid[:, choices[j]] <= left[:, None]).all(axis=0)]
        total = costs[j, columns] + rest.pop()[tuple(left[:, None] - grid[:, columns])]
        found[nodes, j] = grid[:, columns[int(total.argmin())]]
        left = left - found[nodes, j]
    return found


def _column_costs(problem: _Problem, intensive: NDArray[np.bool_], nodes: Cores, grid: Cores) -> Amounts:
    """Return what each column of cores would cost each executor: its bytes, and a trifle for each core that changes."""
    totals = grid.sum(axis=0)
    parts, shares = grid / np.maximum(totals, 1), problem.current / np.maximum(problem.current.sum(axis=0), 1)
    lost = shares[problem.capacity == 0].sum(axis=0)
    trifle = float(problem.state.sum()) * _TRIFLE or 1.0
    costs = np.empty((len(problem.needed), grid.shape[1]))
    for j, needed in enumerate(problem.needed.tolist()):
        away, change = nodes != problem.home[j], grid - problem.current[nodes, j][:, None]
        moved = np.maximum(shares[nodes, j][:, None] - parts, 0.0).sum(axis=0) + lost[j]
        changes = 4 * np.abs(change).sum(axis=0) + np.maximum(change[away], 0).sum(axis=0)
        costs[j] = moved * problem.state[j] + changes * trifle
        costs[j, (totals < needed) | (intensive[j] & grid[away].any(axis=0))] = np.inf
    return costs


def _with_one_more(rest: Amounts, columns: Cores, costs: Amounts) -> Amounts:
    """Return the least cost by the cores left, of an executor with these columns and those after it."""
    value = np.full(rest.shape, np.inf)
    for column, cost in zip(columns.T.tolist(), costs.tolist(), strict=True):
        into = value[tuple(slice(count, None) for count in column)]
        before = rest[tuple(slice(size - count) for size, count in zip(rest.shape, column, strict=True))]
        np.minimum(into, before + cost, out=into)
    return value


def _counts(name: str, values: ArrayLike, dimensions: int, shape: tuple[int, ...] | None = None) -> Cores:
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        wrong = array[array < 0]
    else:
        array = _amounts(name, values, shape or array.shape)
        wrong = array[array % 1 != 0]
    if array.ndim != dimensions or array.shape != (shape or array.shape):
        raise PlanningError(f"{name} has shape {array.shape}: give {shape or 'nodes x executors'}.")
    if wrong.size:
        raise PlanningError(f"{name} contains {wrong[0].item()!r}: give whole numbers of 0 or more.")
    return array.astype(np.int64, copy=False)


def _amounts(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Amounts:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape:
        raise PlanningError(f"{name} has shape {array.shape}: give {shape}.")
    wrong = array[~(np.isfinite(array) & (array >= 0))]
    if wrong.size:
        raise PlanningError(f"{name} contains {float(wrong[0])!r}: give finite numbers of 0 or more.")
    return array
