from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.meters import MeterError, ShardArrivals

TICK = 0.25


def feed(arrivals, random, shares, ticks, rows, group=1, begin=0, arrived=None):
    """Feed random rows with the given shares, in groups of one shard; return the counts."""
    arrived = np.zeros(arrivals.shards) if arrived is None else arrived
    for tick in range(begin, begin + ticks):
        arrived = arrived + group * random.multinomial(rows // group, shares)
        arrivals.note(arrived, tick * TICK)
    return arrived


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 16, 256]), st.sampled_from([40, 1_000, 50_000]))
def test_shard_arrivals_with_constant_shares_rarely_jump(seed, shards, rows):
    random = np.random.default_rng(seed)
    arrivals = ShardArrivals(shards)
    feed(arrivals, random, random.dirichlet(np.ones(shards)), 60, rows)
    assert arrivals.jumps <= 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([16, 256]))
def test_shard_arrivals_after_jump_reflect_only_new_shares(seed, shards):
    random = np.random.default_rng(seed)
    arrivals = ShardArrivals(shards)
    before, after = (random.permutation(np.arange(1, shards + 1) ** -0.5) for _ in range(2))
    arrived = feed(arrivals, random, before / before.sum(), 20, 4_000)
    jumps = arrivals.jumps
    feed(arrivals, random, after / after.sum(), 2, 4_000, begin=20, arrived=arrived)
    assert arrivals.jumps > jumps
    found = arrivals.per_second() * TICK / 4_000
    assert np.abs(found - after / after.sum()).sum() < np.abs(found - before / before.sum()).sum() / 3


def test_shard_arrivals_of_grouped_rows_stop_jumping():
    random = np.random.default_rng(1)
    arrivals = ShardArrivals(64)
    shares = np.full(64, 1 / 64)
    arrived = feed(arrivals, random, shares, 20, 4_000, group=20)
    jumps = arrivals.jumps
    feed(arrivals, random, shares, 100, 4_000, group=20, begin=20, arrived=arrived)
    assert arrivals.jumps <= jumps + 1


def test_shard_arrivals_rate_is_mean_over_window():
    arrivals = ShardArrivals(2, window=1.0)
    for tick in range(9):
        arrivals.note(np.array([100.0, 100.0]) * (tick if tick < 5 else 2 * tick - 4), tick * TICK)
    # Twice as many rows with the same shares are no jump: old steps are dropped as they leave the window.
    assert arrivals.jumps == 0
    assert arrivals.per_second().tolist() == [800.0, 800.0]


def test_shard_arrivals_merge_steps_shorter_than_minimum():
    arrivals = ShardArrivals(1)
    for tick in range(50):
        arrivals.note(np.array([10.0 * tick]), tick * 0.01)
    assert arrivals.per_second().tolist() == pytest.approx([1000.0])


def test_shard_arrivals_after_long_pause_are_unknown():
    arrivals = ShardArrivals(1, window=2.0)
    arrivals.note(np.array([0.0]), 0.0)
    arrivals.note(np.array([100.0]), 1.0)
    assert arrivals.per_second().tolist() == [100.0]
    arrivals.note(np.array([100.0]), 60.0)
    assert arrivals.per_second() is None


def test_shard_arrivals_with_falling_count_are_not_negative():
    arrivals = ShardArrivals(2)
    arrivals.note(np.array([50.0, 0.0]), 0.0)
    arrivals.note(np.array([40.0, 30.0]), 1.0)
    assert arrivals.per_second().tolist() == [0.0, 30.0]


@pytest.mark.parametrize(("shards", "window", "named"), [(0, 1.0, "shards is 0"), (4, 0.1, "window is 0.1")])
def test_shard_arrivals_with_invalid_arguments_raise(shards, window, named):
    with pytest.raises(MeterError, match=named):
        ShardArrivals(shards, window)


def test_shard_arrivals_that_find_no_jumps_keep_their_window():
    random = np.random.default_rng(5)
    steady, finding = ShardArrivals(2, 1.0, finds_jumps=False), ShardArrivals(2, 1.0)
    for arrivals in (steady, finding):
        arrived = feed(arrivals, random, [0.9, 0.1], 5, 1_000)
        feed(arrivals, random, [0.1, 0.9], 2, 1_000, begin=5, arrived=arrived)
    assert steady.jumps == 0 < finding.jumps
    assert steady.per_second() == pytest.approx([2_000, 2_000], rel=0.1)
    assert finding.per_second()[1] > 3_000


@pytest.mark.parametrize(("finds_jumps", "rates"), [(True, None), (False, [500.0, 250.0])])
def test_shard_arrivals_that_are_noted_rarely_are_known_if_they_are_compared(finds_jumps, rates):
    arrivals = ShardArrivals(2, 1.0, finds_jumps)
    for number in range(3):
        arrivals.note(np.array([1_000.0, 500.0]) * number, now=2.0 * number)
    found = arrivals.per_second()
    assert (None if found is None else found.tolist()) == rates
