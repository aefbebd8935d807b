"""Locality of added cores: prefer the home's node, then its host, then other hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dask_elastic.planning.cores.columns import CoreColumns, by_node
from dask_elastic.planning.turns import in_turns, no_pause

Cores = NDArray[np.int64]
Amounts = NDArray[np.float64]


def nearer(
    current: CoreColumns,
    cores: CoreColumns,
    capacity: Cores,
    state_bytes: Amounts,
    home: Cores,
    hosts: Sequence[str],
    fixed: NDArray[np.bool_] | None = None,
    pause: Callable[[], None] = no_pause,
) -> CoreColumns:
    """Move added cores that are on another host than the executor's home to the home's host, if no more state moves.

    Parameters
    ----------
    current, cores : CoreColumns
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
    pause : callable
        Called between steps.

    Returns
    -------
    CoreColumns
        The same number of cores for each executor; no node exceeds its capacity or its planned number of cores.

    Notes
    -----
    The core assignment of Elasticutor, section 4.2, distinguishes two distances, home and remote. It is often
    indifferent among remote nodes: a core on a node without any of the executor's state costs the same everywhere. Such
    a core is replaced by a free one on the home's host, or exchanged with a core that the plan gives there to an
    executor whose home is on another host.

    Examples
    --------
    >>> before, planned = CoreColumns(3, [{0: 1}]), CoreColumns(3, [{0: 1, 1: 1}])
    >>> nearer(before, planned, np.array([1, 4, 4]), np.ones(1), np.array([0]), ["a", "b", "a"]).columns
    [{0: 1, 2: 1}]
    """
    if len(set(hosts)) in (1, len(hosts)):
        return cores
    return _Exchange(current, cores, capacity, state_bytes, home, hosts).run(fixed, pause)


class _Exchange:
    """An assignment that is changed step by step; no step increases the state that moves."""

    def __init__(
        self,
        current: CoreColumns,
        cores: CoreColumns,
        capacity: Cores,
        state_bytes: Amounts,
        home: Cores,
        hosts: Sequence[str],
    ):
        self._before = current
        self._planned = cores
        self._cores: list[Mapping[int, int]] = list(cores.columns)
        self._totals: list[int] = np.maximum(current.totals, 1).tolist()
        self._free: list[int] = (capacity - cores.per_node).tolist()
        self._state: list[float] = state_bytes.tolist()
        self._home: list[int] = home.tolist()
        self._hosts = hosts
        # The nodes of each host, and the cores added to executors whose home is on another host, by node.
        self._near: dict[str, list[int]] = {}
        for node, host in enumerate(hosts):
            self._near.setdefault(host, []).append(node)
        self._added: dict[int, dict[int, int]] = {}
        self._changed: set[int] = set()

    def run(self, fixed: NDArray[np.bool_] | None, pause: Callable[[], None]) -> CoreColumns:
        """Exchange cores that are added far from home."""
        stays = set() if fixed is None else set(np.flatnonzero(fixed).tolist())
        columns = enumerate(zip(self._before.columns, self._cores, strict=True))
        for executor, (before, after) in in_turns(columns, pause):
            if before is after or before == after or executor in stays:
                continue
            for node, count in after.items():
                more = count - before.get(node, 0)
                if more > 0 and self._hosts[node] != self._hosts[self._home[executor]]:
                    self._added.setdefault(node, {})[executor] = more
        for node in sorted(self._added):
            for executor in sorted(self._added[node]):
                pause()
                self._improve(node, executor)
        return self._planned.replaced({executor: by_node(self._cores[executor]) for executor in self._changed})

    def _improve(self, node: int, executor: int) -> None:
        own, added = self._home[executor], self._added[node]
        near = [own, *(other for other in self._near[self._hosts[own]] if other != own)]
        for _ in range(added[executor]):
            if not (self._to_free(executor, node, near) or self._with_other(executor, node, near)):
                break
            # A core that was moved must not be exchanged again.
            added[executor] -= 1

    def _to_free(self, executor: int, node: int, near: Sequence[int]) -> bool:
        """Move one core of an executor from a node to a free core of another; return whether there was any."""
        for target in near:
            if self._free[target] > 0 and self._loss(executor, node, target) <= 0:
                self._move(executor, node, target)
                return True
        return False

    def _with_other(self, executor: int, node: int, near: Sequence[int]) -> bool:
        """Exchange a core with one that the plan adds to another executor; return whether there was any."""
        for target in near:
            for other, more in sorted(self._added.get(target, {}).items()):
                if more <= 0 or other == executor:
                    continue
                if self._loss(executor, node, target) + self._loss(other, target, node) <= 0:
                    self._move(executor, node, target)
                    self._move(other, target, node)
                    self._added[target][other] -= 1
                    return True
        return False

    def _loss(self, executor: int, source: int, target: int) -> float:
        """Return the additional bytes of state that move if one core changes its node."""
        column, held, moved = self._cores[executor], self._before.columns[executor], 0.0
        total = sum(column.values())
        for node, change in ((source, -1), (target, 1)):
            share, count = held.get(node, 0) / self._totals[executor], column.get(node, 0)
            moved += max(share - (count + change) / total, 0.0) - max(share - count / total, 0.0)
        return moved * self._state[executor]

    def _move(self, executor: int, source: int, target: int) -> None:
        self._changed.add(executor)
        column = dict(self._cores[executor])
        column[source] -= 1
        column[target] = column.get(target, 0) + 1
        self._cores[executor] = column
        self._free[source] += 1
        self._free[target] -= 1
