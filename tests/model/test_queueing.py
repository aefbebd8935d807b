from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.model.queueing import erlang_b, erlang_c, mmk_sojourn
from dask_elastic.vocab.errors import PlanningError


def textbook(arrival, service, servers):
    """Compute the sojourn by the textbook formula with factorials."""
    load = arrival / service
    tail = load**servers / math.factorial(servers) * servers / (servers - load)
    wait = tail / (sum(load**n / math.factorial(n) for n in range(servers)) + tail)
    return wait / (servers * service - arrival) + 1 / service


@pytest.mark.parametrize("servers", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("utilisation", [0.01, 0.5, 0.9, 0.999])
def test_mmk_sojourn_equals_textbook_formula(servers, utilisation):
    service = 4.0
    arrival = utilisation * servers * service
    assert mmk_sojourn(arrival, service, servers) == pytest.approx(textbook(arrival, service, servers), rel=1e-9)


@given(st.floats(0, 0.999), st.floats(1e-3, 1e3))
def test_mmk_sojourn_of_one_and_two_servers_equals_closed_forms(utilisation, service):
    assert mmk_sojourn(utilisation * service, service, 1) == pytest.approx(1 / (service * (1 - utilisation)))
    two = mmk_sojourn(2 * utilisation * service, service, 2)
    assert two == pytest.approx(1 / (service * (1 - utilisation**2)))


@given(st.floats(0.01, 200), st.floats(1e-3, 1e3), st.integers(1, 30))
def test_mmk_sojourn_is_decreasing_and_convex_in_servers(load, service, more):
    least = math.floor(load) + more
    times = [mmk_sojourn(load * service, service, least + i) * service for i in range(3)]
    assert times[0] + 1e-12 >= times[1]
    assert times[1] + 1e-12 >= times[2] >= 1 - 1e-12
    assert times[0] - times[1] >= times[1] - times[2] - 1e-12


@pytest.mark.parametrize(("arrival", "servers"), [(2.0, 1), (2.1, 1), (8.0, 4), (1.0, 0), (0.0, 0)])
def test_mmk_sojourn_of_unstable_queue_is_infinite(arrival, servers):
    assert mmk_sojourn(arrival, 2.0, servers) == math.inf


def test_mmk_sojourn_without_arrivals_is_service_time():
    assert mmk_sojourn(0.0, 4.0, 3) == 0.25


def test_erlang_of_many_servers_does_not_overflow():
    assert mmk_sojourn(4_900.0, 1.0, 5_000) == pytest.approx(1.0, rel=0.01)
    assert 0 < erlang_b(4_900.0, 5_000) < 0.01
    assert 0 < erlang_c(4_900.0, 5_000, erlang_b(4_900.0, 5_000)) < 0.2


def test_mmk_sojourn_accepts_numpy_numbers():
    assert mmk_sojourn(np.float64(1), np.float64(2), np.int64(1)) == 1.0
    assert isinstance(mmk_sojourn(np.float64(1), np.float64(2), np.int64(1)), float)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1.0, 1), "arrival is -1.0"),
        ((math.nan, 1.0, 1), "arrival is nan"),
        ((math.inf, 1.0, 1), "arrival is inf"),
        ((1.0, 0.0, 1), "service is 0.0"),
        ((1.0, math.nan, 1), "service is nan"),
        ((1.0, 1.0, -1), "servers is -1"),
        ((1.0, 1.0, 1.5), "servers is 1.5"),
        ((1.0, 1.0, "2"), "servers is '2'"),
    ],
)
def test_mmk_sojourn_with_invalid_arguments_raises(arguments, message):
    with pytest.raises(PlanningError, match=message):
        mmk_sojourn(*arguments)
