"""From a snapshot to arrays, and back: the executors whose cores may change, in one order for all jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_elastic.control.guard import Owner, Step
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.vocab.plan import CoreChange
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot

Cores = NDArray[np.int64]

AWAY = 0.75
"""An executor that has remote cores counts as so much less data-intensive, so that noise around the threshold does not
send its cores back and forth."""


@dataclass(frozen=True)
class Seat:
    """An executor whose cores may change.

    Parameters
    ----------
    job : JobSnapshot
        Its job.
    executor : ExecutorSnapshot
        What is measured of it.
    granted : int
        Cores that it is to have.
    keep : int
        Cores that it keeps where nobody else needs them.
    per_node : int
        Cores of one node that help it, 0 for any number.
    urgent : bool
        Whether more cores for it cannot wait.
    """

    job: JobSnapshot
    executor: ExecutorSnapshot
    granted: int
    keep: int
    per_node: int
    urgent: bool

    @property
    def owner(self) -> Owner:
        """Which executor of which run of which job."""
        return self.job.name, self.job.generation, self.executor.executor


def column(cores: Mapping[int, int], nodes: int) -> Cores:
    """Return cores by node as an array."""
    array = np.zeros(nodes, dtype=np.int64)
    for node, count in cores.items():
        array[node] = count
    return array


def occupied(executors: Sequence[ExecutorSnapshot], nodes: int) -> Cores:
    """Return the cores that executors hold on each node."""
    total = np.zeros(nodes, dtype=np.int64)
    for executor in executors:
        for node, count in executor.cores.items():
            total[node] += count
    return total


def usable(nodes: Sequence[NodeSnapshot]) -> Cores:
    """Return the cores of each node; none of those that retire."""
    return np.array([0 if node.retiring else node.cores for node in nodes], dtype=np.int64)


def problem(seats: Sequence[Seat], nodes: Sequence[NodeSnapshot], capacity: Cores, threshold: float) -> CoreProblem:
    """Return the problem of assigning cores to these executors.

    Notes
    -----
    Executors whose home retires have nowhere to be at home, and do not count as data-intensive.
    """
    current = np.zeros((len(nodes), len(seats)), dtype=np.int64)
    for place, seat in enumerate(seats):
        for node, count in seat.executor.cores.items():
            current[node, place] = count
    return CoreProblem(
        current=current,
        granted=np.array([seat.granted for seat in seats], dtype=np.int64),
        capacity=capacity,
        state_bytes=np.array([seat.executor.state_bytes for seat in seats], dtype=np.float64),
        home=np.array([seat.executor.home for seat in seats], dtype=np.int64),
        intensity=np.array([_intensity(seat.executor, nodes) for seat in seats], dtype=np.float64),
        threshold=threshold,
    )


def _intensity(executor: ExecutorSnapshot, nodes: Sequence[NodeSnapshot]) -> float:
    if nodes[executor.home].retiring or not executor.cores:
        return 0.0
    per_core = (executor.bytes_in + executor.bytes_out) / executor.total_cores
    return per_core * AWAY if set(executor.cores) != {executor.home} else per_core


def steps(seats: Sequence[Seat], nodes: Sequence[NodeSnapshot], before: CoreProblem, after: Cores) -> list[Step]:
    """Return the executors whose cores change; urgent are those that grow urgently, or leave a node that retires."""
    retiring = np.array([node.retiring for node in nodes], dtype=np.bool_)
    changed = np.flatnonzero(np.not_equal(before.current, after).any(axis=0))
    old, new = before.current[:, changed], after[:, changed]
    leaving = old[retiring].sum(axis=0).tolist()
    more = (new.sum(axis=0) - old.sum(axis=0)).tolist()
    moved = _moved(old, new, before.state_bytes[changed]).tolist()
    found = []
    for place, seat in enumerate(seats[index] for index in changed.tolist()):
        urgent = leaving[place] > 0 or (seat.urgent and more[place] > 0)
        found.append(Step(seat.owner, old[:, place], new[:, place], moved[place], urgent))
    return found


def _moved(before: Cores, after: Cores, state_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the state of each executor that leaves its node, spread evenly over its cores."""
    shares = before / np.maximum(before.sum(axis=0), 1) - after / np.maximum(after.sum(axis=0), 1)
    leaving: NDArray[np.float64] = np.maximum(shares, 0.0).sum(axis=0) * state_bytes
    return leaving


def change(step: Step) -> CoreChange:
    """Return a step as what the homes carry out."""
    name, generation, executor = step.owner
    return CoreChange(name, generation, executor, _mapping(step.before), _mapping(step.after), step.moved_bytes)


def _mapping(cores: Cores) -> dict[int, int]:
    return {node: count for node, count in enumerate(cores.tolist()) if count}
