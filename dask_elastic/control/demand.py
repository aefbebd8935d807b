"""How many cores a job needs, from what is measured of it: Elasticutor, section 4.1, with what a running system adds.

Goal
    The fewest cores that keep the latency target, found soon after the load has changed, and not given back too soon.
Method
    The Jackson network of `dask_elastic.model.jackson` (first erratum), with sub-batches as customers and for what is
    left of the target when the hop is taken off; see `dask_elastic.control.hop`.

    *An overloaded job* (`dask_elastic.control.overload`) tells its demand no longer: credits throttle what arrives at
    all of its executors to what the slowest lets through. But they throttle in proportion, since all of it comes from
    the same sources. So the demand of each executor is taken to be `growth` times what it achieves now, again and again
    until no executor is overloaded. Where cores suffice, they grow by that factor each period; where they do not, they
    are shared in proportion to the loads, which is right at once, however much the sources hold back. Arrivals tell
    the proportions: workers report of the same moments, and a batch reaches all executors at once, while what each of
    them achieves goes up and down with its queue. Throughput tells the level.

    *A job that lags behind* although nobody is overloaded, since credits keep its tuples at the sources, is planned
    for as much more as works that off in a while: what is measured from end to end beyond hop and sojourn. While that
    grows, what arrives is taken to be more by what the sources are held back (`dask_elastic.control.lag`).

    *A job that keeps its target* with the cores that it has keeps them, whatever the model would choose, until it has
    needed fewer for a while. Between the load at which cores are added and the load at which they are given back is a
    gap (`headroom`, `release_headroom`) for noise to fall into.
Not done
    Sharing between jobs, and which node's cores: `dask_elastic.control.sharing`, `dask_elastic.control.assignment`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dask_elastic.control.hop import Hop
from dask_elastic.control.hysteresis import Hysteresis
from dask_elastic.control.lag import Lag
from dask_elastic.control.overload import overloaded, utilisation, waiting_seconds
from dask_elastic.control.queues import NO_LIMIT, Amounts, Cores, Queues
from dask_elastic.control.settings import ControlSettings
from dask_elastic.model.jackson import Allocation
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot

ENOUGH_OF_BEST = 1.1
"""Where a target is out of reach, a job that comes so near to the best latency is left as it is."""

CALM = 2.5
"""Seconds after an overload or a change of cores in which measurements still tell of it."""

BUSY = 0.6
"""Tuples wait at the sources for want of cores only where some executor's are busy for such a part of the time."""

MOST_LATENCY = 1e6
"""Seconds: a job without a target is satisfied with any latency that is finite."""

_WELL_ABOVE = 4
"""The model looks for allocations of up to so many times the cores without which queues grow."""


@dataclass(frozen=True, eq=False)
class Demand:
    """What a job needs at one moment; arrays are over those of its executors that can be decided about.

    Parameters
    ----------
    places : tuple of int
        Which of the job's executors these are: measured ones whose cores are not pinned.
    queues : Queues
        What arrives there, as it is planned for: with headroom, or with growth.
    target : float
        Seconds that these queues may take, ``inf`` without a target.
    most : array of int
        Cores above which an executor does not get faster.
    current : array of int
        Cores that each has.
    needed : array of int
        Cores that each needs.
    keep : array of int
        Cores that each keeps where nobody else needs them: those needed, and a surplus that has not lasted.
    overloaded : tuple of int
        Places of executors that are overloaded, pinned ones too.
    satisfied : bool
        Whether what they have is enough.
    feasible : bool
        Whether there is an allocation of these executors that keeps the job's target.
    hop, error : float
        Seconds outside of the queues, and measured over modelled sojourn.
    behind : float
        Seconds for which tuples wait at their sources, since the job takes no more of them.
    """

    places: tuple[int, ...]
    queues: Queues
    target: float
    most: Cores
    current: Cores
    needed: Cores
    keep: Cores
    overloaded: tuple[int, ...]
    satisfied: bool
    feasible: bool
    hop: float
    error: float
    behind: float = 0.0

    @property
    def pressed(self) -> bool:
        """Whether more cores could help an executor that is overloaded."""
        return not set(self.places).isdisjoint(self.overloaded)


class JobModel:
    """What is known of one run of a job.

    Parameters
    ----------
    settings : ControlSettings
        How careful to be.
    """

    def __init__(self, settings: ControlSettings):
        self._settings = settings
        self._hop = Hop()
        self._lag = Lag()
        self._hysteresis = Hysteresis(settings.release_after)
        self._cores: tuple[int, ...] = ()
        self._overloaded: tuple[int, ...] = ()
        self._disturbed = -math.inf

    def demand(self, job: JobSnapshot, now: float, available: int, most: Cores) -> Demand:
        """Return what the job needs.

        Parameters
        ----------
        job : JobSnapshot
            What is measured.
        now : float
            When, in seconds.
        available : int
            Cores that the executors which can be decided about could have at most, at least one each.
        most : array of int
            For each executor of the job the cores that help it at most.

        Returns
        -------
        Demand
            For the executors that can be decided about.
        """
        places = tuple(i for i, executor in enumerate(job.executors) if executor.service_rate and not executor.pinned)
        chosen = [job.executors[i] for i in places]
        self.learn(job, now)
        busy = self._overloaded
        pressed = any(i in places for i in busy)
        queues = Queues.of(chosen, _entering(job))
        target = self._target(job)
        limits = np.maximum(most[list(places)], 1)
        current = np.array([executor.total_cores for executor in chosen], dtype=np.int64)
        behind = 0.0 if busy or int(current.sum()) >= available else self._behind(job)
        planned = self._pressed(queues, chosen) if pressed else self._planned(queues, chosen, behind)
        satisfied, feasible = not pressed and planned.latency(current) <= min(target, MOST_LATENCY), True
        if satisfied:
            needed = self._without_surplus(queues, target, current)
        else:
            wanted = self._wanted(planned, target, limits, available)
            satisfied = not pressed and not wanted.feasible and _is_near(planned, current, wanted)
            needed = current if satisfied else wanted.cores
            feasible = job.latency_target is None or self._feasible(wanted, available, pressed, current)
        self._remember(job, now, places, needed)
        keep = self._keep(job, now, places, needed, current, satisfied, float(queues.loads.sum()))
        if satisfied:
            recent = self._most(job, now, places, self._settings.yield_after)
            needed = np.minimum(current, np.maximum(needed, recent))
        return Demand(
            places, planned, target, limits, current, needed, keep, busy, satisfied, feasible, self._hop.seconds,
            self._hop.error, behind,
        )  # fmt: skip

    def predicted(self, job: JobSnapshot, cores: Cores) -> float | None:
        """Return the latency to expect of so many cores for each executor, at the arrivals that are measured.

        Returns
        -------
        float or None
            Seconds; None while an executor is overloaded, since the arrivals are not known then, and before anything
            is measured.
        """
        known = [i for i, executor in enumerate(job.executors) if executor.service_rate]
        if not known or self._overloaded:
            return None
        queues = Queues.of([job.executors[i] for i in known], _entering(job))
        if not queues.arrival.any():
            return None
        return self._hop.seconds + self._hop.error * queues.latency(cores[known])

    def learn(self, job: JobSnapshot, now: float) -> None:
        """Note who is overloaded; compare what is measured with the model, where nothing has disturbed it of late."""
        self._overloaded = tuple(
            place
            for place, executor in enumerate(job.executors)
            if overloaded(executor, self._settings, before=place in self._overloaded)
        )
        sojourn = _sojourn(job)
        self._lag.add(None if job.latency is None or sojourn is None else job.latency - sojourn, now)
        cores = tuple(executor.total_cores for executor in job.executors)
        if self._overloaded or cores != self._cores:
            self._cores, self._disturbed = cores, now
        if now - self._disturbed >= CALM:
            self._compare(job)

    def _compare(self, job: JobSnapshot) -> None:
        sojourn = _sojourn(job)
        if sojourn is not None:
            active = _active(job)
            held = np.array([executor.total_cores for executor in active], dtype=np.int64)
            self._hop.add(job.latency, sojourn, Queues.of(active, _entering(job)).latency(held))

    def _behind(self, job: JobSnapshot) -> float:
        """Return the seconds for which tuples wait at their sources for want of cores."""
        sojourn = _sojourn(job)
        if job.latency is None or sojourn is None or max(map(utilisation, job.executors)) < BUSY:
            return 0.0
        return max(0.0, job.latency - self._hop.seconds - sojourn - self._settings.backlog)

    def _target(self, job: JobSnapshot) -> float:
        """Return what is left of the target for the executors that can be decided about, in the model's seconds."""
        if job.latency_target is None:
            return math.inf
        pinned = [executor for executor in job.executors if executor.pinned and executor.service_rate]
        spent = 0.0
        if pinned:
            held = np.array([executor.total_cores for executor in pinned], dtype=np.int64)
            spent = Queues.of(pinned, _entering(job)).latency(held)
        # Where a pinned executor is overloaded, nothing that the others could do would make up for it.
        spent = 0.0 if math.isinf(spent) else spent
        return (job.latency_target - self._hop.seconds) / self._hop.error - spent

    def _pressed(self, queues: Queues, executors: list[ExecutorSnapshot]) -> Queues:
        """Return what is planned for while the sources are held back: more than is achieved, as arrivals share it."""
        achieved = np.array([executor.throughput for executor in executors], dtype=np.float64)
        level = float(achieved.sum()) / arriving if (arriving := float(queues.arrival.sum())) > 0 else 0.0
        shared = queues.arrival * level if level > 0 else achieved
        return queues.with_arrival(shared, queues.external).scaled(self._settings.growth)

    def _planned(self, queues: Queues, executors: list[ExecutorSnapshot], behind: float) -> Queues:
        more = min(behind / self._settings.drain_within, self._settings.growth - 1)
        due = queues.scaled(self._lag.held_back) if behind > 0 else queues
        planned = due.scaled(1 + self._settings.headroom + more)
        return planned.with_arrival(planned.arrival + self._backlog(executors), planned.external)

    def _backlog(self, executors: list[ExecutorSnapshot]) -> Amounts:
        """Return the tuples per second that work off what waits beyond a short burst."""
        excess = [
            max(0.0, waiting_seconds(executor) - self._settings.backlog)
            * (executor.service_rate or 0.0)
            * executor.total_cores
            for executor in executors
        ]
        return np.array(excess, dtype=np.float64) / self._settings.drain_within

    def _wanted(self, planned: Queues, target: float, most: Cores, available: int) -> Allocation:
        """Return what the model asks for, whether or not there are so many cores."""
        stable = int(np.floor(planned.loads).sum()) + len(most)
        return planned.best_effort(target, max(available, _WELL_ABOVE * stable), most)

    def _without_surplus(self, queues: Queues, target: float, current: Cores) -> Cores:
        """Return the fewest of the cores held that keep the target, with more headroom than growing takes."""
        cautious = queues.scaled(1 + self._settings.release_headroom)
        if not cautious.latency(current) <= min(target, MOST_LATENCY):
            return current
        return cautious.fewest(target, int(current.sum()), current).cores

    def _remember(self, job: JobSnapshot, now: float, places: tuple[int, ...], needed: Cores) -> None:
        """Note what executors need; of those that cannot be decided about that is what they have."""
        needs = _held(job)
        needs[list(places)] = needed
        self._hysteresis.add(now, needs)

    def _most(self, job: JobSnapshot, now: float, places: tuple[int, ...], seconds: float | None = None) -> Cores:
        most: Cores = self._hysteresis.most(now, _held(job), seconds)[list(places)]
        return most

    def _keep(
        self,
        job: JobSnapshot,
        now: float,
        places: tuple[int, ...],
        needed: Cores,
        current: Cores,
        satisfied: bool,
        load: float,
    ) -> Cores:
        """Return what executors keep, and follow whether giving cores back was a mistake."""
        if satisfied:
            self._hysteresis.calm(now, load)
        elif (needed > current).any():
            self._hysteresis.grown(now)
        if job.latency_target is None:
            return np.maximum(needed, current)
        keep = np.maximum(needed, np.minimum(current, self._most(job, now, places)))
        if satisfied and (keep < current).any():
            self._hysteresis.released(now, load)
        return keep

    def _feasible(self, wanted: Allocation, available: int, pressed: bool, current: Cores) -> bool:
        """Tell whether the target can be kept; of an overloaded job that is not known before it has all cores."""
        if pressed:
            return int(current.sum()) < available
        return wanted.feasible and int(wanted.cores.sum()) <= available


def _held(job: JobSnapshot) -> Cores:
    return np.array([executor.total_cores for executor in job.executors], dtype=np.int64)


def _entering(job: JobSnapshot) -> float:
    return sum(executor.arrival_rate for executor in job.executors if executor.entry)


def _active(job: JobSnapshot) -> list[ExecutorSnapshot]:
    return [executor for executor in job.executors if executor.arrival_rate > 0]


def _sojourn(job: JobSnapshot) -> float | None:
    """Return the seconds that a tuple is measured to spend in executors, over its way; None where that is not known."""
    active, entering = _active(job), _entering(job)
    if not active or entering <= 0 or any(one.sojourn is None or not one.service_rate for one in active):
        return None
    return sum(one.arrival_rate * (one.sojourn or 0.0) for one in active) / entering


def _is_near(planned: Queues, current: Cores, wanted: Allocation) -> bool:
    """Tell whether a job whose target is out of reach is about as fast as it can be."""
    return planned.is_stable(current) and planned.latency(current) <= ENOUGH_OF_BEST * wanted.latency


def no_limits(job: JobSnapshot) -> Cores:
    """Return limits that hold no executor of a job back."""
    return np.full(len(job.executors), NO_LIMIT, dtype=np.int64)
