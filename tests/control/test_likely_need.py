"""The number of workers that is likely to be needed next, and clusters that shrink less because of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.cluster.cluster_size import ClusterSize
from dask_elastic.control.cluster.likely_need import LEAST, LikelyNeed

COOLDOWN = 10.0


def removals(needs, period=1.0, present=4, per_worker=1):
    """Return how often a cluster shrinks while each of the needs lasts for one period."""
    size, shrunk = ClusterSize(COOLDOWN), 0
    for number, slots in enumerate(needs):
        wanted = size.workers(number * period, slots, per_worker, present)
        shrunk += wanted < present
        present = wanted
    return shrunk


def test_cluster_stops_shrinking_between_loads_that_return_soon():
    # Each low lasts for one and a half cooldowns, each high for two.
    wave = ([0.9] * 15 + [3.6] * 20) * 40
    half = len(wave) // 2
    assert removals(wave[:half]) > 0
    late = removals(wave) - removals(wave[:half])
    assert late < removals(wave[:half])
    assert late == 0


def test_cluster_shrinks_after_all_when_the_load_stays_low():
    wave = ([0.9] * 15 + [3.6] * 20) * 20
    assert removals(wave + [0.9] * 400) > removals(wave)


def test_cluster_that_never_grew_again_shrinks_as_soon_as_before():
    assert removals([3.6] * 20 + [0.9] * 30) == 1


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 5))
def test_likely_need_is_one_that_followed_before(needs, now):
    likely = LikelyNeed(1.0)
    for at, need in enumerate(needs):
        likely.observe(float(at), need)
    found = likely.after(now)
    complete = needs[:-1]
    followed = [after for before, after in pairwise(complete) if before == now]
    if complete.count(now) <= LEAST:
        assert found == now
    elif followed:
        assert found == sorted(followed)[(len(followed) - 1) // 2]


def test_nothing_is_learnt_without_a_cooldown():
    likely = LikelyNeed(0.0)
    for at in range(20):
        likely.observe(float(at), at % 2)
    assert (likely.after(0), likely.after(1)) == (0, 1)


@pytest.mark.parametrize("needs", [[1, 1, 1, 1, 1, 1, 4], [4, 1] * 3])
def test_rare_growth_and_little_knowledge_change_nothing(needs):
    likely = LikelyNeed(1.0)
    for at, need in enumerate(needs):
        likely.observe(float(at), need)
    assert likely.after(1) == 1
