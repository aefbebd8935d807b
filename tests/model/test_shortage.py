from heapq import heapify, heapreplace

import numpy as np
import pytest

from dask_elastic.model.shortage import divide


def one_by_one(loads, available):
    cores = [1] * len(loads)
    heap = [(-load, executor) for executor, load in enumerate(loads)]
    heapify(heap)
    for _ in range(available - len(loads)):
        executor = heap[0][1]
        cores[executor] += 1
        heapreplace(heap, (-loads[executor] / cores[executor], executor))
    return cores


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["random", "whole", "equal", "idle", "far"])
def test_cores_given_at_once_are_those_given_one_by_one(seed, kind):
    random = np.random.default_rng(seed)
    count = int(random.choice([1, 5, 31, 32, 200, 500]))
    loads = random.gamma(2.0, 2.0, count) + 0.1
    if kind == "whole":
        loads = np.ceil(loads)
    elif kind == "equal":
        loads = np.full(count, 2.5)
    elif kind == "idle":
        loads[1:] *= random.random(count - 1) < 0.5
    elif kind == "far":
        loads = random.lognormal(0.0, 4.0, count)
    available = count + int(random.choice([0.0, 0.01, 0.5, 1.0]) * loads.sum())
    assert divide(loads, available).tolist() == one_by_one(loads.tolist(), available)
