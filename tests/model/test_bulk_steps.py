from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.model import bulk_steps, jackson
from dask_elastic.model.bulk_steps import MANY


def network(seed):
    """Return the arguments of `allocate` for many executors, with ties, idle ones and targets out of reach."""
    random = np.random.default_rng(seed)
    count = int(random.integers(MANY, 3 * MANY))
    arrival, service = (
        random.lognormal(3, float(random.choice([0.1, 1.0, 2.0])), count),
        random.lognormal(2, 0.5, count),
    )
    if seed % 3 == 0:
        arrival, service = np.round(arrival), np.full(count, 5.0)
    arrival[random.random(count) < 0.1] = 0.0
    least = np.floor(arrival / service).astype(int) + 1
    external, weight = float(arrival.sum()) + 1.0, random.choice([1.0, 64.0], count)
    target = jackson.expected_latency(external, arrival, service, least, weight=weight) * float(
        random.choice([0.01, 0.3, 0.9])
    )
    return (external, arrival, service, target, int(least.sum() * random.choice([1.0, 1.2, 3.0]))), weight


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1_000_000))
def test_many_steps_at_once_equal_single_steps(seed):
    given_, weight = network(seed)
    at_once = jackson.allocate(*given_, weight=weight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jackson, "MANY", 1 << 30)
        patch.setattr(bulk_steps, "MANY", 1 << 30)
        single = jackson.allocate(*given_, weight=weight)
        latency = jackson.expected_latency(*given_[:3], at_once.cores, weight=weight)
    assert at_once.cores.tolist() == single.cores.tolist()
    assert (at_once.latency, at_once.feasible) == (single.latency, single.feasible)
    assert jackson.expected_latency(*given_[:3], at_once.cores, weight=weight) == latency


def test_gains_are_computed_anew_where_one_executor_takes_most_cores():
    arrival, service = np.full(MANY, 0.1), np.ones(MANY)
    arrival[3] = 400.0
    found = jackson.allocate(100.0, arrival, service, 1e-9, 600)
    assert int(found.cores.sum()) == 600
    assert int(found.cores[3]) > 401 + 4 * bulk_steps._COLUMNS
