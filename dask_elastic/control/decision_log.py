"""The decisions of late, and what came of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.plan import Decision
from dask_elastic.vocab.snapshot import Snapshot


class DecisionLog:
    """Keeps decisions, and adds to each the latency that was measured a while later.

    Parameters
    ----------
    length : int
        How many decisions are kept; the oldest are dropped.
    after : float
        Seconds after a decision at which its effect is read off. If the same job's cores change again before, it is
        read off then: later measurements tell of both changes.

    Raises
    ------
    PlanningError
        If the length or the time is not above 0.

    Examples
    --------
    >>> log = DecisionLog()
    >>> log.of("flight-delays")
    []
    """

    def __init__(self, length: int = 1000, after: float = 5.0):
        if length < 1 or not after > 0:
            raise PlanningError(f"length is {length!r}, after {after!r}: give numbers above 0.")
        self._after = after
        self._length = length
        self._kept: deque[Decision] = deque()
        self._open: dict[int, int] = {}  # number of a decision -> its generation, while its effect is not known

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, decisions: Iterable[Decision]) -> None:
        """Keep decisions, oldest first."""
        for decision in decisions:
            self._kept.append(decision)
            if decision.observed is None:
                self._open[decision.number] = decision.generation
            if len(self._kept) > self._length:
                self._open.pop(self._kept.popleft().number, None)

    def observe(self, snapshot: Snapshot) -> None:
        """Note the latency of each job as the effect of its decisions; call it before the decisions of that moment."""
        if not self._open:
            return
        jobs = {(job.name, job.generation): job for job in snapshot.jobs}
        followed: set[tuple[str, int]] = set()
        for place in range(len(self._kept) - 1, -1, -1):
            decision = self._kept[place]
            run = (decision.job, decision.generation)
            if decision.number in self._open:
                job = jobs.get(run)
                due = snapshot.now - decision.time >= self._after or run in followed
                if job is None:
                    del self._open[decision.number]
                elif due and job.latency is not None:
                    self._kept[place] = replace(decision, observed=job.latency)
                    del self._open[decision.number]
            if decision.applied and decision.changes:
                followed.add(run)

    def of(self, job: str) -> list[Decision]:
        """Return the decisions about the job of that name, newest last."""
        return [decision for decision in self._kept if decision.job == job]

    def all(self) -> list[Decision]:
        """Return the decisions about all jobs, newest last."""
        return list(self._kept)
