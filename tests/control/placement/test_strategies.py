"""What moves of homes cost beside their alternatives, and the rates that are learnt from moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.placement.move_rates import MeasuredMoves, MoveRates
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.control.placement.strategies import STRATEGIES, MoveSite, NodeLoad, cheapest, strategy_costs
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot

RATES = MoveRates(handover=0.05, transfer=100e6)
BUSY = MoveSite(NodeLoad(1.8, 2.0, 900.0), NodeLoad(0.2, 2.0, 100.0), busy=0.8, rows=400.0)
CALM = replace(BUSY, source=NodeLoad(0.85, 2.0, 425.0))


def costs_of(state=1_000_000, row_bytes=100.0, site=BUSY, rates=RATES, saved=0.0, shards=16, horizon=60.0):
    executor = ExecutorSnapshot(
        ExecutorId("count", 0), 0, {0: 1}, site.rows, 500.0, state_bytes=int(state), bytes_in=site.rows * row_bytes,
        shard_load=np.full(shards, 0.05),
    )  # fmt: skip
    return strategy_costs(executor, site, rates, horizon=horizon, bandwidth=1e9, saved_traffic=saved)


amounts = st.floats(0, 1e10)
loads = st.builds(NodeLoad, st.floats(0, 30), st.floats(0.1, 10), st.floats(0, 1e6))
sites = st.builds(MoveSite, loads, loads, st.floats(0, 30), st.floats(0, 1e6), st.booleans(), st.booleans())


@given(amounts, st.floats(0, 1e5), sites)
def test_costs_are_finite_in_order_and_one_strategy_is_always_allowed(state, row_bytes, site):
    costs = costs_of(state, row_bytes, site)
    assert tuple(one.strategy for one in costs) == STRATEGIES
    assert all(np.isfinite([one.waiting, one.moved_bytes, one.pause, one.traffic]).all() for one in costs)
    assert all(min(one.waiting, one.moved_bytes, one.pause, one.traffic) >= 0 for one in costs)
    best = cheapest(costs)
    assert best.allowed
    assert all(best.waiting <= one.waiting for one in costs if one.allowed)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_state_costs_a_home_more_and_nothing_as_much_as_before(small, more):
    few, many = costs_of(small), costs_of(small + more)
    assert few[0] == many[0]
    assert few[2].waiting <= many[2].waiting
    assert few[2].pause <= many[2].pause
    assert few[1].pause <= few[2].pause, "one shard waits, not the executor"


def test_small_state_moves_its_home_large_state_its_shards_and_a_calm_node_nothing():
    assert cheapest(costs_of(1e3, row_bytes=1e6)).strategy == "home"
    assert cheapest(costs_of(1e9, row_bytes=10, shards=256)).strategy == "labelled"
    assert (
        cheapest(costs_of(1e9, row_bytes=10, shards=256, site=replace(BUSY, shards_allowed=False))).strategy == "none"
    )
    assert cheapest(costs_of(1e9, site=CALM)).strategy == "none"


def test_state_that_is_copied_before_the_pause_lets_a_home_move():
    assert cheapest(costs_of(1e9, shards=4)).strategy == "none"
    assert cheapest(costs_of(1e9, row_bytes=1e4, shards=4, rates=replace(RATES, paused=0.01))).strategy == "home"


def test_rows_of_others_count_too():
    alone = MoveSite(NodeLoad(0.1, 2.0, 400.0), NodeLoad(0.0, 2.0, 0.0), busy=0.1, rows=400.0)
    crowded = replace(alone, source=NodeLoad(1.9, 2.0, 7_600.0))
    assert cheapest(costs_of(1e7, site=alone)).strategy == "none"
    assert cheapest(costs_of(1e7, site=crowded)).strategy != "none"


def test_moves_are_worth_their_pause_where_placements_last():
    site = replace(CALM, source=NodeLoad(1.2, 2.0, 600.0), shards_allowed=False)
    assert [cheapest(costs_of(1e6, site=site, horizon=seconds)).strategy for seconds in (0.3, 60.0)] == ["none", "home"]


def test_round_trips_of_rows_count_where_shards_move_and_the_home_stays():
    near, far = (costs_of(1e9, row_bytes=10, shards=256, rates=replace(RATES, hop=hop)) for hop in (1e-5, 1.0))
    assert (cheapest(near).strategy, cheapest(far).strategy) == ("labelled", "none")
    assert far[1].waiting - near[1].waiting == pytest.approx(60.0 * 400.0 * (1.0 - 1e-5))


def test_overloaded_node_costs_more_the_longer_it_stays_so():
    over, full = NodeLoad(4.0, 2.0, 1e3), NodeLoad(2.0, 2.0, 1e3)
    assert over.waiting(60.0) - full.waiting(60.0) > 60 * (over.waiting(1.0) - full.waiting(1.0))


def test_home_does_not_move_where_its_cores_stay_behind():
    full = replace(BUSY, shards_allowed=False, cores_follow=False)
    none, _, home = costs = costs_of(1e3, site=full)
    assert cheapest(costs).strategy == "none"
    assert home.waiting > none.waiting
    assert cheapest(costs_of(1e3, site=replace(full, cores_follow=True))).strategy == "home"


def test_required_move_allows_only_the_home():
    costs = costs_of(20e9, site=replace(BUSY, stay_allowed=False, shards_allowed=False))
    assert [one.allowed for one in costs] == [False, False, True]
    assert cheapest(costs).strategy == "home"


def test_traffic_counts_where_it_is_not_saved():
    none, labelled, home = costs_of(saved=5e6)
    assert (none.traffic, labelled.traffic, home.traffic) == (5e6, 5e6 + 400.0 * 100.0, 0.0)
    assert none.waiting - costs_of()[0].waiting == pytest.approx(60.0 * 5e6 / 1e9)
    none, _, home = costs_of(saved=-5e6)
    assert (none.traffic, home.traffic) == (0.0, 5e6)


@pytest.mark.parametrize(("handover", "transfer"), [(0.01, 500e6), (0.3, 20e6)])
def test_rates_come_close_to_those_of_measured_moves(handover, transfer):
    moves, true = MeasuredMoves(PlacementSettings()), MoveRates(handover, transfer)
    random = np.random.default_rng(4)
    for moved in random.uniform(0, 2e8, 60):
        moves.observe(10 * moved, moved, true.pause(moved) * random.uniform(0.9, 1.1))
    assert moves.rates().paused == pytest.approx(0.1)
    for moved in (0.0, 1e8):
        assert moves.rates().pause(10 * moved) == pytest.approx(true.pause(moved), rel=0.3, abs=0.3)


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e4)), max_size=80))
def test_rates_are_always_usable(observed):
    moves = MeasuredMoves(PlacementSettings())
    for moved, paused, pause in observed:
        moves.observe(moved, paused, pause)
    rates = moves.rates()
    assert rates.handover >= 0
    assert 0 < rates.transfer < np.inf
    assert 0 <= rates.paused <= 1
    assert rates.pause(0.0) <= rates.pause(1e9) <= rates.shard_pause(1e9)
