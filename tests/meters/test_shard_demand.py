from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.meters import MeterError, ShardDemand

TICK = 0.25


def fed(demand, random, shares, ticks, rows, clump=1, begin=0, arrived=None):
    """Feed ticks of rows that are drawn by their shares, in clumps of one shard; returns what has arrived then."""
    arrived = np.zeros(demand.shards) if arrived is None else arrived
    for tick in range(begin, begin + ticks):
        arrived = arrived + clump * random.multinomial(rows // clump, shares)
        demand.note(arrived, tick * TICK)
    return arrived


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 16, 256]), st.sampled_from([40, 1_000, 50_000]))
def test_chance_is_no_jump(seed, shards, rows):
    random = np.random.default_rng(seed)
    demand = ShardDemand(shards)
    fed(demand, random, random.dirichlet(np.ones(shards)), 60, rows)
    assert demand.jumps <= 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([16, 256]))
def test_after_a_jump_only_the_present_counts(seed, shards):
    random = np.random.default_rng(seed)
    demand = ShardDemand(shards)
    before, after = (random.permutation(np.arange(1, shards + 1) ** -0.5) for _ in range(2))
    arrived = fed(demand, random, before / before.sum(), 20, 4_000)
    jumps = demand.jumps
    fed(demand, random, after / after.sum(), 2, 4_000, begin=20, arrived=arrived)
    assert demand.jumps > jumps
    found = demand.per_second() * TICK / 4_000
    assert np.abs(found - after / after.sum()).sum() < np.abs(found - before / before.sum()).sum() / 3


def test_rows_that_come_in_clumps_soon_jump_no_more():
    random = np.random.default_rng(1)
    demand = ShardDemand(64)
    shares = np.full(64, 1 / 64)
    arrived = fed(demand, random, shares, 20, 4_000, clump=20)
    jumps = demand.jumps
    fed(demand, random, shares, 100, 4_000, clump=20, begin=20, arrived=arrived)
    assert demand.jumps <= jumps + 1


def test_the_mean_is_over_the_window_and_no_more():
    demand = ShardDemand(2, window=1.0)
    for tick in range(9):
        demand.note(np.array([100.0, 100.0]) * (tick if tick < 5 else 2 * tick - 4), tick * TICK)
    # Twice as many rows in the same shares are no jump: what came before goes as it leaves the window.
    assert demand.jumps == 0
    assert demand.per_second().tolist() == [800.0, 800.0]


def test_moments_close_to_each_other_are_one():
    demand = ShardDemand(1)
    for tick in range(50):
        demand.note(np.array([10.0 * tick]), tick * 0.01)
    assert demand.per_second().tolist() == pytest.approx([1000.0])


def test_what_was_seen_long_ago_is_forgotten():
    demand = ShardDemand(1, window=2.0)
    demand.note(np.array([0.0]), 0.0)
    demand.note(np.array([100.0]), 1.0)
    assert demand.per_second().tolist() == [100.0]
    demand.note(np.array([100.0]), 60.0)
    assert demand.per_second() is None


def test_rows_that_count_twice_give_no_negative_rate():
    demand = ShardDemand(2)
    demand.note(np.array([50.0, 0.0]), 0.0)
    demand.note(np.array([40.0, 30.0]), 1.0)
    assert demand.per_second().tolist() == [0.0, 30.0]


@pytest.mark.parametrize(("shards", "window", "named"), [(0, 1.0, "shards is 0"), (4, 0.1, "window is 0.1")])
def test_what_cannot_be_measured_is_named(shards, window, named):
    with pytest.raises(MeterError, match=named):
        ShardDemand(shards, window)
