"""Core assignment for GIL-bound executors: few cores per node, on many nodes."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from dask_elastic.planning.cores.columns import CoreColumns, Cores, by_node


def spread(
    current: CoreColumns,
    granted: Cores,
    keep: Cores,
    per_node: Cores,
    capacity: Cores,
    home: Cores,
    hosts: Sequence[str],
    occupied: Cores,
) -> CoreColumns:
    """Assign cores to executors with a limit per node.

    Parameters
    ----------
    current : CoreColumns
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
    CoreColumns
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
    >>> current = CoreColumns(2, [{0: 2}])
    >>> spread(current, two, two, np.array([1]), capacity, home, ["a", "b"], np.array([0, 0])).columns
    [{0: 1, 1: 1}]
    """
    columns = _within_limits(current, per_node, capacity)
    spreading = _Spreading(columns, capacity, occupied, home, hosts)
    spreading.leave_full_nodes()
    counts = np.maximum(granted, 1)
    for executor, count in enumerate(np.maximum(counts, keep).tolist()):
        spreading.drop(executor, count)
    # Each executor gets one core before any gets more.
    for wanted in (np.ones_like(counts), counts):
        for executor, (count, limit) in enumerate(zip(wanted.tolist(), per_node.tolist(), strict=True)):
            spreading.add(executor, count, limit)
    return CoreColumns(current.nodes, [by_node(column) for column in columns])


def _within_limits(current: CoreColumns, per_node: Cores, capacity: Cores) -> list[dict[int, int]]:
    """Return the cores that executors have, without those above the limit of a node or on nodes without cores."""
    usable = (capacity > 0).tolist()
    return [
        {node: min(count, limit) for node, count in column.items() if usable[node] and limit > 0}
        for column, limit in zip(current.columns, per_node.tolist(), strict=True)
    ]


class _Spreading:
    """Cores of GIL-bound executors; the nodes with free cores are a heap, best first."""

    def __init__(
        self,
        columns: list[dict[int, int]],
        capacity: Cores,
        occupied: Cores,
        home: Cores,
        hosts: Sequence[str],
    ):
        self._columns = columns
        self._home: list[int] = home.tolist()
        self._hosts = hosts
        self._near: dict[str, list[int]] = {}
        for node, host in enumerate(hosts):
            self._near.setdefault(host, []).append(node)
        self._held = CoreColumns(len(hosts), columns).per_node.tolist()
        self._left: list[int] = (capacity - np.array(self._held, dtype=np.int64)).tolist()
        self._occupied: list[int] = occupied.tolist()
        self._nodes: list[tuple[int, bool, int]] | None = None

    def leave_full_nodes(self) -> None:
        """Release cores of nodes that have too few, first those of executors with another home."""
        members: dict[int, list[int]] = {node: [] for node, left in enumerate(self._left) if left < 0}
        for executor, column in enumerate(self._columns):
            for node in column.keys() & members.keys():
                members[node].append(executor)
        for node, executors in members.items():
            for executor in sorted(executors, key=lambda j: self._home[j] == node):
                self._change(executor, node, -min(-self._left[node], self._columns[executor][node]))
                if self._left[node] >= 0:
                    break

    def drop(self, executor: int, count: int) -> None:
        """Release cores, remote ones first, until `count` are left."""
        column, home = self._columns[executor], self._home[executor]
        for node in (*sorted(column.keys() - {home}, reverse=True), *(column.keys() & {home})):
            excess = sum(column.values()) - count
            if excess > 0:
                self._change(executor, node, -min(excess, column[node]))

    def add(self, executor: int, count: int, limit: int) -> None:
        """Give an executor cores until it has `count`, as far as there are nodes where it is below its limit."""
        column = self._columns[executor]
        for _ in range(count - sum(column.values())):
            # Its first core may exceed the limit.
            node = self._next_node(executor, limit if column else max(limit, 1))
            if node is None:
                break
            self._change(executor, node, 1)

    def _next_node(self, executor: int, limit: int) -> int | None:
        """Return the best node for the next core of an executor, or None."""
        if self._nodes is None:
            self._nodes = [self._entry(node) for node, left in enumerate(self._left) if left > 0]
            heapify(self._nodes)
        column, full, best = self._columns[executor], [], None
        while self._nodes and best is None:
            entry = self._nodes[0]
            if self._left[entry[2]] <= 0 or entry != self._entry(entry[2]):
                heappop(self._nodes)
            elif column.get(entry[2], 0) >= limit:
                full.append(heappop(self._nodes))
            else:
                best = entry
        for entry in full:
            heappush(self._nodes, entry)
        if best is None:
            return None
        home = self._home[executor]
        near = [] if self._hosts[best[2]] == self._hosts[home] else self._near[self._hosts[home]]
        for node in (home, *near):
            is_open = self._left[node] > 0 and column.get(node, 0) < limit
            if is_open and self._entry(node)[:2] == best[:2]:
                return node
        return best[2]

    def _entry(self, node: int) -> tuple[int, bool, int]:
        """Return by what nodes are compared: their cores of GIL-bound executors, and whether other cores are free."""
        return self._held[node], self._left[node] <= self._occupied[node], node

    def _change(self, executor: int, node: int, by: int) -> None:
        column = self._columns[executor]
        column[node] = column.get(node, 0) + by
        if not column[node]:
            del column[node]
        self._held[node] += by
        self._left[node] -= by
        if self._nodes is not None and self._left[node] > 0:
            heappush(self._nodes, self._entry(node))
