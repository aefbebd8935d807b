"""PMC: computes the projected migration cost of every partitioning by value iteration.

Goal
    The projected costs of tens of thousands of partitionings in seconds, exact to a millionth.
Heuristic
    None. Dominated partitionings are no targets; few targets remain for each source, and the iteration runs over these
    only.
Not done
    Loads that change from migration to migration: those of the mean hour count.

Notes
-----
State migration (Ding et al.), section 5.2, Figure 9, with errata 4 and 6: for each number of nodes that may follow the
*minimum* over its partitionings counts, not the sum; and Figure 9 is followed where it differs from Definition 5.3,
which assumes knowledge of the future.

    C[P] = Σ_n′ M[n, n′] · min over P′ with n′ intervals of (c(P, P′) + γ C[P′])

Why some P′ can be dropped: migrating from P″ to P′ first bounds its cost, C[P″] ≤ c(P″, P′) + C[P′]. So if P″ lies on
the way, c(P, P″) + c(P″, P′) = c(P, P′), then P″ is at least as good a target.
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
    """Compute the projected cost of each partitioning.

    Parameters
    ----------
    load : array of float
        The load of each task, in any unit.
    state_bytes : array of float
        The size of each task's state.
    matrix : mapping of mappings
        For each number of nodes the probabilities of the next number; `transition_matrix` makes one. A number of nodes
        without a row is final: no further cost follows.
    tau : float
        How far a node's load may exceed the mean, as a share of it.
    discount : float
        γ, the weight of a cost one migration later, from 0 to below 1.
    allow_empty : bool
        Whether nodes may be left without tasks.
    tolerance : float
        The greatest error of a cost, in the unit of the state. Doubles have a relative precision of 1e-16, so costs
        above 1e10 are rounded by more than a millionth.
    progress : callable, optional
        Called with the number of finished partitionings, and of all.

    Returns
    -------
    ProjectedCosts
        The cost of every partitioning within the limit, for all numbers of nodes in the matrix.

    Raises
    ------
    PlanningError
        If an argument is out of range, a row of the matrix does not sum to one, or there are too many partitionings.
    Infeasible
        If a number of nodes has no partitioning within the limit; names the task and the limit.

    Notes
    -----
    State migration, Figure 9, with errata 4 and 6. The iteration stops when the bounds of MacQueen (1966) on the exact
    costs are within the tolerance; their middle is the result. Where costs are so large that rounding exceeds the
    tolerance, the policy is evaluated by iterative refinement, with residuals in extended precision where the machine
    has it.

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
    """The decisions: one for each partitioning and possible next number of nodes, with its targets.

    `cost` and `target` hold all targets, grouped by decision, with the first of each at `first`; `source` and `share`
    are the partitioning and the probability of each decision.
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
        # A few rounding errors of the largest cost, summed over all time.
        if 8 * np.finfo(np.float64).eps * float(values.max()) <= tolerance * (1 - discount):
            return values
        return self._refined(values, discount, tolerance)

    def _iterated(self, discount: float, tolerance: float) -> Floats:
        """Return the costs as exactly as the iteration in doubles allows."""
        values: Floats = np.zeros(self.states)
        ahead = discount / (1 - discount)
        apart = np.inf
        while True:
            best = np.minimum.reduceat(self.cost + discount * values[self.target], self.first)
            renewed = np.bincount(self.source, self.share * best, minlength=self.states).astype(np.float64)
            change = renewed - values
            low, high = ahead * float(change.min()), ahead * float(change.max())
            # The gap of the bounds shrinks by a factor of γ at least, until rounding errors dominate.
            if high - low <= tolerance or high - low >= apart:
                return np.asarray(renewed + (low + high) / 2)
            apart = high - low
            # The bounds hold for any values; small ones, such as differences of costs, have the least rounding errors.
            values = renewed - renewed.min()

    def _refined(self, values: Floats, discount: float, tolerance: float) -> Floats:
        """Return the costs without rounding errors, by evaluating and improving policies in turn."""
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
        """Return the discounted total cost of a policy that costs `once` per step; nearly exact for small numbers."""
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
    """Return costs and numbers of the targets that are not dominated, by source, and their count per source."""
    tables = [part.costs(state, sources) for part in found]
    worse = [dominated(part, state, table, rounding(state)) for part, table in zip(found, tables, strict=True)]
    costs, keep = np.concatenate(tables).T, ~np.concatenate(worse).T
    target: Ints = np.nonzero(keep)[1].astype(np.int64)
    return costs[keep], target, keep.sum(axis=1)
