"""The moves of a plan of which no part is left out, with their costs and gains, for thousands of moves.

Goal
    What `dask_elastic.control.placement.home_moves` finds where every home moves, without a step for each move.
Method
    Each move changes two nodes. What a node has before a move is what it had at first and the sum of what came and went
    until then; these sums are made for all nodes together.
Not done
    Another strategy than the move of the home, and another order than the given one.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import repeat

import numpy as np

from dask_elastic.control.placement.executors import PlacedExecutors
from dask_elastic.control.placement.move_rates import MoveRates
from dask_elastic.control.placement.neighbours import Neighbours
from dask_elastic.control.placement.strategies import STRATEGIES, row_seconds, traffic_of
from dask_elastic.planning.placement.problem import Floats, Ints
from dask_elastic.planning.turns import in_turns
from dask_elastic.vocab.plan import HOME, HomeMove, StrategyCost


def whole_plan(
    placed: PlacedExecutors, bin: Ints, groups: Ints, rates: MoveRates, horizon: float, bandwidth: float
) -> tuple[tuple[HomeMove, ...], float]:
    """Return the moves of homes, and the load distance after them.

    Parameters
    ----------
    placed : PlacedExecutors
        The problem.
    bin : array of int
        The bin that each group gets.
    groups : array of int
        Those that move, in their order.
    rates : MoveRates
        Those from which pauses are predicted.
    horizon : float
        Seconds for which the placement is expected to last.
    bandwidth : float
        Bytes per second between two nodes.
    """
    problem, unit, pause = placed.problem, placed.unit, placed.problem.pause
    source, target = problem.current[groups], bin[groups]
    executors = [placed.snapshots[group] for group in groups.tolist()]
    steps = _Steps(source, target)
    totals = problem.totals(problem.current)[:, 0]
    busy, rows = problem.loads[groups, 0], placed.rows[groups]
    pause()
    both_busy = steps.before(totals, busy)
    both_rows = steps.before(np.bincount(problem.current, placed.rows, problem.bins).astype(np.float64), rows)
    old, new = (
        (np.maximum(held * unit, 0.0), problem.capacities[at, 0] * unit, np.maximum(served, 0.0))
        for at, held, served in zip((source, target), both_busy, both_rows, strict=True)
    )
    pause()
    follows = _follow(placed, steps, np.array([one.cores.get(one.home, 0) for one in executors]))
    pause()
    saved = _more_inside(placed, groups, source, bin)
    pause()
    state = np.array([float(one.state_bytes) for one in executors])
    shards = np.array([1 if one.shard_load is None else max(len(one.shard_load), 1) for one in executors])
    pause()
    part_pauses = np.array([rates.shard_pause(one) for one in in_turns((state / shards).tolist(), pause)])
    pauses = np.zeros(len(groups)), part_pauses, np.array([rates.pause(one) for one in in_turns(state.tolist(), pause)])
    traffic = traffic_of(saved, np.array([one.bytes_in + one.bytes_out for one in executors]), follows)
    pause()
    waiting = row_seconds(old, new, (busy * unit, rows), pauses, traffic, follows, rates.hop, horizon, bandwidth)
    distances = _distances(placed, steps, groups)
    pause()
    gains = (distances[:-1] - distances[1:]) / (problem.mean or 1.0)
    costs = zip(*(
        map(StrategyCost, repeat(strategy), *(column.tolist() for column in columns), repeat(strategy == HOME))
        for strategy, *columns in zip(
            STRATEGIES, waiting, (np.zeros(len(groups)), state, state), pauses, traffic, strict=True
        )
    ), strict=True)  # fmt: skip
    where = np.array(placed.nodes)
    moves = [
        HomeMove(*placed.job, placed.executors[group], left, got, each[-1].moved_bytes, each[-1].pause, gain, kept,
                 each)
        for group, left, got, gain, kept, each in in_turns(
            zip(
                groups.tolist(), where[source].tolist(), where[target].tolist(), gains.tolist(), saved.tolist(), costs,
                strict=True,
            ),
            pause,
        )
    ]  # fmt: skip
    return tuple(moves), float(distances[-1])


class _Steps:
    """Sums per bin over moves in their order, each from a source to a target."""

    def __init__(self, source: Ints, target: Ints):
        # The departure and the arrival of each move in turn.
        self.bins = np.stack([source, target], axis=1).ravel()
        self._order = np.argsort(self.bins, kind="stable")
        ordered = self.bins[self._order]
        self._first = np.searchsorted(ordered, ordered)

    def before(self, start: Floats, moved: Floats) -> tuple[Floats, Floats]:
        """Return what the source and the target have before each move."""
        change = np.stack([-moved, moved], axis=1).ravel()[self._order]
        earlier = np.cumsum(change) - change
        found = np.empty(len(change))
        found[self._order] = start[self.bins[self._order]] + (earlier - earlier[self._first])
        return found[::2], found[1::2]


def _follow(placed: PlacedExecutors, steps: _Steps, cores: Ints) -> Ints:
    """Return whether cores would follow each home, as `dask_elastic.planning.new_home.following_cores` has it."""
    slots, held = (np.array(column, dtype=np.float64) for column in zip(*placed.slots, strict=True))
    old, new = steps.before(held, cores.astype(np.float64))
    room, there = slots[steps.bins[1::2]], slots[steps.bins[::2]]
    with np.errstate(divide="ignore", invalid="ignore"):
        crowd = np.where(there > 0, old / there, np.inf)
        shared = (new + 1) / room <= crowd
    result: Ints = (cores == 0) | ((room > 0) & ((room > new) | shared))
    return result


def _more_inside(placed: PlacedExecutors, groups: Ints, source: Ints, bin: Ints) -> Floats:
    """Return the bytes per second that are within a node after each move, and were not before."""
    current = placed.problem.current
    turn = np.full(len(current), len(groups))
    turn[groups] = np.arange(len(groups))
    place, other, rate = Neighbours(placed.problem, groups).of_all(groups)
    placed.problem.pause()
    where = np.where(turn[other] < place, bin[other], current[other])
    placed.problem.pause()
    inside = np.where(where == bin[groups][place], rate, 0.0) - np.where(where == source[place], rate, 0.0)
    placed.problem.pause()
    return np.bincount(place, inside, len(groups)).astype(np.float64)


def _distances(placed: PlacedExecutors, steps: _Steps, groups: Ints) -> Floats:
    """Return the load distance before the moves, and after each."""
    problem = placed.problem
    shares, weight = problem.shares(problem.current), problem.weight[groups]
    # Shares of bins of other capacity: sums of loads, divided at the end.
    old, new = steps.before(shares * problem.strength, weight)
    after = np.stack([old - weight, new + weight], axis=1).ravel() / problem.strength[steps.bins]
    away = np.where(problem.live, np.abs(shares - problem.mean), -1.0).tolist()
    later = np.where(problem.live[steps.bins], np.abs(after - problem.mean), -1.0).tolist()
    # The greatest is on top; what a bin no longer has is dropped when it gets there.
    queue = [(-value, at) for at, value in enumerate(away)]
    heapify(queue)
    found, bins = [-queue[0][0]], steps.bins.tolist()
    for at in in_turns(range(0, len(bins), 2), problem.pause):
        for step in (at, at + 1):
            away[bins[step]] = later[step]
            heappush(queue, (-later[step], bins[step]))
        while -queue[0][0] != away[queue[0][1]]:
            heappop(queue)
        found.append(-queue[0][0])
    return np.array(found)
