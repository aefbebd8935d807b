"""Local search for an assignment of cores, from the present one, one core at a time.

Goal
    An assignment that keeps the constraints and moves little state, in a few milliseconds for a large cluster.
Heuristic
    Data-intensive executors get their cores at home. The others take cores where least state moves, the most
    data-intensive first; then single executors and pairs change by one core while that lowers the cost.
Not done
    Exchanges among three or more executors.

Notes
-----
Elasticutor, section 4.2, Algorithm 1, with its second erratum: free cores are donors, remote cores of data-intensive
executors are moved home, no executor is left with fewer cores than it wants, and the most data-intensive come first.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dask_elastic.planning.cores.columns import CoreColumns, by_node
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.planning.turns import in_turns

_NONE, _ELSEWHERE = -2, -1
"""In place of a node: no core; a core on a node that holds no state of the executor."""

_GAIN = 1e-9
"""Savings below this share of an executor's state are rounding errors."""

_ROUNDS = 4
"""The rounds of local search over all executors that move state."""


class CoreSearch:
    """An assignment during the search; sparse, since executors have cores on few nodes.

    Parameters
    ----------
    problem : CoreProblem
        The executors and the cores.
    intensive : numpy.ndarray of bool
        Whether each executor must have all cores at home.
    """

    def __init__(self, problem: CoreProblem, intensive: NDArray[np.bool_]):
        self._problem = problem
        self._state: list[float] = problem.state_bytes.tolist()
        self._home: list[int] = problem.home.tolist()
        self._intensive: list[bool] = intensive.tolist()
        self._pause = problem.pause
        held = problem.columns
        self._free: list[int] = (problem.capacity - held.per_node).tolist()
        self._totals: list[int] = held.totals.tolist()
        self._spare: list[int] = (held.totals - problem.needed).tolist()
        # Those of the problem, each replaced by a copy before its first change: most executors keep their cores.
        self._columns = cast(list[dict[int, int]], list(held.columns))
        self._members: list[set[int]] = [set() for _ in self._free]
        for executor, column in in_turns(enumerate(self._columns), self._pause):
            for node in column:
                self._members[node].add(executor)
        self._known_shares: list[list[tuple[int, float]] | None] = [None] * len(self._totals)
        self._donors: list[tuple[float, int, int, int]] | None = None
        self._costs, self._version = [0.0] * len(self._totals), [0] * len(self._totals)
        self._touched: set[int] = set()
        self._vacant = [node for node in reversed(range(len(self._free))) if self._free[node] > 0]

    def run(self) -> CoreColumns:
        """Return an assignment that keeps the constraints and costs little."""
        for executor in in_turns(np.flatnonzero(self._intensive).tolist(), self._pause):
            home, column = self._home[executor], self._columns[executor]
            for node in set(column) - {home}:
                self._change(executor, node, -column[node])
            if self._spare[executor] < 0:
                self._change(executor, home, -self._spare[executor])
        for node in in_turns(range(len(self._free)), self._pause):
            while self._free[node] < 0:
                self._change(min(self._losses(node, forced=True))[1], node, -1)
        self._pause()
        self._fill()
        costly = [j for j in self._touched if not self._intensive[j] and self._costs[j] > _GAIN * self._state[j]]
        for _ in range(_ROUNDS):
            costly = [j for j in sorted(costly, key=lambda j: (-self._costs[j], j)) if self._improve(j)]
        touched = in_turns(self._touched, self._pause)
        return self._problem.columns.replaced({executor: by_node(self._columns[executor]) for executor in touched})

    def _losses(self, node: int, forced: bool = False) -> list[tuple[float, int]]:
        """Return executors that may give a core on a node, with the state moved; if forced, also those left short."""
        spare = self._spare
        found = [(self._without(j, node) - self._costs[j], j) for j in self._members[node] if spare[j] > 0]
        if forced:
            short = (j for j in self._members[node] if spare[j] <= 0 and not self._intensive[j])
            found += [(self._if(j, _ELSEWHERE, node) - self._costs[j], j) for j in short]
        return found

    def _fill(self) -> None:
        """Give cores to those that have too few, data-intensive ones first."""
        short = (executor for executor, spare in enumerate(self._spare) if spare < 0)
        for executor in sorted(short, key=lambda j: (-self._problem.intensity[j], j)):
            while self._spare[executor] < 0:
                node, donor = self._cheapest(executor)
                if donor != _NONE:
                    self._change(donor, node, -1)
                    if self._donors is not None:
                        for offer in self._offers(donor):
                            heappush(self._donors, offer)
                self._change(executor, node, 1)

    def _offers(self, executor: int) -> list[tuple[float, int, int, int]]:
        """Return what it costs to take each core an executor can spare, valid until the executor's version changes."""
        cost, version = self._costs[executor], self._version[executor]
        nodes = self._columns[executor] if self._spare[executor] > 0 else ()
        return [(self._without(executor, node) - cost, executor, node, version) for node in nodes]

    def _cheapest(self, executor: int) -> tuple[int, int]:
        """Return node and donor, or `_NONE`, of the core that moves the least state."""
        self._pause()
        home, cost = self._home[executor], self._costs[executor]
        options: list[tuple[float, bool, bool, int, int]] = []
        for node in {home, *self._columns[executor], *(node for node, _ in self._shares(executor))}:
            loss, donor = (0.0, _NONE) if self._free[node] > 0 else min(self._losses(node), default=(math.inf, _NONE))
            moved = self._if(executor, node, _NONE) - cost + loss
            options.append((moved, donor != _NONE, node != home, node, donor))
        vacant = self._vacant_node()
        loss, donor, node = (0.0, _NONE, vacant) if vacant != _NONE else self._cheapest_donor()
        options.append((self._if(executor, _ELSEWHERE, _NONE) - cost + loss, donor != _NONE, True, node, donor))
        return min(options)[3:]

    def _cheapest_donor(self) -> tuple[float, int, int]:
        """Return the state moved by the donor that moves least, the donor, and the node of its core."""
        if self._donors is None:
            # Not before: while cores are free, all these offers would be unused.
            able = (executor for executor, spare in enumerate(self._spare) if spare > 0)
            self._donors = [offer for executor in in_turns(able, self._pause) for offer in self._offers(executor)]
            heapify(self._donors)
        while self._donors[0][3] != self._version[self._donors[0][1]]:
            heappop(self._donors)
        return self._donors[0][:3]

    def _improve(self, executor: int) -> bool:
        """Add, drop or replace one core of an executor; an added core is free or another executor's."""
        self._pause()
        column, cost, total = self._columns[executor], self._costs[executor], self._totals[executor]
        short = [node for node, share in self._shares(executor) if column.get(node, 0) < share * total]
        best, vacant = -_GAIN * self._state[executor], self._vacant_node()
        chosen: list[tuple[int, int, int]] = []
        for add in (*short, _NONE):
            for drop in (*column, _NONE):
                if add == drop or (add == _NONE and self._spare[executor] <= 0):
                    continue
                own = self._if(executor, add, drop) - cost
                if own >= best:
                    continue
                if add == _NONE or self._free[add] > 0:
                    best, chosen = own, [(executor, drop, -1), (executor, add, 1)]
                    continue
                for other in self._members[add] - {executor}:
                    # What the other executor moves is 0 or more.
                    if own - self._costs[other] >= best:
                        continue
                    for take in (_NONE,) if self._intensive[other] else {drop, vacant, _NONE}:
                        if take == _NONE and self._spare[other] <= 0:
                            continue
                        change = own + self._if(other, take, add) - self._costs[other]
                        if change < best:
                            best = change
                            chosen = [(other, add, -1), (executor, drop, -1), (executor, add, 1), (other, take, 1)]
        for who, node, by in chosen:
            if node != _NONE:
                self._change(who, node, by)
        return bool(chosen)

    def _vacant_node(self) -> int:
        while self._vacant and self._free[self._vacant[-1]] <= 0:
            self._vacant.pop()
        return self._vacant[-1] if self._vacant else _NONE

    def _without(self, executor: int, node: int) -> float:
        """Return the state that an executor moves when it has a core less on a node."""
        if executor in self._touched:
            return self._if(executor, _NONE, node)
        # No state moves yet, and then only from this node.
        total = self._totals[executor]
        if total <= 1:
            return self._state[executor]
        return self._state[executor] * (total - self._columns[executor][node]) / (total * (total - 1))

    def _if(self, executor: int, add: int, drop: int) -> float:
        """Return the state that an executor moves when it has a core more on one node and a core less on another."""
        shares = self._known_shares[executor] or self._shares(executor)
        total = self._totals[executor]
        if add != _NONE:
            total += 1
        if drop != _NONE:
            total -= 1
        if total <= 0:
            return self._state[executor] if shares else 0.0
        column, moved = self._columns[executor], 0.0
        for node, share in shares:
            count = column.get(node, 0)
            if node == add:
                count += 1
            if node == drop:
                count -= 1
            left = share - count / total
            if left > 0:
                moved += left
        return moved * self._state[executor]

    def _shares(self, executor: int) -> list[tuple[int, float]]:
        """Return the fraction of an executor's state on each node, before any change."""
        shares = self._known_shares[executor]
        if shares is None:
            held = self._problem.columns.columns[executor]
            total = sum(held.values())
            shares = self._known_shares[executor] = [(node, count / total) for node, count in held.items()]
        return shares

    def _change(self, executor: int, node: int, by: int) -> None:
        if executor not in self._touched:
            self._touched.add(executor)
            self._columns[executor] = dict(self._columns[executor])
        column = self._columns[executor]
        column[node] = column.get(node, 0) + by
        self._members[node].add(executor)
        if not column[node]:
            del column[node]
            self._members[node].discard(executor)
        self._totals[executor] += by
        self._spare[executor] += by
        self._free[node] -= by
        if by < 0:
            self._vacant.append(node)
        self._version[executor] += 1
        self._costs[executor] = self._if(executor, _NONE, _NONE)
