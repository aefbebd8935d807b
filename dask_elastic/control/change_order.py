"""The order in which changes of cores are carried out: a core is released before another executor takes it.

Goal
    Each change finds its cores free, where possible; the order takes milliseconds for thousands of changes.
Method
    Of the changes whose cores are free, the one that takes fewest comes first, then that of the lowest key. In a cycle
    no change is free to go; then the one that takes fewest comes first. A change that is not free waits at one node
    that lacks cores for it, sorted by the cores that it takes there. Of those that would fit there, only the first is a
    candidate at a time: the others cannot come before it.
Not done
    Which changes are carried out: `dask_elastic.control.guard`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

Change = tuple[int, int]
"""The cores that a change takes in total, and its number: the order of changes that are free to go."""


class ChangeOrder:
    """Orders changes by the cores that they take and release.

    Parameters
    ----------
    deltas : sequence of dict of int to int
        For each change, the cores that it takes on nodes; negative where it releases some.
    free : sequence of int
        Free cores of each node; negative if the node must release some.

    Examples
    --------
    >>> ChangeOrder([{0: 1}, {0: -1, 1: 1}], free=[0, 1]).run()
    [1, 0]
    """

    def __init__(self, deltas: Sequence[dict[int, int]], free: Sequence[int]):
        self._deltas = deltas
        self._left = list(free)
        self._done = [False] * len(deltas)
        # The changes that wait, by node and then by the cores that they take there.
        self._waiting: dict[int, dict[int, list[Change]]] = {}
        self._candidates: list[tuple[Change, int, int]] = []

    def run(self) -> list[int]:
        """Return the changes by number, in the order in which they are carried out."""
        every = [(sum(delta.values()), number) for number, delta in enumerate(self._deltas)]
        heapify(every)
        ready = [change for change in every if self._is_free(change)]
        heapify(ready)
        ordered: list[int] = []
        while len(ordered) < len(self._deltas):
            change = self._next(ready, every)
            self._done[change[1]] = True
            ordered.append(change[1])
            for node, cores in self._deltas[change[1]].items():
                self._left[node] -= cores
                if cores < 0:
                    self._call(node)
        return ordered

    def _next(self, ready: list[Change], every: list[Change]) -> Change:
        """Return the first change whose cores are free, else the first of all."""
        while ready or self._candidates:
            if not self._candidates or (ready and ready[0] < self._candidates[0][0]):
                change = heappop(ready)
                if not self._done[change[1]] and self._is_free(change):
                    return change
                continue
            change, node, cores = heappop(self._candidates)
            waiting = self._waiting[node][cores]
            # A candidate whose change is made already, or has been overtaken, is left over.
            if not waiting or waiting[0] != change:
                continue
            heappop(waiting)
            free = not self._done[change[1]] and self._is_free(change)
            self._call(node)
            if free:
                return change
        while True:
            change = heappop(every)
            if not self._done[change[1]]:
                return change

    def _is_free(self, change: Change) -> bool:
        """Return whether the cores of a change are free; if not, it waits at a node that lacks some."""
        for node, cores in self._deltas[change[1]].items():
            if cores > 0 and cores > self._left[node]:
                heappush(self._waiting.setdefault(node, {}).setdefault(cores, []), change)
                return False
        return True

    def _call(self, node: int) -> None:
        """Make candidates of the first changes that wait for at most as many cores as are free on a node."""
        for cores, waiting in self._waiting.get(node, {}).items():
            if waiting and cores <= self._left[node]:
                heappush(self._candidates, (waiting[0], node, cores))
