"""Watermarks of a source: the newest time minus the slack, seldom enough, and late rows counted."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.source_clock import SourceClock
from dask_elastic.vocab.errors import SourceError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

ME = ExecutorId("readings", 0)
KINDS = [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")] + [pa.timestamp("ms", "Europe/Rome"), pa.date32()]
MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1, "ns": 1e-3}


SECONDS = pa.timestamp("s")


def batch(values, kind=SECONDS):
    storage = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.record_batch({"at": pa.array(values, storage).cast(kind)})


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    batches=st.lists(st.lists(st.none() | st.integers(-5000, 5000), max_size=5), max_size=6),
    slack=st.integers(0, 4000),
)
def test_what_is_said_and_what_is_late_is_as_counted_one_by_one(kind, batches, slack):
    unit = 86_400e6 if pa.types.is_date32(kind) else MICROSECONDS[kind.unit]
    clock = SourceClock(ME, "at", slack * 1e-6)
    newest = said = None
    late = 0
    for values in batches:
        present = [int(np.floor(value * unit)) for value in values if value is not None]
        late += sum(said is not None and value * unit < said for value in values if value is not None)
        found = clock.sent(batch(values, kind), 0.0)
        newest = max([*present, *([] if newest is None else [newest])], default=None)
        due = None if newest is None else newest - slack
        assert found == (None if due == said else Watermark(ME, due))
        said = due
    assert (clock.time, clock.late) == (said, late)


def test_a_source_says_no_more_than_once_in_an_interval_and_the_rest_in_a_pause():
    clock = SourceClock(ME, "at", interval=10.0)
    said = [clock.sent(batch([second]), now=float(second)) for second in range(5)]
    assert said == [Watermark(ME, 0), None, None, None, None]
    assert clock.quiet(9.0) is None
    assert clock.quiet(10.0) == Watermark(ME, 4_000_000)
    assert clock.quiet(30.0) is None
    assert clock.sent(batch([9]), 31.0) == Watermark(ME, 9_000_000)


def test_a_source_without_rows_is_idle_until_it_has_some():
    clock = SourceClock(ME, "at", interval=100.0, idle_after=10.0, now=5.0)
    assert clock.quiet(14.9) is None
    assert clock.quiet(15.0) == Watermark(ME, None, idle=True)
    assert clock.quiet(60.0) is None
    assert clock.begin() == Watermark(ME, None)
    assert clock.begin() is None
    assert clock.sent(batch([3]), 61.0) == Watermark(ME, 3_000_000)
    assert clock.sent(batch([4]), 62.0) is None
    assert clock.quiet(72.0) == Watermark(ME, 4_000_000, idle=True), "what is left to be said goes along"


def test_the_end_needs_no_slack():
    clock = SourceClock(ME, "at", slack=60.0, interval=5.0)
    assert clock.sent(batch([100]), 0.0) == Watermark(ME, 40_000_000)
    assert clock.end() == Watermark(ME, 100_000_000)
    assert SourceClock(ME, "at").end() is None


def test_times_at_the_end_of_the_calendar_fit():
    last = dt.datetime.max
    clock = SourceClock(ME, "at")
    assert clock.sent(pa.record_batch({"at": pa.array([last], pa.timestamp("us"))}), 0.0).time < 2**63
    far = pa.record_batch({"at": pa.array([2**62], pa.int64()).view(pa.timestamp("s"))})
    assert clock.sent(far, 0.0) == Watermark(ME, 2**63 - 1)


@pytest.mark.parametrize(
    ("column", "message"),
    [("when", "event_time names 'when', but its rows have the columns 'at', 'n'"), ("n", "'n' is int64, not a time")],
)
def test_rows_without_times_are_an_error_that_says_so(column, message):
    rows = pa.record_batch({"at": pa.array([1], pa.timestamp("s")), "n": pa.array([1])})
    with pytest.raises(SourceError, match=message):
        SourceClock(ME, column).sent(rows, 0.0)
