"""Measures of one executor, and the meters that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_elastic.executor.task_queue import Work
from dask_elastic.meters import (
    BatchCost,
    InlineCost,
    InputTraffic,
    LastingLoad,
    LatencyHistogram,
    LatencyWindow,
    Rate,
    RecentMean,
    ServiceRate,
    ShardArrivals,
    ShardLoad,
)
from dask_elastic.vocab.compute_measure import ComputeMeasure
from dask_elastic.vocab.group_flow import GroupFlow
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.window_costs import WindowCosts

RATE_SECONDS = 1.0
"""Window of rates and of shard loads, seconds (Elasticutor, section 3.1)."""

AHEAD_SECONDS = 2.0
"""Seconds of future arrivals for which shards are balanced; with fewer, random queue lengths move shards to and fro."""

RECENT_SECONDS = 2.0
"""Window of the mean sojourn time and latency, which the model is compared to, seconds."""


@dataclass(frozen=True)
class ExecutorMeasure:
    """Measures of an executor at one moment.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    node : int
        Its home node.
    cores : dict of int to int
        Cores held, by node.
    arrival_rate, throughput : float
        Tuples per second that arrive (λ), and that are processed.
    service_rate : float or None
        Tuples per busy second of one core (μ); None before the first is processed.
    customer_rows : float
        Mean tuples of a sub-batch when it reaches a task; 1 while nothing arrives.
    bytes_in, bytes_out : float
        Bytes per second of arriving batches, and of outputs.
    queue_rows : int
        Backlog: tuples that have arrived and are not settled.
    sojourn : float or None
        Mean seconds from a tuple's arrival to the end of its processing, over `RECENT_SECONDS`; None without tuples.
    latency : LatencyHistogram
        Seconds from the scheduled emission at the source to the end of processing, over the last ten seconds.
    latency_now : LatencyHistogram
        The same over the last two or three seconds.
    latency_mean : float or None
        Mean of the same over `RECENT_SECONDS`; None without tuples.
    latency_rows : float
        Tuples in that mean.
    state_bytes : int
        Size of the primary copy.
    shard_load : numpy.ndarray
        Busy seconds per second of each shard.
    shard_bytes : numpy.ndarray
        Bytes of state of each shard.
    rows : int
        Tuples processed so far.
    moves, moves_across : int
        Shard moves so far, and those of them between nodes; of an executor with key groups, those that have come.
    pending_bytes : int
        Bytes in the pending queues of remote tasks.
    refused : int
        Messages refused: those of lost tasks and nodes, and duplicates.
    windows : RowCounts or None
        What became of the rows of an operator with windows; None without any.
    open_windows : int or None
        Live keys of the state of an operator with windows, one per key and instance, or slice of instances, that is
        open; of a join, one per row that waits. None without any.
    window_costs : WindowCosts or None
        What the partial results of its windows have cost so far; None if that is not measured.
    separate : bool
        Whether rows of its windows are added to instances, or will be once a change has come into effect.
    computes : tuple of ComputeMeasure
        Each of several computes that run in its tasks; empty if there is only one.
    recovered : int
        Lost nodes whose remote tasks were failed over.
    recovery : tuple of float or None
        p50 and p99 of the seconds from such a loss to the first replayed row; None without one.
    event_time : int or None
        Event time before which all tuples are processed, microseconds since the epoch; None while unknown.
    jumps : int
        How often the distribution of arrivals over the shards has jumped so far.
    traffic : tuple of (ExecutorId, float)
        Bytes per second from upstream instances, the heaviest ones first.
    hop : float or None
        Seconds of a round trip to its remote tasks, the mean over these; None without any.
    arriving_load : numpy.ndarray or None
        Busy seconds per second that the rows which arrive for each key group require; None where groups do not move.
    flows : tuple of GroupFlow
        Traffic from its key groups to those of other operators, where groups move.
    enough_cores : int or None
        Cores of each node that are known to be as fast as any more, see `Gathering.proven`.
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
    traffic: tuple[tuple[ExecutorId, float], ...] = ()
    state_on_disk: int = 0
    windows: RowCounts | None = None
    open_windows: int | None = None
    window_costs: WindowCosts | None = None
    separate: bool = False
    computes: tuple[ComputeMeasure, ...] = ()
    hop: float | None = None
    arriving_load: NDArray[np.float64] | None = None
    flows: tuple[GroupFlow, ...] = ()
    enough_cores: int | None = None


class Measures:
    """The meters of one executor; the caller holds the executor's lock."""

    def __init__(self, shards: int):
        self.arrivals = Rate(window=RATE_SECONDS)
        self.customers = Rate(window=RATE_SECONDS)
        self.bytes_in = Rate(window=RATE_SECONDS)
        self.bytes_out = Rate(window=RATE_SECONDS)
        self.traffic: InputTraffic[ExecutorId] = InputTraffic(RECENT_SECONDS)
        self.processed = Rate(window=RATE_SECONDS)
        self.service = ServiceRate()
        self.cost = BatchCost()
        self.inline = InlineCost()
        self.loads = ShardLoad(shards, window=RATE_SECONDS)
        self.demand = ShardArrivals(shards)
        self.lasting = LastingLoad()
        self.latency = LatencyWindow()
        self.latency_mean = RecentMean(RECENT_SECONDS)
        self.sojourn = RecentMean(RECENT_SECONDS)
        self.rows_before = 0

    @property
    def rows(self) -> int:
        """Tuples processed so far, `rows_before` at earlier homes of the executor included."""
        return int(self.processed.count) + self.rows_before

    def arrived(self, origin: ExecutorId, rows: int, nbytes: int, customers: int, now: float) -> None:
        """Count an arriving batch.

        Parameters
        ----------
        origin : ExecutorId
            The upstream instance that sent it.
        rows, nbytes : int
            Its size.
        customers : int
            The sub-batches that it was cut into, one for each task that gets rows of it.
        now : float
            The time in seconds.
        """
        self.arrivals.add(rows, now)
        self.bytes_in.add(nbytes, now)
        self.traffic.nbytes[origin] += nbytes
        self.customers.add(customers, now)

    def left(self, nbytes: int, now: float) -> None:
        """Count outputs that have left."""
        self.bytes_out.add(nbytes, now)

    def settled(self, work: Work, by_shard: NDArray[np.int64] | list[int], busy: float, now: float) -> None:
        """Count one settled sub-batch; of a state record only the busy time counts, as load of its shards.

        Parameters
        ----------
        work : Work
            The sub-batch.
        by_shard : int64 array or list of int
            Its rows of each shard, or if it has few rows the shard of each.
        busy : float
            Seconds for which it kept the core busy.
        now : float
            The time in seconds.
        """
        if work.record is not None:
            self.loads.add_busy(by_shard, busy, now)
            self.lasting.add(0, busy, now)
            return
        self.service.add(work.rows, busy)
        self.cost.add(work.rows, busy)
        self.inline.add(work.rows, busy)
        self.lasting.add(work.rows, busy, now)
        if isinstance(by_shard, list):
            self.loads.add_rows(by_shard, busy, now)
        else:
            self.loads.add(by_shard, busy, now)
        since_due = since_arrival = 0.0
        counted = 0
        for piece in work.pieces:
            receipt, rows = piece.receipt, piece.length
            if receipt.settled:
                # A replay: the rows were counted when they were settled first.
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

    def measured(self, now: float, **others: Any) -> ExecutorMeasure:
        """Return the measures at this moment; `others` are those fields that no meter knows."""
        return ExecutorMeasure(
            arrival_rate=self.arrivals.per_second(now),
            throughput=self.processed.per_second(now),
            service_rate=self.service.per_second(),
            customer_rows=self.customer_rows(now),
            bytes_in=self.bytes_in.per_second(now),
            bytes_out=self.bytes_out.per_second(now),
            sojourn=self.sojourn.mean(now),
            latency=self.latency.recent(now),
            latency_now=self.latency.recent(now, RECENT_SECONDS),
            latency_mean=self.latency_mean.mean(now),
            latency_rows=self.latency_mean.weight(now),
            shard_load=self.loads.loads(now),
            rows=self.rows,
            jumps=self.demand.jumps,
            traffic=self.traffic.per_second(now),
            **others,
        )

    def customer_rows(self, now: float) -> float:
        """Return the mean tuples of a sub-batch; 1 while nothing arrives."""
        customers = self.customers.total(now)
        return max(self.arrivals.total(now) / customers, 1.0) if customers > 0 else 1.0

    def work_by_shard(
        self, waiting: NDArray[np.int64], in_flight: NDArray[np.int64], now: float
    ) -> NDArray[np.float64]:
        """Return the work of each shard: its waiting tuples, and those expected in the next `AHEAD_SECONDS`.

        Parameters
        ----------
        waiting, in_flight : int array
            Tuples of each shard that wait, and that are in flight.
        now : float
            The time in seconds.

        Returns
        -------
        float64 array
            Busy seconds of each shard.

        Notes
        -----
        Until arrivals are known, the work of the last second stands for the work to come.

        A saturated task measures a busy time of 1 whatever its backlog; arrivals and waiting tuples show the load
        beyond. Arrivals need no counter of their own: they are the tuples that are processed, in flight or waiting.
        """
        rate = self.service.per_second()
        if not rate:
            return self.loads.loads(now)
        coming = self._coming(waiting, in_flight, now)
        if coming is None:
            return self.loads.loads(now) + waiting / rate
        work: NDArray[np.float64] = (coming * AHEAD_SECONDS + waiting) * self.loads.seconds_per_row(now, 1 / rate)
        return work

    def arriving_load(
        self, waiting: NDArray[np.int64], in_flight: NDArray[np.int64], now: float
    ) -> NDArray[np.float64]:
        """Return the busy seconds per second that the rows which arrive for each shard require.

        Parameters are those of `work_by_shard`. What has been processed differs from it while rows wait: after a move
        of key groups, queues are of different lengths, so that executors process rows of different times.
        """
        rate = self.service.per_second()
        coming = self._coming(waiting, in_flight, now) if rate else None
        if not rate or coming is None:
            return self.loads.loads(now)
        load: NDArray[np.float64] = coming * self.loads.seconds_per_row(now, 1 / rate)
        return load

    def lasting_load(self, waiting: int) -> float | None:
        """Return the busy cores that waiting tuples, and those expected in the next `AHEAD_SECONDS`, require.

        Parameters
        ----------
        waiting : int
            Tuples that are not settled.

        Returns
        -------
        float or None
            Busy cores, at the lowest of the recent processing times; None while arrivals or these are unknown.
        """
        coming = self.demand.per_second()
        return None if coming is None else self.lasting.cores(float(coming.sum()) + waiting / AHEAD_SECONDS)

    def _coming(
        self, waiting: NDArray[np.int64], in_flight: NDArray[np.int64], now: float
    ) -> NDArray[np.float64] | None:
        self.note_arrived(waiting, in_flight, now)
        return self.demand.per_second()

    def steady_seconds(self, now: float) -> float:
        """Return for how long the shards' shares of the arrivals have not jumped."""
        since = self.demand.steady_since
        return 0.0 if since is None else max(now - since, 0.0)

    def note_arrived(self, waiting: NDArray[np.int64], in_flight: NDArray[np.int64], now: float) -> None:
        """Note what has arrived for each shard so far; parameters are those of `work_by_shard`."""
        self.demand.note(self.loads.rows + waiting + in_flight, now)
