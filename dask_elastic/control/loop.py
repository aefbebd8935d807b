"""The control loop: one snapshot in, one plan out (Elasticutor, section 4).

Goal
    Every job keeps its latency target with few cores; cores follow the load within one or two periods and rest when it
    rests; and each decision says why.
Method
    In the order in which a tick goes: `gil_bound` watches what changes of cores did; `demand` turns what is measured
    into cores needed; `sharing` divides what there is; `assignment` finds the nodes; `guard` holds back what comes too
    soon; `account` says why. Each is a module of its own, and none knows the one after it.
Not done
    Measuring, and carrying plans out. Shards are balanced by the executors themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.account import Account, Case, Run
from dask_elastic.control.assignment import assign, with_room
from dask_elastic.control.demand import JobModel
from dask_elastic.control.gil_bound import GilBound
from dask_elastic.control.guard import Guard, Step, Verdict
from dask_elastic.control.queues import NO_LIMIT
from dask_elastic.control.seats import Seat, change, occupied, problem, steps, usable
from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import Divider, fair_shares
from dask_elastic.vocab.plan import Outlook, Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

Cores = NDArray[np.int64]


def _no_clock() -> float:
    return 0.0


def _no_pause() -> None:
    pass


class _Memory:
    """What is known of one run of a job."""

    def __init__(self, settings: ControlSettings, now: float):
        self.since = now
        self.model = JobModel(settings)
        self.divider = Divider(settings)


class ControlLoop:
    """Turns snapshots into plans; the same snapshots in the same order give the same plans.

    Parameters
    ----------
    settings : ControlSettings, optional
        How quickly, how boldly and how carefully.
    planner : str, optional
        The core planner of all jobs, whatever they say.
    clock : callable
        Returns seconds; what deciding takes is measured with it. By default it stands still.
    pause : callable
        Called between steps, about every millisecond: who decides beside others can step aside there.

    Raises
    ------
    UnknownPlanner
        By `tick`, if no core planner has a name that is asked for.

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
    'the cores held are too few for 990 tuples/s, which is with headroom.'
    """

    def __init__(
        self,
        settings: ControlSettings | None = None,
        planner: str | None = None,
        clock: Callable[[], float] = _no_clock,
        pause: Callable[[], None] = _no_pause,
    ):
        self.settings = settings or ControlSettings()
        self._planner = planner
        self._clock = clock
        self._pause = pause
        self._bound = GilBound(self.settings)
        self._guard = Guard(self.settings)
        self._account = Account(self.settings)
        self._memories: dict[Run, _Memory] = {}

    def tick(self, snapshot: Snapshot) -> Plan:
        """Return what is to change.

        Parameters
        ----------
        snapshot : Snapshot
            What is measured now; later than that of the tick before.

        Returns
        -------
        Plan
            Changes of jobs that are elastic and not a dry run, and what there is to say about all jobs.
        """
        started = self._clock()
        self._bound.observe(snapshot)
        self._pause()
        self._remember(snapshot)
        elastic = [job for job in snapshot.jobs if job.paradigm != "static"]
        real, dry = ([job for job in elastic if job.dry_run is is_dry] for is_dry in (False, True))
        cases, verdict = self._decide(snapshot, real, dry_run=False)
        if dry:
            after = _carried_out(snapshot, verdict.admitted)
            cases += self._decide(after, [job for job in after.jobs if job in dry], dry_run=True)[0]
        outlook = {case.job.name: self._outlook(case) for case in cases}
        outlook |= {job.name: self._watched(job, snapshot.now) for job in snapshot.jobs if job.paradigm == "static"}
        said = [self._account.decision(case, outlook[case.job.name], self._limits(case), snapshot) for case in cases]
        spent = self._clock() - started
        decisions = tuple(replace(decision, seconds=spent) for decision in said if decision is not None)
        return Plan(tuple(map(change, verdict.admitted)), decisions, outlook)

    def _remember(self, snapshot: Snapshot) -> None:
        """Forget jobs that are gone, and begin to know those that are new."""
        self._memories = {
            run: self._memories.get(run) or _Memory(self.settings, snapshot.now)
            for run in ((job.name, job.generation) for job in snapshot.jobs)
        }
        self._account.forget_all_but(self._memories)

    def _memory(self, job: JobSnapshot) -> _Memory:
        return self._memories[job.name, job.generation]

    def _decide(self, snapshot: Snapshot, jobs: Sequence[JobSnapshot], dry_run: bool) -> tuple[list[Case], Verdict]:
        """Decide about some of the jobs; all others stay as they are."""
        slots = usable(snapshot.nodes)
        free, movable = _split(snapshot, jobs, slots)
        cases = self._cases(jobs, free, movable, snapshot)
        seats = [seat for case in cases for seat in self._seats(case, movable[case.job.name], snapshot.now)]
        if not seats or not slots.any():
            return cases, Verdict((), {})
        before = with_room(problem(seats, snapshot.nodes, free, self.settings.locality_threshold), slots)
        self._pause()
        after = assign(
            before,
            [self._planner or seat.job.planner for seat in seats],
            np.array([seat.keep for seat in seats], dtype=np.int64),
            np.array([seat.per_node for seat in seats], dtype=np.int64),
            [node.host for node in snapshot.nodes],
            self.settings.seed,
        )
        self._pause()
        proposed = steps(seats, snapshot.nodes, before, after)
        if dry_run:
            verdict = Verdict(tuple(proposed), {})
        else:
            verdict = self._guard.vet(snapshot.now, proposed, before.capacity - before.current.sum(axis=1))
        return [_with_changes(case, proposed, verdict) for case in cases], verdict

    def _cases(
        self, jobs: Sequence[JobSnapshot], free: Cores, movable: Mapping[str, list[int]], snapshot: Snapshot
    ) -> list[Case]:
        """Find out what each job needs, and what it gets of that."""
        held = [self._held(job, movable[job.name], snapshot.now) for job in jobs]
        counts = [len(movable[job.name]) for job in jobs]
        total = int(free.sum()) - sum(sum(cores.values()) for cores in held)
        places = [count - len(cores) for count, cores in zip(counts, held, strict=True)]
        demands = []
        for job, own in zip(jobs, places, strict=True):
            available = max(total - (sum(places) - own), own)
            demands.append(self._memory(job).model.demand(job, snapshot.now, available, self._most(job, snapshot)))
            self._pause()
        shares = fair_shares([int(demand.needed.sum()) for demand in demands], places, max(total, 0))
        shares = fair_shares([int(demand.keep.sum()) for demand in demands], shares, max(total, 0))
        return [
            Case(
                job,
                demand,
                self._memory(job).divider.divide(demand, share, snapshot.now),
                slots=int(free.sum()),
                crowded=int(free.sum()) < sum(counts),
            )
            for job, demand, share in zip(jobs, demands, shares, strict=True)
        ]

    def _held(self, job: JobSnapshot, movable: Sequence[int], now: float) -> dict[int, int]:
        """Return what executors get that the model knows nothing of: what they have, or after a while their last core.

        Pinned executors are among them where a node of theirs retires: they change the node, not the number.
        """
        young = now - self._memory(job).since < self.settings.release_after
        found = {}
        for place in movable:
            executor = job.executors[place]
            if executor.pinned or not executor.service_rate:
                found[place] = max(executor.total_cores if executor.pinned or young else 1, 1)
        return found

    def _most(self, job: JobSnapshot, snapshot: Snapshot) -> Cores:
        """Return how many cores help each executor: GIL, shards and doubt whether the last one helped set limits."""
        slots = usable(snapshot.nodes)
        return np.array([self._helpful(job, executor, slots, snapshot.now) for executor in job.executors], np.int64)

    def _helpful(self, job: JobSnapshot, executor: ExecutorSnapshot, slots: Cores, now: float) -> int:
        most = NO_LIMIT
        per_node = self._bound.most(job, executor.executor)
        if per_node is not None:
            most = int(np.minimum(slots, per_node).sum())
        if executor.total_cores > 1 and (part := executor.heaviest_shard) > 0:
            most = min(most, math.ceil(1 / part) + 1)
        if self._bound.in_doubt(job, executor, now):
            most = min(most, executor.total_cores)
        return max(most, 1)

    def _seats(self, case: Case, movable: Sequence[int], now: float) -> list[Seat]:
        self._pause()
        demand, portion = case.demand, case.portion
        known = {place: index for index, place in enumerate(demand.places)}
        held = self._held(case.job, movable, now)
        missed = case.job.latency_target is not None and (case.job.latency or 0.0) > case.job.latency_target
        urgent = bool(demand.overloaded) or missed or not demand.queues.is_stable(demand.current)
        seats = []
        for place in movable:
            executor, index = case.job.executors[place], known.get(place)
            if index is None:
                granted, keep = held[place], executor.total_cores
            else:
                granted, keep = int(portion.cores[index]), int(portion.keep[index])
            per_node = 0 if executor.pinned else self._bound.most(case.job, executor.executor) or 0
            seats.append(Seat(case.job, executor, granted, keep, per_node, urgent))
        return seats

    def _outlook(self, case: Case) -> Outlook:
        """Return what there is to expect of a job once its changes are carried out."""
        self._pause()
        after = {step.owner[2]: int(step.after.sum()) for step in case.changes} if case.applied else {}
        cores = [after.get(executor.executor, executor.total_cores) for executor in case.job.executors]
        predicted = self._memory(case.job).model.predicted(case.job, np.array(cores, dtype=np.int64))
        bound = self._bound.operators(case.job)
        return Outlook(predicted, case.demand.feasible, max(case.portion.starved, 0), bound)

    def _watched(self, job: JobSnapshot, now: float) -> Outlook:
        """Return what there is to expect of a job about which nothing is decided."""
        model = self._memory(job).model
        model.learn(job, now)
        cores = np.array([executor.total_cores for executor in job.executors], dtype=np.int64)
        return Outlook(model.predicted(job, cores), bound=self._bound.operators(job))

    def _limits(self, case: Case) -> dict[str, int]:
        """Return the operators of a job that hold the GIL, and how many cores of a node help them."""
        found = {}
        for executor in case.job.executors:
            most = self._bound.most(case.job, executor.executor)
            if most is not None:
                found[executor.executor.component] = most
        return found


def _split(snapshot: Snapshot, jobs: Sequence[JobSnapshot], slots: Cores) -> tuple[Cores, dict[str, list[int]]]:
    """Return the cores that nobody else has, and for each job the places of its executors whose cores may change."""
    movable = {
        job.name: [
            place
            for place, executor in enumerate(job.executors)
            if not executor.pinned or any(snapshot.nodes[node].retiring for node in executor.cores)
        ]
        for job in jobs
    }
    chosen = set(map(id, jobs))
    fixed = [
        executor
        for job in snapshot.jobs
        for place, executor in enumerate(job.executors)
        if id(job) not in chosen or place not in movable[job.name]
    ]
    return np.maximum(slots - occupied(fixed, len(slots)), 0), movable


def _carried_out(snapshot: Snapshot, admitted: Sequence[Step]) -> Snapshot:
    """Return the snapshot as if changes were carried out."""
    after = {step.owner: change(step).after for step in admitted}
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


def _with_changes(case: Case, proposed: Sequence[Step], verdict: Verdict) -> Case:
    """Note what becomes of a job's changes: those that are carried out, or else those that are held back."""
    admitted = tuple(step for step in verdict.admitted if step.owner[:2] == case.run)
    held = {owner: why for owner, why in verdict.held.items() if owner[:2] == case.run}
    return replace(case, changes=admitted or tuple(step for step in proposed if step.owner in held), held=held)
