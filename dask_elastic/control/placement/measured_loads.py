"""The loads of executors over one period of the placement loop: means of what its snapshots measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dask_elastic.control.keys import JobKey, job_key
from dask_elastic.meters.node_speeds import ServedRate
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, Snapshot, Traffic

LOAD_READINGS, TRAFFIC_READINGS = 9_000, 4_500
"""Measurements of single executors that are read in a period: in large clusters, fewer snapshots are read."""

TRAFFIC_SAMPLES = 3
"""Snapshots of a period from which traffic is taken; each has the mean of two seconds."""


@dataclass(slots=True)
class ExecutorLoad:
    """What one executor needs of its node.

    Parameters
    ----------
    processor : float
        Busy cores.
    rows : float
        Rows per second.
    memory : float
        Bytes of state in memory.
    network : float
        Bytes per second of its inputs and outputs.
    state_bytes : float
        Bytes of state, those in files included.
    single : tuple of Traffic
        Its traffic, if that is from one snapshot.
    summed : dict of (str, int) to float
        The same by component and number, if it is from several ones.
    snapshots, samples : int
        Number of snapshots that the loads, and that the traffic are from.
    """

    processor: float = 0.0
    rows: float = 0.0
    memory: float = 0.0
    network: float = 0.0
    state_bytes: float = 0.0
    single: tuple[Traffic, ...] = ()
    summed: dict[tuple[str, int], float] = field(default_factory=dict)
    snapshots: int = 0
    samples: int = 0

    @property
    def traffic(self) -> dict[tuple[str, int], float]:
        """Bytes per second from upstream instances, by component and number."""
        return {(component, index): rate for component, index, rate in self.single} if self.single else self.summed


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
        Those of one period, oldest first. Traffic is taken from `TRAFFIC_SAMPLES` of them, and in large clusters from
        fewer, as are loads.

    Returns
    -------
    dict of JobKey to dict of ExecutorId to ExecutorLoad
        The loads by job and executor.
    """
    found: dict[JobKey, dict[ExecutorId, ExecutorLoad]] = {}
    executors = max((sum(len(job.executors) for job in one.jobs) for one in snapshots), default=0) or 1
    for snapshot in _sampled(snapshots, LOAD_READINGS // executors):
        for job in snapshot.jobs:
            loads = found.setdefault(job_key(job), {})
            for executor in job.executors:
                load = loads.get(executor.executor)
                if load is None:
                    load = loads[executor.executor] = ExecutorLoad()
                _add(load, executor)
    for snapshot in _sampled(snapshots, min(TRAFFIC_SAMPLES, TRAFFIC_READINGS // executors)):
        for job in snapshot.jobs:
            loads = found[job_key(job)]
            for executor in job.executors:
                _add_traffic(loads[executor.executor], executor)
    for loads in found.values():
        for load in loads.values():
            load.processor /= load.snapshots
            load.rows /= load.snapshots
            load.network /= load.snapshots
            if load.summed:
                load.summed = {origin: rate / load.samples for origin, rate in load.summed.items()}
    return found


def _sampled(snapshots: Sequence[Snapshot], most: int) -> Sequence[Snapshot]:
    """Return at most so many snapshots at equal distances, oldest first; the newest is among them."""
    step = -(-len(snapshots) // max(most, 1)) or 1
    return snapshots[::-step][::-1]


def _add(load: ExecutorLoad, executor: ExecutorSnapshot) -> None:
    arrivals, processed = executor.arrival_rate, executor.throughput
    load.snapshots += 1
    load.processor += busy_cores(executor)
    load.rows += arrivals if arrivals > processed else processed
    load.network += executor.bytes_in + executor.bytes_out
    load.memory = float(max(executor.state_bytes - executor.state_on_disk, 0))
    load.state_bytes = float(executor.state_bytes)


def _add_traffic(load: ExecutorLoad, executor: ExecutorSnapshot) -> None:
    load.samples += 1
    if load.samples == 1:
        # In large clusters it stays the only one, and many small objects would have to be made.
        load.single = executor.traffic
        return
    if load.single:
        load.summed, load.single = load.traffic, ()
    for component, index, rate in executor.traffic:
        load.summed[component, index] = load.summed.get((component, index), 0.0) + rate


def served_rates(snapshot: Snapshot) -> list[ServedRate]:
    """Return the service rates of executors that have all their cores at home, as hints at the speed of nodes."""
    addresses = [node.address for node in snapshot.nodes]
    found = []
    for job in snapshot.jobs:
        key = job_key(job)
        operators = {name: (*key, name) for name in {one.executor.component for one in job.executors}}
        found += [
            ServedRate(operators[one.executor.component], addresses[one.home], one.service_rate, busy_cores(one))
            for one in job.executors
            if one.service_rate and len(one.cores) == 1 and one.home in one.cores
        ]
    return found
