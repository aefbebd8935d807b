"""PMC: the projected migration cost of every partitioning, by value iteration.

Goal
    What a partitioning will cost in the long run, exact to a millionth, in seconds for tens of thousands of them.
Heuristic
    None. A partitioning that is no better than another on the way to it is no target; few are left for each source, and
    the iteration runs over these alone.
Not done
    Loads that change from migration to migration: it is those of the mean hour that count.

Notes
-----
State migration (Ding et al.), section 5.2, Figure 9, with errata 4 and 6: for each number of nodes that may follow the
*minimum* over its partitionings counts, not the sum, and Figure 9 is followed where Definition 5.3 differs, which
knows the future.

    C[P] = Σ_n′ M[n, n′] · min over P′ with n′ intervals of (c(P, P′) + γ C[P′])

Why some P′ need not be looked at: from P″ it is never worse than to go to P′ first, C[P″] ≤ c(P″, P′) + C[P′]. So if
P″ lies on the way, c(P, P″) + c(P″, P′) = c(P, P′), then P″ is as good a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.intervals.load_limit import check_feasible, checked_tau
from dask_elastic.planning.intervals.partitionings import Partitionings, dominated, partitionings, rounding
from dask_elastic.planning.intervals.plan import checked_tasks
from dask_elastic.planning.intervals.projected_costs import ProjectedCosts, ProjectedGroup
from dask_elastic.planning.intervals.transition_matrix import checked_matrix
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number

Progress = Callable[[int, int], None]
_ROUNDS = 20


def projected_costs(
    load: ArrayLike,
    state_bytes: ArrayLike,
    matrix: Mapping[int, Mapping[int, float]],
    tau: float,
    discount: float,
    allow_empty: bool = False,
    tolerance: float = 1e-6,
    progress: Progress | None = None,
) -> ProjectedCosts:
    """Compute what each partitioning costs in the long run.

    Parameters
    ----------
    load : array of float
        The load of each task, in any unit.
    state_bytes : array of float
        The size of each task's state.
    matrix : mapping of mappings
        For each number of nodes the probability of each that may follow; `transition_matrix` makes one. A number of
        nodes that occurs but has no row is the end: nothing follows that costs.
    tau : float
        How far a node's load may exceed the mean, as a share of it.
    discount : float
        γ, what a cost counts one migration later, from 0 to below 1.
    allow_empty : bool
        Whether nodes may be left without tasks.
    tolerance : float
        How far a cost may be from the exact one, in the unit of the state. A double is no nearer than 1e-16 of itself,
        so costs above 1e10 are rounded by more than a millionth.
    progress : callable, optional
        Called with the number of partitionings that are done, and of all.

    Returns
    -------
    ProjectedCosts
        The cost of every partitioning that the limit allows, for all numbers of nodes in the matrix.

    Raises
    ------
    PlanningError
        If an argument is out of range, a row of the matrix does not sum to one, or there are too many partitionings.
    Infeasible
        If no partitioning for some number of nodes keeps the limit, naming the task and the limit.

    Notes
    -----
    State migration, Figure 9, with errata 4 and 6. The iteration stops when the bounds of MacQueen (1966) on the exact
    costs are as near to each other as the tolerance says; their middle is the result. Where costs are so large that
    rounding matters to them, the policy found is evaluated by iterative refinement: what its costs break their equation
    by is computed in extended precision, where the machine has it.

    Examples
    --------
    >>> costs = projected_costs([1] * 4, [1] * 4, {1: {2: 1.0}, 2: {1: 1.0}}, tau=0.0, discount=0.5)
    >>> round(costs.cost([4]), 6), round(costs.cost([2, 2]), 6)
    (4.0, 4.0)
    """
    loads, state = checked_tasks(load, state_bytes)
    rows = checked_matrix(matrix)
    if not (is_number(discount) and 0 <= discount < 1):
        raise PlanningError(f"discount is {discount!r}: give 0 or more, and less than 1, or costs have no bound.")
    if not (is_number(tolerance) and tolerance > 0):
        raise PlanningError(f"tolerance is {tolerance!r}: give more than 0.")
    for nodes in rows:
        check_feasible(loads, nodes, checked_tau(tau), allow_empty)
    found = {nodes: partitionings(loads, nodes, tau, allow_empty) for nodes in rows}
    chain = _Chain.of(state, rows, found, progress)
    values = chain.solve(float(discount), float(tolerance))
    if progress is not None:
        progress(len(values), len(values))
    groups, start = [], 0
    for nodes, parts in found.items():
        for part in parts:
            groups.append(ProjectedGroup(nodes, part, values[start : start + len(part)]))
            start += len(part)
    return ProjectedCosts(len(loads), float(tau), float(discount), allow_empty, tuple(groups))


@dataclass(frozen=True, eq=False)
class _Chain:
    """The decisions: a part for each partitioning and number of nodes that may follow, with the targets to choose from.

    `cost` and `target` hold all targets, those of one part side by side, the first of which is at `first`; `source` and
    `share` are the partitioning and the probability of each part.
    """

    states: int
    cost: Floats
    target: Ints
    first: Ints
    source: Ints
    share: Floats

    @classmethod
    def of(
        cls,
        state: Floats,
        rows: Mapping[int, Mapping[int, float]],
        found: Mapping[int, list[Partitionings]],
        progress: Progress | None,
    ) -> _Chain:
        offset, states = {}, 0
        for nodes, parts in found.items():
            offset[nodes] = states
            states += sum(len(part) for part in parts)
        pieces, done = [], 0
        size = min(part.block for parts in found.values() for part in parts)
        for nodes, parts in found.items():
            for part in parts:
                for begin in range(0, len(part), size):
                    sources = part.bounds[begin : begin + size]
                    for after, share in rows[nodes].items():
                        costs, targets, counts = _targets(state, sources, found[after])
                        index = np.arange(done, done + len(sources))
                        pieces.append((costs, targets + offset[after], counts, index, np.full(len(sources), share)))
                    done += len(sources)
                    if progress is not None and done < states:
                        progress(done, states)
        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
        first = np.cumsum(columns[2]) - columns[2]
        return cls(states, columns[0], columns[1], first, columns[3], columns[4])

    def solve(self, discount: float, tolerance: float) -> Floats:
        """Return the cost of every partitioning."""
        values = self._iterated(discount, tolerance)
        # A few roundings of the largest cost, summed up over all time.
        if 8 * np.finfo(np.float64).eps * float(values.max()) <= tolerance * (1 - discount):
            return values
        return self._refined(values, discount, tolerance)

    def _iterated(self, discount: float, tolerance: float) -> Floats:
        """Return the costs as far as doubles take the iteration."""
        values: Floats = np.zeros(self.states)
        ahead = discount / (1 - discount)
        apart = np.inf
        while True:
            best = np.minimum.reduceat(self.cost + discount * values[self.target], self.first)
            renewed = np.bincount(self.source, self.share * best, minlength=self.states).astype(np.float64)
            change = renewed - values
            low, high = ahead * float(change.min()), ahead * float(change.max())
            # Bounds come nearer by a factor of γ at least, until rounding keeps them apart.
            if high - low <= tolerance or high - low >= apart:
                return np.asarray(renewed + (low + high) / 2)
            apart = high - low
            # They hold whatever the values are. Those that stay small, as differences of costs do, are rounded least.
            values = renewed - renewed.min()

    def _refined(self, values: Floats, discount: float, tolerance: float) -> Floats:
        """Return the costs without what rounding left in them, by policies that are evaluated and improved in turn."""
        exact = values.astype(np.longdouble)
        ahead = discount / (1 - discount)
        for _ in range(_ROUNDS):
            options = self.cost + np.longdouble(discount) * exact[self.target]
            best = np.minimum.reduceat(options, self.first)
            renewed = np.zeros_like(exact)
            np.add.at(renewed, self.source, self.share * best)
            change = renewed - exact
            if ahead * float(change.max() - change.min()) <= tolerance / 100:
                break
            hits = np.flatnonzero(options == np.repeat(best, np.diff(self.first, append=len(options))))
            chosen = hits[np.searchsorted(hits, self.first)]
            exact = exact + self._evaluated(self.target[chosen], change.astype(np.float64), discount)
        middle = ahead * (change.max() + change.min()) / 2
        result: Floats = (renewed + middle).astype(np.float64)
        return result

    def _evaluated(self, target: Ints, once: Floats, discount: float) -> Floats:
        """Return what a policy costs for ever where it costs `once` at each step; for small numbers, nearly exactly."""
        values = once
        ahead = discount / (1 - discount)
        apart = np.inf
        while True:
            following = np.bincount(self.source, self.share * values[target], minlength=self.states)
            renewed = once + discount * following
            change = renewed - values
            low, high = ahead * float(change.min()), ahead * float(change.max())
            if high - low <= 1e-3 * float(np.abs(once).max()) or high - low >= apart:
                return np.asarray(renewed + (low + high) / 2)
            apart = high - low
            values = renewed


def _targets(state: Floats, sources: Ints, found: list[Partitionings]) -> tuple[Floats, Ints, Ints]:
    """Return costs and numbers of the targets worth a look, source by source, and how many there are for each."""
    tables = [part.costs(state, sources) for part in found]
    worse = [dominated(part, state, table, rounding(state)) for part, table in zip(found, tables, strict=True)]
    costs, keep = np.concatenate(tables).T, ~np.concatenate(worse).T
    target: Ints = np.nonzero(keep)[1].astype(np.int64)
    return costs[keep], target, keep.sum(axis=1)
