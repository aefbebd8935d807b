"""Translation of snapshots to arrays and back, for the executors of all jobs whose cores may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.guard import ProposedChange
from dask_elastic.migration.move_work import MOVE_SECONDS
from dask_elastic.planning.cores.columns import CoreColumns, by_node
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.planning.turns import in_turns, no_pause
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot

Cores = NDArray[np.int64]
Amounts = NDArray[np.float64]

AWAY = 0.75
"""Factor on the data intensity of an executor that has remote cores, so that noise around the threshold does not move
its cores back and forth."""

BYTES_PER_SECOND = 125e6
"""Bytes of state that travel per second between nodes: 1 Gbit/s, as in the papers."""

BUSY_PAUSE = 0.05
"""Seconds for which rows of a shard wait when it leaves a task that is busy."""


@dataclass(frozen=True, eq=False)
class Grants:
    """The cores granted to the executors of one job whose cores may change; arrays have one entry for each of them.

    Parameters
    ----------
    job : JobSnapshot
        The job.
    indices : array of int
        These executors, by their index in the job.
    granted : array of int
        Number of cores that each is to have at least.
    keep : array of int
        Number of cores that each keeps unless another executor needs them.
    per_node : array of int
        Number of cores of one node that speed each up, 0 for no limit.
    urgent : bool
        Whether growing them is exempt from the cooldown.
    """

    job: JobSnapshot
    indices: Cores
    granted: Cores
    keep: Cores
    per_node: Cores
    urgent: bool

    @cached_property
    def executors(self) -> list[ExecutorSnapshot]:
        """The measurements of these executors."""
        return [self.job.executors[index] for index in self.indices.tolist()]


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
    grants: Sequence[Grants],
    nodes: Sequence[NodeSnapshot],
    capacity: Cores,
    threshold: float,
    pause: Callable[[], None] = no_pause,
) -> CoreProblem:
    """Return the problem of assigning cores of nodes to the granted executors.

    Parameters
    ----------
    grants : sequence of Grants
        The executors of each job.
    nodes : sequence of NodeSnapshot
        The nodes.
    capacity : array of int
        Cores of each node that are available to these executors.
    threshold : float
        Data intensity above which an executor is to have its cores at home.
    pause : callable
        Called between steps.

    Returns
    -------
    CoreProblem
        The problem, with the jobs in the order of `grants`.

    Notes
    -----
    An executor whose home retires cannot have cores at home and counts as not data-intensive.

    The state of an executor includes what else its moves cost, as the bytes that would travel meanwhile. With little
    state that is nearly all: hundreds of shards, each of which takes some work, and rows that wait for them. Otherwise
    a busy executor with a few bytes less would leave its home for an idle one.
    """
    executors = [executor for one in grants for executor in one.executors]
    return CoreProblem(
        current=CoreColumns(len(nodes), [_column(executor.cores) for executor in in_turns(executors, pause)]),
        granted=np.concatenate([one.granted for one in grants]),
        capacity=capacity,
        state_bytes=np.concatenate([_moving_bytes(one) for one in in_turns(grants, pause)]),
        home=np.array([executor.home for executor in executors], dtype=np.int64),
        intensity=np.concatenate([_intensity(one, nodes) for one in in_turns(grants, pause)]),
        threshold=threshold,
        pause=pause,
    )


def _moving_bytes(grants: Grants) -> Amounts:
    job, executors = grants.job, grants.executors
    state = np.array([executor.state_bytes for executor in executors], dtype=np.float64)
    loads = [executor.shard_load for executor in executors]
    shards = np.array([0 if load is None else len(load) for load in loads], dtype=np.int64)
    service = job.service_rates[grants.indices]
    busy = job.throughputs[grants.indices] / np.where(service != 0, service, np.inf)
    return np.where(shards > 0, state + BYTES_PER_SECOND * (MOVE_SECONDS * shards + BUSY_PAUSE * busy), state)


def _column(cores: Mapping[int, int]) -> Mapping[int, int]:
    # The mappings of a snapshot do not change, and most are in the order of nodes.
    return cores if len(cores) == 1 or (nodes := list(cores)) == sorted(nodes) else by_node(cores)


def _intensity(grants: Grants, nodes: Sequence[NodeSnapshot]) -> Amounts:
    executors, total = grants.executors, grants.job.total_cores[grants.indices]
    retiring = [node.retiring for node in nodes]
    stays = np.array([not retiring[executor.home] for executor in executors], dtype=np.bool_)
    at_home = np.array([len(one.cores) == 1 and one.home in one.cores for one in executors], dtype=np.bool_)
    per_core = np.array([one.bytes_in + one.bytes_out for one in executors], dtype=np.float64) / np.maximum(total, 1)
    return np.where(stays & (total > 0), np.where(at_home, per_core, per_core * AWAY), 0.0)


def proposed_changes(
    grants: Sequence[Grants], nodes: Sequence[NodeSnapshot], before: CoreProblem, after: CoreColumns
) -> list[ProposedChange]:
    """Return the changes between two assignments; urgent are urgent growth, and leaving a retiring node.

    Parameters
    ----------
    grants : sequence of Grants
        The executors of each job.
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
    # One iterator over the executors of all jobs.
    columns = zip(before.columns.columns, after.columns, strict=True)
    found = []
    for one in grants:
        job = one.job
        for executor, (old, new) in in_turns(zip(one.executors, columns, strict=False), before.pause):
            if old is not new and old != new:
                more = sum(new.values()) - sum(old.values())
                urgent = not retiring.isdisjoint(old) or (one.urgent and more > 0)
                key = job.name, job.generation, executor.executor
                found.append(ProposedChange(key, old, new, _moved(old, new, executor.state_bytes), urgent))
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
