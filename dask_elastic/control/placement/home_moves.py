"""The moves of homes that lead to a placement, in the order in which they are made, with their costs and gains.

Goal
    Each move says what it gains where it stands in the order, so that the gains sum to that of the plan.
Method
    Those from retiring nodes come first, then those that lower the load distance most, then those that keep most
    traffic within nodes. Each is made by the strategy that lets rows wait least: the home moves, its shards move, or
    nothing does. The loads of nodes and the traffic within them are updated from one move to the next.
Not done
    A choice for several moves at once: of two that gain only together, the first may be left out.
    An order by gain for many moves: from `ORDERED` on, the heaviest executors come first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.control.placement.executors import RESOURCES, PlacedExecutors
from dask_elastic.control.placement.move_rates import MoveRates
from dask_elastic.control.placement.neighbours import Neighbours
from dask_elastic.control.placement.purpose import Purpose
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.placement.strategies import MoveSite, NodeLoad, cheapest, strategy_costs
from dask_elastic.control.placement.whole_plan import whole_plan
from dask_elastic.planning.new_home import SlotUse, following_cores
from dask_elastic.planning.placement.problem import SLACK, Floats, Ints, Placement
from dask_elastic.vocab.plan import HOME, LABELLED, NONE, HomeMove

ORDERED = 64
"""Up to so many moves are ordered by what each gains; more are ordered by load."""


@dataclass(frozen=True, eq=False)
class ChosenMoves:
    """The moves that lead to a placement, each by the strategy that costs least.

    Parameters
    ----------
    moves : tuple of HomeMove
        Those of homes, and of shards where the home stays.
    kept : tuple of HomeMove
        Moves that are not made, because rows would wait less if nothing moved.
    distance : float
        The load distance after the moves.
    bin : array of int
        The bin of each group after the moves.
    """

    moves: tuple[HomeMove, ...]
    kept: tuple[HomeMove, ...]
    distance: float
    bin: Ints


def home_moves(
    placed: PlacedExecutors,
    placement: Placement,
    settings: PlacementSettings,
    rates: MoveRates | None = None,
    purpose: Purpose = Purpose.BALANCE,
    horizon: float = 0.0,
) -> ChosenMoves:
    """Return the moves that lead to a placement, those from retiring nodes and with most gain first.

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
    purpose : Purpose
        What the planner moves homes for, which decides what else is allowed.
    horizon : float
        Seconds for which placements last, if that is longer than the settings say.

    Returns
    -------
    ChosenMoves
        One for each executor of the job that the placement moves. The gains are those of the moves in this order, so
        that they sum to the gain of all.
    """
    rates = rates or MoveRates(settings.handover, settings.transfer)
    left = _in_order(placed, placement.bin)
    placed.problem.pause()
    for reason in (purpose, Purpose.ORDER):
        choice = _Choice(placed, settings, rates, reason, horizon)
        if reason is Purpose.ORDER and len(left) > ORDERED:
            moves, distance = whole_plan(placed, placement.bin, left, rates, choice.horizon, settings.bandwidth)
            bin = placed.problem.current.copy()
            bin[left] = placement.bin[left]
            return ChosenMoves(moves, (), distance, bin)
        chosen, order = _chosen(placement, choice, left.tolist())
        # What stays, or leaves its state, takes the room that others count on: only the whole plan is known to fit.
        if not order.overfull():
            break
    made, kept = (tuple(one for one in chosen if (one.strategy == NONE) is stays) for stays in (False, True))
    return ChosenMoves(made, kept, order.distance, order.bin)


def _in_order(placed: PlacedExecutors, bin: Ints) -> Ints:
    """Return the executors of the job that a placement moves; many of them by load, from retiring nodes first."""
    problem, own = placed.problem, len(placed.executors)
    moving: Ints = np.flatnonzero(bin[:own] != problem.current[:own])
    if len(moving) <= ORDERED:
        return moving
    return moving[np.lexsort((-problem.weight[moving], ~problem.draining[problem.current[moving]]))]


def _chosen(placement: Placement, choice: _Choice, left: list[int]) -> tuple[list[HomeMove], _Order]:
    """Return the moves to a placement in their order, and what they lead to."""
    order = _Order(choice.placed, np.array(left, dtype=np.int64))
    found: list[HomeMove] = []
    by_gain = len(left) <= ORDERED
    while left:
        choice.placed.problem.pause()
        group = min(left, key=lambda one: order.rank(one, int(placement.bin[one]))) if by_gain else left[0]
        left.remove(group)
        found.append(choice.made(order, group, int(placement.bin[group])))
    return found, order


class _Choice:
    """Chooses the strategy of each move.

    Parameters
    ----------
    placed, settings, rates, purpose, horizon
        As for `home_moves`.
    """

    def __init__(
        self, placed: PlacedExecutors, settings: PlacementSettings, rates: MoveRates, purpose: Purpose, horizon: float
    ):
        self.placed, self.settings, self.rates, self.purpose = placed, settings, rates, purpose
        self.horizon = max(settings.cooldown, settings.period, horizon)
        self._any_kept = False

    def made(self, order: _Order, group: int, target: int) -> HomeMove:
        """Return the move of a group by the cheapest strategy, and note it in the order."""
        placed, problem, settings = self.placed, self.placed.problem, self.settings
        source, traffic = int(problem.current[group]), order.more_inside(group, target)
        executor, site = placed.snapshots[group], self._site(order, group, target, traffic)
        costs = strategy_costs(executor, site, self.rates, self.horizon, settings.bandwidth, traffic)
        best = cheapest(costs)
        # Those that stay may take the room of others.
        strategy = NONE if self._any_kept and best.strategy == HOME and not order.fits(group, target) else best.strategy
        self._any_kept |= strategy == NONE
        gain = order.move(group, target, strategy)
        cost = next(one for one in costs if one.strategy == strategy)
        return HomeMove(
            *placed.job, placed.executors[group], placed.nodes[source], placed.nodes[target],
            moved_bytes=cost.moved_bytes, pause=cost.pause, gain=gain / (problem.mean or 1.0),
            traffic={HOME: traffic, LABELLED: -(executor.bytes_in + executor.bytes_out), NONE: 0.0}[strategy],
            costs=costs, strategy=strategy,
        )  # fmt: skip

    def _site(self, order: _Order, group: int, target: int, traffic: float) -> MoveSite:
        placed, problem = self.placed, self.placed.problem
        source, executor = int(problem.current[group]), placed.snapshots[group]
        draining = bool(problem.draining[source])
        # Delays of rows show nothing of what memory and the network gain.
        delays_show = placed.bottleneck == RESOURCES[0] and self.purpose is not Purpose.ORDER and not draining
        free = bool(delays_show and not (self.purpose is Purpose.TRAFFIC and traffic > 0))
        cores = executor.cores.get(executor.home, 0)
        intensity = (executor.bytes_in + executor.bytes_out) / max(executor.total_cores, 1)
        old, new = order.slots(source), order.slots(target)
        slots = cores > 0 and new.slots - new.held >= cores
        near = intensity > self.settings.locality_threshold or executor.pinned
        return MoveSite(
            order.load(source), order.load(target), order.busy_of(group), float(placed.rows[group]),
            stay_allowed=free, shards_allowed=free and slots and not near,
            cores_follow=cores == 0 or following_cores(cores, old, new) > 0,
        )  # fmt: skip


class _Order:
    """The loads of bins and the traffic within them, after the moves so far.

    Parameters
    ----------
    placed : PlacedExecutors
        The problem.
    moving : array of int
        The groups that may move.
    """

    def __init__(self, placed: PlacedExecutors, moving: Ints):
        problem = placed.problem
        self.placed, self.problem = placed, problem
        self.bin = problem.current.copy()
        self.shares = problem.shares(self.bin)
        self.totals = problem.totals(self.bin)
        self.rows = np.bincount(self.bin, placed.rows, problem.bins)
        self.taken = np.zeros(problem.bins, dtype=np.int64)
        self.distance = self._distance(self.shares)
        problem.pause()
        self.neighbours = Neighbours(problem, moving)
        problem.pause()

    def rank(self, group: int, target: int) -> tuple[bool, float, float]:
        """Return the place of a move in the order: from retiring nodes first, then by distance, then by traffic."""
        self.problem.pause()
        stays = not self.problem.draining[self.bin[group]]
        return stays, self._distance(self._shares(group, target)), -self.more_inside(group, target)

    def move(self, group: int, target: int, strategy: str) -> float:
        """Make a move by a strategy; return by how much the load distance falls."""
        if strategy == NONE:
            return 0.0
        source = int(self.bin[group])
        self.shares = self._shares(group, target)
        load = self.problem.loads[group]
        # Where shards move, memory and network stay at home.
        moved = load if strategy == HOME else load * (np.arange(len(load)) == 0)
        self.totals[source] -= moved
        self.totals[target] += moved
        self.rows[source] -= self.placed.rows[group]
        self.rows[target] += self.placed.rows[group]
        before, self.distance = self.distance, self._distance(self.shares)
        if strategy == HOME:
            self.bin[group] = target
        executor = self.placed.snapshots[group]
        cores = executor.cores.get(executor.home, 0)
        self.taken[target] += cores
        self.taken[source] -= cores
        return before - self.distance

    def fits(self, group: int, target: int) -> bool:
        """Return whether a group fits into what is left of a bin."""
        limit = self.problem.limit[target]
        return bool((self.totals[target] + self.problem.loads[group] <= limit * (1 + SLACK)).all())

    def overfull(self) -> bool:
        """Return whether a bin has more than it may."""
        return bool((self.totals > self.problem.limit * (1 + 2 * SLACK)).any())

    def slots(self, bin: int) -> SlotUse:
        """Return the slots of a bin, and the cores there."""
        slots, held = self.placed.slots[bin]
        return SlotUse(slots, held + int(self.taken[bin]))

    def load(self, bin: int) -> NodeLoad:
        """Return the load of the processors of a bin."""
        unit = self.placed.unit
        return NodeLoad(
            max(float(self.totals[bin, 0]) * unit, 0.0),
            float(self.problem.capacities[bin, 0]) * unit,
            max(float(self.rows[bin]), 0.0),
        )

    def busy_of(self, group: int) -> float:
        """Return the cores that a group keeps busy."""
        return float(self.problem.loads[group, 0]) * self.placed.unit

    def _shares(self, group: int, target: int) -> Floats:
        after, weight = self.shares.copy(), self.problem.weight[group]
        source = self.bin[group]
        after[source] -= weight / self.problem.strength[source]
        after[target] += weight / self.problem.strength[target]
        return after

    def _distance(self, shares: Floats) -> float:
        return float(np.abs(shares[self.problem.live] - self.problem.mean).max())

    def more_inside(self, group: int, target: int) -> float:
        """Return the bytes per second that are within a node after a move, and were not before."""
        others, rates = self.neighbours.of(group)
        places = self.bin[others]
        return float(rates[places == target].sum() - rates[places == self.bin[group]].sum())
