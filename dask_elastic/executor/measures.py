"""What is measured of one executor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_elastic.executor.task_queue import Work
from dask_elastic.meters import (
    BatchCost,
    LatencyHistogram,
    LatencyWindow,
    Rate,
    RecentMean,
    ServiceRate,
    ShardArrivals,
    ShardLoad,
)
from dask_elastic.vocab.identity import ExecutorId

RATE_SECONDS = 1.0
"""Rates, and the loads of shards, are those of so many seconds (Elasticutor, section 3.1)."""

AHEAD_SECONDS = 2.0
"""Shards are balanced for so many seconds to come: with fewer, what happens to wait would move them to and fro."""

RECENT_SECONDS = 2.0
"""The means of the time that tuples take, which are held against the model, are those of so many seconds."""


@dataclass(frozen=True)
class ExecutorMeasure:
    """An executor at one moment.

    Parameters
    ----------
    executor : ExecutorId
        Which one.
    node : int
        Its home.
    cores : dict of int to int
        Cores held, by node.
    arrival_rate, throughput : float
        Tuples per second that arrive, λ, and that are processed.
    service_rate : float or None
        Tuples per busy second of one core, μ; None before the first was processed.
    customer_rows : float
        Mean number of tuples of a sub-batch as it reaches a task; 1 while nothing arrives.
    bytes_in, bytes_out : float
        Bytes per second that arrive, and that outputs have.
    queue_rows : int
        Tuples that wait.
    sojourn : float or None
        Mean seconds from a tuple's arrival to the end of its processing, over the last seconds; None without tuples.
    latency : LatencyHistogram
        From the scheduled emission at the source to the end of processing, over the last ten seconds.
    latency_now : LatencyHistogram
        The same over the last two or three.
    latency_mean : float or None
        Mean of the same over exactly the seconds of `sojourn`; None without tuples.
    latency_rows : float
        Tuples that this is the mean of.
    state_bytes : int
        Size of the primary copy.
    shard_load : numpy.ndarray
        Busy seconds per second of each shard.
    shard_bytes : numpy.ndarray
        State of each shard.
    rows : int
        Tuples processed so far.
    moves, moves_across : int
        Shards moved so far, and those of them that changed their node.
    pending_bytes : int
        What was sent to remote tasks and is not part of the primary copy yet.
    refused : int
        Messages of tasks and nodes that were lost before, and messages that came twice.
    recovered : int
        Nodes whose remote tasks were lost and replaced.
    recovery : tuple of float or None
        p50 and p99 of the time from such a loss to the first row processed again, seconds; None where there was none.
    event_time : int or None
        What is older is processed, microseconds since the epoch; None while nothing is known of event time.
    jumps : int
        How often the shares of the shards have jumped so far.
    """

    executor: ExecutorId
    node: int
    cores: dict[int, int]
    arrival_rate: float
    throughput: float
    service_rate: float | None
    customer_rows: float
    bytes_in: float
    bytes_out: float
    queue_rows: int
    sojourn: float | None
    latency: LatencyHistogram
    latency_now: LatencyHistogram
    latency_mean: float | None
    latency_rows: float
    state_bytes: int
    shard_load: NDArray[np.float64]
    shard_bytes: NDArray[np.int64]
    rows: int
    moves: int
    moves_across: int
    pending_bytes: int = 0
    refused: int = 0
    recovered: int = 0
    recovery: tuple[float, float] | None = None
    event_time: int | None = None
    jumps: int = 0


class Measures:
    """The meters of one executor; written by who holds its lock."""

    def __init__(self, shards: int):
        self.arrivals = Rate(window=RATE_SECONDS)
        self.customers = Rate(window=RATE_SECONDS)
        self.bytes_in = Rate(window=RATE_SECONDS)
        self.bytes_out = Rate(window=RATE_SECONDS)
        self.processed = Rate(window=RATE_SECONDS)
        self.service = ServiceRate()
        self.cost = BatchCost()
        self.loads = ShardLoad(shards, window=RATE_SECONDS)
        self.demand = ShardArrivals(shards)
        self.latency = LatencyWindow()
        self.latency_mean = RecentMean(RECENT_SECONDS)
        self.sojourn = RecentMean(RECENT_SECONDS)

    @property
    def rows(self) -> int:
        """Tuples processed so far."""
        return int(self.processed.count)

    def arrived(self, rows: int, nbytes: int, customers: int, now: float) -> None:
        """Account for a batch that came in and was cut into sub-batches, one for each task that got a part of it."""
        self.arrivals.add(rows, now)
        self.bytes_in.add(nbytes, now)
        self.customers.add(customers, now)

    def left(self, nbytes: int, now: float) -> None:
        """Account for outputs that have left."""
        self.bytes_out.add(nbytes, now)

    def settled(self, work: Work, rows_by_shard: NDArray[np.int64], busy: float, now: float) -> None:
        """Account for one processed batch."""
        self.service.add(work.rows, busy)
        self.cost.add(work.rows, busy)
        self.loads.add(rows_by_shard, busy, now)
        since_due = since_arrival = 0.0
        counted = 0
        for piece in work.pieces:
            receipt, rows = piece.receipt, piece.length
            if receipt.settled:
                # Processed once more, after a loss: the first time counted.
                continue
            counted += rows
            latency = now - receipt.stamp
            self.latency.record(latency, now, rows)
            since_due += latency * rows
            since_arrival += (now - receipt.arrived) * rows
        if counted:
            self.processed.add(counted, now)
            self.latency_mean.add(since_due / counted, counted, now)
            self.sojourn.add(since_arrival / counted, counted, now)

    def customer_rows(self, now: float) -> float:
        """Return the mean number of tuples of a sub-batch; 1 while nothing arrives."""
        customers = self.customers.total(now)
        return max(self.arrivals.total(now) / customers, 1.0) if customers > 0 else 1.0

    def work_by_shard(
        self, waiting: NDArray[np.int64], in_flight: NDArray[np.int64], now: float
    ) -> NDArray[np.float64]:
        """Return what the tuples of each shard will take that wait now, and of those that come soon.

        Parameters
        ----------
        waiting, in_flight : int array
            Tuples of each shard that wait, and that tasks have taken.
        now : float
            The time in seconds.

        Returns
        -------
        float64 array
            Busy seconds of each shard.

        Notes
        -----
        As long as nothing is known of what comes, it is taken to be what was done in the last second.

        A saturated task measures a busy time of 1 however much it lags behind; what arrives and waits tells by how
        much. All that has arrived is what is done, taken or waits: nothing is counted as rows come in.
        """
        rate = self.service.per_second()
        if not rate:
            return self.loads.loads(now)
        self.demand.note(self.loads.rows + waiting + in_flight, now)
        coming = self.demand.per_second()
        if coming is None:
            return self.loads.loads(now) + waiting / rate
        work: NDArray[np.float64] = (coming * AHEAD_SECONDS + waiting) * self.loads.seconds_per_row(now, 1 / rate)
        return work
