"""PMC: computes the projected migration cost of every partitioning by value iteration.

Goal
    The projected costs of tens of thousands of partitionings in seconds, exact to a millionth.
Heuristic
    None.
Not done
    Loads that change from migration to migration: those of the mean hour count.

Notes
-----
State migration (Ding et al.), section 5.2, Figure 9, with errata 4 and 6: for each number of nodes that may follow the
*minimum* over its partitionings counts, not the sum; and Figure 9 is followed where it differs from Definition 5.3,
which assumes knowledge of the future.

    C[P] = Σ_n′ M[n, n′] · min over P′ with n′ intervals of (c(P, P′) + γ C[P′])

`dask_elastic.planning.intervals.decisions` says which P′ need not be considered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.planning.checked_arrays import Floats
from dask_elastic.planning.intervals.decisions import Decisions, Policy, Space
from dask_elastic.planning.intervals.load_limit import check_feasible, checked_tau
from dask_elastic.planning.intervals.partitionings import partitionings
from dask_elastic.planning.intervals.plan import checked_tasks
from dask_elastic.planning.intervals.projected_costs import ProjectedCosts, ProjectedGroup
from dask_elastic.planning.intervals.transition_matrix import checked_matrix
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number

Progress = Callable[[int, int], None]
_ROUNDS = 20


class Chain(Protocol):
    """Decisions over all partitionings, wherever they are kept."""

    @property
    def states(self) -> int:
        """The number of partitionings."""

    def renewed(self, values: Floats, discount: float) -> Floats:
        """Return the cost of each partitioning one migration before `values`."""

    def chosen(self, values: NDArray[Any], discount: float) -> tuple[NDArray[Any], Policy]:
        """Return the same in the precision of `values`, and the decisions that lead there."""


@dataclass(frozen=True, eq=False)
class Projection:
    """What is to be projected, checked: see `projected_costs` for the parameters."""

    space: Space
    tasks: int
    tau: float
    discount: float
    allow_empty: bool
    tolerance: float

    @classmethod
    def of(
        cls,
        load: ArrayLike,
        state_bytes: ArrayLike,
        matrix: Mapping[int, Mapping[int, float]],
        tau: float,
        discount: float,
        allow_empty: bool,
        tolerance: float,
        pause: Callable[[], None] = no_pause,
    ) -> Projection:
        """Check the arguments of `projected_costs`, and list the partitionings."""
        loads, state = checked_tasks(load, state_bytes)
        rows = checked_matrix(matrix)
        if not (is_number(discount) and 0 <= discount < 1):
            raise PlanningError(f"discount is {discount!r}: give 0 or more, and less than 1, or costs have no bound.")
        if not (is_number(tolerance) and tolerance > 0):
            raise PlanningError(f"tolerance is {tolerance!r}: give more than 0.")
        for nodes in rows:
            check_feasible(loads, nodes, checked_tau(tau), allow_empty)
        found = {nodes: partitionings(loads, nodes, tau, allow_empty, pause) for nodes in rows}
        space = Space(state, rows, found)
        return cls(space, len(loads), float(tau), float(discount), allow_empty, float(tolerance))

    def solved(self, chain: Chain) -> ProjectedCosts:
        """Return the projected costs by the decisions of the space."""
        values = _solved(chain, self.discount, self.tolerance)
        groups, start = [], 0
        for nodes, parts in self.space.found.items():
            for part in parts:
                groups.append(ProjectedGroup(nodes, part, values[start : start + len(part)]))
                start += len(part)
        return ProjectedCosts(self.tasks, self.tau, self.discount, self.allow_empty, tuple(groups))


def projected_costs(
    load: ArrayLike,
    state_bytes: ArrayLike,
    matrix: Mapping[int, Mapping[int, float]],
    tau: float,
    discount: float,
    allow_empty: bool = False,
    tolerance: float = 1e-6,
    progress: Progress | None = None,
    pause: Callable[[], None] = no_pause,
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
    pause : callable
        Called about every millisecond of work.

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
    projection = Projection.of(load, state_bytes, matrix, tau, discount, allow_empty, tolerance, pause)
    found = projection.solved(_LocalChain.of(projection.space, progress, pause))
    if progress is not None:
        progress(len(found), len(found))
    return found


@dataclass(frozen=True, eq=False)
class _LocalChain:
    """The decisions in the memory of this process."""

    states: int
    decisions: Decisions
    pause: Callable[[], None]

    @classmethod
    def of(cls, space: Space, progress: Progress | None, pause: Callable[[], None]) -> _LocalChain:
        pieces = []
        for block, end in enumerate((space.blocks[:, 4] + space.blocks[:, 3] - space.blocks[:, 2]).tolist()):
            pieces.append(space.decisions(block, pause))
            if progress is not None and end < space.states:
                progress(end, space.states)
        return cls(space.states, Decisions.joined(pieces), pause)

    def renewed(self, values: Floats, discount: float) -> Floats:
        self.pause()
        return self.decisions.renewed(values, discount, 0, self.states)

    def chosen(self, values: NDArray[Any], discount: float) -> tuple[NDArray[Any], Policy]:
        self.pause()
        return self.decisions.chosen(values, discount, 0, self.states)


def _solved(chain: Chain, discount: float, tolerance: float) -> Floats:
    """Return the cost of every partitioning."""
    values = _iterated(chain, discount, tolerance)
    # A few rounding errors of the largest cost, summed over all time.
    if 8 * np.finfo(np.float64).eps * float(values.max()) <= tolerance * (1 - discount):
        return values
    return _refined(chain, values, discount, tolerance)


def _iterated(chain: Chain, discount: float, tolerance: float) -> Floats:
    """Return the costs as exactly as the iteration in doubles allows."""
    values: Floats = np.zeros(chain.states)
    ahead = discount / (1 - discount)
    apart = np.inf
    while True:
        renewed = chain.renewed(values, discount)
        change = renewed - values
        low, high = ahead * float(change.min()), ahead * float(change.max())
        # The gap of the bounds shrinks by a factor of γ at least, until rounding errors dominate.
        if high - low <= tolerance or high - low >= apart:
            return np.asarray(renewed + (low + high) / 2)
        apart = high - low
        # The bounds hold for any values; small ones, such as differences of costs, have the least rounding errors.
        values = renewed - renewed.min()


def _refined(chain: Chain, values: Floats, discount: float, tolerance: float) -> Floats:
    """Return the costs without rounding errors, by evaluating and improving policies in turn."""
    exact = values.astype(np.longdouble)
    ahead = discount / (1 - discount)
    for _ in range(_ROUNDS):
        renewed, policy = chain.chosen(exact, discount)
        change = renewed - exact
        if ahead * float(change.max() - change.min()) <= tolerance / 100:
            break
        exact = exact + _evaluated(policy, change.astype(np.float64), discount)
    middle = ahead * (change.max() + change.min()) / 2
    result: Floats = (renewed + middle).astype(np.float64)
    return result


def _evaluated(policy: Policy, once: Floats, discount: float) -> Floats:
    """Return the discounted total cost of a policy that costs `once` per step; nearly exact for small numbers."""
    values = once
    ahead = discount / (1 - discount)
    apart = np.inf
    while True:
        following = np.bincount(policy.source, policy.share * values[policy.target], minlength=len(once))
        renewed = once + discount * following
        change = renewed - values
        low, high = ahead * float(change.min()), ahead * float(change.max())
        if high - low <= 1e-3 * float(np.abs(once).max()) or high - low >= apart:
            return np.asarray(renewed + (low + high) / 2)
        apart = high - low
        values = renewed
