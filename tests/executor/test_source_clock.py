"""Watermarks of a source: the newest time minus the slack, once per interval; late rows are counted."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.control_records.source_clock import SourceClock
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
def test_watermarks_and_late_rows_equal_a_count_row_by_row(kind, batches, slack):
    unit = 86_400e6 if pa.types.is_date32(kind) else MICROSECONDS[kind.unit]
    clock = SourceClock(ME, "at", slack * 1e-6)
    newest = last = None
    late = 0
    for values in batches:
        present = [int(np.floor(value * unit)) for value in values if value is not None]
        late += sum(last is not None and value * unit < last for value in values if value is not None)
        found = clock.sent(batch(values, kind), 0.0)
        newest = max([*present, *([] if newest is None else [newest])], default=None)
        due = None if newest is None else newest - slack
        assert found == (None if due == last else Watermark(ME, due))
        last = due
    assert (clock.time, clock.late) == (last, late)


def test_source_sends_one_watermark_per_interval_and_the_last_one_when_quiet():
    clock = SourceClock(ME, "at", interval=10.0)
    sent = [clock.sent(batch([second]), now=float(second)) for second in range(5)]
    assert sent == [Watermark(ME, 0), None, None, None, None]
    assert clock.quiet(9.0) is None
    assert clock.quiet(10.0) == Watermark(ME, 4_000_000)
    assert clock.quiet(30.0) is None
    assert clock.sent(batch([9]), 31.0) == Watermark(ME, 9_000_000)


def test_source_without_rows_is_idle_until_next_row():
    clock = SourceClock(ME, "at", interval=100.0, idle_after=10.0, now=5.0)
    assert clock.quiet(14.9) is None
    assert clock.quiet(15.0) == Watermark(ME, None, idle=True)
    assert clock.quiet(60.0) is None
    assert clock.begin() == Watermark(ME, None)
    assert clock.begin() is None
    assert clock.sent(batch([3]), 61.0) == Watermark(ME, 3_000_000)
    assert clock.sent(batch([4]), 62.0) is None
    assert clock.quiet(72.0) == Watermark(ME, 4_000_000, idle=True), "the idle watermark carries the newest time"


@given(
    steps=st.lists(st.tuples(st.sampled_from(["rows", "wait", "until due"]), st.integers(0, 30)), max_size=30),
    idle_after=st.none() | st.integers(1, 40),
)
def test_quiet_source_has_a_watermark_when_it_is_due_and_none_before(steps, idle_after):
    clock = SourceClock(ME, "at", interval=10.0, idle_after=idle_after, now=0.0)
    now = 0.0
    for step, amount in steps:
        due = clock.due()
        if step == "rows":
            now += amount / 4
            clock.begin()
            clock.sent(batch([int(now) + amount]), now)
        elif step == "wait":
            now = max(now, min(now + amount, due - 0.5))
            assert due <= now or clock.quiet(now) is None
        elif due < math.inf:
            now = max(now, due)
            assert clock.quiet(now) is not None
            assert clock.due() > now
    assert clock.due() < math.inf or clock.quiet(now + 1_000) is None


def test_watermark_at_the_end_has_no_slack():
    clock = SourceClock(ME, "at", slack=60.0, interval=5.0)
    assert clock.sent(batch([100]), 0.0) == Watermark(ME, 40_000_000)
    assert clock.end() == Watermark(ME, 100_000_000)
    assert SourceClock(ME, "at").end() is None


def test_times_beyond_int64_are_cut_to_its_range():
    last = dt.datetime.max
    clock = SourceClock(ME, "at")
    assert clock.sent(pa.record_batch({"at": pa.array([last], pa.timestamp("us"))}), 0.0).time < 2**63
    far = pa.record_batch({"at": pa.array([2**62], pa.int64()).view(pa.timestamp("s"))})
    assert clock.sent(far, 0.0) == Watermark(ME, 2**63 - 1)


@pytest.mark.parametrize(
    ("column", "message"),
    [("when", "event_time names 'when', but its rows have the columns 'at', 'n'"), ("n", "'n' is int64, not a time")],
)
def test_rows_without_event_time_raise(column, message):
    rows = pa.record_batch({"at": pa.array([1], pa.timestamp("s")), "n": pa.array([1])})
    with pytest.raises(SourceError, match=message):
        SourceClock(ME, column).sent(rows, 0.0)
