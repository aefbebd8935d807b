"""What a move of a home costs beside its alternatives: nothing moves, or shards move and the home stays.

Goal
    A decision says what it costs, and what the other strategies would have cost, in one unit.
Method
    The delay of a row, averaged over the time for which a placement lasts at least: the row waits for its turn on the
    node, for the network if its task is not at home, and with some luck not for the move. Nodes share their processors
    among what runs there; above their capacity, rows queue for longer and longer.
Not done
    Choosing: planners also move homes for memory and traffic, which no delay of a single executor shows.

Notes
-----
Elasticutor, sections 3.3 and 4.2: an executor with tasks on other nodes keeps its home; their rows cross the network.
State migration, section 3: rows wait while state moves. The model of a node is processor sharing, M/G/1-PS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dask_elastic.control.placement.move_rates import MoveRates
from dask_elastic.vocab.plan import StrategyCost
from dask_elastic.vocab.snapshot import ExecutorSnapshot

NONE, LABELLED, HOME = "none", "labelled", "home"
STRATEGIES = (NONE, LABELLED, HOME)

_FULL = 0.95
"""From this use on a node counts as full: its queue is then limited by time, not by the mean of a steady state."""


@dataclass(frozen=True)
class NodeUse:
    """The use of two nodes around a move, as shares of their processors.

    Parameters
    ----------
    source, target : float
        Of the old and the new node, before the move; above 1 if they are overloaded.
    target_after : float
        Of the new node after the move.
    free_slots : int
        Slots of the new node that no executor has.
    draining : bool
        Whether the old node is to be emptied.
    """

    source: float
    target: float
    target_after: float
    free_slots: int
    draining: bool


def strategy_costs(
    executor: ExecutorSnapshot,
    use: NodeUse,
    rates: MoveRates,
    horizon: float,
    bandwidth: float,
    saved_traffic: float = 0.0,
) -> tuple[StrategyCost, ...]:
    """Return what moving the home of an executor costs, and what each other strategy would cost.

    Parameters
    ----------
    executor : ExecutorSnapshot
        The executor.
    use : NodeUse
        Of its node, and of the one that it moves to.
    rates : MoveRates
        Of moves.
    horizon : float
        Seconds for which a home stays at least, over which costs are averaged.
    bandwidth : float
        Bytes per second between two nodes.
    saved_traffic : float
        Bytes per second between nodes that the new home saves; negative where it adds some.

    Returns
    -------
    tuple of StrategyCost
        In the order of `STRATEGIES`.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> executor = ExecutorSnapshot(
    ...     ExecutorId("count", 0), 0, {0: 1}, 400.0, 500.0, state_bytes=10_000_000, bytes_in=1e6,
    ...     shard_load=np.ones(10),
    ... )
    >>> use = NodeUse(source=0.9, target=0.1, target_after=0.3, free_slots=2, draining=False)
    >>> costs = strategy_costs(executor, use, MoveRates(0.05, 100e6), horizon=60.0, bandwidth=1e9)
    >>> [(one.strategy, round(1e3 * one.delay, 2), round(one.pause, 2)) for one in costs]
    [('none', 20.0, 0.0), ('labelled', 2.9, 0.06), ('home', 3.13, 0.15)]
    >>> cheapest(costs).strategy
    'labelled'
    """
    service = 1 / executor.service_rate if executor.service_rate else 0.0
    state = float(executor.state_bytes)
    crossing = executor.bytes_in + executor.bytes_out
    row_bytes = crossing / max(executor.arrival_rate, executor.throughput, 1.0)
    there = _turn(service, use.target_after, horizon)
    shards = len(executor.shard_load) if executor.shard_load is not None and len(executor.shard_load) else 1
    shard_pause, pause = rates.pause(state / shards), rates.pause(state)
    remote = there + row_bytes / bandwidth + _waiting(shard_pause, use.target_after, horizon)
    return (
        StrategyCost(NONE, _turn(service, use.source, horizon), 0.0, 0.0, max(saved_traffic, 0.0), not use.draining),
        StrategyCost(LABELLED, remote, state, shard_pause, crossing, use.free_slots > 0 and not use.draining),
        StrategyCost(HOME, there + _waiting(pause, use.target_after, horizon), state, pause, max(-saved_traffic, 0.0)),
    )


def cheapest(costs: Iterable[StrategyCost]) -> StrategyCost:
    """Return the strategy that delays rows least, of those that are allowed; of equal ones, that which moves least.

    Parameters
    ----------
    costs : iterable of StrategyCost
        Of one move.

    Returns
    -------
    StrategyCost
        One of them.
    """
    return min((one for one in costs if one.allowed), key=lambda one: (one.delay, one.moved_bytes, one.traffic))


def _turn(service: float, use: float, horizon: float) -> float:
    """Return the mean seconds from a row's arrival on a node to the end of its processing there."""
    steady = service / (1 - min(use, _FULL))
    # What does not fit queues, and waits for half of the queue's growth on the average.
    return steady if use <= 1 else steady + (1 - 1 / use) * horizon / 2


def _waiting(pause: float, use: float, horizon: float) -> float:
    """Return the mean seconds by which a pause delays rows, including those that queue behind it."""
    return min(pause**2 / (2 * horizon * (1 - min(use, _FULL))), pause + horizon / 2)
