"""Thread slots that running jobs need, from the measurements and the plan of one period."""

from __future__ import annotations

from collections.abc import Mapping

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Outlook, Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

FULLEST = 0.7
"""Part of its time for which a slot is busy at most with executors that share it."""


def slots_needed(snapshot: Snapshot, plan: Plan) -> float:
    """Return the thread slots that all jobs need together.

    Parameters
    ----------
    snapshot : Snapshot
        The measurements.
    plan : Plan
        What the control loop decided on them.

    Returns
    -------
    float
        An executor with several cores needs as many slots. One with a single core needs the part of a slot for which it
        is busy, divided by `FULLEST`, since such executors can share slots. Cores that a job lacks count, too.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import NodeSnapshot
    >>> busy = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 3}, arrival_rate=250.0, service_rate=100.0)
    >>> idle = ExecutorSnapshot(ExecutorId("count", 1), 0, {0: 1}, arrival_rate=7.0, service_rate=100.0)
    >>> job = JobSnapshot("words", 1, (busy, idle))
    >>> slots_needed(Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 4),), (job,)), Plan((), (), {}))
    3.1
    """
    after = {(c.job, c.generation, c.executor): sum(c.after.values()) for c in plan.changes}
    return sum(_of_job(job, plan.outlook.get(job.name, Outlook()), after) for job in snapshot.jobs)


def _of_job(job: JobSnapshot, outlook: Outlook, after: Mapping[tuple[str, int, ExecutorId], int]) -> float:
    cores = (after.get((job.name, job.generation, one.executor), one.total_cores) for one in job.executors)
    needed = sum(_of_executor(one, count) for one, count in zip(job.executors, cores, strict=True))
    return needed + outlook.starved


def _of_executor(executor: ExecutorSnapshot, cores: int) -> float:
    if cores > 1:
        return float(cores)
    if not executor.service_rate:
        return 1.0 if executor.arrival_rate > 0 else 0.0
    return min(1.0, executor.arrival_rate / executor.service_rate / FULLEST)
