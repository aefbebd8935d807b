"""The planning of key groups on snapshots alone, which also say where the groups are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.control.placement.choices import SPREAD
from dask_elastic.control.placement.group_decision import GroupDecision
from dask_elastic.control.placement.group_map import GroupMap
from dask_elastic.control.placement.groups import GroupPlanning
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.steady_time import SteadyTime
from dask_elastic.vocab.snapshot import Snapshot


class RecordedGroupPlanning:
    """Decides as the planning of key groups does that runs beside the control loop.

    Parameters
    ----------
    settings : PlacementSettings, optional
        The settings; the defaults if not given.
    placement : str, optional
        The placement for all jobs, which then are in no dry run; if not given, the one that each job names. Jobs with
        ``"spread"``, and jobs whose key groups do not move, are left out.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot
    >>> loads = {0: [0.3, 0.3, 0.0, 0.0], 1: [0.0, 0.0, 0.1, 0.1]}
    >>> def busy(index):
    ...     known = {"shard_load": np.array(loads[index]), "groups": np.flatnonzero(loads[index])}
    ...     return ExecutorSnapshot(ExecutorId("count", index), 0, {0: 1}, 100.0, 500.0, **known)
    >>> job = JobSnapshot("words", 1, (busy(0), busy(1)), paradigm="resource-centric")
    >>> planning = RecordedGroupPlanning(placement="flux")
    >>> [decision] = planning.decide(Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 4),), (job,)))
    >>> decision.deferred, decision.reason
    (({0: 1, 2: 0},), 'a plan must gain in 2 periods in a row before groups move.')
    """

    def __init__(self, settings: PlacementSettings | None = None, placement: str | None = None):
        self.planning = GroupPlanning(settings)
        self.placement = placement
        self._began: float | None = None
        self._time = SteadyTime()

    def tick(self, snapshot: Snapshot) -> tuple[GroupDecision, ...]:
        """Take a snapshot; decide if a period is over.

        Parameters
        ----------
        snapshot : Snapshot
            The newest one.

        Returns
        -------
        tuple of GroupDecision
            One for each operator that is measured; none between two periods.
        """
        now = self._time.seen(snapshot).now
        self._began = now if self._began is None else self._began
        if now - self._began < self.planning.settings.period:
            self.planning.observe(self.posed(snapshot))
            return ()
        return self.decide(snapshot)

    def decide(self, snapshot: Snapshot) -> tuple[GroupDecision, ...]:
        """Take a snapshot and decide, whether or not a period is over; see `tick`."""
        self._began = None
        posed = self.posed(snapshot)
        self.planning.observe(posed)
        strategies = {job_key(job): job.strategies for job in posed.jobs}
        return self.planning.decide(owners_of(posed), strategies)

    def posed(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot whose jobs have the placement, as decisions see it."""
        if self.placement is None:
            return snapshot
        jobs = (replace(job, placement=self.placement, dry_run=False) for job in snapshot.jobs)
        return replace(snapshot, jobs=tuple(jobs))


def owners_of(snapshot: Snapshot) -> Mapping[JobKey, Mapping[str, Sequence[int]]]:
    """Return the executor of each key group of the jobs with a planner, by operator, as far as the snapshot has them.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.

    Returns
    -------
    mapping of JobKey to mapping of str to sequence of int
        By job; without those whose groups do not move.
    """
    found = {}
    for job in snapshot.jobs:
        if job.paradigm == "resource-centric" and job.placement != SPREAD:
            operators = GroupMap.of(job, {}).operators
            found[job_key(job)] = {name: groups.owner.tolist() for name, groups in operators.items()}
    return found
