"""The loads of executors over one period of the placement loop: means of what its snapshots measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.meters.node_speeds import ServedRates
from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.turns import in_turns, no_pause
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, Inputs, JobSnapshot, Snapshot

LOAD_READINGS, TRAFFIC_READINGS = 9_000, 4_500
"""Measurements of single executors that are read in a period: in large clusters, fewer snapshots are read."""

TRAFFIC_SAMPLES = 3
"""Snapshots of a period from which traffic is taken; each has the mean of two seconds."""

PROCESSOR, ROWS, MEMORY, NETWORK, STATE = range(5)
"""Columns of the needs of executors: busy cores; rows per second; bytes of state in memory; bytes per second of inputs
and outputs; bytes of state, those in files included."""


@dataclass(frozen=True, eq=False)
class JobLoads:
    """What the executors of a job need of their nodes.

    Parameters
    ----------
    executors : list of ExecutorId
        The executors.
    needs : array of float, executors × 5
        What each of them needs, in the columns named above.
    traffic : list of Inputs
        Bytes per second from upstream instances, for each executor.
    """

    executors: list[ExecutorId]
    needs: Floats
    traffic: list[Inputs]

    def places(self, executors: list[ExecutorId]) -> Ints:
        """Return where these executors stand; −1 for those without loads.

        Examples
        --------
        >>> first, second = ExecutorId("count", 0), ExecutorId("count", 1)
        >>> JobLoads([first], np.zeros((1, 5)), [()]).places([second, first]).tolist()
        [-1, 0]
        """
        if executors == self.executors:
            return np.arange(len(executors))
        known = {executor: place for place, executor in enumerate(self.executors)}
        return np.array([known.get(executor, -1) for executor in executors], dtype=np.int64)

    def needs_of(self, executors: list[ExecutorId]) -> Floats:
        """Return what these executors need: nothing where there are no loads."""
        return np.append(self.needs, np.zeros((1, self.needs.shape[1])), axis=0)[self.places(executors)]

    def traffic_of(self, executors: list[ExecutorId]) -> list[Inputs]:
        """Return the inputs of these executors."""
        return [self.traffic[place] if place >= 0 else Inputs.of(()) for place in self.places(executors).tolist()]


def busy_cores(executors: Sequence[ExecutorSnapshot]) -> Floats:
    """Return the cores that the input of each executor keeps busy.

    Examples
    --------
    >>> one = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, arrival_rate=900.0, service_rate=600.0)
    >>> busy_cores([one]).tolist()
    [1.5]
    """
    return _busy(executors, _rows(executors))


class PeriodLoads:
    """The loads over one period, which are added up as its snapshots come, so that a decision does not read them all.

    Parameters
    ----------
    period : float
        Seconds that the period is expected to last. In large clusters, some of its snapshots are read: the last one,
        and others at equal distances.
    pause : callable
        Called about every millisecond of work.

    Examples
    --------
    >>> from dask_elastic.vocab.snapshot import JobSnapshot, NodeSnapshot
    >>> def at(now, rate):
    ...     one = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, arrival_rate=rate, service_rate=600.0)
    ...     return Snapshot(now, (NodeSnapshot("tcp://a:1", "a", 2),), (JobSnapshot("words", 1, (one,)),))
    >>> loads = PeriodLoads(10.0)
    >>> for snapshot in (at(0.0, 900.0), at(1.0, 300.0)):
    ...     loads.add(snapshot)
    >>> loads.seconds, loads.means()["words", 1].needs[0, PROCESSOR].item()
    (1.0, 1.0)
    """

    def __init__(self, period: float, pause: Callable[[], None] = no_pause):
        self._period = period
        self._pause = pause
        self._snapshots: list[Snapshot] = []
        self._sums: dict[JobKey, _Sums] = {}
        self._read: Snapshot | None = None

    @property
    def seconds(self) -> float:
        """Seconds from the first snapshot to the last one."""
        return self._snapshots[-1].now - self._snapshots[0].now if self._snapshots else 0.0

    def add(self, snapshot: Snapshot) -> None:
        """Add the next snapshot."""
        self._snapshots.append(snapshot)
        distance = self._period * _executors(snapshot) / LOAD_READINGS
        if self._read is None or snapshot.now >= self._read.now + distance:
            self._add_up(snapshot)

    def means(self) -> dict[JobKey, JobLoads]:
        """Return the mean loads of all executors by job; state is that of the last snapshot.

        Traffic is taken from `TRAFFIC_SAMPLES` snapshots, and in large clusters from fewer.
        """
        if self._snapshots and self._read is not self._snapshots[-1]:
            self._add_up(self._snapshots[-1])
        executors = max(map(_executors, self._snapshots), default=0) or 1
        for snapshot in _sampled(self._snapshots, min(TRAFFIC_SAMPLES, TRAFFIC_READINGS // executors)):
            for job in snapshot.jobs:
                self._of(job).add_traffic(job.executors)
        return {key: sums.means() for key, sums in self._sums.items()}

    def _of(self, job: JobSnapshot) -> _Sums:
        return self._sums.setdefault(job_key(job), _Sums(self._pause))

    def _add_up(self, snapshot: Snapshot) -> None:
        self._read = snapshot
        for job in snapshot.jobs:
            self._of(job).add(job.executors)


def served_rates(snapshot: Snapshot, pause: Callable[[], None] = no_pause) -> ServedRates:
    """Return the service rates of executors that have all their cores at home, as hints at the speed of nodes.

    Parameters
    ----------
    snapshot : Snapshot
        The executors and nodes.
    pause : callable
        Called about every millisecond of work.
    """
    operators: dict[tuple[str, int, str], int] = {}
    tables = []
    for job in snapshot.jobs:
        key, rows = job_key(job), np.zeros((4, len(job.executors)))
        number = {
            name: operators.setdefault((*key, name), len(operators))
            for name in dict.fromkeys([one.executor.component for one in job.executors])
        }
        rows[0] = [number[one.executor.component] for one in job.executors]
        rows[1] = [one.home for one in job.executors]
        pause()
        rows[2] = [(one.service_rate or 0.0) if [*one.cores] == [one.home] else 0.0 for one in job.executors]
        pause()
        rows[3] = busy_cores(job.executors)
        pause()
        tables.append(rows)
    operator, home, rate, weight = np.concatenate([np.zeros((4, 0)), *tables], axis=1)
    addresses = [node.address for node in snapshot.nodes]
    return ServedRates([*operators], addresses, operator.astype(np.int64), home.astype(np.int64), rate, weight)


class _Sums:
    """Sums of the loads of a job's executors over snapshots."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self._executors: list[ExecutorId] = []
        self._needs: Floats = np.zeros((0, 5))
        self._snapshots: Floats = np.zeros(0)
        self._traffic: list[Sequence[ExecutorSnapshot]] = []

    def add(self, executors: Sequence[ExecutorSnapshot]) -> None:
        """Add those of a snapshot."""
        self._pause()
        names = [one.executor for one in executors]
        if names != self._executors:
            known = set(self._executors)
            self._executors += [name for name in names if name not in known]
            fresh = len(self._executors) - len(self._needs)
            self._needs = np.append(self._needs, np.zeros((fresh, 5)), axis=0)
            self._snapshots = np.append(self._snapshots, np.zeros(fresh))
        self._pause()
        at = JobLoads(self._executors, self._needs, []).places(names)
        self._pause()
        state = _column([one.state_bytes for one in executors])
        self._snapshots[at] += 1
        rows = _rows(executors)
        self._pause()
        self._needs[at, PROCESSOR] += _busy(executors, rows)
        self._pause()
        self._needs[at, ROWS] += rows
        self._needs[at, NETWORK] += _column([one.bytes_in + one.bytes_out for one in executors])
        self._needs[at, MEMORY] = np.maximum(state - _column([one.state_on_disk for one in executors]), 0)
        self._needs[at, STATE] = state
        self._pause()

    def add_traffic(self, executors: Sequence[ExecutorSnapshot]) -> None:
        """Add the traffic of a snapshot."""
        self._traffic.append(executors)

    def means(self) -> JobLoads:
        """Return the means."""
        needs = self._needs.copy()
        needs[:, [PROCESSOR, ROWS, NETWORK]] /= self._snapshots[:, None]
        return JobLoads(self._executors, needs, self._mean_traffic())

    def _mean_traffic(self) -> list[Inputs]:
        """Return the mean traffic to each executor."""
        if len(self._traffic) == 1 and [one.executor for one in self._traffic[0]] == self._executors:
            # So it is in large clusters, where many small objects would have to be made.
            return [Inputs.of(one.traffic) for one in in_turns(self._traffic[0], self._pause)]
        samples: dict[ExecutorId, list[Inputs]] = {}
        for executors in self._traffic:
            for one in in_turns(executors, self._pause):
                samples.setdefault(one.executor, []).append(Inputs.of(one.traffic))
        return [_mean_traffic(samples.get(executor, [])) for executor in in_turns(self._executors, self._pause)]


def _executors(snapshot: Snapshot) -> int:
    return sum(len(job.executors) for job in snapshot.jobs)


def _sampled(snapshots: Sequence[Snapshot], most: int) -> Sequence[Snapshot]:
    """Return at most so many snapshots at equal distances, oldest first; the newest is among them."""
    step = -(-len(snapshots) // max(most, 1)) or 1
    return snapshots[::-step][::-1]


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _busy(executors: Sequence[ExecutorSnapshot], rows: Floats) -> Floats:
    """Return the cores that the input of each executor keeps busy, given the rows per second of each."""
    measured = _column([0.0 if one.shard_load is None else np.add.reduce(one.shard_load) for one in executors])
    return np.maximum(measured, rows / _column([one.service_rate or np.inf for one in executors]))


def _rows(executors: Sequence[ExecutorSnapshot]) -> Floats:
    """Return the tuples per second that arrive at each executor, or that it processes where these are more."""
    arrivals, processed = _column([one.arrival_rate for one in executors]), [one.throughput for one in executors]
    return np.maximum(arrivals, processed)


def _mean_traffic(samples: list[Inputs]) -> Inputs:
    """Return the mean traffic from each upstream instance."""
    if len(samples) <= 1:
        return samples[0] if samples else Inputs.of(())
    summed: dict[tuple[str, int], float] = {}
    for sample in samples:
        for component, index, rate in sample:
            summed[component, index] = summed.get((component, index), 0.0) + rate
    return Inputs.of((*origin, rate / len(samples)) for origin, rate in summed.items())
