"""The loads of executors over one period of the placement loop: means of what its snapshots measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.meters.node_speeds import ServedRate
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, Snapshot

TRAFFIC_SAMPLES = 3
"""Snapshots of a period from which traffic is taken; each has the mean of two seconds."""


@dataclass
class ExecutorLoad:
    """What one executor needs of its node.

    Parameters
    ----------
    processor : float
        Busy cores.
    memory : float
        Bytes of state in memory.
    network : float
        Bytes per second of its inputs and outputs.
    state_bytes : float
        Bytes of state, those in files included.
    traffic : dict of ExecutorId to float
        Bytes per second from upstream instances.
    snapshots, samples : int
        Number of snapshots that the loads, and that the traffic are from.
    """

    processor: float = 0.0
    memory: float = 0.0
    network: float = 0.0
    state_bytes: float = 0.0
    traffic: dict[ExecutorId, float] = field(default_factory=dict)
    snapshots: int = 0
    samples: int = 0


JobLoads = Mapping[ExecutorId, ExecutorLoad]
"""The loads of one job's executors."""


def busy_cores(executor: ExecutorSnapshot) -> float:
    """Return the cores that an executor's input keeps busy.

    Examples
    --------
    >>> busy_cores(ExecutorSnapshot(ExecutorId("count", 0), 0, {0: 1}, arrival_rate=900.0, service_rate=600.0))
    1.5
    """
    measured = 0.0 if executor.shard_load is None else float(np.add.reduce(executor.shard_load))
    if not executor.service_rate:
        return measured
    return max(measured, max(executor.arrival_rate, executor.throughput) / executor.service_rate)


def mean_loads(snapshots: Sequence[Snapshot]) -> dict[JobKey, dict[ExecutorId, ExecutorLoad]]:
    """Return the mean loads of all executors over some snapshots; state is that of the last one.

    Parameters
    ----------
    snapshots : sequence of Snapshot
        Those of one period, oldest first. Traffic is taken from `TRAFFIC_SAMPLES` of them.

    Returns
    -------
    dict of JobKey to dict of ExecutorId to ExecutorLoad
        The loads by job and executor.
    """
    found: dict[JobKey, dict[ExecutorId, ExecutorLoad]] = {}
    for snapshot in snapshots:
        for job in snapshot.jobs:
            loads = found.setdefault(job_key(job), {})
            for executor in job.executors:
                _add(loads.setdefault(executor.executor, ExecutorLoad()), executor)
    step = -(-len(snapshots) // TRAFFIC_SAMPLES) or 1
    for snapshot in snapshots[::-step]:
        for job in snapshot.jobs:
            loads = found[job_key(job)]
            for executor in job.executors:
                _add_traffic(loads[executor.executor], executor)
    for loads in found.values():
        for load in loads.values():
            load.processor /= load.snapshots
            load.network /= load.snapshots
            if load.samples > 1:
                load.traffic = {origin: rate / load.samples for origin, rate in load.traffic.items()}
    return found


def _add(load: ExecutorLoad, executor: ExecutorSnapshot) -> None:
    load.snapshots += 1
    load.processor += busy_cores(executor)
    load.network += executor.bytes_in + executor.bytes_out
    load.memory = float(max(executor.state_bytes - executor.state_on_disk, 0))
    load.state_bytes = float(executor.state_bytes)


def _add_traffic(load: ExecutorLoad, executor: ExecutorSnapshot) -> None:
    load.samples += 1
    for component, index, rate in executor.traffic:
        origin = ExecutorId(component, index)
        load.traffic[origin] = load.traffic.get(origin, 0.0) + rate


def served_rates(snapshot: Snapshot) -> list[ServedRate]:
    """Return the service rates of executors that have all their cores at home, as hints at the speed of nodes."""
    return [
        ServedRate(
            (*job_key(job), one.executor.component), snapshot.nodes[one.home].address, one.service_rate, busy_cores(one)
        )
        for job in snapshot.jobs
        for one in job.executors
        if one.service_rate and set(one.cores) == {one.home}
    ]
