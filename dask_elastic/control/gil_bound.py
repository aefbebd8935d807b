"""Detection of operators whose threads hold the GIL, so that another core on the same node does not speed them up.

Goal
    GIL-bound operators are detected from measurements, grow on other nodes only, and are named in decisions; other
    operators are not mistaken for them.
Method
    Each change of an executor's cores is an experiment if the executor is overloaded before and after, so that its
    throughput is what its cores can do. If all threads can run at once, throughput is proportional to the number of
    cores. If at most m threads per node can, it is proportional to Σ min(cores, m) over the nodes. The operator counts
    as bound if its throughput differs from the prediction for some m by at most a fifth of the difference between that
    prediction and the one for unbound threads, and that difference is well above the noise. For one more core on a node
    that has all of the executor's cores this means: throughput rises by less than a fifth of what one core did. Perfect
    scaling from k to k + 1 cores never counts as bound, for any k, nor do cores that were added on new nodes only.
    Nodes may differ in speed: where cores on several nodes are compared, a result must not be explained either by nodes
    that are up to twice as fast as others.

    An executor that gathers its shards on some of its tasks (`dask_elastic.planning.gathering`) has measured that more
    cores of a node make it slower. That is a result, too, as long as the executor says so.
Not done
    Executors of different operators that share the GIL of one node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.overload import overloaded
from dask_elastic.control.settings import ControlSettings
from dask_elastic.planning.turns import in_turns, no_pause
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

CoresByAddress = Mapping[str, int]
"""Cores by the address of their node, which unlike its number is the same in all snapshots."""

PART = 0.2
"""A measured gain matches a prediction if it is within this fraction of the way to the other prediction."""

NOISE = 0.05
"""Least relative standard deviation assumed for a throughput; the measured one is used if it is larger."""

SURE = 3.0
"""Number of standard deviations by which the two predictions must differ."""

SAMPLES = 6
"""Measurements kept per period of unchanged cores, and after which an experiment ends without a result."""

DOUBT = 3.0
"""Seconds after `settle` for which an executor that is in doubt waits for the result."""

SKEWED = 0.9
"""If the heaviest shard's load is at least this fraction of one core's share, cores do not limit the executor."""

SPEED_RATIO = 2.0
"""Cores of one node may be faster than those of another by so much."""

VISIBLE = 0.3
"""Fraction of the expected gain from which on more cores count as effective."""


@dataclass(slots=True)
class _Experiment:
    """Throughput of one executor while its cores stay unchanged, and of the period before they changed.

    One is kept for each executor, so each is small: a collection of garbage, which stops all threads, visits them all.
    """

    cores: CoresByAddress
    # The same by the numbers of nodes in the last snapshot; None if nodes have other numbers now.
    held: Mapping[int, int] | None
    since: float
    overloaded_at: float
    is_overloaded: bool = False
    # The last `SAMPLES` measurements.
    rates: tuple[float, ...] = ()
    before: _Experiment | None = None


class _JobExperiments:
    """The experiments of a job's executors."""

    def __init__(self) -> None:
        self.by_executor: dict[ExecutorId, _Experiment] = {}
        # The executors of the last snapshot with their experiments, since most snapshots have the same ones in order.
        self.executors: list[ExecutorId] = []
        self.in_order: list[_Experiment | None] = []
        # The executors whose throughput is compared with that before their cores changed.
        self.compared: set[ExecutorId] = set()

    def of(self, executors: list[ExecutorId]) -> list[_Experiment | None]:
        """Return the experiments of executors, to be completed where there is none yet."""
        if executors != self.executors:
            self.executors, self.in_order = executors, [self.by_executor.get(executor) for executor in executors]
        return self.in_order


@dataclass
class _Finding:
    """The result for an operator: how many threads per node help; None if it was found to be unbound after all."""

    since: float
    most: int | None


class GilBound:
    """Observes the effect of core changes on throughput.

    Parameters
    ----------
    settings : ControlSettings
        `settle`, `bound_for` and the settings of overload are used.
    pause : callable
        Called between steps.
    """

    def __init__(self, settings: ControlSettings, pause: Callable[[], None] = no_pause):
        self._settings = settings
        self._pause = pause
        self._experiments: dict[JobKey, _JobExperiments] = {}
        self._findings: dict[tuple[JobKey, str], _Finding] = {}
        # Those that executors have measured themselves.
        self._reported: set[tuple[JobKey, str]] = set()
        self._addresses: tuple[str, ...] = ()

    def observe(self, snapshot: Snapshot) -> None:
        """Add the measurements of a snapshot; call this once per snapshot.

        Parameters
        ----------
        snapshot : Snapshot
            The current measurements.
        """
        jobs = set(map(job_key, snapshot.jobs))
        self._experiments = {job: known for job, known in self._experiments.items() if job in jobs}
        self._findings = {
            key: finding
            for key, finding in self._findings.items()
            if key[0] in jobs and snapshot.now - finding.since < self._settings.bound_for
        }
        addresses = tuple(node.address for node in snapshot.nodes)
        if addresses != self._addresses:
            self._addresses = addresses
            for known in self._experiments.values():
                for experiment in known.by_executor.values():
                    experiment.held = None
        for job in snapshot.jobs:
            self._observe(job, self._experiments.setdefault(job_key(job), _JobExperiments()), snapshot.now)
        self._take_reports(snapshot)

    def _observe(self, job: JobSnapshot, known: _JobExperiments, now: float) -> None:
        experiments = self._current(known, job, now)
        self._pause()
        active = [
            index for index, one in enumerate(experiments) if one.is_overloaded or one.rates or one.before is not None
        ]
        before = np.zeros(len(experiments), dtype=np.bool_)
        before[[index for index in active if experiments[index].is_overloaded]] = True
        overloads = overloaded(job, self._settings, before)
        self._pause()
        for index in active:
            if not overloads[index]:
                self._rest(experiments[index], now)
        if overloads.any():
            skewed = job.heaviest_shards * job.total_cores > SKEWED
            for index in in_turns(np.flatnonzero(overloads).tolist(), self._pause):
                self._measure(job_key(job), job.executors[index], experiments[index], bool(skewed[index]), now)
        known.compared = {known.executors[index] for index in active if experiments[index].before is not None}

    def _take_reports(self, snapshot: Snapshot) -> None:
        reported: dict[tuple[JobKey, str], int] = {}
        for job in snapshot.jobs:
            for executor in [executor for executor in job.executors if executor.enough_cores is not None]:
                key = job_key(job), executor.executor.component
                reported[key] = max(reported.get(key, 0), executor.enough_cores or 0)
        for key in self._reported - reported.keys():
            self._findings.pop(key, None)
        self._findings |= {key: _Finding(snapshot.now, most) for key, most in reported.items()}
        self._reported = set(reported)

    def operators(self, job: JobSnapshot) -> tuple[str, ...]:
        """Return the GIL-bound operators of a job, in alphabetical order.

        Parameters
        ----------
        job : JobSnapshot
            The job.

        Returns
        -------
        tuple of str
            Names of operators.
        """
        key = job_key(job)
        return tuple(sorted(name for (of, name), finding in self._findings.items() if of == key and finding.most))

    def most(self, job: JobSnapshot, operator: str) -> int | None:
        """Return how many cores per node speed an operator up; None if it is not known to be bound.

        Parameters
        ----------
        job : JobSnapshot
            The job.
        operator : str
            One of its operators.

        Returns
        -------
        int or None
            Number of cores per node.
        """
        finding = self._findings.get((job_key(job), operator))
        return finding.most if finding else None

    def in_doubt(self, job: JobSnapshot, now: float) -> set[ExecutorId]:
        """Return executors to which cores were added recently on one of their nodes, without a visible effect yet.

        Such an executor should not get more cores there for now: each change of cores restarts the experiment.

        Parameters
        ----------
        job : JobSnapshot
            The job.
        now : float
            The time in seconds.

        Returns
        -------
        set of ExecutorId
            The executors for which the effect of the added cores is still unknown.
        """
        known = self._experiments.get(job_key(job))
        if known is None or not known.compared:
            return set()
        return {
            executor.executor
            for executor in job.executors
            if executor.executor in known.compared
            and self._is_in_doubt(known.by_executor[executor.executor], executor, now)
        }

    def _is_in_doubt(self, experiment: _Experiment, executor: ExecutorSnapshot, now: float) -> bool:
        assert experiment.before is not None
        if now - experiment.since > self._settings.settle + DOUBT:
            return False
        before = experiment.before.cores
        expected = _ratio(before, experiment.cores, None) - 1
        if expected <= 0 or not any(experiment.cores.get(node, 0) > count for node, count in before.items()):
            return False
        achieved = executor.throughput / _mean(experiment.before.rates) - 1
        return achieved < VISIBLE * expected

    def _current(self, known: _JobExperiments, job: JobSnapshot, now: float) -> list[_Experiment]:
        """Return the experiments of a job's executors; new ones for those whose cores have changed."""
        found = known.of([executor.executor for executor in job.executors])
        known_to_job = enumerate(zip(found, job.executors, strict=True))
        for index, (experiment, executor) in in_turns(known_to_job, self._pause):
            if experiment is None or (experiment.held is not executor.cores and experiment.held != executor.cores):
                found[index] = known.by_executor[executor.executor] = self._renewed(experiment, executor, now)
        return cast(list[_Experiment], found)

    def _renewed(self, experiment: _Experiment | None, executor: ExecutorSnapshot, now: float) -> _Experiment:
        """Return the experiment of an executor whose cores or their numbers have changed; a new one for other cores."""
        cores = {self._addresses[node]: count for node, count in executor.cores.items()}
        if experiment is None:
            return _Experiment(cores, executor.cores, now - self._settings.settle, now)
        if experiment.cores != cores:
            before = experiment if experiment.rates else experiment.before
            experiment = _Experiment(
                cores, executor.cores, now, experiment.overloaded_at, experiment.is_overloaded, before=before
            )
            if before is not None:
                before.before = None
        experiment.held = executor.cores
        return experiment

    def _rest(self, experiment: _Experiment, now: float) -> None:
        """Note that an executor is not overloaded."""
        experiment.is_overloaded = False
        if now - experiment.overloaded_at > self._settings.settle:
            # Throughput now equals arrivals, and earlier throughput cannot be compared with that under a later load.
            experiment.before = None
            experiment.rates = ()

    def _measure(
        self, job: JobKey, executor: ExecutorSnapshot, experiment: _Experiment, skewed: bool, now: float
    ) -> None:
        """Note the throughput of an executor that is overloaded."""
        experiment.overloaded_at, experiment.is_overloaded = now, True
        if now - experiment.since >= self._settings.settle and not skewed:
            experiment.rates = (*experiment.rates, executor.throughput)[-SAMPLES:]
            if experiment.before is not None and len(experiment.rates) > 1:
                self._judge(job, executor.executor.component, experiment.before, experiment, now)

    def _judge(self, job: JobKey, operator: str, before: _Experiment, after: _Experiment, now: float) -> None:
        """Compare throughput before and after a change with the predictions for bound and unbound threads."""
        gain, noise = _mean(after.rates) / _mean(before.rates), _noise(before.rates, after.rates)
        free = _ratio(before.cores, after.cores, None)
        known = self._findings.get((job, operator))
        explained = _explained(gain, before.cores, after.cores, None, noise)
        fitting = []
        for most in range(1, max([*before.cores.values(), *after.cores.values()])):
            bound = _ratio(before.cores, after.cores, most)
            if _distinct(free, bound, noise) and _near(gain, bound, free, noise) and not explained:
                fitting.append((abs(gain - bound), -most))
        found = -min(fitting)[1] if fitting else None
        if known is not None and known.most is not None:
            self._revise(job, operator, known, found, before, after, now)
        elif known is None and found is not None:
            self._findings[job, operator] = _Finding(now, found)
        if found is not None or len(after.rates) >= SAMPLES:
            after.before = None

    def _revise(
        self,
        job: JobKey,
        operator: str,
        known: _Finding,
        found: int | None,
        before: _Experiment,
        after: _Experiment,
        now: float,
    ) -> None:
        """Renew a finding with a new result, or revoke it."""
        if found is not None:
            self._findings[job, operator] = _Finding(now, min(found, known.most or found))
            return
        gain, noise = _mean(after.rates) / _mean(before.rates), _noise(before.rates, after.rates)
        free, bound = (_ratio(before.cores, after.cores, most) for most in (None, known.most))
        explained = _explained(gain, before.cores, after.cores, known.most, noise)
        if _distinct(free, bound, noise) and _near(gain, free, bound, noise) and not explained:
            self._findings[job, operator] = _Finding(now, None)


def _ratio(before: CoresByAddress, after: CoresByAddress, most: int | None) -> float:
    """Return the predicted ratio of throughput after to before, if at most `most` threads of a node run at once."""
    return _running(after, most) / _running(before, most)


def _running(cores: CoresByAddress, most: int | None) -> int:
    return sum(count if most is None else min(count, most) for count in cores.values())


def _explained(gain: float, before: CoresByAddress, after: CoresByAddress, most: int | None, noise: float) -> bool:
    """Return whether nodes of different speed explain a gain, if at most `most` threads of a node run at once."""
    least, greatest = 1 / _greatest_ratio(after, before, most), _greatest_ratio(before, after, most)
    return least * (1 - 2 * noise) <= gain <= greatest * (1 + 2 * noise)


def _greatest_ratio(before: CoresByAddress, after: CoresByAddress, most: int | None) -> float:
    """Return the predicted ratio of throughput after to before, for the speeds of nodes at which it is greatest."""
    limit = math.inf if most is None else most
    pairs = [(min(before.get(node, 0), limit), min(after.get(node, 0), limit)) for node in {**before, **after}]
    ratio, reached = 0.0, _ratio(before, after, most)
    while reached > ratio:
        ratio = reached
        speeds = [SPEED_RATIO if there > ratio * here else 1.0 for here, there in pairs]
        reached = sum(speed * there for speed, (_, there) in zip(speeds, pairs, strict=True)) / sum(
            speed * here for speed, (here, _) in zip(speeds, pairs, strict=True)
        )
    return ratio


def _distinct(free: float, bound: float, noise: float) -> bool:
    """Return whether the two predictions differ by more than noise can explain."""
    return (1 - PART) * abs(free - bound) >= SURE * noise * max(free, bound)


def _near(gain: float, here: float, there: float, noise: float) -> bool:
    """Return whether a gain is within a fifth of the way from `here` to `there`, or as close on the other side."""
    way = PART * abs(there - here)
    return -way - 2 * noise * here <= (gain - here) * math.copysign(1.0, there - here) <= way


def _mean(rates: Sequence[float]) -> float:
    return max(math.fsum(rates) / len(rates), 1e-9)


def _noise(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the relative standard deviation of the ratio of two means."""
    return math.sqrt(sum(_spread(rates) ** 2 / len(rates) for rates in (before, after)))


def _spread(rates: Sequence[float]) -> float:
    if len(rates) < 2:
        return NOISE
    mean = _mean(rates)
    deviation = math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1))
    return max(deviation / mean, NOISE)
