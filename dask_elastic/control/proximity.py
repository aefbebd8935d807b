"""Same node before same host before other host: cores that are new to their executor come nearer to its home."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Cores = NDArray[np.int64]
Amounts = NDArray[np.float64]


def nearer(
    current: Cores,
    cores: Cores,
    capacity: Cores,
    state_bytes: Amounts,
    home: Cores,
    hosts: Sequence[str],
    fixed: NDArray[np.bool_] | None = None,
) -> Cores:
    """Move cores that were added on another host than the executor's to its host, where that moves no more state.

    Parameters
    ----------
    current, cores : array of int, nodes × executors
        Before the plan, and as planned.
    capacity : array of int
        Cores of each node.
    state_bytes : array of float
        State of each executor.
    home : array of int
        Node of each executor's home.
    hosts : sequence of str
        The machine of each node.
    fixed : array of bool, optional
        Executors whose cores are to stay where they were planned.

    Returns
    -------
    numpy.ndarray of int, nodes × executors
        As many cores for each executor, no node fuller than before or than its capacity.

    Notes
    -----
    Core assignment as in Elasticutor, section 4.2, knows of two distances, at home and remote. Among the remote nodes
    it is often indifferent: a core on a node that holds none of the executor's state costs the same everywhere. Such a
    core goes to a free one of the home's host, or changes with one that another executor was to get there, if that
    executor is not at home on that host.

    Examples
    --------
    >>> before, planned = np.array([[1], [0], [0]]), np.array([[1], [1], [0]])
    >>> nearer(before, planned, np.array([1, 4, 4]), np.ones(1), np.array([0]), ["a", "b", "a"]).ravel().tolist()
    [1, 0, 1]
    """
    if len(set(hosts)) in (1, len(hosts)):
        return cores
    machine = np.unique(np.asarray(hosts), return_inverse=True)[1]
    cores = cores.copy()
    added = np.maximum(cores - current, 0)
    added[:, [] if fixed is None else fixed] = 0
    far = machine[:, None] != machine[home][None, :]
    exchange = _Exchange(current, cores, capacity, state_bytes)
    for node, executor in np.argwhere((added > 0) & far).tolist():
        place = int(home[executor])
        near = [place, *(other for other in np.flatnonzero(machine == machine[place]).tolist() if other != place)]
        for _ in range(int(added[node, executor])):
            if not (exchange.to_free(executor, node, near) or exchange.with_other(executor, node, near, added, far)):
                break
            # It is not to change its place once more for the sake of another.
            added[node, executor] -= 1
    return cores


class _Exchange:
    """Cores while they change places; each change moves no more state than the one before."""

    def __init__(self, current: Cores, cores: Cores, capacity: Cores, state_bytes: Amounts):
        totals = np.maximum(current.sum(axis=0), 1)
        self._shares = current / totals
        self._cores = cores
        self._capacity = capacity
        self._state = state_bytes

    def to_free(self, executor: int, node: int, near: Sequence[int]) -> bool:
        """Move a core of an executor from a node to a free one of others; tells whether there was any."""
        for place in near:
            if self._cores[place].sum() < self._capacity[place] and self._loss(executor, node, place) <= 0:
                self._move(executor, node, place)
                return True
        return False

    def with_other(self, executor: int, node: int, near: Sequence[int], added: Cores, far: NDArray[np.bool_]) -> bool:
        """Exchange a core with one that another executor was to get; tells whether there was any."""
        for place in near:
            for other in np.flatnonzero((added[place] > 0) & far[place]).tolist():
                if other != executor and self._loss(executor, node, place) + self._loss(other, place, node) <= 0:
                    self._move(executor, node, place)
                    self._move(other, place, node)
                    added[place, other] -= 1
                    return True
        return False

    def _loss(self, executor: int, source: int, target: int) -> float:
        """Return the state that moves if one core changes its node, beyond what moves anyhow."""
        column, shares = self._cores[:, executor], self._shares[:, executor]
        total, moved = int(column.sum()), 0.0
        for node, change in ((source, -1), (target, 1)):
            before, after = column[node] / total, (column[node] + change) / total
            moved += max(shares[node] - after, 0.0) - max(shares[node] - before, 0.0)
        return float(moved * self._state[executor])

    def _move(self, executor: int, source: int, target: int) -> None:
        self._cores[source, executor] -= 1
        self._cores[target, executor] += 1
