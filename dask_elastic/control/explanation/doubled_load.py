"""What would change at twice the load: the control loop decides on the measurements with doubled rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dask_elastic.control.decision_writer import Preview
from dask_elastic.control.explanation.amounts import cores, latency, size
from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.queues import Cores, Queues
from dask_elastic.control.reason import duration
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, Snapshot


@dataclass(frozen=True)
class DoubledLoad:
    """What the control loop would decide if twice as many rows arrived.

    Parameters
    ----------
    cores : mapping of ExecutorId to int
        Cores of each executor then.
    unchanged : float or None
        The latency that is predicted with the cores that they have now, in seconds; ``inf`` if queues grow, None
        without a prediction.
    predicted : float or None
        The latency that is predicted with those cores.
    feasible : bool
        Whether these meet the target.
    starved : int
        Cores that the job would lack.
    moved_bytes : float
        Bytes of state that would move to another node.

    Examples
    --------
    >>> then = DoubledLoad({ExecutorId("count", 0): 4}, float("inf"), 0.02, True, 0, 2.0**20)
    >>> then.text(target=0.05)
    'predicted with the present cores is unlimited (queues grow); with 4 cores for the whole job it is 20 ms;
    1.0 MiB of state would move'
    """

    cores: Mapping[ExecutorId, int]
    unchanged: float | None
    predicted: float | None
    feasible: bool
    starved: int
    moved_bytes: float

    def text(self, target: float | None) -> str:
        """Return the change as a sentence without a full stop.

        Parameters
        ----------
        target : float or None
            The latency target of the job, in seconds.
        """
        parts = [f"predicted with the present cores is {latency(self.unchanged)}"]
        parts.append(f"with {cores(sum(self.cores.values()))} for the whole job it is {latency(self.predicted)}")
        if self.moved_bytes:
            parts.append(f"{size(self.moved_bytes)} of state would move")
        if not self.feasible and target is not None:
            parts.append(f"the target of {duration(target)} could not be met")
        if self.starved:
            parts.append(f"{cores(self.starved)} would be missing")
        return "; ".join(parts)


def doubled_load(loop: ControlLoop, snapshot: Snapshot, preview: Preview) -> DoubledLoad:
    """Return what would change at twice the load of one job; the loop stays as it is.

    Parameters
    ----------
    loop : ControlLoop
        A loop that has decided on the earlier snapshots.
    snapshot : Snapshot
        The present measurements.
    preview : Preview
        What the loop would decide on them about the job.

    Returns
    -------
    DoubledLoad
        The decision after a cooldown.
    """
    name = preview.job_plan.job.name
    overloaded = set(preview.job_plan.demand.overloaded)
    jobs = [_doubled(job, overloaded) if job.name == name else job for job in snapshot.jobs]
    # Later than any cooldown, which would defer changes but not change what is needed.
    later = Snapshot(snapshot.now + loop.settings.cooldown, snapshot.nodes, tuple(jobs))
    then = loop.preview(later)[name]
    plan = then.job_plan
    held = np.array([executor.total_cores for executor in plan.job.executors], dtype=np.int64)
    granted = held.copy()
    granted[list(plan.demand.indices)] = plan.portion.cores
    return DoubledLoad(
        {executor.executor: int(count) for executor, count in zip(plan.job.executors, granted, strict=True)},
        _latency(then, held),
        _latency(then, granted),
        then.outlook.feasible,
        then.outlook.starved,
        float(sum(change.moved_bytes for change in plan.changes)),
    )


def _doubled(job: JobSnapshot, overloaded: set[int]) -> JobSnapshot:
    executors = tuple(_busier(one, index in overloaded) for index, one in enumerate(job.executors))
    return replace(job, executors=executors, latency=None, latency_p99=None, source_rate=2 * job.source_rate)


def _busier(executor: ExecutorSnapshot, overloaded: bool) -> ExecutorSnapshot:
    """Return an executor to which twice as many rows come; a burst that waits now does not count as overload then."""
    return replace(
        executor,
        arrival_rate=2 * executor.arrival_rate,
        throughput=2 * executor.throughput,
        bytes_in=2 * executor.bytes_in,
        bytes_out=2 * executor.bytes_out,
        queue=executor.queue if overloaded else 0,
        sojourn=None,
    )


def _latency(preview: Preview, counts: Cores) -> float | None:
    """Return the latency that the model predicts for these cores; None while the demand is unknown."""
    job, demand = preview.job_plan.job, preview.job_plan.demand
    known = np.flatnonzero(job.service_rates)
    if not known.size or demand.overloaded:
        return None
    queues = Queues.of(job, known)
    if not queues.arrival.any():
        return None
    return demand.hop + demand.error * queues.latency(counts[known])
