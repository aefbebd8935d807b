from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.queues import NO_LIMIT, Queues
from dask_elastic.model.jackson import allocate, expected_latency
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot


def queues(arrival, service, rows=None, external=None):
    arrival, service = np.array(arrival, dtype=float), np.array(service, dtype=float)
    rows = np.ones(len(arrival)) if rows is None else np.array(rows, dtype=float)
    return Queues(float(arrival.sum()) if external is None else external, arrival, service, rows)


def unlimited(count):
    return np.full(count, NO_LIMIT)


def test_queues_of_executors_have_their_rates():
    executor = ExecutorSnapshot(ExecutorId("op", 0), 0, {0: 2}, 900.0, 500.0, customer_rows=0.5)
    made = Queues.of(JobSnapshot("words", 1, (executor,)), np.array([0]))
    assert made.loads.tolist() == [1.8]
    assert made.rows.tolist() == [1.0]
    assert made.is_stable(np.array([2]))
    assert not made.is_stable(np.array([1]))


def test_queues_with_different_lengths_raise():
    with pytest.raises(PlanningError, match=r"\(2, 1, 2\)"):
        Queues(1.0, np.ones(2), np.ones(1), np.ones(2))


def test_queues_latency_counts_sub_batches_as_customers():
    made = queues([1000.0, 500.0], [700.0, 400.0], rows=[10.0, 4.0])
    cores = np.array([3, 2])
    weighed = expected_latency(1500.0, [100.0, 125.0], [70.0, 100.0], cores, weight=[10.0, 4.0])
    assert made.latency(cores) == weighed
    assert made.latency(cores) > queues([1000.0, 500.0], [700.0, 400.0]).latency(cores)


def test_scaled_queues_keep_proportions():
    made = queues([10.0, 30.0], [10.0, 10.0]).scaled(1.5)
    assert made.loads.tolist() == [1.5, 4.5]
    assert made.external == 60.0


def test_fewest_without_limits_equals_jackson_allocation():
    made = queues([10.0, 30.0], [10.0, 10.0])
    found, model = made.fewest(0.15, 20, unlimited(2)), allocate(40.0, [10.0, 30.0], [10.0, 10.0], 0.15, 20)
    assert found.cores.tolist() == model.cores.tolist()
    assert (found.latency, found.feasible) == (model.latency, model.feasible)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_fewest_with_limits_equals_brute_force(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 4))
    made = queues(random.uniform(0.2, 2.5, count), np.ones(count), rows=random.integers(1, 4, count))
    most, available = random.integers(1, 6, count), 10
    target = float(random.uniform(0.8, 5.0))
    best = None
    for cores in itertools.product(*(range(1, limit + 1) for limit in most.tolist())):
        if sum(cores) <= available and made.latency(np.array(cores)) <= target:
            best = min(best or available + 1, sum(cores))
    found = made.fewest(target, available, most)
    assert (found.cores <= most).all()
    assert found.feasible == (best is not None)
    if best is not None:
        assert int(found.cores.sum()) == best


def test_fewest_with_limit_below_load_respects_limit():
    made = queues([5.0, 1.5], [1.0, 1.0])
    for target in (math.inf, 3.0):
        found = made.fewest(target, 10, np.array([2, NO_LIMIT]))
        assert found.cores[0] == 2
        assert found.cores[1] >= 2
        assert not found.feasible
        assert math.isinf(found.latency)


def test_fewest_with_two_limits_below_loads_and_no_target_respects_limits():
    found = queues([5.0, 6.0, 1.5], [1.0, 1.0, 1.0]).fewest(math.inf, 12, np.array([2, 3, NO_LIMIT]))
    assert found.cores.tolist() == [2, 3, 2]


def test_best_effort_with_exhausted_target_is_near_best_latency():
    made = queues([1.0], [1.0])
    best, effort = made.fewest(-1.0, 30, unlimited(1)), made.best_effort(-1.0, 30, unlimited(1))
    assert not best.feasible
    assert not effort.feasible
    assert effort.latency <= 1.05 * best.latency
    assert effort.cores[0] < 10


def test_fewest_without_arrivals_is_one_core_each():
    made = queues([0.0, 0.0], [1.0, 1.0])
    assert made.fewest(0.1, 5, unlimited(2)).cores.tolist() == [1, 1]
    assert made.fewest(math.inf, 5, unlimited(2)).feasible


def test_fewest_with_idle_sources_covers_draining_queues():
    made = queues([0.0, 3.0], [1.0, 1.0], external=0.0)
    assert made.fewest(2.0, 10, unlimited(2)).cores[1] >= 4


def test_fewest_without_executors_is_empty():
    none = queues([], [])
    assert none.fewest(1.0, 0, unlimited(0)).cores.tolist() == []


# Below 0 is what a hop that exceeds the latency target leaves of it.
@pytest.mark.parametrize("target", [0.1, 0.001, 0.0, -0.2, math.inf])
def test_an_executor_that_grows_at_its_limit_does_not_change_what_the_others_get(target):
    made = queues([5.0, 0.21, 0.4], [1.0, 1.0, 1.0])
    most = np.array([3, NO_LIMIT, NO_LIMIT])
    others = made.take(np.array([False, True, True])).best_effort(target, 25, most[1:])
    found = made.best_effort(target, 28, most)
    assert found.cores.tolist() == [3, *others.cores.tolist()]
    assert int(others.cores.sum()) < 25, "cores that bring next to nothing are left out"
    assert not found.feasible
    assert math.isinf(found.latency)


def test_best_effort_of_executors_that_all_grow_at_their_limits_is_these_limits():
    found = queues([5.0, 4.0], [1.0, 1.0]).best_effort(0.1, 28, np.array([3, 2]))
    assert found.cores.tolist() == [3, 2]
    assert not found.feasible
