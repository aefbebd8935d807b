"""Thread slots that running jobs need, from the measurements and the plan of one period."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Outlook, Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot

FULLEST = 0.7
"""Part of its time for which a slot is busy at most with executors that share it."""


class NeededSlots:
    """Follows what jobs need, from period to period.

    Notes
    -----
    An executor with several cores needs as many slots. One with a single core needs the part of a slot for which it is
    busy, divided by `FULLEST`, since such executors can share slots. Cores that a job lacks count, too. A job that
    restarts needs what it needed before, since its executors are not measured meanwhile.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import NodeSnapshot
    >>> def at(rate):
    ...     executor = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, arrival_rate=rate, service_rate=100.0)
    ...     return Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 4),), (JobSnapshot("words", 1, (executor,)),))
    >>> needed, plan = NeededSlots(), Plan((), (), {})
    >>> needed.after(at(35.0), plan), needed.after(at(0.0), plan, {"words"}), needed.after(at(70.0), plan)
    (0.5, 0.5, 1.0)
    """

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def after(self, snapshot: Snapshot, plan: Plan, restarting: Collection[str] = ()) -> float:
        """Return the slots that all jobs need together, after another period.

        Parameters
        ----------
        snapshot : Snapshot
            The measurements.
        plan : Plan
            What the control loop decided on them.
        restarting : collection of str
            The names of jobs that restart.

        Returns
        -------
        float
            The slots.
        """
        found = _by_job(snapshot, plan)
        found |= {name: max(found[name], self._before.get(name, 0.0)) for name in found if name in restarting}
        self._before = found
        return sum(found.values())


def _by_job(snapshot: Snapshot, plan: Plan) -> dict[str, float]:
    after = {(c.job, c.generation, c.executor): sum(c.after.values()) for c in plan.changes}
    return {job.name: _of_job(job, plan.outlook.get(job.name, Outlook()), after) for job in snapshot.jobs}


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
