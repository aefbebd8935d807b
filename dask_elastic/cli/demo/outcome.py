"""The outcome of one job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The outcome of one job; latencies and shares are those of the judged seconds.

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
        The flights that the job has counted in its state.
    moves : int
        Its shard moves.
    recovery : float or None
        Seconds from the kill of a worker until the job processed flights again; None if it has not recovered.
    """

    seconds: int
    share: float | None
    mean: float | None
    p99: float | None
    core_seconds: float
    rows: int
    moves: int
    recovery: float | None
