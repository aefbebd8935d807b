"""Decisions of one tick: each is written once, and again only when something about it has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dask_elastic.control.demand import JobDemand
from dask_elastic.control.grants import core_change
from dask_elastic.control.guard import ProposedChange
from dask_elastic.control.keys import ExecutorKey, JobKey, job_key
from dask_elastic.control.reason import reason
from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import Portion
from dask_elastic.planning.turns import in_turns, no_pause
from dask_elastic.vocab.cores.change_columns import ChangeColumns
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision, Outlook
from dask_elastic.vocab.snapshot import JobSnapshot, Snapshot

Problem = str | tuple[str, object]
"""The target is out of reach, cores are missing, an operator is GIL-bound, or a change of an executor is deferred."""


@dataclass(frozen=True, eq=False)
class JobPlan:
    """One job at one tick: its demand, the cores it gets, and the changes.

    Parameters
    ----------
    job : JobSnapshot
        The job's measurements.
    demand : JobDemand
        The cores it needs.
    portion : Portion
        The cores it gets.
    slots : int
        Number of cores available to all jobs that share them.
    crowded : bool
        Whether these are fewer than the executors.
    changes : tuple of ProposedChange
        The changes. If all are deferred, or the job is in a dry run, the changes that would be made.
    deferred : mapping
        The executors whose changes are deferred, and the reasons.
    """

    job: JobSnapshot
    demand: JobDemand
    portion: Portion
    slots: int
    crowded: bool
    changes: tuple[ProposedChange, ...] = ()
    deferred: Mapping[ExecutorKey, str] = field(default_factory=dict)

    @property
    def applied(self) -> bool:
        """Whether any change is carried out."""
        return not self.job.dry_run and any(change.key not in self.deferred for change in self.changes)

    @property
    def wanted(self) -> dict[ExecutorId, int]:
        """The cores that the model requests, by executor."""
        return {
            self.job.executors[index].executor: count
            for index, count in zip(self.demand.indices, self.demand.needed.tolist(), strict=True)
        }


@dataclass(frozen=True, eq=False)
class Preview:
    """What the control loop would decide about a job.

    Parameters
    ----------
    job_plan : JobPlan
        The job's demand, the cores it gets, and the changes.
    outlook : Outlook
        What the model predicts after the changes.
    unchanged : float or None
        The latency that it predicts if nothing changes, in seconds; None without a prediction.
    bound : mapping of str to int
        GIL-bound operators, and how many cores per node speed them up.
    reason : str
        Why the cores change, or why they do not.
    patience : float
        How long a surplus of the job must last now before it is released, in seconds.
    """

    job_plan: JobPlan
    outlook: Outlook
    unchanged: float | None
    bound: Mapping[str, int]
    reason: str
    patience: float


@dataclass(eq=False)
class _Written:
    """What the last decision about a job was about, and when each of its problems was seen last."""

    problems: frozenset[Problem] = frozenset()
    proposed: object = None
    seen: dict[Problem, float] = field(default_factory=dict)


def _problems(job_plan: JobPlan, outlook: Outlook) -> list[Problem]:
    found: list[Problem] = [] if outlook.feasible else ["infeasible"]
    if outlook.starved > 0:
        found.append("starved")
    return [*found, *(("bound", name) for name in outlook.bound), *(("deferred", key) for key in job_plan.deferred)]


class DecisionWriter:
    """Writes decisions; remembers the last one of each job, to omit repetitions.

    Parameters
    ----------
    settings : ControlSettings
        Values that reasons mention.
    pause : callable
        Called between steps.
    """

    def __init__(self, settings: ControlSettings, pause: Callable[[], None] = no_pause):
        self._settings = settings
        self._pause = pause
        self._last: dict[JobKey, _Written] = {}
        self._written = 0

    def forget_all_but(self, jobs: Iterable[JobKey]) -> None:
        """Forget all jobs except the given ones."""
        self._last = {job: self._last[job] for job in jobs if job in self._last}

    def decision(
        self, job_plan: JobPlan, outlook: Outlook, bound: Mapping[str, int], snapshot: Snapshot
    ) -> Decision | None:
        """Return the decision about a job, or None if it repeats the last one.

        Parameters
        ----------
        job_plan : JobPlan
            The job.
        outlook : Outlook
            What the model predicts for it.
        bound : mapping of str to int
            Its GIL-bound operators, and how many cores per node speed them up.
        snapshot : Snapshot
            The measurements on which the decision is based.

        Returns
        -------
        Decision or None
            None if no change is carried out, no problem appears or has been away for `release_after` seconds, and the
            proposal is that of the last decision.
        """
        now = _problems(job_plan, outlook)
        proposed = frozenset(
            (change.key, tuple(change.after.items())) for change in in_turns(job_plan.changes, self._pause)
        )
        written = self._last.setdefault(job_key(job_plan.job), _Written())
        # At the edge of a target a problem comes and goes: it is resolved when it has been away for a while.
        seen = {
            problem: at for problem, at in written.seen.items() if snapshot.now - at < self._settings.release_after
        } | dict.fromkeys(now, snapshot.now)
        same = seen.keys() == written.problems and (not proposed or proposed == written.proposed)
        written.seen = seen
        if not job_plan.applied and same:
            return None
        if job_plan.applied:
            written.seen = dict.fromkeys(now, snapshot.now)
        written.problems, written.proposed = frozenset(written.seen), proposed
        self._written += 1
        return Decision(
            number=self._written,
            time=snapshot.now,
            job=job_plan.job.name,
            generation=job_plan.job.generation,
            target=job_plan.job.latency_target,
            measured=job_plan.job.latency,
            predicted=outlook.predicted,
            feasible=outlook.feasible,
            wanted=job_plan.wanted,
            changes=ChangeColumns.of(map(core_change, in_turns(job_plan.changes, self._pause))),
            applied=job_plan.applied,
            reason=self.reason(job_plan, bound, snapshot),
            starved=outlook.starved,
            bound=outlook.bound,
            moved_bytes=float(sum(change.moved_bytes for change in job_plan.changes)),
        )

    def reason(self, job_plan: JobPlan, bound: Mapping[str, int], snapshot: Snapshot) -> str:
        """Return why a job's cores change, or why they do not; see `dask_elastic.control.reason.reason`."""
        return reason(
            job_plan.job,
            job_plan.demand,
            job_plan.portion,
            job_plan.changes,
            job_plan.deferred,
            snapshot.nodes,
            bound,
            None if job_plan.crowded else job_plan.slots,
            self._settings,
        )
