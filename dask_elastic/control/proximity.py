"""Locality of added cores: prefer the home's node, then its host, then other hosts."""

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
    """Move added cores that are on another host than the executor's home to the home's host, if no more state moves.

    Parameters
    ----------
    current, cores : array of int, nodes × executors
        The assignment before the plan, and the planned one.
    capacity : array of int
        Cores of each node.
    state_bytes : array of float
        Bytes of state of each executor.
    home : array of int
        Node of each executor's home.
    hosts : sequence of str
        The host of each node.
    fixed : array of bool, optional
        Executors whose cores stay as planned.

    Returns
    -------
    numpy.ndarray of int, nodes × executors
        The same number of cores for each executor; no node exceeds its capacity or its planned number of cores.

    Notes
    -----
    The core assignment of Elasticutor, section 4.2, distinguishes two distances, home and remote. It is often
    indifferent among remote nodes: a core on a node without any of the executor's state costs the same everywhere. Such
    a core is replaced by a free one on the home's host, or exchanged with a core that the plan gives there to an
    executor whose home is on another host.

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
        own = int(home[executor])
        near = [own, *(other for other in np.flatnonzero(machine == machine[own]).tolist() if other != own)]
        for _ in range(int(added[node, executor])):
            if not (exchange.to_free(executor, node, near) or exchange.with_other(executor, node, near, added, far)):
                break
            # A core that was moved must not be exchanged again.
            added[node, executor] -= 1
    return cores


class _Exchange:
    """An assignment that is changed step by step; no step increases the state that moves."""

    def __init__(self, current: Cores, cores: Cores, capacity: Cores, state_bytes: Amounts):
        totals = np.maximum(current.sum(axis=0), 1)
        self._shares = current / totals
        self._cores = cores
        self._capacity = capacity
        self._state = state_bytes

    def to_free(self, executor: int, node: int, near: Sequence[int]) -> bool:
        """Move one core of an executor from a node to a free core of another; return whether there was any."""
        for target in near:
            if self._cores[target].sum() < self._capacity[target] and self._loss(executor, node, target) <= 0:
                self._move(executor, node, target)
                return True
        return False

    def with_other(self, executor: int, node: int, near: Sequence[int], added: Cores, far: NDArray[np.bool_]) -> bool:
        """Exchange a core with one that the plan adds to another executor; return whether there was any."""
        for target in near:
            for other in np.flatnonzero((added[target] > 0) & far[target]).tolist():
                if other != executor and self._loss(executor, node, target) + self._loss(other, target, node) <= 0:
                    self._move(executor, node, target)
                    self._move(other, target, node)
                    added[target, other] -= 1
                    return True
        return False

    def _loss(self, executor: int, source: int, target: int) -> float:
        """Return the additional bytes of state that move if one core changes its node."""
        column, shares = self._cores[:, executor], self._shares[:, executor]
        total, moved = int(column.sum()), 0.0
        for node, change in ((source, -1), (target, 1)):
            before, after = column[node] / total, (column[node] + change) / total
            moved += max(shares[node] - after, 0.0) - max(shares[node] - before, 0.0)
        return float(moved * self._state[executor])

    def _move(self, executor: int, source: int, target: int) -> None:
        self._cores[source, executor] -= 1
        self._cores[target, executor] += 1
