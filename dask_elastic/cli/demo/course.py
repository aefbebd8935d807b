"""The course of one job: its seconds, and how many of them were within the target."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from dask_elastic.cli.demo.second import Second
from dask_elastic.vocab.snapshot import Snapshot

WARM_UP = 4.0
"""Seconds after the first row that are not judged: connections are opened, and the queueing model learns."""


@dataclass
class Course:
    """The course of one job, second by second.

    Parameters
    ----------
    name : str
        The name of the job.
    target : float
        The target of its mean latency, in seconds.
    feed_seconds : float
        Seconds after the first row in which rows are due. Only these seconds are judged, so that a job which has rows
        left after them is neither judged longer than the other one nor better off.

    Attributes
    ----------
    seconds : list of Second
        The seconds so far.
    core_seconds : float
        The sum over time of the cores that the job has held.
    began : float or None
        When the first row was measured, on the clock of the snapshots.
    left_out : tuple of float, or None
        From when until when seconds are not judged, on the same clock.
    pause : float
        Seconds by which the last row is due later than `feed_seconds`, because the job was restarted.
    """

    name: str
    target: float
    feed_seconds: float
    seconds: list[Second] = field(default_factory=list)
    core_seconds: float = 0.0
    began: float | None = None
    left_out: tuple[float, float] | None = None
    pause: float = 0.0
    _last: float | None = None
    _generation: int | None = None
    _moves: dict[int, int] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> Second | None:
        """Add what a snapshot shows; returns the new second, or None if it shows nothing new of this job."""
        job = next((job for job in snapshot.jobs if job.name == self.name), None)
        if job is None or (self._last is not None and snapshot.now <= self._last):
            return None
        if self.began is None:
            if job.latency is None:
                return None
            self.began = snapshot.now
        cores = sum(executor.total_cores for executor in job.executors)
        if self._generation in (None, job.generation):
            # Between two generations, the job holds no cores.
            self.core_seconds += cores * (snapshot.now - (self._last or self.began))
        self._last, self._generation = snapshot.now, job.generation
        # The counters start at 0 with each generation.
        self._moves[job.generation] = sum(executor.moves for executor in job.executors)
        second = Second.of(job, snapshot.now - self.began)
        if second is None or (self.seconds and _number(second) == _number(self.seconds[-1])):
            return None
        self.seconds.append(second)
        return second

    @property
    def judged(self) -> list[Second]:
        """The seconds after the warm-up in which rows were due, without those left out."""
        until = self.feed_seconds + self.pause
        return [second for second in self.seconds if WARM_UP <= second.at < until and not self._is_left_out(second)]

    def _is_left_out(self, second: Second) -> bool:
        if self.left_out is None or self.began is None:
            return False
        began, ended = self.left_out
        return began <= self.began + second.at < ended

    @property
    def moves(self) -> int:
        """Shard moves of all generations."""
        return sum(self._moves.values())

    @property
    def share(self) -> float | None:
        """Share of the judged seconds whose mean latency was within the target; None before there are any."""
        judged = self.judged
        return sum(second.mean <= self.target for second in judged) / len(judged) if judged else None

    @property
    def mean(self) -> float | None:
        """Mean of the judged seconds' mean latencies, in seconds."""
        return statistics.fmean(second.mean for second in self.judged) if self.judged else None

    @property
    def p99(self) -> float | None:
        """The 99th percentile of the latency in the median judged second, in seconds."""
        return statistics.median(second.p99 for second in self.judged) if self.judged else None


def _number(second: Second) -> int:
    """Return the number of a second. The control loop looks once or twice a second, a little early or late."""
    return int(second.at + 0.25)
