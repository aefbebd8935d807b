"""Translation of snapshots to arrays and back, for the executors of all jobs whose cores may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.guard import ProposedChange
from dask_elastic.control.keys import ExecutorKey
from dask_elastic.migration.move_work import MOVE_SECONDS
from dask_elastic.planning.cores.columns import CoreColumns, by_node
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.vocab.plan import CoreChange
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot

Cores = NDArray[np.int64]

AWAY = 0.75
"""Factor on the data intensity of an executor that has remote cores, so that noise around the threshold does not move
its cores back and forth."""

BYTES_PER_SECOND = 125e6
"""Bytes of state that travel per second between nodes: 1 Gbit/s, as in the papers."""

BUSY_PAUSE = 0.05
"""Seconds for which rows of a shard wait when it leaves a task that is busy."""


class Grant(NamedTuple):
    """The cores granted to one executor whose cores may change.

    Parameters
    ----------
    job : JobSnapshot
        Its job.
    executor : ExecutorSnapshot
        Its measurements.
    granted : int
        Number of cores it is to have at least.
    keep : int
        Number of cores it keeps unless another executor needs them.
    per_node : int
        Number of cores of one node that speed it up, 0 for no limit.
    urgent : bool
        Whether growing it is exempt from the cooldown.
    """

    job: JobSnapshot
    executor: ExecutorSnapshot
    granted: int
    keep: int
    per_node: int
    urgent: bool

    @property
    def key(self) -> ExecutorKey:
        """Job, generation and executor."""
        return self.job.name, self.job.generation, self.executor.executor


def occupied(executors: Sequence[ExecutorSnapshot], nodes: int) -> Cores:
    """Return the number of cores that executors hold on each node."""
    total = np.zeros(nodes, dtype=np.int64)
    for executor in executors:
        for node, count in executor.cores.items():
            total[node] += count
    return total


def usable(nodes: Sequence[NodeSnapshot]) -> Cores:
    """Return the number of cores of each node, 0 for retiring nodes."""
    return np.array([0 if node.retiring else node.cores for node in nodes], dtype=np.int64)


def core_problem(
    grants: Sequence[Grant], nodes: Sequence[NodeSnapshot], capacity: Cores, threshold: float
) -> CoreProblem:
    """Return the problem of assigning cores of nodes to the granted executors.

    Parameters
    ----------
    grants : sequence of Grant
        The executors.
    nodes : sequence of NodeSnapshot
        The nodes.
    capacity : array of int
        Cores of each node that are available to these executors.
    threshold : float
        Data intensity above which an executor is to have its cores at home.

    Returns
    -------
    CoreProblem
        The problem, with executors in the order of `grants`.

    Notes
    -----
    An executor whose home retires cannot have cores at home and counts as not data-intensive.

    The state of an executor includes what else its moves cost, as the bytes that would travel meanwhile. With little
    state that is nearly all: hundreds of shards, each of which takes some work, and rows that wait for them. Otherwise
    a busy executor with a few bytes less would leave its home for an idle one.
    """
    return CoreProblem(
        current=CoreColumns(len(nodes), [_column(grant.executor.cores) for grant in grants]),
        granted=np.array([grant.granted for grant in grants], dtype=np.int64),
        capacity=capacity,
        state_bytes=np.array([_moving_bytes(grant.executor) for grant in grants], dtype=np.float64),
        home=np.array([grant.executor.home for grant in grants], dtype=np.int64),
        intensity=np.array([_intensity(grant.executor, nodes) for grant in grants], dtype=np.float64),
        threshold=threshold,
    )


def _moving_bytes(executor: ExecutorSnapshot) -> float:
    shards = 0 if executor.shard_load is None else len(executor.shard_load)
    if not shards:
        return float(executor.state_bytes)
    busy = executor.throughput / executor.service_rate if executor.service_rate else 0.0
    return executor.state_bytes + BYTES_PER_SECOND * (MOVE_SECONDS * shards + BUSY_PAUSE * busy)


def _column(cores: Mapping[int, int]) -> Mapping[int, int]:
    # That of one node needs no order, and the mappings of a snapshot do not change.
    return cores if len(cores) == 1 else by_node(cores)


def _intensity(executor: ExecutorSnapshot, nodes: Sequence[NodeSnapshot]) -> float:
    if nodes[executor.home].retiring or not executor.cores:
        return 0.0
    per_core = (executor.bytes_in + executor.bytes_out) / executor.total_cores
    at_home = len(executor.cores) == 1 and executor.home in executor.cores
    return per_core if at_home else per_core * AWAY


def proposed_changes(
    grants: Sequence[Grant], nodes: Sequence[NodeSnapshot], before: CoreProblem, after: CoreColumns
) -> list[ProposedChange]:
    """Return the changes between two assignments; urgent are urgent growth, and leaving a retiring node.

    Parameters
    ----------
    grants : sequence of Grant
        The executors.
    nodes : sequence of NodeSnapshot
        The nodes.
    before : CoreProblem
        The problem, with the current assignment.
    after : CoreColumns
        The planned assignment.

    Returns
    -------
    list of ProposedChange
        One change per executor whose cores differ.
    """
    retiring = {index for index, node in enumerate(nodes) if node.retiring}
    found = []
    for grant, old, new in zip(grants, before.columns.columns, after.columns, strict=True):
        if old is not new and old != new:
            more = sum(new.values()) - sum(old.values())
            urgent = not retiring.isdisjoint(old) or (grant.urgent and more > 0)
            found.append(ProposedChange(grant.key, old, new, _moved(old, new, grant.executor.state_bytes), urgent))
    return found


def _moved(before: Mapping[int, int], after: Mapping[int, int], state_bytes: int) -> float:
    """Return the bytes of an executor's state that leave their node, if state is spread evenly over cores."""
    old, new, moved = sum(before.values()), max(sum(after.values()), 1), 0.0
    for node, count in before.items():
        left = count / old - after.get(node, 0) / new
        if left > 0:
            moved += left
    return moved * state_bytes


def core_change(change: ProposedChange) -> CoreChange:
    """Return a proposed change in the form that homes carry out."""
    name, generation, executor = change.key
    return CoreChange(name, generation, executor, dict(change.before), dict(change.after), change.moved_bytes)
