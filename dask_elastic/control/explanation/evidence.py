"""Explains a job, and plans its next decision, from what the control loop has recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dask_elastic.control.decision_writer import Preview
from dask_elastic.control.explanation.amounts import cores, size
from dask_elastic.control.explanation.core_count import awaited, count_reasons
from dask_elastic.control.explanation.core_place import place_reasons
from dask_elastic.control.explanation.doubled_load import DoubledLoad, doubled_load
from dask_elastic.control.explanation.inputs import input_texts
from dask_elastic.control.explanation.job_explanation import ExecutorExplanation, JobExplanation
from dask_elastic.control.explanation.key_groups import group_texts, groups_section
from dask_elastic.control.explanation.planned_decision import PlannedChange, PlannedDecision
from dask_elastic.control.explanation.planned_groups import PlannedGroups, planned_groups
from dask_elastic.control.explanation.planned_homes import planned_homes
from dask_elastic.control.keys import job_key
from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.placement.group_map import GroupMap
from dask_elastic.control.placement.recent_flows import RecentFlows
from dask_elastic.control.placement.regrouped import regrouped
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.reason import RESOLVED, duration
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.errors import PlanningError, UnknownOperator
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

LAST = 3
"""Number of decisions that are shown for an executor."""


@dataclass(frozen=True)
class Pauses:
    """Seconds for which the rows of a shard waited while it moved: medians of the moves so far, None if there are none.

    Parameters
    ----------
    within, across : float or None
        Of moves within a worker, and of moves between workers.
    """

    within: float | None = None
    across: float | None = None


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the control loop bases its decisions about a job on.

    Parameters
    ----------
    job : str
        The name of the job.
    snapshots : sequence of Snapshot
        Those on which the loop has decided, oldest first.
    current : Snapshot
        The present measurements.
    settings : ControlSettings
        The settings of the loop.
    decisions : sequence of mapping
        The last decisions about the job, oldest first, as `Job.decisions` has them.
    placement : PlacementSettings, optional
        The settings of the placement loop; the defaults if not given.

    Raises
    ------
    PlanningError
        If the job has not been measured.

    Notes
    -----
    A loop that decides on all snapshots again knows what the running one knows: how the model is calibrated, which
    operators are GIL-bound, how long a surplus has lasted.

    Examples
    --------
    >>> from dask_elastic.vocab.snapshot import NodeSnapshot
    >>> executor = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, arrival_rate=900.0, service_rate=500.0)
    >>> words = JobSnapshot("words", 1, (executor,), latency_target=0.1)
    >>> snapshot = Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 8),), (words,))
    >>> evidence = Evidence("words", [], snapshot, ControlSettings())
    >>> evidence.explanation().executors[0].wanted
    3
    >>> print(evidence.planned())
    words: 1 change; target 100 ms, predicted without a change unlimited (queues grow) and predicted 2.59 ms
    its cores are too few for 990 tuples/s (headroom included).
      count[0]: 1 core on tcp://a:1 → 3 cores on tcp://a:1; 0 bytes of state move; pause not measured yet
    """

    job: str
    snapshots: Sequence[Snapshot]
    current: Snapshot
    settings: ControlSettings
    decisions: Sequence[Mapping[str, Any]] = field(default=())
    placement: PlacementSettings | None = None

    def __post_init__(self) -> None:
        if self.job not in {job.name for job in self.current.jobs}:
            raise PlanningError(
                f"job {self.job!r} has not been measured: the control loop takes a snapshot per period while it runs. "
                "Try again in a second, unless it has ended."
            )

    def explanation(self, operator: str | None = None, ended: str = "") -> JobExplanation:
        """Return why each executor has its cores, and why they are where they are.

        Parameters
        ----------
        operator : str, optional
            Only the executors of this operator.
        ended : str
            How the job ended; empty while it runs.

        Returns
        -------
        JobExplanation
            The explanation.

        Raises
        ------
        UnknownOperator
            If the job has no executor of that operator.
        """
        job, preview = self._job, self._preview
        known = list(dict.fromkeys(executor.executor.component for executor in job.executors))
        if operator is not None and operator not in known:
            raise UnknownOperator(f"job {self.job!r} has no stateful operator {operator!r}: choose from {known}")
        doubled = None if preview is None or ended else doubled_load(self._loop, self.current, preview)
        about_groups = groups_section(self._groups, job, self.current, self.decisions, operator)
        return JobExplanation(
            job=self.job,
            time=self.current.now,
            target=job.latency_target,
            measured=job.latency,
            predicted=None if preview is None else preview.unchanged,
            reason=self._fixed if preview is None else _reason(preview, self.settings),
            executors=tuple(
                self._executor(index, executor, doubled, bool(ended))
                for index, executor in enumerate(job.executors)
                if operator in (None, executor.executor.component)
            ),
            doubled=doubled,
            operator=operator,
            sections={"key groups": about_groups} if about_groups else {},
            ended=ended,
        )

    @property
    def _fixed(self) -> str:
        return f"paradigm {self._job.paradigm!r}: the control loop does not change its cores"

    def planned(self, pauses: Pauses | None = None) -> PlannedDecision:
        """Return what the loop would decide now.

        Parameters
        ----------
        pauses : Pauses, optional
            The pauses of the job's shard moves so far.

        Returns
        -------
        PlannedDecision
            The decision.
        """
        job, preview = self._job, self._preview
        if preview is None:
            groups = planned_groups(job, self.snapshots, self.current, self.placement)
            latencies = self._forecasts(groups)
            return PlannedDecision(
                self.job, job.latency_target, job.latency, *latencies, (), self._fixed, True, 0, groups=groups
            )
        return PlannedDecision(
            job=self.job,
            target=job.latency_target,
            measured=job.latency,
            unchanged=preview.unchanged,
            predicted=preview.outlook.predicted,
            changes=self._changes(preview, pauses or Pauses()),
            reason=_reason(preview, self.settings),
            feasible=preview.outlook.feasible,
            starved=preview.outlook.starved,
            homes=planned_homes(job, self.snapshots, self.current, self.placement),
        )

    def _forecasts(self, groups: PlannedGroups | None) -> tuple[float | None, float | None]:
        """Return the latencies that the model predicts without and with moves of key groups; None without a planner."""
        if groups is None:
            return None, None
        after = regrouped(self._job, groups.owners(self._job))
        return self._loop.forecast(self.current, self._job), self._loop.forecast(self.current, after)

    @cached_property
    def _loop(self) -> ControlLoop:
        loop = ControlLoop(self.settings)
        for snapshot in self.snapshots:
            loop.tick(snapshot)
        return loop

    @cached_property
    def _groups(self) -> GroupMap:
        recent = RecentFlows()
        for snapshot in (*self.snapshots, self.current):
            for job in snapshot.jobs:
                if job_key(job) == job_key(self._job):
                    recent.add(snapshot.now, job)
        return GroupMap.of(self._job, recent.of(self.current.now))

    @cached_property
    def _preview(self) -> Preview | None:
        """What the loop would decide now; None if it does not decide about the job."""
        return self._loop.preview(self.current).get(self.job)

    @property
    def _job(self) -> JobSnapshot:
        return next(job for job in self.current.jobs if job.name == self.job)

    def _changes(self, preview: Preview, pauses: Pauses) -> tuple[PlannedChange, ...]:
        job_plan = preview.job_plan
        return tuple(
            PlannedChange(
                change.key[2],
                self._by_address(change.before),
                self._by_address(change.after),
                change.moved_bytes,
                pauses.across if set(change.after) - set(change.before) or change.moved_bytes else pauses.within,
                job_plan.deferred.get(change.key, "this is a dry run" if job_plan.job.dry_run else None),
            )
            for change in job_plan.changes
        )

    def _by_address(self, held: Mapping[int, int]) -> dict[str, int]:
        return {self.current.nodes[node].address: count for node, count in held.items()}

    def _executor(
        self, index: int, executor: ExecutorSnapshot, doubled: DoubledLoad | None, has_ended: bool
    ) -> ExecutorExplanation:
        preview, fixed = self._preview, (self._fixed,)
        bound = {} if preview is None else preview.bound
        wanted = {} if preview is None else preview.job_plan.wanted
        return ExecutorExplanation(
            executor=executor.executor,
            home=self.current.nodes[executor.home].address,
            cores=self._by_address(executor.cores),
            arrival_rate=executor.arrival_rate,
            service_rate=executor.service_rate,
            wanted=wanted.get(executor.executor),
            doubled=None if doubled is None else doubled.cores[executor.executor],
            state_bytes=executor.state_bytes,
            why_so_many=fixed if preview is None else count_reasons(preview, index, self.settings, has_ended),
            why_there=place_reasons(executor, self._job, self.current, bound, self.settings),
            decisions=tuple(self._decisions(executor.executor)),
            inputs=input_texts(executor, self._job, self.current),
            groups=group_texts(executor, self._groups, self.current),
            queue=executor.queue,
        )

    def _decisions(self, executor: ExecutorId) -> list[str]:
        """Return the last decisions that changed an executor's cores, or wanted to, newest first."""
        found: list[str] = []
        for decision in reversed(self.decisions):
            for change in decision["changes"]:
                if change["executor"] == str(executor) and len(found) < LAST:
                    found.append(self._decision_text(decision, change))
        return found

    def _decision_text(self, decision: Mapping[str, Any], change: Mapping[str, Any]) -> str:
        before, after = sum(change["before"].values()), sum(change["after"].values())
        ago = duration(max(self.current.now - decision["time"], 0.0))
        moved = f", {size(change['moved_bytes'])} of state moved" if change["moved_bytes"] else ""
        done = "" if decision["applied"] else " (not carried out)"
        return f"#{decision['number']}, {ago} ago: {before} → {cores(after)}{moved}{done}: {decision['reason']}"


def _reason(preview: Preview, settings: ControlSettings) -> str:
    waits = awaited(preview, settings)
    right = "its cores are right, so nothing changes" if waits is None else f"nothing changes yet: {waits}"
    return preview.reason.replace(RESOLVED, right)
