"""Many steps of the greedy allocation at once, with the results of single steps.

Goal
    Thousands of cores for a thousand executors are allocated in milliseconds.
Method
    Greedy adds one core at a time where the latency falls most. Further cores of one executor bring less and less, so
    the order of all steps is that of their gains: some columns of gains, one row per executor, are computed and sorted.
    The steps are those of the loop in `dask_elastic.model.jackson`, with the same operations on the same floats.
Not done
    The last steps before the target is reached: there the loop sums the latency anew.

Notes
-----
Elasticutor, section 4.1, with its first erratum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_elastic.model.queueing import next_erlang_b

Amounts = NDArray[np.float64]

_COLUMNS = 8
"""The gains that are computed for each executor at first; twice as many the next time."""

_MOST_GAINS = 1 << 18
"""The most gains that are computed at a time."""

MANY = 32
"""The number of executors from which on arrays are faster than single steps."""


@dataclass(eq=False)
class Greedy:
    """The state of a greedy allocation; arrays have one entry per executor.

    Parameters
    ----------
    loads, weights : array of float
        Load of each executor in cores, and its tuples per customer.
    cores : array of int
        Its cores, above its load.
    blocking : array of float
        Erlang B of its load and cores.
    present : array of float
        Mean number of tuples in it.
    total : float
        Running sum of `present`.
    """

    loads: Amounts
    weights: Amounts
    cores: NDArray[np.int64]
    blocking: Amounts
    present: Amounts
    total: float

    def advance(self, spare: int, enough: float) -> int:
        """Add cores while the running sum is above a bound.

        Parameters
        ----------
        spare : int
            The most cores to add.
        enough : float
            The bound.

        Returns
        -------
        int
            Number of cores added. The state is the one after as many single steps.
        """
        added, columns = 0, _COLUMNS
        while len(self.loads) >= MANY and self.total > enough and added < spare:
            columns = min(columns, max(_MOST_GAINS // len(self.loads), 1))
            steps, more = self._steps(spare - added, enough, columns)
            added += steps
            if not more:
                break
            columns *= 2
        return added

    def _steps(self, spare: int, enough: float, columns: int) -> tuple[int, bool]:
        """Add cores as far as the computed gains go; return how many, and whether there may be more."""
        blocking, waiting = self.ahead(columns)
        change = self.weights[:, None] * (waiting[:, 1:] - waiting[:, :-1])
        # A gain that rounding lets exceed the one before is used right after that one.
        order = np.lexsort((np.repeat(np.arange(len(change)), columns), np.maximum.accumulate(change, axis=1).ravel()))
        helpful = int(np.searchsorted(np.maximum.accumulate(change, axis=1).ravel()[order], 0.0))
        order = order[: min(spare, helpful)]
        executor, column = np.divmod(order, columns)
        last = np.flatnonzero(column == columns - 1)
        known = int(last[0]) + 1 if last.size else len(order)
        present = self.weights[:, None] * (self.loads[:, None] + waiting)
        totals = np.cumsum(
            np.concatenate(([self.total], (present[:, 1:] - present[:, :-1])[executor[:known], column[:known]]))
        )
        reached = np.flatnonzero(totals <= enough)
        steps = int(reached[0]) if reached.size else known
        taken = np.bincount(executor[:steps], minlength=len(change))
        rows = np.arange(len(change))
        self.cores = self.cores + taken
        self.blocking, self.present, self.total = blocking[rows, taken], present[rows, taken], float(totals[steps])
        return steps, bool(last.size) and not reached.size

    def ahead(self, columns: int) -> tuple[Amounts, Amounts]:
        """Return what each executor has with its present cores, and with up to `columns` more.

        Parameters
        ----------
        columns : int
            The most cores that are added to an executor.

        Returns
        -------
        tuple of numpy.ndarray of float, executors × (columns + 1)
            Erlang B, and the mean number of waiting customers.
        """
        blocking = np.empty((len(self.loads), columns + 1))
        blocking[:, 0] = self.blocking
        for more in range(1, columns + 1):
            busy = self.loads * blocking[:, more - 1]
            blocking[:, more] = busy / ((self.cores + more) + busy)
        servers, loads = self.cores[:, None] + np.arange(columns + 1), self.loads[:, None]
        wait = servers * blocking / (servers - loads + loads * blocking)
        return blocking, wait * loads / (servers - loads)


def present_in_all(loads: Amounts, weights: Amounts, servers: NDArray[np.int64]) -> tuple[Amounts, Amounts]:
    """Return Erlang B of many executors, and the mean number of tuples in each.

    Parameters
    ----------
    loads, weights : array of float
        Load of each executor in cores, and its tuples per customer.
    servers : array of int
        Number of its cores.

    Returns
    -------
    tuple of numpy.ndarray of float
        Erlang B, 1 where an executor is unstable; tuples, ``inf`` there unless its load is 0.

    Examples
    --------
    >>> blocking, present = present_in_all(np.array([2.0, 1.0]), np.ones(2), np.array([2, 2]))
    >>> blocking.tolist(), present.tolist()
    ([1.0, 0.2], [inf, 1.3333333333333335])
    """
    stable = loads < servers
    # An executor that is unstable for sure has no servers to count.
    counts = np.where(stable, servers, 0)
    blocking = _erlang_b(loads, counts)
    present = np.where(loads > 0, np.inf, 0.0)
    load, count, busy = loads[stable], counts[stable], blocking[stable]
    wait = count * busy / (count - load + load * busy)
    present[stable] = weights[stable] * (load + wait * load / (count - load))
    return blocking, present


def _erlang_b(loads: Amounts, servers: NDArray[np.int64]) -> Amounts:
    order = np.argsort(-servers, kind="stable")
    load, counts, blocking = loads[order], servers[order], np.ones(len(loads))
    # Executors with most servers come first, so that those with as many as `count` are a prefix.
    ends = np.searchsorted(-counts, -np.arange(1, int(counts.max(initial=0)) + 1), side="right")
    for count, end in enumerate(ends.tolist(), 1):
        if end == 1:
            blocking[0] = _one_erlang_b(float(load[0]), count - 1, int(counts[0]), float(blocking[0]))
            break
        busy = load[:end] * blocking[:end]
        blocking[:end] = busy / (count + busy)
    found = np.empty(len(loads))
    found[order] = blocking
    return found


def _one_erlang_b(load: float, done: int, servers: int, blocking: float) -> float:
    """Return Erlang B of one executor from that of the first `done` servers."""
    for count in range(done + 1, servers + 1):
        blocking = next_erlang_b(load, count, blocking)
    return blocking
