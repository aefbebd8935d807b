from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dask_elastic.model import Allocation, allocate, arrivals, expected_latency, mmk_sojourn
from dask_elastic.vocab.errors import PlanningError

RATES = st.floats(0.1, 50)


@st.composite
def networks(draw, most=4):
    executors = draw(st.integers(1, most))
    arrival = draw(st.lists(RATES, min_size=executors, max_size=executors))
    load = draw(st.lists(st.floats(0.05, 4.0), min_size=executors, max_size=executors))
    return draw(RATES), arrival, [a / x for a, x in zip(arrival, load, strict=True)]


@given(networks())
def test_expected_latency_equals_equation_one(network):
    external, arrival, service = network
    cores = [math.floor(a / s) + 2 for a, s in zip(arrival, service, strict=True)]
    parts = [a * mmk_sojourn(a, s, k) for a, s, k in zip(arrival, service, cores, strict=True)]
    assert expected_latency(external, arrival, service, cores) == pytest.approx(sum(parts) / external)


def test_expected_latency_of_unstable_executor_is_infinite_and_of_idle_one_zero():
    assert expected_latency(1.0, [3.0, 1.0], [2.0, 2.0], [1, 1]) == math.inf
    assert expected_latency(1.0, [1.0, 0.0], [2.0, 2.0], [1, 0]) == 1.0
    assert expected_latency(0.0, [0.0], [2.0], [1]) == 0.0
    assert expected_latency(1.0, [], [], []) == 0.0


def best_latency(network, cores, weight=None):
    """Return the least latency of all allocations of that many cores."""
    external, arrival, service = network
    return min(
        expected_latency(external, arrival, service, [a + 1 for a in split], weight=weight)
        for split in itertools.product(range(cores), repeat=len(arrival))
        if sum(split) + len(arrival) == cores
    )


@settings(max_examples=60, deadline=None)
@given(networks(most=3), st.floats(1.001, 3.0), st.integers(3, 11))
def test_allocation_equals_brute_force(network, factor, available):
    external, arrival, service = network
    target = factor * sum(a / s for a, s in zip(arrival, service, strict=True)) / external
    allocation = allocate(external, arrival, service, target, available)
    used = int(allocation.cores.sum())
    assert used <= available
    assert allocation.cores.min() >= 1
    assert allocation.latency == expected_latency(external, arrival, service, allocation.cores)
    assert allocation.feasible == (allocation.latency <= target)
    best = best_latency(network, used)
    assert allocation.latency <= best * (1 + 1e-9) or math.isinf(best)
    if allocation.feasible and used > len(arrival):
        assert best_latency(network, used - 1) > target * (1 - 1e-9)
    if not allocation.feasible:
        assert used == available


@st.composite
def weighted_networks(draw, most=4):
    external, arrival, service = draw(networks(most))
    weight = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 400.0]), min_size=len(arrival), max_size=len(arrival)))
    return (external, arrival, service), weight


@given(weighted_networks())
def test_weighted_latency_counts_tuples_per_customer(problem):
    (external, arrival, service), weight = problem
    cores = [math.floor(a / s) + 2 for a, s in zip(arrival, service, strict=True)]
    parts = [w * a * mmk_sojourn(a, s, k) for w, a, s, k in zip(weight, arrival, service, cores, strict=True)]
    latency = expected_latency(external, arrival, service, cores, weight=weight)
    assert latency == pytest.approx(sum(parts) / external)


@given(networks(), st.sampled_from([0.25, 64.0]))
def test_equal_weights_only_change_the_unit(network, rows):
    external, arrival, service = network
    cores = [math.floor(a / s) + 2 for a, s in zip(arrival, service, strict=True)]
    plain = expected_latency(external, arrival, service, cores)
    ones = [1.0] * len(arrival)
    assert expected_latency(external, arrival, service, cores, weight=ones) == plain
    assert expected_latency(external * rows, arrival, service, cores, weight=[rows] * len(arrival)) == plain
    target = 1.1 * plain
    first = allocate(external, arrival, service, target, 60)
    for tuples, weight in ((external, ones), (external * rows, [rows] * len(arrival))):
        other = allocate(tuples, arrival, service, target, 60, weight=weight)
        assert (other.cores.tolist(), other.latency) == (first.cores.tolist(), first.latency)


@settings(max_examples=60, deadline=None)
@given(weighted_networks(most=3), st.floats(1.001, 3.0), st.integers(3, 11))
def test_weighted_allocation_equals_brute_force(problem, factor, available):
    network, weight = problem
    external, arrival, service = network
    loads = [a / s for a, s in zip(arrival, service, strict=True)]
    target = factor * sum(w * load for w, load in zip(weight, loads, strict=True)) / external or 1.0
    allocation = allocate(*network, target, available, weight=weight)
    used = int(allocation.cores.sum())
    assert allocation.latency == expected_latency(*network, allocation.cores, weight=weight)
    assert allocation.feasible == (allocation.latency <= target)
    if sum(math.floor(load) + 1 for load in loads) > available:
        assert allocation.cores.tolist() == allocate(*network, target, available).cores.tolist()
        return
    best = best_latency(network, used, weight)
    assert allocation.latency <= best * (1 + 1e-9)
    if allocation.feasible and used > sum(math.floor(load) + 1 for load in loads):
        assert best_latency(network, used - 1, weight) > target * (1 - 1e-9)
    if not allocation.feasible:
        # The remaining cores would not lower the latency.
        assert best_latency(network, available, weight) >= allocation.latency * (1 - 1e-9)


def test_allocate_prefers_executor_with_larger_weight():
    problem = 200.0, [10.0, 10.0], [11.0, 11.0]
    assert allocate(*problem, 1e-6, 5).cores.tolist() == [3, 2]
    assert allocate(*problem, 1e-6, 5, weight=[1.0, 100.0]).cores.tolist() == [2, 3]


def test_expected_latency_with_unstable_executor_is_infinite_for_any_weight():
    assert expected_latency(1.0, [3.0], [2.0], [1], weight=[0.0]) == math.inf
    assert expected_latency(1.0, [0.0], [2.0], [0], weight=[5.0]) == 0.0


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1.0], "weight has 1 entries for 2 executors"),
        ([1.0, -2.0], r"weight\[1\] is -2\.0"),
        ([math.nan, 1.0], r"weight\[0\] is nan"),
        ([[1.0, 1.0]], "weight has shape"),
    ],
)
def test_invalid_weights_raise_with_name(weight, message):
    with pytest.raises(PlanningError, match=message):
        expected_latency(1.0, [1.0, 1.0], [2.0, 2.0], [1, 1], weight=weight)
    with pytest.raises(PlanningError, match=message):
        allocate(1.0, [1.0, 1.0], [2.0, 2.0], 1.0, 4, weight=weight)


def test_allocate_with_unreachable_target_uses_all_useful_cores():
    allocation = allocate(10.0, [10.0, 10.0, 0.0], [4.0, 20.0, 1.0], latency_target=1e-6, available=12)
    assert not allocation.feasible
    assert allocation.cores.sum() == 12
    assert allocation.cores[2] == 1


@given(networks(), st.integers(0, 8))
def test_allocate_with_too_few_cores_shares_in_proportion_to_loads(network, more):
    external, arrival, service = network
    loads = np.array(arrival) / service
    available = len(loads) + more
    if available >= sum(math.floor(load) + 1 for load in loads):
        return
    allocation = allocate(external, arrival, service, 1.0, available)
    assert (allocation.latency, allocation.feasible) == (math.inf, False)
    assert allocation.cores.sum() == available
    assert allocation.cores.min() >= 1
    # Moving a core to another executor would not lower the peak.
    peak = (loads / allocation.cores).max()
    for executor in np.flatnonzero(allocation.cores > 1):
        assert loads[executor] / (allocation.cores[executor] - 1) >= peak * (1 - 1e-9)


def test_allocate_for_idle_topology_gives_one_core_each():
    allocation = allocate(0.0, [0.0, 0.0], [1.0, 1.0], latency_target=0.1, available=8)
    assert allocation.cores.tolist() == [1, 1]
    assert allocation.feasible


def test_allocate_for_target_just_met_uses_no_more_cores():
    target = expected_latency(10.0, [10.0, 10.0], [4.0, 20.0], [4, 2])
    assert allocate(10.0, [10.0, 10.0], [4.0, 20.0], target, 20).cores.sum() <= 6
    assert allocate(10.0, [10.0, 10.0], [4.0, 20.0], math.inf, 20).cores.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, [-1.0], [1.0], 1.0, 4), r"arrival\[0\] is -1.0"),
        ((1.0, [math.nan], [1.0], 1.0, 4), r"arrival\[0\] is nan"),
        ((1.0, [[1.0]], [1.0], 1.0, 4), "arrival has shape"),
        ((1.0, [1.0], [1.0, 0.0], 1.0, 4), "arrival has 1 entries, service 2"),
        ((1.0, [1.0, 1.0], [1.0, 0.0], 1.0, 4), r"service\[1\] is 0.0"),
        ((1.0, [1e300], [1e-300], 1.0, 4), r"service\[0\] is 1e-300"),
        ((0.0, [1.0], [1.0], 1.0, 4), "external is 0"),
        ((-1.0, [1.0], [1.0], 1.0, 4), "external is -1.0"),
        ((1.0, [1.0], [1.0], 0.0, 4), "latency_target is 0.0"),
        ((1.0, [1.0], [1.0], math.nan, 4), "latency_target is nan"),
        ((1.0, [1.0, 1.0], [1.0, 1.0], 1.0, 1), "available is 1, but 2 executors"),
        ((1.0, [1.0], [1.0], 1.0, -1), "available is -1"),
        ((1.0, [1.0], [1.0], 1.0, 2.5), "available is 2.5"),
    ],
)
def test_allocate_with_invalid_arguments_raises(arguments, message):
    with pytest.raises(PlanningError, match=message):
        allocate(*arguments)


def test_invalid_cores_raise_with_name():
    with pytest.raises(PlanningError, match="cores has 1 entries for 2"):
        expected_latency(1.0, [1.0, 1.0], [2.0, 2.0], [1])
    with pytest.raises(PlanningError, match=r"cores is 1\.5"):
        expected_latency(1.0, [1.0], [2.0], [1.5])
    with pytest.raises(PlanningError, match="cores is"):
        Allocation(np.array([-1]), 1.0, True)
    with pytest.raises(PlanningError, match="latency is nan"):
        Allocation(np.array([1]), math.nan, True)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(arrays(float, n, elements=RATES), arrays(float, (n, n)))))
def test_arrivals_are_finite_or_raise(problem):
    external, routing = problem
    try:
        rates = arrivals(external, routing)
    except PlanningError:
        return
    assert np.isfinite(rates).all()


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**32 - 1), st.floats(0.1, 2.0))
def test_arrivals_solve_the_traffic_equations(operators, seed, scale):
    random = np.random.default_rng(seed)
    routing = random.random((operators, operators)) * (random.random((operators, operators)) < 0.4) * scale
    external = random.random(operators) * (random.random(operators) < 0.6)
    radius = max(abs(np.linalg.eigvals(routing)))
    if abs(radius - 1) < 1e-3:
        return
    if radius > 1:
        with pytest.raises(PlanningError, match="a loop must return fewer than 1"):
            arrivals(external, routing)
        return
    rates = arrivals(external, routing)
    assert (rates >= 0).all()
    np.testing.assert_allclose(rates, external + rates @ routing, rtol=1e-8, atol=1e-10)


def test_arrivals_of_multiplying_chain_are_finite():
    # All eigenvalues are 0, but a numerical solver would return values far above 1.
    operators = 60
    order = np.random.default_rng(0).permutation(operators)
    routing = np.zeros((operators, operators))
    routing[order[:-1], order[1:]] = 100.0
    external = np.zeros(operators)
    external[order[0]] = 1.0
    assert arrivals(external, routing)[order].tolist() == pytest.approx((100.0 ** np.arange(operators)).tolist())


def test_arrivals_with_lossless_loop_raise_even_without_input():
    routing = [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    with pytest.raises(PlanningError, match="operator 2 gets 1 tuples back"):
        arrivals([1.0, 0.0, 0.0], routing)
    ten = np.zeros((11, 11))
    ten[0, 1:], ten[1:, 0] = 0.1, 1.0
    with pytest.raises(PlanningError, match="gets 1 tuples back"):
        arrivals(np.ones(11), ten)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 1.0], [[0.0]]), r"routing has shape \(1, 1\): give 2 x 2"),
        (([1.0], [[-0.5]]), r"routing\[0, 0\] is -0.5"),
        (([math.inf], [[0.5]]), r"external_by_operator\[0\] is inf"),
        (([1e300, 0.0], [[0.0, 1e300], [0.0, 0.0]]), "exceed what a float holds"),
    ],
)
def test_invalid_traffic_raises_with_name(arguments, message):
    with pytest.raises(PlanningError, match=message):
        arrivals(*arguments)


def test_allocate_for_100_executors_takes_under_20_ms(slowness):
    random = np.random.default_rng(1)
    arrival = random.uniform(1, 100, 100)
    service = arrival / random.uniform(0.1, 4, 100)
    target = 1.1 * (arrival / service).sum() / 100
    spent = []
    for _ in range(5):
        start = time.process_time()
        allocation = allocate(100.0, arrival, service, target, 1_000)
        spent.append(time.process_time() - start)
    assert allocation.feasible
    assert min(spent) < 0.02 * slowness()
