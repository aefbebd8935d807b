from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from dask_elastic.topology.aggregate import Count, Mean
from dask_elastic.topology.duration import seconds_of
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import CountWindow, EventWindow, SessionWindow, Windowing, duration_text
from dask_elastic.vocab.errors import TopologyError

HOUR = 3_600_000_000
TUMBLING = EventWindow(0, HOUR, HOUR)
HOURLY = Windowing((TUMBLING,), ("departure",))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: EventWindow(0, 0, 1), "length is 0; give an integer above 0"),
        (lambda: EventWindow(0, 1, -5), "frequency is -5; give an integer above 0"),
        (lambda: EventWindow(0.5, 1, 1), "start is 0.5; give an integer"),
        (lambda: EventWindow(0, 2**62, 1), "below 2"),
        (lambda: EventWindow(0, True, 1), "length is True"),
        (lambda: SessionWindow(0), "gap is 0"),
        (lambda: CountWindow(10, 0), "frequency is 0"),
    ],
)
def test_window_with_invalid_number_is_refused(make, problem):
    with pytest.raises(TopologyError, match=problem):
        make()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"windows": ()}, "at least one window"),
        ({"windows": [TUMBLING]}, "give a tuple"),
        ({"windows": ("1h",)}, "'1h' is not a window"),
        ({"windows": (TUMBLING, SessionWindow(5))}, "are of one kind, but these are 1h, sessions with a gap of 5us"),
        ({"windows": (SessionWindow(5), SessionWindow(6))}, "write one compute for each"),
        ({"windows": (TUMBLING, EventWindow(HOUR, HOUR, HOUR))}, "the windows 1h and 1h have instances in common"),
        ({"windows": (EventWindow(2, 9, 4), EventWindow(0, 9, 6))}, "instances in common"),
        ({"time": ("from", "until"), "spans": "any"}, "spans is 'any'; give 'within' or 'overlapping'"),
        ({"spans": "overlapping"}, "is for rows that stand for a span of time, in windows over event time; name the"),
        ({"time": ()}, "has no column of event time"),
        ({"time": "departure"}, "as a tuple"),
        ({"time": ("a", "b", "c")}, "give one column, or two"),
        ({"time": ("a", "a")}, "give one column, or two"),
        ({"windows": (SessionWindow(5),), "time": ("a", "b")}, "sessions are of points in time"),
        ({"windows": (CountWindow(5, 5),), "time": ("a", "b", "c")}, "give one column, or two"),
        ({"windows": (CountWindow(5, 5),), "time": (), "allowed_lateness": 5}, "count windows have no late rows"),
        ({"windows": (CountWindow(5, 5),), "emit": "updates"}, "appears with the row that completes it; omit emit"),
        ({"allowed_lateness": -1}, "allowed_lateness is -1"),
        ({"allowed_lateness": 0.5}, "allowed_lateness is 0.5"),
        ({"emit": "always"}, "emit is 'always'; give 'closed' or 'updates'"),
        ({"late": None}, "late is None; give 'drop' or 'stream'"),
        ({"null_time": "keep"}, "null_time is 'keep'; give 'drop' or 'late' or 'refuse'"),
    ],
)
def test_windowing_whose_parts_do_not_fit_is_refused(options, problem):
    with pytest.raises(TopologyError, match=problem):
        replace(HOURLY, **options)


def test_count_windows_tell_what_bounds_their_results():
    assert str(Windowing((CountWindow(5, 5),), ())) == "5 rows"
    assert str(Windowing((CountWindow(5, 2),), ("at",))) == "5 rows every 2 rows, bounded by at"


@pytest.mark.parametrize("number", [1, 999, 1_000, 90_000_000, 600_000_000, 86_400_000_000, 7 * 86_400_000_000])
def test_duration_text_names_the_duration(number):
    assert round(seconds_of(duration_text(number), "length") * 1e6) == number


def test_windowed_compute_reads_its_times_and_has_an_event_clock():
    compute = Compute("hourly", ("origin",), {"delay": Mean("delay")}, windowing=HOURLY)
    assert compute.columns == ("origin", "departure", "delay")
    assert compute.clocks == {"event"}
    for time in ((), ("departure",)):
        assert replace(compute, windowing=Windowing((CountWindow(5, 5),), time)).clocks == frozenset()
    assert pickle.loads(pickle.dumps(compute)).windowing == HOURLY


def test_operator_pickled_without_windowing_has_none():
    compute = Compute("planes", ("plane",), {"flights": Count()})
    earlier = Compute.__new__(Compute)
    earlier.__dict__.update({name: value for name, value in vars(compute).items() if name != "windowing"})
    assert pickle.loads(pickle.dumps(earlier)).windowing is None


def test_policies_for_rows_without_result_leave_the_state_as_it_is():
    assert HOURLY.has_same_state(replace(HOURLY, late="stream", null_time="late"))
    for change in (
        {"allowed_lateness": 1},
        {"emit": "updates"},
        {"time": ("arrival",)},
        {"windows": (SessionWindow(1),)},
    ):
        assert not HOURLY.has_same_state(replace(HOURLY, **change))
    assert not HOURLY.has_same_state(None)


def test_results_have_revisions_only_when_they_may_be_corrected():
    assert HOURLY.output_columns == ("window_start", "window_end")
    for change in ({"allowed_lateness": 1}, {"emit": "updates"}):
        assert replace(HOURLY, **change).output_columns == ("window_start", "window_end", "revision")


def test_window_is_described_by_length_frequency_and_phase():
    windows = (TUMBLING, EventWindow(HOUR // 2, 2 * HOUR, HOUR), EventWindow(-HOUR, 3 * HOUR, 3 * HOUR))
    assert [str(window) for window in windows] == ["1h", "2h every 1h from 30min", "3h from 2h"]
    assert np.unique([str(window) for window in windows]).size == 3


def test_windows_of_one_length_may_alternate():
    windows = (EventWindow(0, 9, 4), EventWindow(1, 9, 6))
    assert replace(HOURLY, windows=windows).windows == windows


HALVES = Windowing((EventWindow(0, 10, 5),), ("departure",))


def test_instances_share_slices_if_a_row_is_in_several():
    assert (HALVES.shares, HALVES.slice) == (True, 5)
    assert not HOURLY.shares
    assert not replace(HALVES, share=False).shares
    assert replace(HALVES, allowed_lateness=5).shares
    assert not replace(HALVES, allowed_lateness=6000).shares
    assert replace(HALVES, allowed_lateness=6000, share=True).shares
    assert not Windowing((EventWindow(0, 2000, 1),), ("departure",)).shares
    assert Windowing((EventWindow(0, 2000, 1),), ("departure",), share=True).shares
    updated = replace(HALVES, emit="updates")
    assert updated.shares
    assert replace(updated, allowed_lateness=5).shares
    assert not replace(updated, allowed_lateness=6000).shares
    assert updated.has_same_state(replace(updated, share=True))
    assert not updated.has_same_state(replace(updated, share=False))


@pytest.mark.parametrize(
    "windowing",
    [HOURLY, replace(HALVES, time=("a", "b"))],
    ids=str,
)
def test_sharing_where_it_is_not_possible_is_refused(windowing):
    with pytest.raises(TopologyError, match=r"share=True, but .* omit share"):
        replace(windowing, share=True)


def test_sharing_changes_by_the_cost_model_only():
    assert HALVES.changes_sharing
    assert replace(HALVES, emit="updates", allowed_lateness=5).changes_sharing
    for change in ({"share": True}, {"share": False}, {"allowed_lateness": 6000}):
        assert not replace(HALVES, **change).changes_sharing


def test_sharing_that_is_no_choice_is_refused():
    with pytest.raises(TopologyError, match="share is 'never'; give True, False or 'auto'"):
        replace(HALVES, share="never")


def test_state_of_slices_is_not_that_of_instances():
    assert HALVES.has_same_state(replace(HALVES, share=True))
    assert not HALVES.has_same_state(replace(HALVES, share=False))
    assert HOURLY.has_same_state(replace(HOURLY, share=False))
