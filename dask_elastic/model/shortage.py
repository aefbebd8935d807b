"""Division of too few cores: where queues grow in any case, the largest load per core is made as small as possible.

Goal
    A few thousand cores for a thousand executors are divided in a fraction of a millisecond.
Method
    One core each; each further one goes to the executor with the highest load per core, ties to the one of lower
    number. Of many executors, those cores are given at once that all divisions with fewer cores have as well: the ones
    at which the load per core is above some level. The level is bisected.
Not done
    Latency: it is infinite.
"""

from __future__ import annotations

from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from dask_elastic.model.bulk_steps import MANY

_HALVINGS = 8
"""How often the level is bisected; after that, a few cores per thousand executors are given one by one."""

_ABOVE = 1 + 1e-12
"""A load per core is surely above a level if it is by this factor, however quotients are rounded."""


def divide(loads: NDArray[np.float64], available: int) -> NDArray[np.int64]:
    """Divide cores, of which there are fewer than the executors' loads require.

    Parameters
    ----------
    loads : array of float
        Load of each executor in cores; not all are 0.
    available : int
        Number of cores, at least one per executor.

    Returns
    -------
    numpy.ndarray of int
        Cores of each executor.

    Examples
    --------
    >>> divide(np.array([6.0, 1.0, 3.0]), 7).tolist()
    [4, 1, 2]
    """
    further = available - len(loads)
    cores: list[int] = [1] * len(loads)
    if len(loads) >= MANY and further:
        cores = (1 + _given_at_once(loads, further)).tolist()
    load: list[float] = loads.tolist()
    heap = [(-one / count, executor) for executor, (one, count) in enumerate(zip(load, cores, strict=True))]
    heapify(heap)
    for _ in range(available - sum(cores)):
        executor = heap[0][1]
        cores[executor] += 1
        heapreplace(heap, (-load[executor] / cores[executor], executor))
    return np.array(cores, dtype=np.int64)


def _given_at_once(loads: NDArray[np.float64], further: int) -> NDArray[np.int64]:
    """Return for each executor a number of further cores that it has in any case, most of them."""
    total = float(loads.sum())
    # At the upper level all executors together have at most `further` cores, since fractions of cores are dropped.
    low, high = total / (further + len(loads)), total / further * (1 + 1e-9)
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        if np.floor(loads / level).sum() <= further:
            high = level
        else:
            low = level
    return np.floor(loads / (high * _ABOVE)).astype(np.int64)
