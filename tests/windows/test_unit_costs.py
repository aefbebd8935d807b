"""The costs of a batch, a row, a merge and a result follow from the sums that tasks report."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.vocab.window_costs import WindowCosts
from dask_elastic.windows.unit_costs import (
    BATCH_COST,
    COUNTS_AND_SUMS,
    PartMeasure,
    UnitCosts,
    completed,
    measured_costs,
    measured_keys,
    unit_costs,
)

COSTS = st.floats(1e-9, 1e-3)


def batches(sizes, batch, row, pairs=1):
    """The sums of batches that cost what the formula says."""
    one = [WindowCosts.of_batch(rows, pairs * rows, batch + row * pairs * rows) for rows in sizes]
    return reduce(WindowCosts.plus, one)


@given(st.lists(st.integers(1, 100_000), min_size=20, max_size=60), COSTS, COSTS)
def test_costs_of_batches_of_different_sizes_are_told_apart(sizes, batch, row):
    found = unit_costs(batches([*sizes, 100, 50_000], batch, row))
    if "batch" in found.measured:
        most = batch + row * max(sizes)
        assert found.row == pytest.approx(row, rel=1e-3, abs=1e-6 * most / max(sizes))
        assert found.batch == pytest.approx(batch, rel=1e-3, abs=1e-6 * most)


@given(st.integers(1, 100_000), st.integers(1, 200), COSTS, COSTS)
def test_batches_of_one_size_have_at_least_half_of_their_cost_in_rows(size, count, batch, row):
    found = unit_costs(batches([size] * count, batch, row))
    assert "batch" not in found.measured
    assert found.batch <= BATCH_COST
    assert found.row * size >= 0.49 * (batch + row * size)
    assert found.batch + found.row * size == pytest.approx(batch + row * size)


@pytest.mark.parametrize(("slow", "is_fitted"), [(0, True), (5, False)])
def test_few_slow_batches_that_hide_the_cost_of_a_row_are_not_fitted(slow, is_fitted):
    # The first batches make the partials of all keys.
    first = [WindowCosts.of_batch(rows, rows, 0.05) for rows in range(1000, 1000 + slow)]
    costs = reduce(WindowCosts.plus, [*first, batches(range(1000, 9000, 100), batch=1e-4, row=2e-8)])
    found = unit_costs(costs)
    assert ("batch" in found.measured) is is_fitted
    assert found.batch == pytest.approx(BATCH_COST)


def test_noise_that_makes_larger_batches_cheaper_fits_nothing():
    costs = reduce(
        WindowCosts.plus, [WindowCosts.of_batch(rows, rows, 1e-3 - rows * 1e-8) for rows in range(100, 2000)]
    )
    found = unit_costs(costs)
    assert "batch" not in found.measured
    assert found.row > 0


@given(
    st.lists(
        st.builds(WindowCosts, *[st.integers(0, 10**9) | st.floats(1e-9, 1e9) for _ in WindowCosts._fields]), max_size=5
    )
)
def test_any_sums_give_costs_that_a_plan_accepts(parts):
    found = measured_costs([PartMeasure(1e-6, part) for part in parts])
    assert all(value >= 0 for value in (found.units.batch, found.units.row, found.units.merge, found.units.result))
    assert found.other >= 0
    assert found.keys is None or found.keys >= 0


def test_what_is_not_measured_is_that_of_counts_and_sums():
    assert unit_costs(None) == unit_costs(WindowCosts()) == COUNTS_AND_SUMS
    found = unit_costs(WindowCosts(merged=10, merging=1.0, results=5))
    assert (found.merge, found.formed, found.row) == (0.1, 0.2, COUNTS_AND_SUMS.row)
    assert found.measured == ("merge",)
    found = unit_costs(WindowCosts(apart=10, closing=1.0, results=10))
    assert (found.result, found.formed, found.measured) == (0.1, None, ("result",))


def test_costs_of_the_plan_that_does_not_run_are_those_of_its_last_run():
    recent = UnitCosts(row=1.0, merge=2.0, formed=3.0, measured=("row", "merge"))
    earlier = UnitCosts(row=9.0, result=4.0, measured=("row", "result"))
    assert completed(recent, earlier) == UnitCosts(
        row=1.0, merge=2.0, result=4.0, formed=3.0, measured=("row", "merge", "result")
    )


def test_time_of_a_row_that_no_plan_changes_is_what_adding_leaves():
    costs = batches([1000] * 30, batch=0.0, row=1e-6, pairs=4)
    found = measured_costs([PartMeasure(1e-5, costs), PartMeasure(3e-5, costs)])
    assert found.other + 4 * found.units.row == pytest.approx(2e-5)
    unknown = measured_costs([PartMeasure(None, costs)])
    assert unknown.other == pytest.approx(found.units.batch / 1000)


def test_keys_are_those_of_all_executors_together():
    halves = [WindowCosts(results=500, instances=10), WindowCosts(results=90, instances=3)]
    assert measured_keys(halves) == 80
    assert measured_keys([*halves, WindowCosts()]) is None
    assert measured_keys([None]) is None
    assert measured_keys([]) is None


def test_sums_that_began_anew_have_no_difference():
    before = WindowCosts(batches=3, pairs=30)
    assert WindowCosts(batches=5, pairs=90).since(before) == WindowCosts(batches=2, pairs=60)
    assert WindowCosts(batches=1, pairs=90).since(before) is None


def test_rehearsals_tell_what_a_row_costs_where_batches_do_not():
    costs = WindowCosts()
    for number in range(40):
        costs = costs.plus(WindowCosts.of_batch(300, 300, 2e-4 + number % 7 * 1e-5))
    unsure = unit_costs(costs)
    assert unsure.row > 1e-7
    assert "batch" not in unsure.measured
    found = unit_costs(costs._replace(tried=2000.0, trying=4e-5))
    assert found.row == pytest.approx(2e-8)
    assert found.batch == pytest.approx(costs.adding / 40 - 300 * 2e-8)
    assert set(found.measured) >= {"batch", "row"}
    slow = unit_costs(costs._replace(tried=10.0, trying=1.0))
    assert (slow.row, slow.batch) == (0.1, 0.0)
