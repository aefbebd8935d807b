"""What an executor measures of its moves, and the strategy that it chooses by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.executor.measures import AHEAD_SECONDS, Measures
from dask_elastic.executor.moving.shared_shards import SharedShards
from dask_elastic.migration.choice import MoveMeasures, explained, strategy_costs
from dask_elastic.migration.move_work import MoveSpeeds, work_of_moves
from dask_elastic.migration.strategy import AUTO, LABELLED

FIRST_BYTES_PER_SECOND = 1e8
"""How fast state travels, and is merged, until a move has shown it: assumed, as of a 1 Gbit/s network."""

FIRST_PAUSE = 0.002
"""Seconds for which a shard pauses whose state does not travel, until a move has shown it; assumed, too."""

LEAST_BYTES = 65_536
"""State below this says nothing about how fast state travels."""

NEWEST = 0.3
"""The weight of a new measurement in the mean."""

Floats = npt.NDArray[np.float64]


class Chosen(NamedTuple):
    """The strategy of one move, and what it was chosen by."""

    strategy: str
    reason: str


class MoveChoice:
    """Chooses the strategies of the moves of one executor; the caller holds the executor's lock.

    Parameters
    ----------
    strategy : str
        The strategy of the executor's component, one of `migration.strategy.STRATEGIES`.
    shared : SharedShards
        What is known of the windows of rows.

    Attributes
    ----------
    shard_bytes : int64 array or None
        The bytes of each shard's state when they were measured last; None before.
    loads : callable
        Returns the work of each shard in the next `AHEAD_SECONDS`, in seconds, at a time.
    """

    def __init__(self, strategy: str, shared: SharedShards) -> None:
        self.strategy = strategy
        self.shared = shared
        self.shard_bytes: npt.NDArray[np.int64] | None = None
        self.loads: Callable[[float], npt.NDArray[np.float64]] | None = None
        self.measures: Measures | None = None
        self.bytes_per_second = FIRST_BYTES_PER_SECOND
        self.pause = FIRST_PAUSE
        # The same of labelled moves with little state, which wait for the label.
        self.label_pause = FIRST_PAUSE
        self.merge_bytes_per_second = FIRST_BYTES_PER_SECOND
        self.merge_part = 0.0
        self._record: tuple[int, float] | None = None
        self._speed: float | None = None
        self._interval: float | None = None

    # measurements

    def moved(self, shard: int, pause: float, with_state: bool) -> None:
        """Note the pause of a finished move between nodes."""
        if not with_state:
            self.pause = _mean(self.pause, pause)
        elif self.shard_bytes is not None and self.shard_bytes[shard] >= LEAST_BYTES:
            travel = max(pause - self.pause, 1e-4)
            self.bytes_per_second = _mean(self.bytes_per_second, float(self.shard_bytes[shard]) / travel)
        elif self.shard_bytes is not None:
            self.label_pause = _mean(self.label_pause, pause)

    def merged(self, nbytes: int, busy: float) -> None:
        """Note how long a task has merged some partials."""
        if nbytes >= LEAST_BYTES and busy > 0:
            self.merge_bytes_per_second = _mean(self.merge_bytes_per_second, nbytes / busy)
            self.merge_part = _mean(self.merge_part or busy, busy)

    def record_entered(self, event_time: int, now: float) -> None:
        """Note the event time of a state record, in microseconds, and when it was entered."""
        if self._record is not None:
            before, then = self._record
            if event_time <= before or now <= then:
                return
            self._speed = _mean(self._speed, (event_time - before) * 1e-6 / (now - then))
            self._interval = _mean(self._interval, now - then)
        self._record = event_time, now

    # choices

    def work_of_moves(self, work: Floats, work_beside: Floats) -> Floats:
        """Return what the move of each shard to another node costs, in seconds of work.

        Parameters
        ----------
        work, work_beside : float64 array
            The work of each shard, and that of its task, in seconds.

        Returns
        -------
        float64 array
            Seconds of work for each shard.
        """
        strategy = LABELLED if self.strategy == AUTO and self.shared.sides is None else self.strategy
        state = np.zeros(len(work)) if self.shard_bytes is None else self.shard_bytes.astype(np.float64)
        known = MoveSpeeds(self.pause, self.label_pause, self.bytes_per_second, self.merge_bytes_per_second)
        return work_of_moves(strategy, work, work_beside, state, known)

    def choose(self, shard: int, owner: npt.NDArray[np.int32], source: int, target: int, now: float) -> Chosen:
        """Return the strategy of a move between nodes.

        Parameters
        ----------
        shard, source, target : int
            The shard and the two tasks.
        owner : int32 array
            The task of each shard.
        now : float
            The time in seconds.

        Returns
        -------
        Chosen
            The strategy and the reason; none if it was not chosen.
        """
        if self.strategy != AUTO:
            return Chosen(self.strategy, "")
        if self.shared.sides is None:
            return Chosen(LABELLED, "its partial state cannot be merged, nor its windows divided")
        if self.shard_bytes is None or self.loads is None or self.measures is None:
            return Chosen(LABELLED, "its state has not been measured yet")
        load = self.loads(now) / AHEAD_SECONDS
        rate = self.measures.service.per_second()
        seconds_per_row = 1 / rate if rate else 0.0
        costs = strategy_costs(
            MoveMeasures(
                state_bytes=float(self.shard_bytes[shard]),
                rows=float(load[shard]) / seconds_per_row if seconds_per_row else 0.0,
                seconds_per_row=seconds_per_row,
                batch_seconds=seconds_per_row * self.measures.customer_rows(now),
                source_load=float(load[owner == source].sum()),
                target_load=float(load[owner == target].sum()),
                bytes_per_second=self.bytes_per_second,
                pause=self.pause,
                merge_bytes_per_second=self.merge_bytes_per_second,
                merge_part=self.merge_part or LEAST_BYTES / self.merge_bytes_per_second,
                close_interval=self._interval,
                window_left=self._window_left(),
                in_both=self.shared.sides.in_both,
            )
        )
        return Chosen(costs[0].strategy, explained(costs))

    def _window_left(self) -> float | None:
        sides = self.shared.sides
        if self._record is None or not self._speed or sides is None:
            return None
        reached = self._record[0]
        return (sides.last_end(self.shared.next_begin(reached)) - reached) * 1e-6 / self._speed


def _mean(before: float | None, new: float) -> float:
    return new if before is None else before + NEWEST * (new - before)
