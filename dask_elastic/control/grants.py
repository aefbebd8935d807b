"""Translation of snapshots to arrays and back, for the executors of all jobs whose cores may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.guard import ProposedChange
from dask_elastic.control.keys import ExecutorKey
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.vocab.plan import CoreChange
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot

Cores = NDArray[np.int64]

AWAY = 0.75
"""Factor on the data intensity of an executor that has remote cores, so that noise around the threshold does not move
its cores back and forth."""


@dataclass(frozen=True)
class Grant:
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
    """
    current = np.zeros((len(nodes), len(grants)), dtype=np.int64)
    for index, grant in enumerate(grants):
        for node, count in grant.executor.cores.items():
            current[node, index] = count
    return CoreProblem(
        current=current,
        granted=np.array([grant.granted for grant in grants], dtype=np.int64),
        capacity=capacity,
        state_bytes=np.array([grant.executor.state_bytes for grant in grants], dtype=np.float64),
        home=np.array([grant.executor.home for grant in grants], dtype=np.int64),
        intensity=np.array([_intensity(grant.executor, nodes) for grant in grants], dtype=np.float64),
        threshold=threshold,
    )


def _intensity(executor: ExecutorSnapshot, nodes: Sequence[NodeSnapshot]) -> float:
    if nodes[executor.home].retiring or not executor.cores:
        return 0.0
    per_core = (executor.bytes_in + executor.bytes_out) / executor.total_cores
    return per_core * AWAY if set(executor.cores) != {executor.home} else per_core


def proposed_changes(
    grants: Sequence[Grant], nodes: Sequence[NodeSnapshot], before: CoreProblem, after: Cores
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
    after : array of int, nodes × executors
        The planned assignment.

    Returns
    -------
    list of ProposedChange
        One change per executor whose cores differ.
    """
    retiring = np.array([node.retiring for node in nodes], dtype=np.bool_)
    changed = np.flatnonzero(np.not_equal(before.current, after).any(axis=0))
    old, new = before.current[:, changed], after[:, changed]
    leaving = old[retiring].sum(axis=0).tolist()
    more = (new.sum(axis=0) - old.sum(axis=0)).tolist()
    moved = _moved(old, new, before.state_bytes[changed]).tolist()
    found = []
    for index, grant in enumerate(grants[position] for position in changed.tolist()):
        urgent = leaving[index] > 0 or (grant.urgent and more[index] > 0)
        found.append(ProposedChange(grant.key, old[:, index], new[:, index], moved[index], urgent))
    return found


def _moved(before: Cores, after: Cores, state_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bytes of each executor's state that leave their node, if state is spread evenly over cores."""
    shares = before / np.maximum(before.sum(axis=0), 1) - after / np.maximum(after.sum(axis=0), 1)
    leaving: NDArray[np.float64] = np.maximum(shares, 0.0).sum(axis=0) * state_bytes
    return leaving


def core_change(change: ProposedChange) -> CoreChange:
    """Return a proposed change in the form that homes carry out."""
    name, generation, executor = change.key
    return CoreChange(name, generation, executor, _mapping(change.before), _mapping(change.after), change.moved_bytes)


def _mapping(cores: Cores) -> dict[int, int]:
    return {node: count for node, count in enumerate(cores.tolist()) if count}
