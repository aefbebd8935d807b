"""Replay of recorded snapshots through the control loop."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.plan import Plan
from dask_elastic.vocab.snapshot import Snapshot


def replay(
    snapshots: Iterable[Snapshot], settings: ControlSettings | None = None, planner: str | None = None
) -> list[Plan]:
    """Run the control loop on recorded snapshots and return its plans.

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
    list of Plan
        One plan per snapshot. The same arguments give the same plans.

    Raises
    ------
    UnknownPlanner
        If no core planner has that name.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot
    >>> executor = ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, arrival_rate=900.0, service_rate=500.0)
    >>> job = JobSnapshot("words", 1, (executor,), latency_target=0.1)
    >>> (plan,) = replay([Snapshot(0.0, (NodeSnapshot("tcp://a:1", "a", 8),), (job,))])
    >>> [(str(change.executor), change.before, change.after) for change in plan.changes]
    [('count[0]', {0: 1}, {0: 3})]
    """
    loop = ControlLoop(settings, planner)
    return [loop.tick(snapshot) for snapshot in snapshots]
