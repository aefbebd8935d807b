"""Elasticutor, section 4.1: the number of cores, and the start of the greedy algorithm."""

from __future__ import annotations

import heapq
import itertools
import math

import numpy as np
import pytest

from dask_elastic.model import allocate, expected_latency, mmk_sojourn


def instance(random):
    executors = int(random.integers(2, 5))
    arrival = random.uniform(1, 20, executors)
    # Loads are not integers, as in measurements.
    service = arrival / random.uniform(0.05, 3.0, executors)
    external = float(arrival[0])
    target = random.uniform(1.02, 2.0) * float((arrival / service).sum()) / external
    return external, arrival, service, target


def fewest_cores(external, arrival, service, target):
    """Return the least number of cores that meets the target, by exhaustive search."""
    executors = len(arrival)
    start = [math.floor(load) + 1 for load in arrival / service]
    tables = [
        [a * mmk_sojourn(a, s, k + more) for more in range(40)] for a, s, k in zip(arrival, service, start, strict=True)
    ]
    for more in range(40):
        for split in itertools.product(range(more + 1), repeat=executors - 1):
            rest = more - sum(split)
            if rest < 0:
                continue
            latency = sum(table[i] for table, i in zip(tables, (*split, rest), strict=True)) / external
            if latency <= target:
                return sum(start) + more
    raise AssertionError("the target needs more cores than the search covers")


def as_printed(external, arrival, service, target):
    """Return the cores that the greedy algorithm allocates from the printed start, ceil(load) + 1."""
    cores = [math.ceil(load) + 1 for load in arrival / service]

    def time(j, k):
        return arrival[j] * mmk_sojourn(arrival[j], service[j], k)

    heap = [(time(j, k + 1) - time(j, k), j) for j, k in enumerate(cores)]
    heapq.heapify(heap)
    while expected_latency(external, arrival, service, cores) > target:
        _, j = heap[0]
        cores[j] += 1
        heapq.heapreplace(heap, (time(j, cores[j] + 1) - time(j, cores[j]), j))
    return sum(cores)


def test_greedy_is_optimal_from_smallest_stable_start_only():
    random = np.random.default_rng(4)
    instances = [instance(random) for _ in range(300)]
    best = [fewest_cores(*problem) for problem in instances]
    ours = [int(allocate(*problem, available=1_000).cores.sum()) for problem in instances]
    assert ours == best
    wasted = np.array([as_printed(*problem) for problem in instances]) - best
    assert wasted.min() >= 0
    assert (wasted > 0).sum() > 100
    assert wasted.max() >= 2


def test_allocate_without_target_returns_smallest_stable_allocation():
    random = np.random.default_rng(5)
    for _ in range(50):
        external, arrival, service, _ = instance(random)
        start = allocate(external, arrival, service, math.inf, 1_000).cores
        assert math.isfinite(expected_latency(external, arrival, service, start))
        for executor in range(len(start)):
            fewer = start.copy()
            fewer[executor] -= 1
            assert expected_latency(external, arrival, service, fewer) == math.inf


def test_allocate_for_integer_load_adds_one_core():
    assert allocate(4.0, [4.0], [2.0], math.inf, 9).cores.tolist() == [3]


@pytest.mark.parametrize("servers", [200, 1_000])
def test_mmk_sojourn_of_many_servers_needs_no_factorial(servers):
    with pytest.raises(OverflowError):
        float(servers) ** servers / math.factorial(servers)
    assert 1.0 < mmk_sojourn(0.99 * servers, 1.0, servers) < 1.5
