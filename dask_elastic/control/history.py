"""The last minutes of each job: measurements, predictions and decisions as time series, for the dashboard."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.keys import job_key
from dask_elastic.control.placement.recent_flows import Flows, RecentFlows
from dask_elastic.vocab.errors import PlanningError, UnknownJob
from dask_elastic.vocab.plan import Decision, Outlook, Plan
from dask_elastic.vocab.snapshot import JobSnapshot, NodeSnapshot, Snapshot

T = TypeVar("T")

Counts = NDArray[np.int32]
"""Cores of each executor, or on each node: of a large cluster, minutes of them take tens of megabytes as objects."""

SERIES = (
    "throughput",
    "lag",
    "latency",
    "latency_p99",
    "predicted",
    "target",
    "queue",
    "cores",
    "state_bytes",
    "moves",
)
"""Names of the time series; see `JobHistory.series`."""

_SUMS: dict[str, Callable[[JobSnapshot], float]] = {
    "throughput": lambda job: job.source_rate,
    "lag": lambda job: job.source_lag,
    "queue": lambda job: sum(executor.queue for executor in job.executors),
    "cores": lambda job: sum(executor.total_cores for executor in job.executors),
    "state_bytes": lambda job: sum(executor.state_bytes for executor in job.executors),
    "moves": lambda job: sum(executor.moves for executor in job.executors),
}


class JobHistory:
    """One generation of a job over time.

    Parameters
    ----------
    length : int
        How many snapshots are kept.
    first : JobSnapshot
        The first snapshot of the job.

    Attributes
    ----------
    times : list of float
        The times of the snapshots.
    addresses : tuple of str
        The addresses of the nodes of the newest snapshot, to which `latest` refers.
    executors : tuple of str
        The names of the executors, such as ``"per_route[0]"``.
    nodes : tuple of str
        The addresses of the nodes on which the job had cores at any of these times, in alphabetical order.
    flows : dict of str to tuple of GroupFlow
        The traffic from key groups that was sampled within the last seconds, by the operator that sends it.
    decisions : list of Decision
        The decisions, newest last; at most `length`. Those of a `DecisionLog` have the cores of executors, too.
    bound : tuple of str
        The operators that are currently GIL-bound.
    starved : int
        Number of cores that the job currently needs beyond those it can get.
    """

    def __init__(self, length: int, first: JobSnapshot):
        self.key = job_key(first)
        self._latest = first
        self._outlook = Outlook()
        self._addresses: tuple[str, ...] = ()
        self._flows = RecentFlows()
        self._times: deque[float] = deque(maxlen=length)
        self._series: dict[str, deque[float]] = {name: deque(maxlen=length) for name in SERIES}
        self._by_executor: deque[Counts] = deque(maxlen=length)
        self._by_node: deque[tuple[tuple[str, ...], Counts]] = deque(maxlen=length)
        self._decisions: deque[Decision] = deque(maxlen=length)

    def add(self, now: float, job: JobSnapshot, nodes: Sequence[NodeSnapshot], plan: Plan) -> None:
        """Add a snapshot of the job, and its part of the plan.

        Parameters
        ----------
        now : float
            The snapshot's time in seconds.
        job : JobSnapshot
            The job.
        nodes : sequence of NodeSnapshot
            The snapshot's nodes.
        plan : Plan
            The plan made from the snapshot.
        """
        self._forget_since(now)
        self._latest = job
        addresses = tuple([node.address for node in nodes])
        if addresses != self._addresses:
            # All rows with the same nodes share their addresses.
            self._addresses = addresses
        self._flows.add(now, job)
        self._outlook = plan.outlook.get(job.name, Outlook())
        self._times.append(now)
        for name, total in _SUMS.items():
            self._series[name].append(float(total(job)))
        known = {
            "latency": job.latency,
            "latency_p99": job.latency_p99,
            "target": job.latency_target,
            "predicted": self._outlook.predicted,
        }
        for name, value in known.items():
            self._series[name].append(math.nan if value is None else value)
        self._by_executor.append(job.total_cores.astype(np.int32))
        at = [node for executor in job.executors for node in executor.cores]
        cores = [count for executor in job.executors for count in executor.cores.values()]
        by_node = np.bincount(np.array(at, dtype=np.int64), cores, len(nodes)).astype(np.int32)
        self._by_node.append((self._addresses, by_node))
        # Cores of executors take most of the memory in large jobs, and would stay here when a log has dropped them.
        self._decisions.extend(
            replace(decision, wanted={}, changes=())
            for decision in plan.decisions
            if (decision.job, decision.generation) == self.key
        )

    def _forget_since(self, now: float) -> None:
        """Drop the rows of times that come again, because the clock was set back."""
        columns: list[deque[Any]] = [self._times, *self._series.values(), self._by_executor, self._by_node]
        while self._times and self._times[-1] >= now:
            for column in columns:
                column.pop()

    @property
    def times(self) -> list[float]:
        """The times of the snapshots in seconds, oldest first."""
        return list(self._times)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the nodes of the newest snapshot."""
        return self._addresses

    @property
    def flows(self) -> Flows:
        """The traffic from key groups that was sampled within the last seconds, by the operator that sends it."""
        return self._flows.of(self._times[-1])

    @property
    def decisions(self) -> list[Decision]:
        """The decisions, newest last."""
        return list(self._decisions)

    @property
    def bound(self) -> tuple[str, ...]:
        """The operators that are currently GIL-bound."""
        return self._outlook.bound

    @property
    def starved(self) -> int:
        """Number of cores that the job currently needs beyond those it can get."""
        return self._outlook.starved

    def series(self, name: str) -> list[float]:
        """Return one time series.

        Parameters
        ----------
        name : str
            One of `SERIES`: ``throughput`` in rows/s that sources read; ``lag`` of the sources, ``latency`` (mean),
            ``latency_p99``, ``predicted`` and ``target`` in seconds; ``queue`` in tuples, ``cores``, ``state_bytes``,
            and ``moves`` of shards, each executor's since it is at its home, summed over all executors.

        Returns
        -------
        list of float
            One number for each of `times`; NaN if it is unknown.

        Raises
        ------
        PlanningError
            If there is no such series.
        """
        if name not in self._series:
            raise PlanningError(f"there is no series named {name!r}: choose one of {', '.join(SERIES)}.")
        return list(self._series[name])

    @property
    def executors(self) -> tuple[str, ...]:
        """The names of the executors, such as ``"per_route[0]"``."""
        return tuple([str(executor.executor) for executor in self._latest.executors])

    @property
    def nodes(self) -> tuple[str, ...]:
        """The addresses of the nodes on which the job had cores at any of `times`, in alphabetical order."""
        found: set[str] = set()
        for addresses, cores in _runs(self._by_node):
            found.update([addresses[node] for node in np.flatnonzero(cores.any(axis=0)).tolist()])
        return tuple(sorted(found))

    def cores_by_executor(self, last: int | None = None) -> dict[str, list[int]]:
        """Return the number of cores of each executor over time, by the executor's name.

        Parameters
        ----------
        last : int, optional
            For how many of the newest `times`; all of them if left out.

        Returns
        -------
        dict of str to list of int
            One number for each of these times, in the order of `executors`.
        """
        return dict(zip(self.executors, np.array(_newest(self._by_executor, last)).T.tolist(), strict=True))

    def cores_by_node(self, last: int | None = None) -> dict[str, list[int]]:
        """Return the job's number of cores on each node over time, by the node's address.

        Parameters
        ----------
        last : int, optional
            For how many of the newest `times`; all of them if left out.

        Returns
        -------
        dict of str to list of int
            One number for each of these times, in the order of `nodes`.
        """
        wanted, first = _newest(self._by_node, last), 0
        found = {address: np.zeros(len(wanted), dtype=np.int32) for address in self.nodes}
        for addresses, cores in _runs(wanted):
            for node in np.flatnonzero(cores.any(axis=0)).tolist():
                found[addresses[node]][first : first + len(cores)] += cores[:, node]
            first += len(cores)
        return {address: counts.tolist() for address, counts in found.items()}

    def latest(self) -> JobSnapshot:
        """Return the last snapshot of the job."""
        return self._latest


def _newest(rows: deque[T], last: int | None) -> list[T]:
    return [*rows] if last is None else [*islice(rows, max(0, len(rows) - last), None)]


def _runs(rows: Iterable[tuple[tuple[str, ...], Counts]]) -> Iterator[tuple[tuple[str, ...], Counts]]:
    """Yield the addresses and the cores of consecutive rows that share their addresses, one row below the other."""
    for _, run in groupby(rows, key=lambda row: id(row[0])):
        (addresses, first), *others = run
        yield addresses, np.array([first, *(counts for _, counts in others)])


class History:
    """The recent measurements and decisions of all jobs.

    Parameters
    ----------
    length : int
        How many snapshots of each job are kept.
    ended : int
        How many ended jobs are kept; those that ended first are dropped first.

    Raises
    ------
    PlanningError
        If one of them is below 1.

    Examples
    --------
    >>> history = History()
    >>> history.add(Snapshot(now=0.0, nodes=(), jobs=(JobSnapshot("flights", 1, ()),)), Plan())
    >>> history.jobs(), history.job("flights").series("cores")
    (['flights'], [0.0])
    """

    def __init__(self, length: int = 600, ended: int = 16):
        if length < 1 or ended < 1:
            raise PlanningError(f"length is {length!r}, ended {ended!r}: give whole numbers of 1 or more.")
        self._length = length
        self._ended = ended
        self._jobs: dict[str, JobHistory] = {}  # in the order of their last snapshots

    def add(self, snapshot: Snapshot, plan: Plan) -> None:
        """Add a snapshot and the plan made from it.

        Parameters
        ----------
        snapshot : Snapshot
            The measurements.
        plan : Plan
            The plan.
        """
        for job in snapshot.jobs:
            history = self._jobs.pop(job.name, None)
            if history is None or history.key != job_key(job):
                history = JobHistory(self._length, job)
            history.add(snapshot.now, job, snapshot.nodes, plan)
            self._jobs[job.name] = history
        surplus = len(self._jobs) - len(snapshot.jobs) - self._ended
        for name in list(self._jobs)[: max(0, surplus)]:
            del self._jobs[name]

    def jobs(self) -> list[str]:
        """Return the names of the jobs, in alphabetical order."""
        return sorted(self._jobs)

    def job(self, name: str) -> JobHistory:
        """Return the history of a job's newest generation.

        Parameters
        ----------
        name : str
            Name of the job.

        Returns
        -------
        JobHistory
            Its history.

        Raises
        ------
        UnknownJob
            If there is no history of a job of that name.
        """
        if name not in self._jobs:
            known = ", ".join(self.jobs()) or "none"
            raise UnknownJob(f"there is no history of a job named {name!r}. Jobs with a history: {known}.")
        return self._jobs[name]

    def forget(self, name: str) -> None:
        """Drop the history of a job, if there is one."""
        self._jobs.pop(name, None)
