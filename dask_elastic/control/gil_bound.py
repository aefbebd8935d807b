"""Operators whose threads hold the GIL: another core on the same node does not make them faster.

Goal
    Such operators are found from what is measured, grown on other nodes only, and named; others are never mistaken.
Method
    Each change of an executor's cores is an experiment, if it is overloaded before and after, so that its throughput is
    what its cores achieve. If all threads can run at a time, throughput goes with the number of cores. If at most m of
    a node can, it goes with Σ min(cores, m) over the nodes. The operator is taken for bound where throughput is within
    a fifth of what an m says, seen from what all cores would have done, and the difference between the two is well
    above the noise. For one core more on a node where all cores are, that is: throughput rises by less than a fifth of
    what one core did. Perfect scaling from k to k + 1 cores is never taken for it, for any k, nor are cores that were
    added to new nodes only.
Not done
    Executors of different operators that share the GIL of one node.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_elastic.control.overload import overloaded
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

Run = tuple[str, int]
Places = Mapping[str, int]
"""Cores by the node's address, which lasts longer than its number in a snapshot."""

PART = 0.2
"""Within such a part of what the cores would have done."""

NOISE = 0.05
"""Standard deviation of a measured throughput, relative; more where it was seen to vary more."""

SURE = 3.0
"""How many standard deviations make a difference."""

SAMPLES = 6
"""Measurements after which an experiment ends without an outcome, and those that are kept of the time before it."""

DOUBT = 3.0
"""Seconds after `settle` in which an executor that is in doubt waits for the outcome."""

SKEWED = 0.9
"""An executor of whose load one shard has such a part of a core's share is not limited by its cores."""

VISIBLE = 0.3
"""Part of the effect to be expected of more cores, from which on they are seen to help."""


@dataclass
class _Trial:
    """One executor while its cores stay as they are, and what it did before they changed."""

    places: Places
    since: float
    overloaded: float
    is_overloaded: bool = False
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    before: _Trial | None = None


@dataclass
class _Finding:
    """What is known of an operator: threads of a node that help, or that it was found not to be bound after all."""

    since: float
    most: int | None


class GilBound:
    """Watches what changes of cores do to throughput.

    Parameters
    ----------
    settings : ControlSettings
        `settle` and `bound_for`, and what counts as overloaded.
    """

    def __init__(self, settings: ControlSettings):
        self._settings = settings
        self._trials: dict[tuple[Run, ExecutorId], _Trial] = {}
        self._findings: dict[tuple[Run, str], _Finding] = {}

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what is measured; to be called once for each snapshot."""
        runs = {(job.name, job.generation) for job in snapshot.jobs}
        self._trials = {key: trial for key, trial in self._trials.items() if key[0] in runs}
        self._findings = {
            key: finding
            for key, finding in self._findings.items()
            if key[0] in runs and snapshot.now - finding.since < self._settings.bound_for
        }
        for job in snapshot.jobs:
            for executor in job.executors:
                places = {snapshot.nodes[node].address: count for node, count in executor.cores.items()}
                self._watch((job.name, job.generation), executor, places, snapshot.now)

    def operators(self, job: JobSnapshot) -> tuple[str, ...]:
        """Return the operators of a job that are bound, in alphabetical order."""
        run = (job.name, job.generation)
        return tuple(sorted(name for (of, name), found in self._findings.items() if of == run and found.most))

    def most(self, job: JobSnapshot, executor: ExecutorId) -> int | None:
        """Return how many cores of one node help an executor; None if it is not known to be bound."""
        finding = self._findings.get(((job.name, job.generation), executor.component))
        return finding.most if finding else None

    def in_doubt(self, job: JobSnapshot, executor: ExecutorSnapshot, now: float) -> bool:
        """Tell whether an executor got cores on nodes where it had some, and they are not seen to help yet.

        For a while it is better not to give it more of them: each change of cores begins the experiment anew.
        """
        trial = self._trials.get(((job.name, job.generation), executor.executor))
        if trial is None or trial.before is None or now - trial.since > self._settings.settle + DOUBT:
            return False
        expected = _ratio(trial.before.places, trial.places, None) - 1
        if expected <= 0 or not any(trial.places.get(node, 0) > count for node, count in trial.before.places.items()):
            return False
        achieved = executor.throughput / _mean(trial.before.rates) - 1
        return achieved < VISIBLE * expected

    def _watch(self, run: Run, executor: ExecutorSnapshot, places: Places, now: float) -> None:
        key = (run, executor.executor)
        trial = self._trials.get(key)
        if trial is None:
            self._trials[key] = trial = _Trial(places, now - self._settings.settle, now)
        elif trial.places != places:
            before = trial if trial.rates else trial.before
            self._trials[key] = trial = _Trial(places, now, trial.overloaded, trial.is_overloaded, before=before)
            if before is not None:
                before.before = None
        if overloaded(executor, self._settings, before=trial.is_overloaded):
            trial.overloaded, trial.is_overloaded = now, True
        elif now - trial.overloaded > self._settings.settle:
            # What it does now is what arrives. What it did before says nothing of a later load, either.
            self._trials[key] = _Trial(places, trial.since, trial.overloaded)
            return
        else:
            trial.is_overloaded = False
            return
        skewed = executor.heaviest_shard * executor.total_cores > SKEWED
        if now - trial.since >= self._settings.settle and not skewed:
            trial.rates.append(executor.throughput)
            if trial.before is not None and len(trial.rates) > 1:
                self._judge(run, executor.executor.component, trial.before, trial, now)

    def _judge(self, run: Run, operator: str, before: _Trial, after: _Trial, now: float) -> None:
        """Hold the throughput before and after a change against what bound and unbound threads would do."""
        gain, noise = _mean(after.rates) / _mean(before.rates), _noise(before.rates, after.rates)
        free = _ratio(before.places, after.places, None)
        known = self._findings.get((run, operator))
        fitting = []
        for most in range(1, max([*before.places.values(), *after.places.values()])):
            bound = _ratio(before.places, after.places, most)
            if _distinct(free, bound, noise) and _near(gain, bound, free, noise):
                fitting.append((abs(gain - bound), -most))
        found = -min(fitting)[1] if fitting else None
        if known is not None and known.most is not None:
            self._again(run, operator, known, found, before, after, now)
        elif known is None and found is not None:
            self._findings[run, operator] = _Finding(now, found)
        if found is not None or len(after.rates) >= SAMPLES:
            after.before = None

    def _again(
        self, run: Run, operator: str, known: _Finding, found: int | None, before: _Trial, after: _Trial, now: float
    ) -> None:
        """Mend a finding: fewer threads help, or it was none."""
        if found is not None:
            self._findings[run, operator] = _Finding(now, min(found, known.most or found))
            return
        gain, noise = _mean(after.rates) / _mean(before.rates), _noise(before.rates, after.rates)
        free, bound = (_ratio(before.places, after.places, most) for most in (None, known.most))
        if _distinct(free, bound, noise) and _near(gain, free, bound, noise):
            self._findings[run, operator] = _Finding(now, None)


def _ratio(before: Places, after: Places, most: int | None) -> float:
    """Return throughput after over before, if at most so many threads of a node run at a time."""
    return _running(after, most) / _running(before, most)


def _running(places: Places, most: int | None) -> int:
    return sum(count if most is None else min(count, most) for count in places.values())


def _distinct(free: float, bound: float, noise: float) -> bool:
    """Tell whether noise cannot make the one look like the other."""
    return (1 - PART) * abs(free - bound) >= SURE * noise * max(free, bound)


def _near(gain: float, here: float, there: float, noise: float) -> bool:
    """Tell whether a measured gain is within a fifth of the way from here to there, or as near on the other side."""
    way = PART * abs(there - here)
    return -way - 2 * noise * here <= (gain - here) * math.copysign(1.0, there - here) <= way


def _mean(rates: deque[float]) -> float:
    return max(math.fsum(rates) / len(rates), 1e-9)


def _noise(before: deque[float], after: deque[float]) -> float:
    """Return the standard deviation of the ratio of two means, relative."""
    return math.sqrt(sum(_spread(rates) ** 2 / len(rates) for rates in (before, after)))


def _spread(rates: deque[float]) -> float:
    if len(rates) < 2:
        return NOISE
    mean = _mean(rates)
    deviation = math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1))
    return max(deviation / mean, NOISE)
