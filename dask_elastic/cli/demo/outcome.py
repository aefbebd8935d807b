"""The outcome of one job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The outcome of one job; latencies and shares are those of the seconds after the warm-up in which rows were due.

    Parameters
    ----------
    seconds : int
        The number of these seconds that were measured.
    share : float or None
        The share of them whose mean latency was within the target; None without seconds.
    mean : float or None
        The mean latency, in seconds.
    p99 : float or None
        The 99th percentile of the latency in the median second, in seconds.
    core_seconds : float
        The sum over the whole run of the cores held.
    rows : int
        The flights that the job has read.
    moves : int
        Its shard moves.
    """

    seconds: int
    share: float | None
    mean: float | None
    p99: float | None
    core_seconds: float
    rows: int
    moves: int
