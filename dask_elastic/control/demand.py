"""The number of cores a job needs, from its measurements: Elasticutor, section 4.1, extended for a running system.

Goal
    The fewest cores that keep the latency target, found soon after a change of load and not released too soon.
Method
    The Jackson network of `dask_elastic.model.jackson` (first erratum), with sub-batches as customers, for the latency
    target minus the hop; see `dask_elastic.control.calibration`.

    *An overloaded job* (`dask_elastic.control.overload`): its arrival rates do not show its demand, since credits
    throttle the arrivals at all executors to what the slowest one processes. But they throttle in proportion, since all
    tuples come from the same sources. The demand of each executor is therefore taken to be `growth` times what it
    processes now, repeatedly until no executor is overloaded. If there are enough cores, they grow by that factor each
    period; otherwise they are shared in proportion to the loads, which is correct at once, however strongly the sources
    are throttled. Arrival rates give the proportions: workers report them for the same time, and a batch reaches all
    executors at once, while each executor's throughput fluctuates with its queue. Throughput gives the level.

    *A job with source lag but without an overloaded executor*, because credits keep its tuples at the sources: its
    demand includes what it takes to catch up within `drain_within`. The source lag is the end-to-end latency beyond hop
    and sojourn. While it grows, arrivals are scaled up to the offered rate (`dask_elastic.control.lag`).

    *A job that meets its target* keeps its cores, whatever the model would choose, until it has needed fewer for a
    while. The load at which cores are added and the one at which they are released are separated by a gap for noise
    (`headroom`, `release_headroom`).
Not done
    Sharing between jobs, and the choice of nodes: `dask_elastic.control.sharing`, `dask_elastic.control.assignment`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dask_elastic.control.calibration import Calibration
from dask_elastic.control.hysteresis import Hysteresis
from dask_elastic.control.lag import Lag
from dask_elastic.control.overload import backlogs, overloaded, utilisations
from dask_elastic.control.queues import Amounts, Cores, Queues
from dask_elastic.control.settings import ControlSettings
from dask_elastic.model.jackson import Allocation
from dask_elastic.model.queueing import MOST_SERVERS
from dask_elastic.planning.turns import no_pause
from dask_elastic.vocab.snapshot import JobSnapshot

ENOUGH_OF_BEST = 1.1
"""If a target cannot be reached, a job within this factor of the best latency keeps its cores."""

CALM = 2.5
"""Seconds after an overload or a change of cores for which measurements are still affected by it."""

BUSY = 0.6
"""Source lag is attributed to a lack of cores only if some executor's utilisation is at least this."""

MOST_LATENCY = 1e6
"""Seconds that replace an infinite target: a job without a target accepts any finite latency."""

_WELL_ABOVE = 4
"""The model searches allocations of up to this many times the cores required for stable queues."""


@dataclass(frozen=True, eq=False)
class JobDemand:
    """The cores a job needs; arrays have one entry per modelled executor.

    Parameters
    ----------
    indices : tuple of int
        The modelled executors, by their index in the job: those that are measured and not pinned.
    queues : Queues
        The planned load: measured arrivals with headroom, or with growth.
    target : float
        Seconds of sojourn that these executors may take, ``inf`` without a target.
    most : array of int
        Number of cores above which an executor does not get faster.
    current : array of int
        Cores held.
    needed : array of int
        Cores needed.
    keep : array of int
        Cores kept unless other jobs need them: those needed, and a surplus that has not lasted long enough.
    overloaded : tuple of int
        Indices of overloaded executors, including pinned ones.
    satisfied : bool
        Whether the cores held are enough.
    feasible : bool
        Whether some allocation meets the job's target.
    hop, error : float
        The model's calibration: seconds outside of the executors, and measured divided by modelled sojourn.
    source_lag : float
        Source lag under backpressure, in seconds.
    """

    indices: tuple[int, ...]
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
    source_lag: float = 0.0

    @property
    def can_relieve(self) -> bool:
        """Whether more cores can relieve an overloaded executor."""
        return not set(self.indices).isdisjoint(self.overloaded)


class JobModel:
    """The queueing model of one generation of a job, and its past measurements.

    Parameters
    ----------
    settings : ControlSettings
        Headroom, growth, and times of release.
    pause : callable
        Called between steps.
    """

    def __init__(self, settings: ControlSettings, pause: Callable[[], None] = no_pause):
        self._settings = settings
        self._pause = pause
        self._calibration = Calibration()
        self._lag = Lag()
        self._hysteresis = Hysteresis(settings.release_after)
        self._cores: Cores = np.zeros(0, dtype=np.int64)
        self._overloaded: tuple[int, ...] = ()
        self._disturbed = -math.inf

    def demand(self, job: JobSnapshot, now: float, available: int, most: Cores) -> JobDemand:
        """Return the cores the job needs.

        Parameters
        ----------
        job : JobSnapshot
            The job's measurements.
        now : float
            The time in seconds.
        available : int
            Largest number of cores that the modelled executors could have together, at least one each.
        most : array of int
            For each executor of the job, the number of cores above which it does not get faster.

        Returns
        -------
        JobDemand
            The demand of the modelled executors.
        """
        chosen = np.flatnonzero((job.service_rates != 0) & ~job.pinned)
        indices = tuple(chosen.tolist())
        self.learn(job, now)
        self._pause()
        overloads = self._overloaded
        can_relieve = not set(overloads).isdisjoint(indices)
        queues = Queues.of(job, chosen)
        target = self._target(job)
        limits = np.maximum(most[chosen], 1)
        current, working = job.total_cores[chosen], job.working_cores[chosen]
        source_lag = 0.0 if overloads or int(current.sum()) >= available else self._source_lag(job)
        if can_relieve:
            planned = self._planned_overloaded(queues, job.throughputs[chosen])
        else:
            planned = self._planned(queues, self._backlog(job)[chosen], source_lag)
        # An idle executor that lost its cores meets any target, but not the next batch.
        enough = bool(current.all()) and planned.latency(current) <= min(target, MOST_LATENCY)
        satisfied, feasible = not can_relieve and enough, True
        if satisfied:
            needed = self._without_surplus(queues, target, current)
        else:
            self._pause()
            wanted = self._wanted(planned, target, limits, available)
            self._pause()
            satisfied = not can_relieve and not wanted.feasible and _is_near(planned, current, wanted)
            needed = current if satisfied else wanted.cores
            feasible = job.latency_target is None or self._feasible(wanted, available, can_relieve, current)
        self._remember(job, now, chosen, needed)
        keep = self._keep(job, now, chosen, needed, working, current, satisfied, float(queues.loads.sum()))
        if satisfied:
            recent = self._most(job, now, chosen, self._settings.yield_after)
            needed = np.minimum(current, np.maximum(needed, np.minimum(recent, working)))
        return JobDemand(
            indices, planned, target, limits, current, needed, keep, overloads, satisfied, feasible,
            self._calibration.hop, self._calibration.error, source_lag,
        )  # fmt: skip

    def predicted(self, job: JobSnapshot, cores: Cores) -> float | None:
        """Return the predicted latency for the measured arrivals.

        Parameters
        ----------
        job : JobSnapshot
            The job's measurements.
        cores : array of int
            Number of cores of each executor.

        Returns
        -------
        float or None
            Seconds; None while an executor is overloaded, since the offered load is unknown then, and before the first
            measurement.
        """
        known = np.flatnonzero(job.service_rates)
        if not known.size or self._overloaded:
            return None
        queues = Queues.of(job, known)
        if not queues.arrival.any():
            return None
        held, working = job.total_cores, job.working_cores
        # Those that do not speed an executor up are among the cores that it has now.
        working = np.where(cores > held, cores - held + working, np.minimum(cores, working))
        return self._calibration.hop + self._calibration.error * queues.latency(working[known])

    @property
    def patience(self) -> float:
        """How long a surplus must last now before it is released, in seconds."""
        return self._hysteresis.seconds

    def learn(self, job: JobSnapshot, now: float) -> None:
        """Update overloads and source lag; calibrate the model unless an overload or core change was recent."""
        before = np.zeros(len(job.executors), dtype=np.bool_)
        before[[index for index in self._overloaded if index < len(before)]] = True
        self._overloaded = tuple(np.flatnonzero(overloaded(job, self._settings, before)).tolist())
        self._lag.add(None if job.latency is None or job.sojourn is None else job.latency - job.sojourn, now)
        if self._overloaded or not np.array_equal(job.total_cores, self._cores):
            self._cores, self._disturbed = job.total_cores, now
        if now - self._disturbed >= CALM:
            self._compare(job)

    def _compare(self, job: JobSnapshot) -> None:
        if job.sojourn is not None:
            active = job.arrival_rates > 0
            modelled = Queues.of(job, active).latency(job.working_cores[active])
            self._calibration.add(job.latency, job.sojourn, modelled)

    def _source_lag(self, job: JobSnapshot) -> float:
        """Return the source lag under backpressure, in seconds; 0 if no executor is busy."""
        if job.latency is None or job.sojourn is None or float(utilisations(job).max()) < BUSY:
            return 0.0
        return max(0.0, job.latency - self._calibration.hop - job.sojourn - self._settings.backlog)

    def _target(self, job: JobSnapshot) -> float:
        """Return the part of the target that remains for the modelled executors, in the model's seconds."""
        if job.latency_target is None:
            return math.inf
        pinned = job.pinned & (job.service_rates != 0)
        spent = 0.0
        if pinned.any():
            spent = Queues.of(job, pinned).latency(job.working_cores[pinned])
        # The others cannot compensate for an overloaded pinned executor.
        spent = 0.0 if math.isinf(spent) else spent
        return (job.latency_target - self._calibration.hop) / self._calibration.error - spent

    def _planned_overloaded(self, queues: Queues, achieved: Amounts) -> Queues:
        """Return the planned load under backpressure: `growth` times the throughput, distributed as the arrivals."""
        level = float(achieved.sum()) / arriving if (arriving := float(queues.arrival.sum())) > 0 else 0.0
        shared = queues.arrival * level if level > 0 else achieved
        return queues.with_arrival(shared, queues.external).scaled(self._settings.growth)

    def _planned(self, queues: Queues, backlog: Amounts, source_lag: float) -> Queues:
        more = min(source_lag / self._settings.drain_within, self._settings.growth - 1)
        due = queues.scaled(self._lag.offered_ratio) if source_lag > 0 else queues
        planned = due.scaled(1 + self._settings.headroom + more)
        return planned.with_arrival(planned.arrival + backlog, planned.external)

    def _backlog(self, job: JobSnapshot) -> Amounts:
        """Return the tuples per second with which each executor drains its backlog beyond a short burst."""
        excess = np.maximum(backlogs(job) - self._settings.backlog, 0.0) * job.service_rates * job.working_cores
        return excess / self._settings.drain_within

    def _wanted(self, planned: Queues, target: float, most: Cores, available: int) -> Allocation:
        """Return the model's allocation, even if it exceeds the available cores."""
        stable = int(np.floor(planned.loads).sum()) + len(most)
        return planned.best_effort(target, max(available, min(_WELL_ABOVE * stable, MOST_SERVERS)), most)

    def _without_surplus(self, queues: Queues, target: float, current: Cores) -> Cores:
        """Return the fewest of the held cores that meet the target with `release_headroom`."""
        cautious = queues.scaled(1 + self._settings.release_headroom)
        if not cautious.latency(current) <= min(target, MOST_LATENCY):
            return current
        return cautious.fewest(target, int(current.sum()), current).cores

    def _remember(self, job: JobSnapshot, now: float, chosen: Cores, needed: Cores) -> None:
        """Record the cores needed; for executors that are not modelled, the cores held."""
        needs = job.total_cores.copy()
        needs[chosen] = needed
        self._hysteresis.add(now, needs)

    def _most(self, job: JobSnapshot, now: float, chosen: Cores, seconds: float | None = None) -> Cores:
        most: Cores = self._hysteresis.most(now, job.total_cores, seconds)[chosen]
        return most

    def _keep(
        self,
        job: JobSnapshot,
        now: float,
        chosen: Cores,
        needed: Cores,
        working: Cores,
        current: Cores,
        satisfied: bool,
        load: float,
    ) -> Cores:
        """Return the cores that executors keep, and update the hysteresis; those that bring nothing are not kept."""
        if satisfied:
            self._hysteresis.calm(now, load)
        elif (needed > current).any():
            self._hysteresis.grown(now)
        if job.latency_target is None:
            return np.maximum(needed, working)
        keep = np.maximum(needed, np.minimum(working, self._most(job, now, chosen)))
        if satisfied and (keep < current).any():
            self._hysteresis.released(now, load)
        return keep

    def _feasible(self, wanted: Allocation, available: int, can_relieve: bool, current: Cores) -> bool:
        """Return whether the target can be met; assumed of an overloaded job until it has all available cores."""
        if can_relieve:
            return int(current.sum()) < available
        return wanted.feasible and int(wanted.cores.sum()) <= available


def _is_near(planned: Queues, current: Cores, wanted: Allocation) -> bool:
    """Return whether a job whose target cannot be reached is nearly as fast as possible."""
    return planned.is_stable(current) and planned.latency(current) <= ENOUGH_OF_BEST * wanted.latency
