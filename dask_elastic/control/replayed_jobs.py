"""What a planner would have done on recorded snapshots: cores and predictions beside recorded cores and latencies.

The load is that of the recording: arrival rates, service rates and state. The cores are those of the replayed planner,
whose changes are carried out from one snapshot to the next.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

CoresByAddress = Mapping[str, int]


@dataclass(frozen=True)
class ReplayedPeriod:
    """One job in one period of a replay.

    Parameters
    ----------
    time : float
        The time of the snapshot in seconds.
    job : str
        The name of the job.
    target, measured : float or None
        Seconds of mean latency: the target, and what was measured with the recorded cores.
    predicted : float or None
        What the model predicts for the cores of the replayed planner; ``inf`` if queues grow, None without a
        prediction.
    recorded_cores, cores : int
        Cores in the recording, and those of the replayed planner after this period.
    moved_bytes : float
        Bytes of state that its changes move to another worker.
    changes : int
        Number of executors whose cores it changes.
    reason : str or None
        Why, or why not; None if nothing is new.
    """

    time: float
    job: str
    target: float | None
    measured: float | None
    predicted: float | None
    recorded_cores: int
    cores: int
    moved_bytes: float
    changes: int
    reason: str | None


@dataclass(frozen=True)
class ReplaySummary:
    """One job over a whole replay.

    Parameters
    ----------
    job : str
        The name of the job.
    periods, changes : int
        Number of periods, and of changes of an executor's cores.
    recorded_core_seconds, core_seconds : float
        Core seconds in the recording, and of the replayed planner.
    moved_bytes : float
        Bytes of state that moved to another worker.
    measured, predicted : float or None
        Median latency in seconds; None if there are no values.
    within_target : float or None
        Share of the periods with a prediction in which it is within the target; None without a target.
    """

    job: str
    periods: int
    changes: int
    recorded_core_seconds: float
    core_seconds: float
    moved_bytes: float
    measured: float | None
    predicted: float | None
    within_target: float | None


def replayed_periods(
    snapshots: Iterable[Snapshot], settings: ControlSettings | None = None, planner: str | None = None
) -> list[ReplayedPeriod]:
    """Run the control loop on recorded snapshots, and carry its plans out from one snapshot to the next.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        The recording, oldest snapshot first.
    settings : ControlSettings, optional
        The settings of the loop; the defaults if not given.
    planner : str, optional
        The core planner for all jobs; if not given, the one that each job names.

    Returns
    -------
    list of ReplayedPeriod
        One for each job in each snapshot.

    Raises
    ------
    UnknownPlanner
        If no core planner has that name.

    Examples
    --------
    >>> from dask_elastic.vocab.snapshot import NodeSnapshot
    >>> executor = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, arrival_rate=900.0, service_rate=500.0)
    >>> job = JobSnapshot("words", 1, (executor,), latency_target=0.1)
    >>> nodes = (NodeSnapshot("tcp://a:1", "a", 8),)
    >>> periods = replayed_periods([Snapshot(0.0, nodes, (job,)), Snapshot(1.0, nodes, (job,))])
    >>> [(period.recorded_cores, period.cores, period.changes) for period in periods]
    [(1, 3, 1), (1, 3, 0)]
    """
    loop = ControlLoop(settings, planner)
    own: dict[tuple[JobKey, ExecutorId], CoresByAddress] = {}
    found = []
    for snapshot in snapshots:
        seen = _with_own_cores(snapshot, own)
        plan = loop.tick(seen)
        found += [
            _period(snapshot.now, job, recorded, plan) for job, recorded in zip(seen.jobs, snapshot.jobs, strict=True)
        ]
        own = {
            (job_key(job), executor.executor): {seen.nodes[node].address: n for node, n in executor.cores.items()}
            for job in seen.jobs
            for executor in job.executors
        }
        for change in plan.changes:
            cores = {seen.nodes[node].address: count for node, count in change.after.items()}
            own[(change.job, change.generation), change.executor] = cores
    return found


def summaries(periods: Sequence[ReplayedPeriod]) -> list[ReplaySummary]:
    """Return the periods of each job together, in the order in which the jobs appear.

    Parameters
    ----------
    periods : sequence of ReplayedPeriod
        Those of a replay.

    Returns
    -------
    list of ReplaySummary
        One for each job.
    """
    return [_summary(name, [one for one in periods if one.job == name]) for name in {one.job: 0 for one in periods}]


def _summary(name: str, periods: Sequence[ReplayedPeriod]) -> ReplaySummary:
    spans = [later.time - earlier.time for earlier, later in pairwise(periods)]
    spans.append(statistics.median(spans) if spans else 1.0)
    known = [one for one in periods if one.predicted is not None and one.target is not None]
    within = [one for one in known if (one.predicted or 0.0) <= (one.target or 0.0)]
    return ReplaySummary(
        job=name,
        periods=len(periods),
        changes=sum(one.changes for one in periods),
        recorded_core_seconds=sum(one.recorded_cores * span for one, span in zip(periods, spans, strict=True)),
        core_seconds=sum(one.cores * span for one, span in zip(periods, spans, strict=True)),
        moved_bytes=math.fsum(one.moved_bytes for one in periods),
        measured=_median(one.measured for one in periods),
        predicted=_median(one.predicted for one in periods),
        within_target=len(within) / len(known) if known else None,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _with_own_cores(snapshot: Snapshot, own: Mapping[tuple[JobKey, ExecutorId], CoresByAddress]) -> Snapshot:
    """Return a snapshot with the cores of the replayed planner, where it has given some."""
    places = {node.address: place for place, node in enumerate(snapshot.nodes)}
    jobs = []
    for job in snapshot.jobs:
        executors = tuple(_placed(one, own.get((job_key(job), one.executor)), places) for one in job.executors)
        jobs.append(replace(job, executors=executors))
    return replace(snapshot, jobs=tuple(jobs))


def _placed(executor: ExecutorSnapshot, cores: CoresByAddress | None, places: Mapping[str, int]) -> ExecutorSnapshot:
    """Return an executor with these cores, unless it is pinned; the recorded ones if a worker has left."""
    if cores is None or executor.pinned or not places.keys() >= cores.keys():
        return executor
    return replace(executor, cores={places[address]: count for address, count in cores.items()})


def _period(now: float, job: JobSnapshot, recorded: JobSnapshot, plan: Plan) -> ReplayedPeriod:
    changes = [change for change in plan.changes if (change.job, change.generation) == job_key(job)]
    after = {change.executor: sum(change.after.values()) for change in changes}
    outlook = plan.outlook.get(job.name)
    reason = next((one.reason for one in plan.decisions if (one.job, one.generation) == job_key(job)), None)
    return ReplayedPeriod(
        time=now,
        job=job.name,
        target=job.latency_target,
        measured=job.latency,
        predicted=None if outlook is None else outlook.predicted,
        recorded_cores=sum(executor.total_cores for executor in recorded.executors),
        cores=sum(after.get(executor.executor, executor.total_cores) for executor in job.executors),
        moved_bytes=math.fsum(change.moved_bytes for change in changes),
        changes=len(changes),
        reason=reason,
    )
