"""Core assignment for GIL-bound executors: few cores per node, on many nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Cores = NDArray[np.int64]


def spread(
    current: Cores,
    granted: Cores,
    keep: Cores,
    per_node: Cores,
    capacity: Cores,
    home: Cores,
    hosts: Sequence[str],
    occupied: Cores,
) -> Cores:
    """Assign cores to executors with a limit per node.

    Parameters
    ----------
    current : array of int, nodes × executors
        Cores that each executor has.
    granted, keep : array of int
        Cores that each executor is to have, and that it keeps if it has them.
    per_node : array of int
        Limit of each executor's cores on one node.
    capacity : array of int
        Cores of each node, including those of other executors that can move.
    home : array of int
        Node of each executor's home.
    hosts : sequence of str
        The host of each node.
    occupied : array of int
        Cores of each node that other executors hold.

    Returns
    -------
    numpy.ndarray of int, nodes × executors
        An executor exceeds its limit on a node, or gets fewer cores than granted, only if it would otherwise have none.

    Notes
    -----
    A new core is placed on the node with the fewest cores of GIL-bound executors, since these share one GIL; among
    equals where a core is free, then on the home's host, then on the node of lowest number. Cores above the limit of a
    node are released, since they bring no speedup.

    Examples
    --------
    >>> capacity, home = np.array([4, 4]), np.array([0])
    >>> two = np.array([2])
    >>> spread(np.array([[2], [0]]), two, two, np.array([1]), capacity, home, ["a", "b"], np.array([0, 0])).tolist()
    [[1], [1]]
    """
    cores = np.minimum(current, per_node)
    cores[capacity <= 0] = 0
    left = capacity - cores.sum(axis=1)
    for node in np.flatnonzero(left < 0).tolist():
        for executor in np.argsort(home == node, kind="stable").tolist():
            released = min(int(-left[node]), int(cores[node, executor]))
            cores[node, executor] -= released
            left[node] += released
            if left[node] >= 0:
                break
    counts = np.maximum(granted, 1).tolist()
    for executor, count in enumerate(counts):
        _drop(cores[:, executor], max(count, int(keep[executor])), int(home[executor]), left)
    # Each executor gets one core before any gets more.
    for wanted in ([1] * len(counts), counts):
        for executor, count in enumerate(wanted):
            while cores[:, executor].sum() < count:
                found = _next_node(cores, executor, per_node, left, occupied, home, hosts)
                if found is None:
                    break
                cores[found, executor] += 1
                left[found] -= 1
    return cores


def _drop(column: Cores, count: int, home: int, left: Cores) -> None:
    """Release cores, remote ones first, until `count` are left."""
    while column.sum() > count:
        remote = [node for node in np.flatnonzero(column).tolist() if node != home]
        node = remote[-1] if remote else home
        column[node] -= 1
        left[node] += 1


def _next_node(
    cores: Cores,
    executor: int,
    per_node: Cores,
    left: Cores,
    occupied: Cores,
    home: Cores,
    hosts: Sequence[str],
) -> int | None:
    """Return the best node for the next core of an executor, or None."""
    own = int(home[executor])
    options = [
        (cores[node, executor] >= per_node[executor], int(cores[node].sum()), left[node] <= occupied[node],
         node != own, hosts[node] != hosts[own], node)
        for node in np.flatnonzero(left > 0).tolist()
    ]  # fmt: skip
    if not options:
        return None
    beyond, *_, node = min(options)
    return None if beyond and cores[:, executor].any() else node
