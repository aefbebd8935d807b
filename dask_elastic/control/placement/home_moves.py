"""The moves of homes that lead to a placement, in the order in which they are made, with their costs and gains.

Goal
    Each move says what it gains where it stands in the order, so that the gains sum to that of the plan.
Method
    Those from retiring nodes come first, then those that lower the load distance most, then those that keep most
    traffic within nodes. The loads of nodes and the traffic within them are updated from one move to the next.
Not done
    An order by gain for many moves: from `ORDERED` on, the heaviest executors come first.
"""

from __future__ import annotations

import numpy as np

from dask_elastic.control.placement.executors import PlacedExecutors
from dask_elastic.control.placement.move_rates import MoveRates
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.placement.strategies import NodeUse, strategy_costs
from dask_elastic.planning.placement.problem import Floats, Ints, Placement, PlacementProblem
from dask_elastic.vocab.plan import HomeMove

ORDERED = 64
"""Up to so many moves are ordered by what each gains; more are ordered by load."""


def home_moves(
    placed: PlacedExecutors, placement: Placement, settings: PlacementSettings, rates: MoveRates | None = None
) -> tuple[HomeMove, ...]:
    """Return the moves of homes that lead to a placement, those from retiring nodes and with most gain first.

    Parameters
    ----------
    placed : PlacedExecutors
        The problem.
    placement : Placement
        A planner's answer to it.
    settings : PlacementSettings
        The time for which homes stay, and the capacity of the network.
    rates : MoveRates, optional
        Those from which pauses are predicted; by default those of the settings.

    Returns
    -------
    tuple of HomeMove
        One for each executor of the job that changes its node. The gains are those of the moves in this order, so that
        they sum to the gain of all.
    """
    problem = placed.problem
    rates = rates or MoveRates(settings.handover, settings.transfer)
    own = len(placed.executors)
    left = np.flatnonzero(placement.bin[:own] != problem.current[:own]).tolist()
    if len(left) > ORDERED:
        left.sort(key=lambda group: (not problem.draining[problem.current[group]], -problem.weight[group], group))
    order = _Order(placed)
    unit = problem.mean or 1.0
    found = []
    by_gain = len(left) <= ORDERED
    while left:
        group = min(left, key=lambda one: order.rank(one, int(placement.bin[one]))) if by_gain else left[0]
        left.remove(group)
        source, target = int(problem.current[group]), int(placement.bin[group])
        use = order.use(group, target)
        gain, traffic = order.move(group, target)
        state = float(problem.state_bytes[group])
        costs = strategy_costs(
            placed.snapshots[group], use, rates, max(settings.cooldown, settings.period), settings.bandwidth, traffic
        )
        found.append(
            HomeMove(
                *placed.job, placed.executors[group], placed.nodes[source], placed.nodes[target], moved_bytes=state,
                pause=rates.pause(state), gain=gain / unit, traffic=traffic, costs=costs,
            )
        )  # fmt: skip
    return tuple(found)


class _Order:
    """The loads of bins and the traffic within them, after the moves so far.

    Parameters
    ----------
    placed : PlacedExecutors
        The problem.
    """

    def __init__(self, placed: PlacedExecutors):
        problem = placed.problem
        self.placed, self.problem = placed, problem
        self.bin = problem.current.copy()
        self.shares = problem.shares(self.bin)
        self.busy = problem.totals(self.bin)[:, 0]
        self.distance = self._distance(self.shares)
        self.neighbours = _Neighbours(problem)

    def rank(self, group: int, target: int) -> tuple[bool, float, float]:
        """Return the place of a move in the order: from retiring nodes first, then by distance, then by traffic."""
        stays = not self.problem.draining[self.bin[group]]
        return stays, self._distance(self._shares(group, target)), -self._more_inside(group, target)

    def move(self, group: int, target: int) -> tuple[float, float]:
        """Make a move; return by how much the load distance falls, and the traffic within nodes grows."""
        more, source = self._more_inside(group, target), int(self.bin[group])
        self.shares = self._shares(group, target)
        load = self.problem.loads[group, 0]
        self.busy[source] -= load
        self.busy[target] += load
        before, self.distance = self.distance, self._distance(self.shares)
        self.bin[group] = target
        return before - self.distance, more

    def use(self, group: int, target: int) -> NodeUse:
        """Return the use of processors around a move that is not made yet."""
        source, capacity = int(self.bin[group]), self.problem.capacities[:, 0]
        return NodeUse(
            source=float(self.busy[source] / capacity[source]),
            target=float(self.busy[target] / capacity[target]),
            target_after=float((self.busy[target] + self.problem.loads[group, 0]) / capacity[target]),
            free_slots=self.placed.free_slots[target],
            draining=bool(self.problem.draining[source]),
        )

    def _shares(self, group: int, target: int) -> Floats:
        after, weight = self.shares.copy(), self.problem.weight[group]
        source = self.bin[group]
        after[source] -= weight / self.problem.strength[source]
        after[target] += weight / self.problem.strength[target]
        return after

    def _distance(self, shares: Floats) -> float:
        return float(np.abs(shares[self.problem.live] - self.problem.mean).max())

    def _more_inside(self, group: int, target: int) -> float:
        """Return the bytes per second that are within a node after a move, and were not before."""
        others, rates = self.neighbours.of(group)
        places = self.bin[others]
        return float(rates[places == target].sum() - rates[places == self.bin[group]].sum())


class _Neighbours:
    """The groups with which each group communicates, and the bytes per second of each."""

    def __init__(self, problem: PlacementProblem):
        pairs = problem.traffic.tocoo()
        apart = pairs.row != pairs.col
        ends, others = (
            np.concatenate((first[apart], second[apart]))
            for first, second in ((pairs.row, pairs.col), (pairs.col, pairs.row))
        )
        order = np.argsort(ends, kind="stable")
        self._others = others[order]
        self._rates = np.concatenate((pairs.data[apart],) * 2)[order]
        self._begins = np.searchsorted(ends[order], np.arange(problem.groups + 1))

    def of(self, group: int) -> tuple[Ints, Floats]:
        part = slice(self._begins[group], self._begins[group + 1])
        return self._others[part], self._rates[part]
