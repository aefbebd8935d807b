"""The last decisions, and the latency observed after each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.vocab.cores.wanted_cores import WantedCores
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.plan import Decision
from dask_elastic.vocab.snapshot import Snapshot


class DecisionLog:
    """Keeps decisions, and adds to each the latency observed some time later.

    Parameters
    ----------
    length : int
        How many decisions are kept; the oldest are dropped.
    after : float
        Seconds after a decision at which its effect is observed. If the same job's cores change again before that, the
        effect is observed at the first snapshot after that change, since later measurements reflect both.

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
        self._unobserved: dict[int, int] = {}  # number of a decision -> its generation, until its effect is observed

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, decisions: Iterable[Decision]) -> None:
        """Add decisions, oldest first.

        Parameters
        ----------
        decisions : iterable of Decision
            The decisions of one tick.
        """
        for decision in decisions:
            self._kept.append(self._sharing(decision))
            if decision.observed is None:
                self._unobserved[decision.number] = decision.generation
            if len(self._kept) > self._length:
                self._unobserved.pop(self._kept.popleft().number, None)

    def _sharing(self, decision: Decision) -> Decision:
        """Return a decision that shares the names of its executors with the newest one about the same job that has any.

        Decisions about homes, which may come between all others, have none.
        """
        if not decision.wanted:
            return decision
        newest = next((one.wanted for one in reversed(self._kept) if one.job == decision.job and one.wanted), None)
        if newest is None:
            return decision
        wanted = WantedCores.of(decision.wanted).sharing(WantedCores.of(newest))
        return decision if wanted is decision.wanted else replace(decision, wanted=wanted)

    def observe(self, snapshot: Snapshot) -> None:
        """Record each job's latency as the effect of its due decisions; call it before adding a tick's decisions.

        Parameters
        ----------
        snapshot : Snapshot
            The current measurements.
        """
        if not self._unobserved:
            return
        jobs = {job_key(job): job for job in snapshot.jobs}
        changed_later: set[JobKey] = set()
        for position in range(len(self._kept) - 1, -1, -1):
            decision = self._kept[position]
            key = (decision.job, decision.generation)
            if decision.number in self._unobserved:
                job = jobs.get(key)
                # After the clock was set back, a decision may seem to be made in the future.
                due = abs(snapshot.now - decision.time) >= self._after or key in changed_later
                if job is None:
                    del self._unobserved[decision.number]
                elif due and job.latency is not None:
                    self._kept[position] = replace(decision, observed=job.latency)
                    del self._unobserved[decision.number]
            if decision.applied and decision.changes:
                changed_later.add(key)

    def of(self, job: str) -> list[Decision]:
        """Return the decisions about one job, newest last.

        Parameters
        ----------
        job : str
            Name of the job.

        Returns
        -------
        list of Decision
            Those that are still kept.
        """
        return [decision for decision in self._kept if decision.job == job]

    def all(self) -> list[Decision]:
        """Return the decisions about all jobs, newest last."""
        return list(self._kept)
