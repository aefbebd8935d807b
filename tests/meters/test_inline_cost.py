"""The usual time of small batches, whatever single ones took."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import InlineCost
from dask_elastic.meters.inline_cost import FEWEST, KEPT


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


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0, 2.0])), max_size=60))
def test_expected_is_the_median_of_the_kept_batches(measured):
    cost = InlineCost()
    for number, (rows, busy) in enumerate(measured, 1):
        cost.add(rows, busy)
        kept = sorted((busy, rows) for rows, busy in measured[max(0, number - KEPT) : number])
        median, its_rows = kept[len(kept) // 2]
        expected = median * max(1.0, 2 / its_rows) if number >= FEWEST else None
        assert cost.expected(2) == expected


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
