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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

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
        return float(_waiting(self.busy, self.capacity, self.rows, seconds))


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
    pauses = 0.0, rates.shard_pause(state / shards), rates.pause(state)
    traffic = traffic_of(saved_traffic, executor.bytes_in + executor.bytes_out, site.cores_follow)
    old, new = ((one.busy, one.capacity, one.rows) for one in (site.source, site.target))
    moved, follows = (site.busy, site.rows), site.cores_follow
    waiting = row_seconds(old, new, moved, pauses, traffic, follows, rates.hop, horizon, bandwidth)
    allowed = site.stay_allowed, site.shards_allowed, True
    return tuple(
        StrategyCost(
            STRATEGIES[at], float(waiting[at]), state if at else 0.0, pauses[at], float(traffic[at]), allowed[at]
        )
        for at in range(len(STRATEGIES))
    )


Amount: TypeAlias = Any
"""A number, or an array with one for each of several moves."""


def traffic_of(saved: Amount, crossing: Amount, follows: Amount) -> tuple[Amount, Amount, Amount]:
    """Return the bytes per second between nodes that another strategy would save, for each of `STRATEGIES`.

    Parameters
    ----------
    saved : float or array of float
        What the new home saves; negative where it adds some.
    crossing : float or array of float
        Inputs and outputs of the executor.
    follows : bool or array of bool
        Whether cores follow the home.
    """
    kept, added = np.maximum(saved, 0.0), np.maximum(-saved, 0.0)
    return kept, kept + crossing, added + np.where(follows, 0.0, crossing)


def row_seconds(
    source: tuple[Amount, Amount, Amount],
    target: tuple[Amount, Amount, Amount],
    moved: tuple[Amount, Amount],
    pauses: Sequence[Amount],
    traffic: Sequence[Amount],
    follows: Amount,
    hop: float,
    horizon: float,
    bandwidth: float,
) -> list[Amount]:
    """Return the row-seconds for which rows wait with each of `STRATEGIES`, of one move or of several at once.

    Parameters
    ----------
    source, target : tuple
        Busy cores, cores and rows per second of the old and the new node, before the move.
    moved : tuple
        Busy cores and rows per second of the executor.
    pauses, traffic : sequence
        Seconds of the pause, and bytes per second between nodes, of each strategy.
    follows : bool or array of bool
        Whether cores follow the home.
    hop, horizon, bandwidth : float
        Seconds of a round trip; seconds for which the placement lasts; bytes per second between two nodes.
    """
    busy, rows = moved
    more = np.maximum(target[0] + busy, 0.0), target[1], np.maximum(target[2] + rows, 0.0)
    less = np.maximum(source[0] - busy, 0.0), source[1], np.maximum(source[2] - rows, 0.0)
    now = _waiting(*source, horizon) + _waiting(*target, horizon)
    then = _waiting(*less, horizon) + _waiting(*more, horizon)
    away = horizon * rows * hop
    use = more[0] / more[1]
    # Each byte lets its row wait for the time that it takes.
    return [
        waits + _paused(rows, pause, use, horizon) + horizon * crosses / bandwidth
        for waits, pause, crosses in zip(
            (now, then + away, np.where(follows, then, now + away)), pauses, traffic, strict=True
        )
    ]


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


def _waiting(busy: Amount, capacity: Amount, rows: Amount, seconds: float) -> Amount:
    """Return the row-seconds for which rows wait on a node for their turn within some seconds."""
    use = busy / capacity
    stable = np.minimum(use, _FULL)
    # What does not fit queues, and the queue grows.
    queued = rows * (1 - 1 / np.maximum(use, 1.0)) * seconds**2 / 2
    return seconds * busy * stable / (1 - stable) + queued


def _paused(rows: Amount, pause: Amount, use: Amount, horizon: float) -> Amount:
    """Return the row-seconds for which rows wait because of a pause, including those that queue behind it."""
    return rows * np.minimum(pause**2 / (2 * (1 - np.minimum(use, _FULL))), (pause + horizon / 2) * horizon)
