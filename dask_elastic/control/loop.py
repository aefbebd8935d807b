"""The control loop: one snapshot in, one plan out (Elasticutor, section 4).

Goal
    Each job keeps its latency target with few cores; cores follow the load within one or two periods and do not change
    while the load does not; each decision states its reason.
Method
    Modules in the order in which a tick calls them: `gil_bound` measures the effect of past core changes; `demand`
    computes the cores needed from the measurements; `sharing` divides the available cores; `assignment` chooses their
    nodes; `guard` defers changes that come too soon; `decision_writer` states the reasons. No module knows a later one.
Not done
    Measuring, and carrying plans out. Executors balance their shards themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.assignment import assign, with_room
from dask_elastic.control.decision_writer import DecisionWriter, JobPlan, Preview
from dask_elastic.control.demand import JobModel
from dask_elastic.control.gil_bound import GilBound
from dask_elastic.control.grants import Grants, core_change, core_problem, occupied, proposed_changes, usable
from dask_elastic.control.guard import Admission, Guard, ProposedChange
from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.queues import NO_LIMIT
from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import Divider, fair_shares
from dask_elastic.control.steady_time import SteadyTime
from dask_elastic.planning.turns import in_turns, no_pause
from dask_elastic.vocab.plan import Outlook, Plan
from dask_elastic.vocab.snapshot import JobSnapshot, Snapshot

Cores = NDArray[np.int64]
Mask = NDArray[np.bool_]


def _no_clock() -> float:
    return 0.0


class _JobState:
    """What the loop remembers of one generation of a job."""

    def __init__(self, settings: ControlSettings, now: float, pause: Callable[[], None]):
        self.since = now
        self.model = JobModel(settings, pause)
        self.divider = Divider(settings, pause)


class ControlLoop:
    """Turns snapshots into plans; the same sequence of snapshots gives the same plans.

    Parameters
    ----------
    settings : ControlSettings, optional
        The settings; the defaults if not given.
    planner : str, optional
        The core planner for all jobs; if not given, the one that each job names.
    clock : callable
        Returns seconds; measures how long a tick takes. The default always returns 0.
    pause : callable
        Called between steps, about every millisecond of work, so that the caller can yield to an event loop.

    Raises
    ------
    UnknownPlanner
        By `tick`, if there is no core planner of a requested name.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot
    >>> executor = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, arrival_rate=900.0, service_rate=500.0)
    >>> job = JobSnapshot("words", 1, (executor,), latency_target=0.1)
    >>> plan = ControlLoop().tick(Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 8),), (job,)))
    >>> plan.changes[0].after
    {0: 3}
    >>> plan.decisions[0].reason
    'its cores are too few for 990 tuples/s (headroom included).'
    """

    def __init__(
        self,
        settings: ControlSettings | None = None,
        planner: str | None = None,
        clock: Callable[[], float] = _no_clock,
        pause: Callable[[], None] = no_pause,
    ):
        self.settings = settings or ControlSettings()
        self._planner = planner
        self._clock = clock
        self._pause = pause
        self._bound = GilBound(self.settings, pause)
        self._guard = Guard(self.settings, pause)
        self._writer = DecisionWriter(self.settings, pause)
        self._states: dict[JobKey, _JobState] = {}
        self._time = SteadyTime()

    def tick(self, snapshot: Snapshot) -> Plan:
        """Return the plan for a snapshot.

        Parameters
        ----------
        snapshot : Snapshot
            The current measurements. They are later than those of the previous tick, unless the clock was set back.

        Returns
        -------
        Plan
            Changes for elastic jobs outside of dry runs; decisions and outlooks for all jobs.
        """
        started = self._clock()
        seen = self._time.seen(snapshot)
        job_plans, admission, outlook = self._plan(seen)
        written = [
            self._writer.decision(job_plan, outlook[job_plan.job.name], self._limits(job_plan.job), seen)
            for job_plan in in_turns(job_plans, self._pause)
        ]
        spent, now = self._clock() - started, snapshot.now
        decisions = tuple(replace(decision, time=now, seconds=spent) for decision in written if decision is not None)
        changes = tuple(map(core_change, in_turns(admission.admitted, self._pause)))
        return Plan(changes, decisions, outlook)

    def preview(self, snapshot: Snapshot) -> dict[str, Preview]:
        """Return what `tick` would decide, and what the decisions are based on; the loop stays as it is.

        Parameters
        ----------
        snapshot : Snapshot
            The measurements; later than those of the last tick.

        Returns
        -------
        dict of str to Preview
            One for each elastic job, by its name.
        """
        loop = copy.deepcopy(self)
        seen = loop._time.seen(snapshot)
        job_plans, _, outlook = loop._plan(seen)
        return {
            job_plan.job.name: Preview(
                job_plan,
                outlook[job_plan.job.name],
                loop._state(job_plan.job).model.predicted(job_plan.job, job_plan.job.total_cores),
                loop._limits(job_plan.job),
                loop._writer.reason(job_plan, loop._limits(job_plan.job), seen),
                loop._state(job_plan.job).model.patience,
            )
            for job_plan in job_plans
        }

    def forecast(self, snapshot: Snapshot, job: JobSnapshot) -> float | None:
        """Return the latency that the model predicts for a job with other loads than the measured ones.

        Parameters
        ----------
        snapshot : Snapshot
            The measurements; later than those of the last tick.
        job : JobSnapshot
            A job of the snapshot, whose executors may have other rates.

        Returns
        -------
        float or None
            Seconds, ``inf`` if queues grow; None without a prediction, as while an executor is overloaded.
        """
        loop = copy.deepcopy(self)
        seen = loop._time.seen(snapshot)
        loop._update_states(seen)
        model = loop._state(job).model
        model.learn(next(one for one in seen.jobs if job_key(one) == job_key(job)), seen.now)
        return model.predicted(job, job.total_cores)

    def _plan(self, snapshot: Snapshot) -> tuple[list[JobPlan], Admission, dict[str, Outlook]]:
        """Decide on a snapshot, without writing decisions."""
        self._bound.observe(snapshot)
        self._pause()
        self._update_states(snapshot)
        elastic = [job for job in snapshot.jobs if job.paradigm == "executor-centric"]
        real, dry = ([job for job in elastic if job.dry_run is is_dry] for is_dry in (False, True))
        job_plans, admission = self._decide(snapshot, real, dry_run=False)
        if dry:
            after = _carried_out(snapshot, admission.admitted)
            job_plans += self._decide(after, [job for job in after.jobs if job in dry], dry_run=True)[0]
        outlook = {job_plan.job.name: self._outlook(job_plan) for job_plan in job_plans}
        outlook |= {
            job.name: self._static_outlook(job, snapshot.now)
            for job in snapshot.jobs
            if job.paradigm != "executor-centric"
        }
        return job_plans, admission, outlook

    def _update_states(self, snapshot: Snapshot) -> None:
        """Forget jobs that have ended, and start with new ones."""
        self._states = {
            key: self._states.get(key) or _JobState(self.settings, snapshot.now, self._pause)
            for key in map(job_key, snapshot.jobs)
        }
        self._writer.forget_all_but(self._states)

    def _state(self, job: JobSnapshot) -> _JobState:
        return self._states[job_key(job)]

    def _decide(
        self, snapshot: Snapshot, jobs: Sequence[JobSnapshot], dry_run: bool
    ) -> tuple[list[JobPlan], Admission]:
        """Plan for some of the jobs; the cores of all others stay as they are."""
        slots = usable(snapshot.nodes)
        free, movable = _split(snapshot, jobs, slots)
        self._pause()
        job_plans = self._job_plans(jobs, free, movable, snapshot)
        grants = [self._grants(job_plan, movable[job_plan.job.name], snapshot.now) for job_plan in job_plans]
        if not any(one.executors for one in grants) or not slots.any():
            return job_plans, Admission((), {})
        before = with_room(
            core_problem(grants, snapshot.nodes, free, self.settings.locality_threshold, self._pause), slots
        )
        self._pause()
        after = assign(
            before,
            [self._planner or one.job.planner for one in grants for _ in one.executors],
            np.concatenate([one.keep for one in grants]),
            np.concatenate([one.per_node for one in grants]),
            [node.host for node in snapshot.nodes],
            self.settings.seed,
        )
        self._pause()
        proposed = proposed_changes(grants, snapshot.nodes, before, after)
        if dry_run:
            admission = Admission(tuple(proposed), {})
        else:
            admission = self._guard.vet(snapshot.now, proposed, before.capacity - before.columns.per_node)
        return [_with_changes(job_plan, proposed, admission) for job_plan in job_plans], admission

    def _job_plans(
        self, jobs: Sequence[JobSnapshot], free: Cores, movable: Mapping[str, Mask], snapshot: Snapshot
    ) -> list[JobPlan]:
        """Compute each job's demand and the cores it gets."""
        reserved = [self._reserved(job, movable[job.name], snapshot.now) for job in jobs]
        counts = [int(movable[job.name].sum()) for job in jobs]
        total = int(free.sum()) - sum(sum(cores.values()) for cores in reserved)
        modelled = [count - len(cores) for count, cores in zip(counts, reserved, strict=True)]
        demands = []
        for job, own in zip(jobs, modelled, strict=True):
            available = max(total - (sum(modelled) - own), own)
            most = self._most(job, snapshot)
            self._pause()
            demands.append(self._state(job).model.demand(job, snapshot.now, available, most))
            self._pause()
        # First the cores that jobs need are divided, then those that they may keep.
        shares = fair_shares([int(demand.needed.sum()) for demand in demands], modelled, max(total, 0))
        shares = fair_shares([int(demand.keep.sum()) for demand in demands], shares, max(total, 0))
        return [
            JobPlan(
                job,
                demand,
                self._state(job).divider.divide(demand, share, snapshot.now),
                slots=int(free.sum()),
                crowded=int(free.sum()) < sum(counts),
            )
            for job, demand, share in zip(jobs, demands, shares, strict=True)
        ]

    def _reserved(self, job: JobSnapshot, movable: Mask, now: float) -> dict[int, int]:
        """Return the cores reserved for executors that the model does not cover, by the executor's index.

        An executor without measurements keeps its cores for a while, then one. Pinned executors are included if one of
        their nodes retires: their cores change nodes, but not in number.
        """
        young = now - self._state(job).since < self.settings.release_after
        found = {}
        for index in np.flatnonzero(movable & (job.pinned | (job.service_rates == 0))).tolist():
            executor = job.executors[index]
            found[index] = max(executor.total_cores if executor.pinned or young else 1, 1)
        return found

    def _most(self, job: JobSnapshot, snapshot: Snapshot) -> Cores:
        """Return how many cores can speed each executor up, limited by the GIL, its shards, and unconfirmed growth."""
        bound = self._limits(job)
        held, most = job.total_cores, np.full(len(job.executors), NO_LIMIT, dtype=np.int64)
        if bound:
            slots = usable(snapshot.nodes)
            per_node = {name: int(np.minimum(slots, limit).sum()) for name, limit in bound.items()}
            most[:] = [per_node.get(executor.executor.component, NO_LIMIT) for executor in job.executors]
        skewed = (held > 1) & (job.heaviest_shards > 0)
        most[skewed] = np.minimum(most[skewed], np.ceil(1 / job.heaviest_shards[skewed]).astype(np.int64) + 1)
        if doubted := self._bound.in_doubt(job, snapshot.now):
            unsure = np.array([executor.executor in doubted for executor in job.executors])
            most[unsure] = np.minimum(most[unsure], held[unsure])
        return np.maximum(most, 1)

    def _grants(self, job_plan: JobPlan, movable: Mask, now: float) -> Grants:
        self._pause()
        job, demand, portion, limits = job_plan.job, job_plan.demand, job_plan.portion, self._limits(job_plan.job)
        granted, keep, modelled = np.zeros_like(job.total_cores), job.total_cores.copy(), list(demand.indices)
        granted[modelled], keep[modelled] = portion.cores, portion.keep
        for index, count in self._reserved(job, movable, now).items():
            granted[index] = count
        per_node = np.zeros_like(granted)
        if limits:
            per_node[:] = [limits.get(executor.executor.component, 0) for executor in job.executors]
            per_node[job.pinned] = 0
        missed = job.latency_target is not None and (job.latency or 0.0) > job.latency_target
        urgent = bool(demand.overloaded) or missed or not demand.queues.is_stable(demand.current)
        return Grants(job, np.flatnonzero(movable), granted[movable], keep[movable], per_node[movable], urgent)

    def _outlook(self, job_plan: JobPlan) -> Outlook:
        """Return the prediction for a job after its changes are carried out."""
        self._pause()
        job = job_plan.job
        cores = job.total_cores
        if job_plan.applied:
            after = {change.key[2]: sum(change.after.values()) for change in job_plan.changes}
            planned = [after.get(executor.executor, executor.total_cores) for executor in job.executors]
            cores = np.array(planned, dtype=np.int64)
        predicted = self._state(job).model.predicted(job, cores)
        bound = self._bound.operators(job)
        return Outlook(predicted, job_plan.demand.feasible, max(job_plan.portion.starved, 0), bound)

    def _static_outlook(self, job: JobSnapshot, now: float) -> Outlook:
        """Return the prediction for a static job, for which nothing is planned."""
        model = self._state(job).model
        model.learn(job, now)
        return Outlook(model.predicted(job, job.total_cores), bound=self._bound.operators(job))

    def _limits(self, job: JobSnapshot) -> dict[str, int]:
        """Return the GIL-bound operators of a job, and how many cores per node speed them up."""
        found: dict[str, int] = {}
        for name in self._bound.operators(job) and dict.fromkeys(e.executor.component for e in job.executors):
            most = self._bound.most(job, name)
            if most is not None:
                found[name] = most
        return found


def _split(snapshot: Snapshot, jobs: Sequence[JobSnapshot], slots: Cores) -> tuple[Cores, dict[str, Mask]]:
    """Return the cores available to the jobs, and by job whether the cores of each executor may change."""
    retiring = {number for number, node in enumerate(snapshot.nodes) if node.retiring}
    movable, chosen = {}, set(map(id, jobs))
    for job in jobs:
        movable[job.name] = ~job.pinned
        for index in np.flatnonzero(job.pinned).tolist():
            movable[job.name][index] = not retiring.isdisjoint(job.executors[index].cores)
    fixed = [
        executor
        for job in snapshot.jobs
        for executor in (compress(job.executors, ~movable[job.name]) if id(job) in chosen else job.executors)
    ]
    return np.maximum(slots - occupied(fixed, len(slots)), 0), movable


def _carried_out(snapshot: Snapshot, admitted: Sequence[ProposedChange]) -> Snapshot:
    """Return the snapshot as it would be after the changes."""
    after = {change.key: core_change(change).after for change in admitted}
    jobs = []
    for job in snapshot.jobs:
        cores = [after.get((job.name, job.generation, executor.executor)) for executor in job.executors]
        if any(mapping is not None for mapping in cores):
            changed = (
                executor if mapping is None else replace(executor, cores=mapping)
                for executor, mapping in zip(job.executors, cores, strict=True)
            )
            job = replace(job, executors=tuple(changed))
        jobs.append(job)
    return replace(snapshot, jobs=tuple(jobs))


def _with_changes(job_plan: JobPlan, proposed: Sequence[ProposedChange], admission: Admission) -> JobPlan:
    """Add a job's admitted changes, or if there are none its deferred ones."""
    key = job_key(job_plan.job)
    admitted = tuple(change for change in admission.admitted if change.key[:2] == key)
    deferred = {executor: why for executor, why in admission.deferred.items() if executor[:2] == key}
    changes = admitted or tuple(change for change in proposed if change.key in deferred)
    return replace(job_plan, changes=changes, deferred=deferred)
