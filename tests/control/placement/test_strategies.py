"""What moves of homes cost beside their alternatives, and the rates that are learnt from moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.placement.move_rates import MeasuredMoves, MoveRates
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.placement.strategies import STRATEGIES, NodeUse, cheapest, strategy_costs
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot

RATES = MoveRates(handover=0.05, transfer=100e6)
USE = NodeUse(source=0.9, target=0.1, target_after=0.3, free_slots=2, draining=False)


def costs_of(state=1_000_000, rate=400.0, row_bytes=100.0, use=USE, rates=RATES, saved=0.0, shards=16):
    executor = ExecutorSnapshot(
        ExecutorId("count", 0), 0, {0: 1}, rate, 500.0, state_bytes=int(state), bytes_in=rate * row_bytes,
        shard_load=np.full(shards, 0.05),
    )  # fmt: skip
    return strategy_costs(executor, use, rates, horizon=60.0, bandwidth=1e9, saved_traffic=saved)


amounts = st.floats(0, 1e10)
uses = st.builds(NodeUse, st.floats(0, 3), st.floats(0, 3), st.floats(0, 3), st.integers(0, 4), draining=st.booleans())


@given(amounts, st.floats(0, 1e6), st.floats(0, 1e5), uses)
def test_costs_are_finite_in_order_and_one_strategy_is_always_allowed(state, rate, row_bytes, use):
    costs = costs_of(state, rate, row_bytes, use)
    assert tuple(one.strategy for one in costs) == STRATEGIES
    assert all(np.isfinite([one.delay, one.moved_bytes, one.pause, one.traffic]).all() for one in costs)
    assert all(min(one.delay, one.moved_bytes, one.pause, one.traffic) >= 0 for one in costs)
    best = cheapest(costs)
    assert best.allowed
    assert all(best.delay <= one.delay for one in costs if one.allowed)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_state_costs_a_home_more_and_nothing_as_much_as_before(small, more):
    few, many = costs_of(small), costs_of(small + more)
    assert few[0] == many[0]
    assert few[2].delay <= many[2].delay
    assert few[2].pause <= many[2].pause
    assert few[1].pause <= few[2].pause, "one shard waits, not the executor"


def test_small_state_moves_its_home_large_state_its_shards_and_an_idle_node_nothing():
    busy = replace(USE, source=0.97)
    assert cheapest(costs_of(1e3, row_bytes=1e6, use=busy)).strategy == "home"
    assert cheapest(costs_of(20e9, row_bytes=10, use=busy, shards=256)).strategy == "labelled"
    assert cheapest(costs_of(20e9, use=replace(USE, source=0.3))).strategy == "none"


def test_slow_network_and_full_node_change_the_choice():
    assert cheapest(costs_of(1e6, use=replace(USE, free_slots=0))).strategy == "home"
    slow = MoveRates(handover=5.0, transfer=1e6)
    assert cheapest(costs_of(1e8, use=USE, rates=RATES)).strategy != "none"
    assert cheapest(costs_of(1e8, use=replace(USE, source=0.6), rates=slow)).strategy == "none"


def test_retiring_node_allows_only_the_move_of_the_home():
    costs = costs_of(20e9, use=replace(USE, draining=True))
    assert [one.allowed for one in costs] == [False, False, True]
    assert cheapest(costs).strategy == "home"


def test_traffic_counts_where_it_is_not_saved():
    none, labelled, home = costs_of(saved=5e6)
    assert (none.traffic, labelled.traffic, home.traffic) == (5e6, 400.0 * 100.0, 0.0)
    none, _, home = costs_of(saved=-5e6)
    assert (none.traffic, home.traffic) == (0.0, 5e6)


@pytest.mark.parametrize(("handover", "transfer"), [(0.01, 500e6), (0.3, 20e6)])
def test_rates_come_close_to_those_of_measured_moves(handover, transfer):
    moves, true = MeasuredMoves(PlacementSettings()), MoveRates(handover, transfer)
    random = np.random.default_rng(4)
    for moved in random.uniform(0, 2e8, 60):
        moves.observe(moved, true.pause(moved) * random.uniform(0.9, 1.1))
    for moved in (0.0, 1e8):
        assert moves.rates().pause(moved) == pytest.approx(true.pause(moved), rel=0.3, abs=0.3)


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e4)), max_size=80))
def test_rates_are_always_usable(observed):
    moves = MeasuredMoves(PlacementSettings())
    for moved, pause in observed:
        moves.observe(moved, pause)
    rates = moves.rates()
    assert rates.handover >= 0
    assert 0 < rates.transfer < np.inf
    assert rates.pause(0.0) <= rates.pause(1e9)
