from __future__ import annotations

import datetime
import math

import pytest

from dask_elastic import windows
from dask_elastic.topology.windowing import CountWindow, EventWindow, SessionWindow
from dask_elastic.topology.windows.definitions import windows_of
from dask_elastic.vocab.errors import TopologyError

MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (windows.tumbling("10min"), EventWindow(0, 10 * MINUTE, 10 * MINUTE)),
        (windows.tumbling(90, start="30s"), EventWindow(MINUTE // 2, 90_000_000, 90_000_000)),
        (windows.tumbling(datetime.timedelta(hours=1), start=-60), EventWindow(-MINUTE, 60 * MINUTE, 60 * MINUTE)),
        (windows.hopping("1h", "10 min"), EventWindow(0, 60 * MINUTE, 10 * MINUTE)),
        (windows.sliding("5min", "10min", "1h"), EventWindow(5 * MINUTE, 10 * MINUTE, 60 * MINUTE)),
        (windows.session("30min"), SessionWindow(30 * MINUTE)),
        (windows.count(100), CountWindow(100, 100)),
        (windows.count(100, frequency=10), CountWindow(100, 10)),
    ],
)
def test_window_has_the_numbers_of_its_definition(window, expected):
    assert window == expected


@pytest.mark.parametrize(
    "start",
    [
        datetime.datetime(1970, 1, 2, 6),
        datetime.datetime(1970, 1, 2, 7, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        datetime.timedelta(hours=30),
        "30h",
        108_000,
    ],
)
def test_start_is_an_instant_or_a_duration_since_the_epoch(start):
    assert windows.tumbling("1d", start=start).start == 30 * 60 * MINUTE


@pytest.mark.parametrize(
    ("define", "problem"),
    [
        (lambda: windows.tumbling("100000000d"), "tumbling: length is '100000000d'; give less than 2"),
        (lambda: windows.tumbling("10 parsecs"), "tumbling: length is '10 parsecs', whose unit of time is unknown"),
        (lambda: windows.tumbling("soon"), "tumbling: length is 'soon'"),
        (lambda: windows.tumbling(0), "give a duration above 0"),
        (lambda: windows.tumbling("100ns"), "event time has microseconds"),
        (lambda: windows.tumbling(datetime.timedelta(0)), "give a duration above 0"),
        (lambda: windows.tumbling(None), "of type NoneType"),
        (lambda: windows.tumbling("1h", start="yesterday"), "tumbling: start is 'yesterday'"),
        (lambda: windows.tumbling("1h", start=math.inf), "give a finite duration"),
        (
            lambda: windows.hopping("10min", "1h"),
            r"frequency is 1h, above the length, 10min.*windows.sliding\(0, '10min'",
        ),
        (lambda: windows.hopping("10min", "-1s"), "hopping: frequency is '-1s'"),
        (lambda: windows.sliding(0, "1h", 0), "sliding: frequency is 0"),
        (lambda: windows.session("-1min"), "session: gap is '-1min'"),
        (lambda: windows.count(0), "count: length is 0"),
        (lambda: windows.count(10, frequency=11), "frequency is 11, above the length, 10"),
        (lambda: windows.count("10min"), "count: length is '10min'; give an integer"),
        (lambda: windows_of([], "stream"), "empty list"),
        (lambda: windows_of([None], "stream"), "window got None"),
        (lambda: windows_of(True, "stream"), "window got True"),
        (
            lambda: windows_of(windows.hopping("365d", "1us"), "stream"),
            "stream: each row would be in 31,536,000,000,000 instances, most of them of the window 365d every 1us",
        ),
        (
            lambda: windows_of(["1h", windows.hopping("100000s", "1s")], "stream"),
            r"in 100,001 instances, .* of the window 100000s every 1s;.*is in 100,000 instances at most",
        ),
    ],
)
def test_definition_that_is_not_valid_names_the_argument(define, problem):
    with pytest.raises(TopologyError, match=problem):
        define()


def test_as_many_instances_as_a_row_may_be_in_are_accepted():
    assert windows_of(windows.hopping("100000s", "1s"), "stream") == (windows.hopping("100000s", "1s"),)


def test_durations_are_tumbling_windows():
    assert windows_of(["10min", 3600], "stream") == (windows.tumbling("10min"), windows.tumbling("1h"))
    assert windows_of("1h", "stream") == (windows.tumbling("1h"),)


def test_unknown_kind_of_window_names_the_known_one():
    with pytest.raises(AttributeError, match=r"did you mean windows.tumbling"):
        _ = windows.tumble
