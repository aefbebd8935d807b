"""The usual time of small batches, whatever single ones took."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import InlineCost


def test_expected_is_unknown_until_a_few_batches_are_measured():
    cost = InlineCost()
    for _ in range(4):
        cost.add(1, 0.001)
        assert cost.expected(1) is None
    cost.add(1, 0.001)
    assert cost.expected(1) == 0.001


@given(st.lists(st.floats(0.0, 10.0), min_size=7, max_size=7), st.permutations(range(15)))
def test_a_minority_of_slow_batches_does_not_count(slow, order):
    measured = [*slow, *[0.0001] * 8]
    cost = InlineCost()
    for position in order:
        cost.add(1, measured[position])
    assert cost.expected(1) <= 0.0001


def test_larger_batches_are_expected_to_take_proportionally_longer():
    cost = InlineCost()
    for _ in range(15):
        cost.add(10, 0.001)
    assert cost.expected(30) == 0.003
    assert cost.expected(1) == 0.001


def test_cost_follows_a_change_within_a_few_batches():
    cost = InlineCost()
    for busy in (*[0.0001] * 15, *[0.1] * 8):
        cost.add(1, busy)
    assert cost.expected(1) == 0.1
