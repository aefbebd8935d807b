"""What a move of a home costs beside its alternatives: nothing moves, or shards move and the home stays.

Goal
    Each move is made by the strategy that lets rows wait least, of those that are allowed.
Method
    All costs are row-seconds, the seconds that rows wait in all, as those of moves of shards are. For as long as a
    placement is expected to last, rows wait for their turn on the old and the new node, whichever executor they are
    for, and for the network, with a round trip where the task is not at home. Rows of the executor wait for the move
    once. Nodes share their processors among what runs there; above their capacity, rows queue for longer and longer.
Not done
    What copying state costs beside the pause, and processor time at home for rows whose task is elsewhere. Memory, and
    processor time that is spent on traffic: where a planner moves homes for these, the move is required.

Notes
-----
Elasticutor, sections 3.3 and 4.2: an executor with tasks on other nodes keeps its home; their rows cross the network.
State migration, section 3: rows wait while state moves. The model of a node is processor sharing, M/G/1-PS. Moves of
shards are chosen by the same unit: `dask_elastic.migration.choice`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dask_elastic.control.placement.move_rates import MoveRates
from dask_elastic.vocab.plan import HOME, LABELLED, NONE, StrategyCost
from dask_elastic.vocab.snapshot import ExecutorSnapshot

STRATEGIES = (NONE, LABELLED, HOME)

_PREFERRED = (NONE, HOME, LABELLED)
"""The order of strategies that cost the same."""

_FULL = 0.95
"""From this use on a node counts as full: its queue is then limited by time, not by the mean of a steady state."""


@dataclass(frozen=True)
class NodeLoad:
    """The load of the processors of a node.

    Parameters
    ----------
    busy : float
        Cores that rows keep busy, as many as they need; more than `capacity` if the node is overloaded.
    capacity : float
        Cores of the node.
    rows : float
        Rows per second of these cores.
    """

    busy: float
    capacity: float
    rows: float

    @property
    def use(self) -> float:
        """Busy cores as a share of the node's; above 1 if it is overloaded."""
        return self.busy / self.capacity

    def waiting(self, seconds: float) -> float:
        """Return the row-seconds for which rows wait on the node for their turn within some seconds.

        Examples
        --------
        >>> NodeLoad(busy=2.0, capacity=4.0, rows=1e3).waiting(60.0)
        120.0
        >>> round(NodeLoad(busy=8.0, capacity=4.0, rows=1e3).waiting(2.0))
        1304
        """
        stable = min(self.use, _FULL)
        steady = seconds * self.busy * stable / (1 - stable)
        # What does not fit queues, and the queue grows.
        return steady + self.rows * max(1 - 1 / self.use, 0.0) * seconds**2 / 2 if self.use > 1 else steady

    def changed(self, busy: float, rows: float) -> NodeLoad:
        """Return the load with more busy cores, or fewer if negative, and their rows."""
        return NodeLoad(max(self.busy + busy, 0.0), self.capacity, max(self.rows + rows, 0.0))


@dataclass(frozen=True)
class MoveSite:
    """Two nodes before a move, and what is allowed there.

    Parameters
    ----------
    source, target : NodeLoad
        The loads of the old and the new node.
    busy, rows : float
        Cores that the executor keeps busy on the old node, and its rows per second.
    stay_allowed : bool
        Whether the home may stay with its load: the node is not to be emptied, and the move is not for memory, for the
        network, or for what runs beside the executor on the new node.
    shards_allowed : bool
        Whether shards may move to the new node instead: it has free slots, and the loop of cores leaves them there.
    cores_follow : bool
        Whether cores would follow the home. Otherwise the executor goes on where it is, and its rows cross the network.
    """

    source: NodeLoad
    target: NodeLoad
    busy: float
    rows: float
    stay_allowed: bool = True
    shards_allowed: bool = True
    cores_follow: bool = True


def strategy_costs(
    executor: ExecutorSnapshot,
    site: MoveSite,
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
    site : MoveSite
        Its node, and the one that it moves to.
    rates : MoveRates
        Of moves.
    horizon : float
        Seconds for which the placement is expected to last.
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
    >>> site = MoveSite(NodeLoad(1.8, 2.0, 900.0), NodeLoad(0.2, 2.0, 100.0), busy=0.8, rows=400.0)
    >>> costs = strategy_costs(executor, site, MoveRates(0.05, 100e6), horizon=60.0, bandwidth=1e9)
    >>> [(one.strategy, round(one.waiting, 1), round(one.pause, 2)) for one in costs]
    [('none', 973.3, 0.0), ('labelled', 121.5, 0.06), ('home', 129.0, 0.15)]
    >>> cheapest(costs).strategy
    'labelled'
    """
    state = float(executor.state_bytes)
    shards = len(executor.shard_load) if executor.shard_load is not None and len(executor.shard_load) else 1
    shard_pause, pause = rates.shard_pause(state / shards), rates.pause(state)
    crossing = executor.bytes_in + executor.bytes_out
    more = site.target.changed(site.busy, site.rows)
    now = site.source.waiting(horizon) + site.target.waiting(horizon)
    then = site.source.changed(-site.busy, -site.rows).waiting(horizon) + more.waiting(horizon)

    away = horizon * site.rows * rates.hop

    def cost(strategy: str, waiting: float, moved: float, pause: float, traffic: float, allowed: bool) -> StrategyCost:
        # Each byte lets its row wait for the time that it takes.
        whole = waiting + _paused(site.rows, pause, more.use, horizon) + horizon * traffic / bandwidth
        return StrategyCost(strategy, whole, moved, pause, traffic, allowed)

    kept, added = max(saved_traffic, 0.0), max(-saved_traffic, 0.0)
    follows = site.cores_follow
    return (
        cost(NONE, now, 0.0, 0.0, kept, site.stay_allowed),
        cost(LABELLED, then + away, state, shard_pause, kept + crossing, site.shards_allowed),
        cost(HOME, then if follows else now + away, state, pause, added + (0.0 if follows else crossing), True),
    )


def cheapest(costs: Iterable[StrategyCost]) -> StrategyCost:
    """Return the strategy that lets rows wait least, of those that are allowed.

    Parameters
    ----------
    costs : iterable of StrategyCost
        Of one move.

    Returns
    -------
    StrategyCost
        One of them. Of equal ones, nothing moves rather than the home, and the home rather than shards.
    """
    return min((one for one in costs if one.allowed), key=lambda one: (one.waiting, _PREFERRED.index(one.strategy)))


def _paused(rows: float, pause: float, use: float, horizon: float) -> float:
    """Return the row-seconds for which rows wait because of a pause, including those that queue behind it."""
    return rows * min(pause**2 / (2 * (1 - min(use, _FULL))), (pause + horizon / 2) * horizon)
