from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.topology.windowing import CountWindow, EventWindow, SessionWindow, Windowing
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.window_costs import WindowCosts, update_lookups
from dask_elastic.windows import hopping, session, tumbling
from dask_elastic.windows.explanation import WindowMeasures, event_rows, explain_windows
from dask_elastic.windows.unit_costs import PartMeasure, measured_costs
from dask_elastic.windows.window_plan import WindowLoad, plan_windows, single_lookups, slice_length

MINUTE = 60_000_000
FIGURE_7 = Windowing(tuple(tumbling(f"{minutes}min") for minutes in (5, 10, 15, 20)), ("at",))
MERGED = WindowCosts.of_batch(rows=10**6, pairs=10**6, seconds=0.05).plus(
    WindowCosts(merged=4000, merging=4.0, results=1000, instances=1)
)
"""Rows that cost 50 ns, and results of slices that cost 4 ms."""
LOAD = WindowLoad(rows=1000, row_cost=1e-6, merge_cost=1e-6, keys=10)


def test_plan_of_the_paper_s_windows_merges_86_results_an_hour_instead_of_240():
    # Enorm, figures 7 and 8, with partials of a minute.
    found = plan_windows(FIGURE_7, LOAD, slice=MINUTE)
    assert (found.merges * 3600, found.naive_merges * 3600) == (pytest.approx(86), pytest.approx(240))
    assert (found.overlap, found.partials, found.partials_per_key) == (4, "slices", 20)


def test_plan_of_the_paper_s_windows_costs_rows_once_and_merges_of_all_keys():
    found = plan_windows(FIGURE_7, LOAD, slice=MINUTE)
    assert found.shared == pytest.approx(1000 * 1e-6 + 86 / 3600 * 10 * 1e-6)
    assert found.separate == pytest.approx(4 * 1000 * 1e-6)


def test_slices_are_as_long_as_the_windows_permit():
    found = plan_windows(FIGURE_7, LOAD)
    assert found.slice == 5 * MINUTE
    assert found.merges * 3600 == pytest.approx(12 * 1 + 6 * 2 + 4 * 2 + 3 * 2)


def test_instances_are_chosen_where_merging_costs_more_than_rows():
    few_rows = replace(LOAD, rows=0.001)
    found = plan_windows(FIGURE_7, few_rows)
    assert (found.partials, found.reason) == ("instances", "merging slices would cost more")
    assert found.partials_per_key == 4
    assert found.separate < found.shared


@pytest.mark.parametrize(
    ("windowing", "reason"),
    [
        (Windowing((tumbling("1h"),), ("at",)), "no row is in two of them"),
        (replace(FIGURE_7, time=("at", "until")), "rows that stand for spans of time may lie across slices"),
        (Windowing((hopping("30d", "1us"),), ("at",)), "they consist of too many slices"),
    ],
)
def test_plan_names_the_reason_for_instances(windowing, reason):
    found = plan_windows(windowing, LOAD)
    assert found.partials == "instances"
    assert found.reason.startswith(reason)
    assert f"plan: a state for each instance, because {reason}" in found.explain()


@pytest.mark.parametrize("window", [SessionWindow(5), CountWindow(5, 5)])
def test_windows_that_are_not_over_event_time_have_no_slices(window):
    with pytest.raises(PlanningError, match="has no windows over event time"):
        plan_windows(Windowing((window,), ("at",) if isinstance(window, SessionWindow) else ()), LOAD)


@pytest.mark.parametrize("size", [0, -5, 7 * MINUTE, 10 * MINUTE])
def test_slice_of_which_instances_do_not_consist_is_refused(size):
    with pytest.raises(PlanningError, match=f"slice is {size}: give a divisor of {5 * MINUTE}"):
        plan_windows(FIGURE_7, LOAD, slice=size)


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf")])
def test_load_that_is_no_number_is_refused(number):
    with pytest.raises(PlanningError, match="merge_cost is"):
        replace(LOAD, merge_cost=number)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.builds(EventWindow, st.integers(-9, 9), st.integers(1, 12), st.integers(1, 12)), min_size=1))
def test_each_instance_begins_and_ends_where_slices_do(windows):
    size = slice_length(tuple(windows))
    offset = windows[0].start
    bounds = [
        bound
        for window in windows
        for number in range(-3, 3)
        for begin in [window.start + number * window.frequency]
        for bound in (begin, begin + window.length)
    ]
    assert all((bound - offset) % size == 0 for bound in bounds)


def test_explanation_has_the_plan_its_costs_and_what_is_measured():
    text = str(explain_windows("loans", FIGURE_7, WindowMeasures(rows=1e5, busy=0.01, state_bytes=160_000)))
    assert text.splitlines() == [
        "loans: 5min, 10min, 15min, 20min of at",
        "partials: of slices of 5min, which instances share (share='auto'); at most 4 per key",
        "close: 2 slices and shorter instances are merged into an instance at most, 4 slices without sharing of merges",
        "predicted: 0.002 CPU seconds per second, 0.008 with share=False",
        "costs: E = 20 ns per row and instance, W = 4 instances per row; closing 30 ns per merged key of slices, "
        "400 ns per result of instances; those of counts and sums, since nothing is measured yet",
        "measured: 100000 rows per second, 0.01 CPU seconds per second, 100 ns per row; 160000 bytes of partials",
    ]


def test_explanation_tells_that_the_alternative_would_cost_less():
    expensive = measured_costs([PartMeasure(None, MERGED)])
    many_keys = WindowMeasures(rows=1, busy=0.01, state_bytes=10**9, costs=expensive)
    explained = str(explain_windows("loans", FIGURE_7, many_keys))
    assert "instances would cost less; Job.share('loans', 'instances') changes at once to them" in explained
    forced = replace(FIGURE_7, share=False)
    assert "share=True would cost less" in str(explain_windows("loans", forced, WindowMeasures(1e5, 0.01, 10**5)))


def test_explanation_recommends_no_slices_where_no_row_is_in_two_instances():
    # Closing instances seems dearer than merging slices.
    measures = WindowMeasures(rows=100.0, busy=0.01, state_bytes=10**7)
    text = str(explain_windows("loans", Windowing((tumbling("1min"),), ("at",)), measures))
    assert "per second, share=True is not possible, because no row is in two instances" in text
    assert "would cost less" not in text


def test_explanation_has_the_measured_costs_of_both_plans_at_the_pace_of_the_clock():
    costs = measured_costs([PartMeasure(1e-6, MERGED)])
    # The stream is replayed ten times as fast as it came.
    measures = WindowMeasures(rows=1e5, busy=0.1, state_bytes=160_000, costs=costs, event_rows=1e4)
    found = explain_windows("loans", FIGURE_7, measures)
    lines = dict(line.split(": ", 1) for line in str(found).splitlines() if ": " in line)
    results = 1000 * (1 / 300 + 1 / 600 + 1 / 900 + 1 / 1200)
    # The batch of a million rows takes 0.1 ms of its own.
    row = (0.05 - 1e-4) * 1e-6
    other = 1e-6 - row
    shared, separate = 1e4 * (other + row) + results * 4e-3, 1e4 * (other + 4 * row) + results * 4e-7
    assert (found.plan.shared, found.plan.separate) == (pytest.approx(shared), pytest.approx(separate))
    assert lines["predicted"] == f"{10 * shared:.3g} CPU seconds per second, {10 * separate:.3g} with share=False"
    assert lines["costs"] == (
        "E = 49.9 ns per row and instance, W = 4 instances per row; closing 4 ms per result of slices, "
        "400 ns per result of instances; 950 ns per row with either plan; "
        "measured, except closing instances, as of counts and sums"
    )
    assert "T = 10000 per second of event time, K = 1000 keys per result" in lines["measured"]


def test_rows_of_event_time_follow_from_closed_instances():
    # An hour closes 12 + 6 + 4 + 3 instances.
    assert event_rows(FIGURE_7, rows=7200, instances=25) == pytest.approx(2)
    assert event_rows(FIGURE_7, rows=7200, instances=0) is None


def test_running_merges_are_planned_where_they_are_fewer():
    found = plan_windows(Windowing((hopping("1h", "1min"),), ("at",)), LOAD)
    assert (found.merges * 60, found.naive_merges * 60) == (pytest.approx(3), pytest.approx(60))
    assert found.most_merges == 3


@pytest.mark.parametrize("share", [True, "auto"])
def test_corrections_count_for_slices_alone_unless_both_plans_correct_apart(share):
    late = replace(FIGURE_7, allowed_lateness=MINUTE, share=share)
    load = replace(LOAD, corrected=0.5)
    before, after = plan_windows(late, LOAD), plan_windows(late, load)
    assert (before.partials, after.separate) == ("slices", before.separate)
    assert after.shared - before.shared == pytest.approx(LOAD.rows * 0.5 * 4 * LOAD.merge_cost)
    measured = plan_windows(late, replace(load, correction_cost=1e-3))
    assert measured.shared - before.shared == pytest.approx(LOAD.rows * 0.5 * 1e-3)
    assert measured.separate - before.separate == pytest.approx(LOAD.rows * 0.5 * 1e-3 if share == "auto" else 0)
    assert measured.partials == ("slices" if share == "auto" else "instances")
    with pytest.raises(PlanningError, match="corrected is -1"):
        replace(LOAD, corrected=-1)


def test_explanation_tells_what_corrections_cost():
    late = replace(FIGURE_7, allowed_lateness=MINUTE)
    assert "corrections: not measured yet" in str(explain_windows("loans", late))
    costs = WindowCosts(rows=100, batches=1, pairs=100, adding=1e-3, corrections=5, correcting=1e-4, lookups=2e5)
    measured = measured_costs([PartMeasure(1e-4, costs)])
    assert measured.other == pytest.approx(1e-4 - 1e-6 - (1e-3 - measured.units.batch) / 100)
    load = WindowMeasures(100.0, 0.01, 1000, measured)
    found = explain_windows("loans", late, load)
    guessed = "with slices, 2e+03 lookups per row, 150 ns each, as of counts and sums"
    assert f"corrections: 0.05 per row, 20 us each; {guessed}" in str(found)
    assert found.partials_per_key == 5
    assert "Job.share('loans', 'instances') changes at once to them" in str(found)
    found = explain_windows("loans", replace(late, emit="updates"), load)
    assert "corrections: 0.05 per row, 20 us each\nupdates: not measured yet" in str(found)


def test_updates_count_for_slices_alone():
    updated = replace(FIGURE_7, emit="updates")
    before = plan_windows(updated, LOAD)
    after = plan_windows(updated, replace(LOAD, lookups=5.0, lookup_cost=2e-7))
    assert (before.partials, after.separate) == ("slices", before.separate)
    assert after.shared - before.shared == pytest.approx(LOAD.rows * 5 * 2e-7)
    dear = plan_windows(updated, replace(LOAD, lookups=5.0, lookup_cost=1e-5))
    assert (dear.partials, dear.reason) == ("instances", "merging slices would cost more")
    with pytest.raises(PlanningError, match="lookups is -1"):
        replace(LOAD, lookups=-1)


def test_explanation_tells_what_updates_cost():
    updated = replace(FIGURE_7, emit="updates")
    text = str(explain_windows("loans", updated))
    assert "partials: of slices of 5min, which instances share (share='auto')" in text
    assert "updates: not measured yet; as those of batches of one row" in text
    costs = WindowCosts.of_batch(100, 100, 1e-3)._replace(updates=400.0, emitting=2e-4, lookups=5000.0)
    measured = measured_costs([PartMeasure(None, costs)])
    assert measured.other == pytest.approx((measured.units.batch + 2e-4) / 100)
    text = str(explain_windows("loans", updated, WindowMeasures(100.0, 0.01, 1000, measured)))
    assert "updates: 4 results per row; with slices, 50 lookups per row, 150 ns each, as of counts and sums" in text
    costs = costs._replace(looked=5000.0, consolidating=1e-2)
    measured = measured_costs([PartMeasure(1e-3, costs)])
    assert measured.other == pytest.approx(1e-3 - (1e-3 - measured.units.batch) / 100 - 1e-4)
    found = explain_windows("loans", updated, WindowMeasures(100.0, 0.1, 1000, measured), "slices")
    assert "50 lookups per row, 2 us each" in str(found)
    assert "instances would cost less; Job.share('loans', 'instances') changes at once to them" in str(found)
    found = explain_windows("loans", updated, WindowMeasures(100.0, 0.1, 1000, measured), "slices", changes=False)
    assert "instances would cost less; the plan of this compute does not change while the job runs" in str(found)


def test_batch_of_one_row_looks_up_the_slices_of_all_instances_of_the_row():
    assert single_lookups(FIGURE_7) == 0
    # Instances of 5, 10, 15 and 20 minutes, of which the longest has four slices.
    assert single_lookups(replace(FIGURE_7, emit="updates")) == update_lookups(1, 4, 4)


def test_explanation_tells_why_there_is_no_alternative():
    spans = replace(FIGURE_7, time=("at", "until"))
    assert "the alternative: none, because rows that stand for spans" in str(explain_windows("loans", spans))
    assert str(explain_windows("visits", Windowing((session("1h"),), ("at",)))).startswith("visits: sessions")
