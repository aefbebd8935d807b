"""The oracle's results agree with a loop over rows and instances."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from window_oracle import expected, records

from dask_elastic.topology.windowing import CountWindow, EventWindow, SessionWindow, Windowing
from dask_elastic.vocab.errors import TopologyError

NUMBERS = st.integers(-20, 40)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]), st.none() | NUMBERS, st.none() | st.integers(0, 12), NUMBERS | st.none()
    ),
    max_size=12,
)
EVENT = st.builds(EventWindow, st.integers(-5, 5), st.integers(1, 9), st.integers(1, 9))
AGGREGATES = {
    "rows": ("size", None),
    "known": ("count", "value"),
    "sum": ("sum", "value"),
    "mean": ("mean", "value"),
    "most": ("max", "value"),
}


def table(rows):
    keys, begins, lengths, values = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    spans = zip(begins, lengths, strict=True)
    ends = [None if None in span else sum(span) for span in spans]
    return pa.table(
        {
            "key": pa.array(keys, pa.string()),
            "begin": pa.array(begins, pa.timestamp("us")),
            "end": pa.array(ends, pa.timestamp("us")),
            "value": pa.array(values, pa.int64()),
        }
    )


def instances(window, least, most):
    """Yield all instances of a window that may contain a time, by counting from its start in both directions."""
    for number in itertools.count():
        begins = {window.start + number * window.frequency, window.start - number * window.frequency}
        if all(begin > most or begin + window.length < least for begin in begins):
            if number * window.frequency > abs(window.start) + abs(least) + abs(most) + window.length:
                return
            continue
        yield from ((begin, begin + window.length) for begin in begins)


def aggregated(key, begin, end, values):
    known = [value for value in values if value is not None]
    some = (sum(known), round(sum(known) / len(known), 9), max(known)) if known else (None, None, None)
    return key, begin, end, len(values), len(known), *some


def looped(groups):
    """Return the results of groups, given as (key, begin, end) -> values."""
    return sorted((aggregated(*group, values) for group, values in groups.items()), key=repr)


def is_in(first, last, begin, end, spans):
    if spans == "overlapping":
        return any(first <= time < last for time in range(begin, max(end, begin + 1)))
    return first <= begin and (end <= last if spans else begin < last)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.lists(EVENT, min_size=1, max_size=3), st.sampled_from([None, "within", "overlapping"]))
def test_event_windows_agree_with_a_loop(rows, windows, spans):
    try:
        windowing = Windowing(tuple(windows), ("begin", "end") if spans else ("begin",), spans=spans or "within")
    except TopologyError:
        assume(False)
    groups = {}
    outside = untimed = 0
    for key, begin, length, value in rows:
        if begin is None or (spans and length is None):
            untimed += 1
            continue
        within = {
            (first, last)
            for window in windows
            for first, last in instances(window, begin, begin + 12)
            if is_in(first, last, begin, begin + (length or 0), spans)
        }
        for bounds in within:
            groups.setdefault((key, *bounds), []).append(value)
        outside += not within
    found = expected(table(rows), ["key"], windowing, AGGREGATES)
    assert records(found.results) == looped(groups)
    assert (found.pairs, found.outside, found.untimed) == (sum(map(len, groups.values())), outside, untimed)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(1, 12))
def test_sessions_agree_with_a_loop(rows, gap):
    groups = {}
    timed = [(key, begin, value) for key, begin, _, value in rows if begin is not None]
    for key in {key for key, _, _ in timed}:
        mine = sorted(begin for other, begin, _ in timed if other == key)
        bounds = []
        for begin in mine:
            if bounds and begin - bounds[-1][1] < gap:
                bounds[-1][1] = begin
            else:
                bounds.append([begin, begin])
        for first, last in bounds:
            values = [value for other, begin, value in timed if other == key and first <= begin <= last]
            groups[key, first, last + gap] = values
    found = expected(table(rows), ["key"], Windowing((SessionWindow(gap),), ("begin",)), AGGREGATES)
    assert records(found.results) == looped(groups)
    assert (found.pairs, found.outside, found.untimed) == (len(timed), 0, len(rows) - len(timed))


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(1, 6), st.integers(1, 6))
def test_count_windows_agree_with_a_loop(rows, length, frequency):
    groups = {}
    for key in {key for key, *_ in rows}:
        values = [value for other, _, _, value in rows if other == key]
        for begin in range(0, len(values), frequency):
            groups[key, begin, begin + length] = values[begin : begin + length]
    found = expected(table(rows), ["key"], Windowing((CountWindow(length, frequency),), ()), AGGREGATES)
    assert records(found.results) == looped({one: values for one, values in groups.items() if len(values) == length})
    assert found.pairs == sum(map(len, groups.values()))
    assert found.untimed == 0


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_count_windows_with_a_time_agree_with_a_loop(rows, length, frequency, spans):
    wanted = []
    timed = [row for row in rows if row[1] is not None and not (spans and row[2] is None)]
    for key in {key for key, *_ in timed}:
        mine = [row for row in timed if row[0] == key]
        for begin in range(0, len(mine) - length + 1, frequency):
            within = mine[begin : begin + length]
            last = max(row[1] + row[2] if spans else row[1] + 1 for row in within)
            wanted.append(aggregated(key, min(row[1] for row in within), last, [row[3] for row in within]))
    windowing = Windowing((CountWindow(length, frequency),), ("begin", "end") if spans else ("begin",))
    found = expected(table(rows), ["key"], windowing, AGGREGATES)
    assert records(found.results) == sorted(wanted, key=repr)
    assert found.untimed == len(rows) - len(timed)


@pytest.mark.parametrize(
    ("unit", "number", "start"), [("s", 7200, 7_200_000_000), ("ms", 1500, 0), ("ns", -1, -3_600_000_000)]
)
def test_times_of_any_unit_are_microseconds(unit, number, start):
    rows = pa.table({"key": ["a"], "at": pa.array([number], pa.timestamp(unit))})
    windowing = Windowing((EventWindow(0, 3_600_000_000, 3_600_000_000),), ("at",))
    found = expected(rows, ["key"], windowing, {"rows": ("size", None)}).results
    assert records(found) == [("a", start, start + 3_600_000_000, 1)]
