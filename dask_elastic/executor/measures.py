"""What is measured of one executor."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.executor.task_queue import Work
from dask_elastic.meters import BatchCost, LatencyHistogram, LatencyWindow, Rate, ServiceRate, ShardLoad
from dask_elastic.vocab.identity import ExecutorId


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
    arrival_rate : float
        Tuples per second that arrive, λ.
    service_rate : float or None
        Tuples per busy second of one core, μ; None before the first was processed.
    queue_rows : int
        Tuples that wait.
    latency : LatencyHistogram
        From the scheduled emission at the source to the end of processing, over the last seconds.
    state_bytes : int
        Size of the primary copy.
    rows : int
        Tuples processed so far.
    moves, moves_across : int
        Shards moved so far, and those of them that changed their node.
    """

    executor: ExecutorId
    node: int
    cores: dict[int, int]
    arrival_rate: float
    service_rate: float | None
    queue_rows: int
    latency: LatencyHistogram
    state_bytes: int
    rows: int
    moves: int
    moves_across: int


class Measures:
    """The meters of one executor; written by who holds its lock."""

    def __init__(self, shards: int):
        self.arrivals = Rate(window=1.0)
        self.service = ServiceRate()
        self.cost = BatchCost()
        self.loads = ShardLoad(shards, window=1.0)
        self.latency = LatencyWindow()
        self.rows = 0

    def processed(self, work: Work, rows_by_shard: object, busy: float, now: float) -> None:
        """Account for one processed batch."""
        self.service.add(work.rows, busy)
        self.cost.add(work.rows, busy)
        self.loads.add(rows_by_shard, busy, now)  # type: ignore[arg-type]
        self.rows += work.rows
        for piece in work.pieces:
            self.latency.record(now - piece.receipt.stamp, now, piece.length)
