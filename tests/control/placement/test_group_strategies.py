"""What plans of key groups cost, progressively and synchronised."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.placement.group_strategies import GroupsMoving, MeasuredGroupMoves, compared, group_costs
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.vocab.plan import StrategyCost

MEASURED = MeasuredGroupMoves(PlacementSettings())
ROWS = 1e4

minis = st.lists(st.builds(GroupsMoving, st.floats(0, 500), st.floats(0, 1e8), st.floats(0, 1)), min_size=1, max_size=9)
loads = st.lists(st.floats(0.01, 1.5), min_size=2, max_size=5)


def waiting(moving, loads, rows=ROWS, measured=MEASURED):
    drain = max(one.drain for one in moving)
    return [cost.waiting for cost in group_costs(moving, rows, drain, loads, measured)]


@given(minis, loads, st.floats(1.1, 10))
def test_more_state_and_longer_queues_never_cost_less(moving, loads, times):
    before = waiting(moving, loads)
    for name in ("nbytes", "drain"):
        more = [replace(one, **{name: times * getattr(one, name)}) for one in moving]
        assert all(b >= a for a, b in zip(before, waiting(more, loads), strict=True))


@given(minis, st.floats(2, 10))
def test_rows_of_other_groups_wait_only_where_all_instances_pause(moving, times):
    few, many = waiting(moving, [0.5, 0.2]), waiting(moving, [0.5, 0.2], times * ROWS)
    assert many[0] == few[0]
    assert many[1] == pytest.approx(times * few[1])


def test_plan_whose_rows_wait_long_has_no_powers_of_ten_in_its_sentence():
    costs = (StrategyCost("progressive", 2.0604e15, 1e6, 0.1, 0.0), StrategyCost("synchronised", 1234.0, 1e6, 0.1, 0.0))
    assert compared(costs, "progressive") == (
        "Rows wait for 2,060,400,000,000,000 row-seconds if groups move progressively, 1,234 if all instances pause."
    )


def test_long_plan_is_dearer_while_an_executor_is_full():
    moving = [GroupsMoving(10.0, 1e5, 0.05)] * 50
    progressive, synchronised = waiting(moving, [0.9, 0.3])
    assert progressive < synchronised
    progressive, synchronised = waiting(moving, [1.0, 0.3])
    assert synchronised < progressive


def test_pauses_of_one_strategy_say_nothing_about_the_other():
    measured = MeasuredGroupMoves(PlacementSettings())
    groups = GroupsMoving(100.0, 1e6, 0.2)
    before = measured.pause("progressive", groups), measured.lead("progressive")
    for _ in range(64):
        measured.observe("synchronised", groups.drain, 1e6, 1e6, pause=1.2, seconds=1.5)
    assert (measured.pause("progressive", groups), measured.lead("progressive")) == before
    assert measured.pause("synchronised", groups) == pytest.approx(1.2, rel=0.05)
    assert measured.lead("synchronised") == pytest.approx(0.3)


def test_state_that_is_copied_before_lengthens_no_pause():
    measured, settings = MeasuredGroupMoves(PlacementSettings()), PlacementSettings()
    groups = GroupsMoving(100.0, 100 * settings.transfer, 0.1)
    assert measured.pause("progressive", groups) > 100
    for _ in range(64):
        measured.observe("progressive", groups.drain, groups.nbytes, 1e3, pause=0.12, seconds=2.0)
    assert measured.pause("progressive", groups) == pytest.approx(0.12, rel=0.1)
    assert measured.lead("progressive") == pytest.approx(1.88)
    assert measured.paused_share("progressive") == pytest.approx(1e3 / groups.nbytes)
    assert measured.paused_share("synchronised") == 1.0


def test_sentence_begins_with_the_chosen_strategy():
    costs = group_costs([GroupsMoving(100.0, 1e6, 0.1)], ROWS, 0.1, [0.6, 0.2], MEASURED)
    assert compared(costs, "synchronised").index("pause") < compared(costs, "synchronised").index("progressively")
    assert compared(costs, "progressive").index("progressively") < compared(costs, "progressive").index("pause")
