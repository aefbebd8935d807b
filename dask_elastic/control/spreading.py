"""Cores for executors whose threads hold the GIL: few on each node, on many nodes."""

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
    """Give each executor its cores with no more than a few on a node.

    Parameters
    ----------
    current : array of int, nodes × executors
        Cores that each executor has.
    granted, keep : array of int
        Cores that each is to have, and that it keeps if it has them.
    per_node : array of int
        Cores of one node that help each executor.
    capacity : array of int
        Cores of each node, with those that others hold who can go elsewhere.
    home : array of int
        Node of each executor's home.
    hosts : sequence of str
        The machine of each node.
    occupied : array of int
        Cores of each node that others hold.

    Returns
    -------
    numpy.ndarray of int, nodes × executors
        An executor exceeds its limit on a node, or lacks cores, only where there is no other way to have one at all.

    Notes
    -----
    A new core goes where the fewest other threads of such executors are, since they hold the same lock; then where a
    core is free, on the home's host, on the node of lowest number. Cores beyond the limit of a node are given up, as
    they do not help.

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
            given = min(int(-left[node]), int(cores[node, executor]))
            cores[node, executor] -= given
            left[node] += given
            if left[node] >= 0:
                break
    counts = np.maximum(granted, 1).tolist()
    for executor, count in enumerate(counts):
        _drop(cores[:, executor], max(count, int(keep[executor])), int(home[executor]), left)
    # Everybody has a core before anybody has more.
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
    """Take cores away, remote ones first, until so many are left."""
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
    """Return where the next core of an executor is best."""
    place = int(home[executor])
    options = [
        (cores[node, executor] >= per_node[executor], int(cores[node].sum()), left[node] <= occupied[node],
         node != place, hosts[node] != hosts[place], node)
        for node in np.flatnonzero(left > 0).tolist()
    ]  # fmt: skip
    if not options:
        return None
    beyond, *_, node = min(options)
    return None if beyond and cores[:, executor].any() else node
