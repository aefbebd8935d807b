from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.topology.pace import Pace, cut, rows_within
from dask_elastic.topology.ticks import LEAD, LONGEST_TICK, TICK_SECONDS, Ticks
from dask_elastic.vocab.errors import TopologyError


def numbered(start: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(start, start + count), pa.int64())})


@given(
    sizes=st.lists(st.integers(0, 50), max_size=8),
    rate=st.floats(0.1, 1e6),
    slice_seconds=st.floats(1e-4, 0.1),
    max_rows=st.integers(1, 40),
)
def test_slices_keep_rows_in_order_and_due_times_exact(sizes, rate, slice_seconds, max_rows):
    pace = Pace(rate, started=100.0, slice_seconds=slice_seconds, max_rows=max_rows)
    seen: list[int] = []
    for size in sizes:
        for piece, due in pace.slice(numbered(len(seen), size)):
            assert due == pytest.approx(100.0 + piece["n"][0].as_py() / rate)
            assert 1 <= piece.num_rows <= max(1, min(max_rows, int(rate * slice_seconds)))
            seen += piece["n"].to_pylist()
    assert seen == list(range(sum(sizes)))
    assert pace.rows == sum(sizes)


def test_due_time_is_exact_after_a_million_rows():
    pace = Pace(rate=30_000, started=0.0)
    batch = numbered(0, 10_007)
    for _ in range(100):
        for _piece, _due in pace.slice(batch):
            pass
    assert pace.due == 1_000_700 / 30_000


def test_slices_span_five_milliseconds():
    sizes = {rate: next(Pace(rate, 0.0).slice(numbered(0, 70_000)))[0].num_rows for rate in (10, 20_000, 1_000_000)}
    assert sizes == {10: 1, 20_000: 100, 1_000_000: 5000}


def test_pace_without_a_rate_has_no_due_times():
    pieces = list(Pace(None, started=5.0, max_rows=2).slice(numbered(0, 3)))
    assert [(piece.num_rows, due) for piece, due in pieces] == [(2, None), (1, None)]


def test_slice_that_was_not_yielded_does_not_count():
    pace = Pace(rate=1.0, started=0.0)
    pieces = pace.slice(numbered(0, 3))
    next(pieces)
    assert pace.due == 1.0


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf")])
def test_pace_refuses_rates_that_are_not_positive(rate):
    with pytest.raises(TopologyError, match="rate is"):
        Pace(rate, started=0.0)


def test_cut_returns_a_small_batch_itself():
    batch = numbered(0, 3)
    assert next(cut(batch, 3)) is batch
    assert list(cut(numbered(0, 0), 3)) == []


def test_rows_within_is_between_one_and_most():
    assert rows_within(1e12, 1.0, most=100) == 100
    assert rows_within(1e-9, 1.0, most=100) == 1


def test_rows_that_arrive_late_are_due_on_arrival():
    pace = Pace(rate=100, started=0.0, slice_seconds=0.1)
    assert [due for _, due in pace.slice(numbered(0, 20))] == [0.0, 0.1]
    pace.note_arrival(requested=0.1, now=5.0)
    assert [due for _, due in pace.slice(numbered(20, 20))] == [5.0, 5.1]
    # Rows that arrive while the source keeps up are due on arrival; a source that lags keeps its lag.
    pace.note_arrival(requested=5.1, now=5.15)
    assert [due for _, due in pace.slice(numbered(40, 10))] == [pytest.approx(5.2)]
    pace.note_arrival(requested=9.0, now=9.5)
    assert pace.due == pytest.approx(5.8)


class Clock:
    """A virtual clock; waiting takes a little longer than asked, as it does in reality."""

    def __init__(self, overshoot: float = 0.0):
        self.now = 100.0
        self.overshoot = overshoot
        self.waits = 0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        assert seconds > 0
        self.waits += 1
        self.now += seconds + self.overshoot
        return False


@given(
    sizes=st.lists(st.integers(0, 300), max_size=20),
    rate=st.floats(0.1, 1e6),
    overshoot=st.floats(0.0, 0.02),
    cost=st.floats(0.0, 0.004),
)
def test_ticks_keep_order_and_send_no_row_before_its_tick(sizes, rate, overshoot, cost):
    ticks = Ticks()
    pace, clock, busy = Pace(rate, started=100.0, ticks=ticks), Clock(overshoot), 0.0
    seen: list[int] = []
    for size in sizes:
        for piece, due in pace.ticks(numbered(len(seen), size), clock, clock.wait):
            first, last = (100.0 + piece["n"][place].as_py() / rate for place in (0, -1))
            assert due <= min(clock.now, first) + 1e-6, "a slice leaves when it is due, and is due with its first row"
            assert due >= first - (1 + LEAD) * LONGEST_TICK - 1e-6, "or with the tick before"
            assert last <= max(clock.now, due + (1 + LEAD) * LONGEST_TICK) + 1.01 / rate * 1e-3 + 1e-6
            assert piece.num_rows <= max(1, rate * (1 + LEAD) * LONGEST_TICK)
            seen += piece["n"].to_pylist()
            clock.now += cost
            busy += cost
            ticks.note(clock.now, busy)
    assert seen == list(range(sum(sizes)))
    assert pace.rows == sum(sizes)


@pytest.mark.parametrize("rate", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("overshoot", [0.0, 0.0003])
def test_millisecond_of_rows_leaves_whole_when_its_first_row_is_due(rate, overshoot):
    pace, clock, size = Pace(rate, started=100.0), Clock(overshoot), rate // 1_000
    for number in range(2_000):
        slices = list(pace.ticks(numbered(number * size, size), clock, clock.wait))
        assert [(piece.num_rows, round(due, 6)) for piece, due in slices] == [(size, round(100.0 + number / 1_000, 6))]
        assert 0 <= clock.now - slices[0][1] < 0.00031, "the lateness of waits does not add up"


@pytest.mark.parametrize("rate", [1_300, 30_000, 100_000])
def test_rows_leave_at_ticks_of_a_millisecond(rate):
    pace, clock = Pace(rate, started=100.0), Clock()
    slices = [piece.num_rows for piece, _ in pace.ticks(numbered(0, rate), clock, clock.wait)]
    assert sum(slices) == rate
    assert 600 <= len(slices) <= 1_001
    assert clock.now - 100.0 < 1.0


def test_slow_stream_sends_each_row_when_it_is_due():
    pace, clock = Pace(10, started=100.0), Clock()
    left = [(piece.num_rows, round(clock.now, 6)) for piece, _ in pace.ticks(numbered(0, 5), clock, clock.wait)]
    assert left == [(1, 100.0), (1, 100.1), (1, 100.2), (1, 100.3), (1, 100.4)]


def test_tiny_batches_of_one_tick_need_one_wait():
    pace, clock = Pace(20_000, started=100.0), Clock()
    for number in range(2_000):
        for _, due in pace.ticks(numbered(number, 1), clock, clock.wait):
            assert due <= clock.now
    assert clock.waits <= 101
    assert pace.is_small(numbered(0, 1))
    assert not pace.is_small(numbered(0, 20))
    assert not Pace(None, started=0.0).is_small(numbered(0, 1))


def test_source_that_lags_sends_without_waiting_until_it_has_caught_up():
    pace, clock = Pace(1_000, started=100.0), Clock()
    clock.now = 103.0
    slices = [piece.num_rows for piece, _ in pace.ticks(numbered(0, 3_000), clock, clock.wait)]
    assert clock.waits == 0
    assert set(slices) == {5}
    late = [clock.now - due for _, due in pace.ticks(numbered(3_000, 50), clock, clock.wait)]
    assert max(late) <= TICK_SECONDS


@pytest.mark.parametrize("rate", [0.1, 50, 1_000, 30_000])
@pytest.mark.parametrize("interval", [TICK_SECONDS, LONGEST_TICK])
def test_source_goes_on_at_its_rate_when_the_clock_is_set_back(rate, interval):
    ticks, clock = Ticks(), Clock()
    ticks.interval = interval
    pace, waited, seen = Pace(rate, started=100.0, ticks=ticks), 0.0, []

    def wait(seconds):
        nonlocal waited
        waited += seconds
        return clock.wait(seconds)

    count = int(max(10, rate))
    for part in range(4):
        for piece, _ in pace.ticks(numbered(part * count, count), clock, wait):
            seen += piece["n"].to_pylist()
        clock.now -= 3_600.0
    assert seen == list(range(4 * count))
    assert waited == pytest.approx(4 * count / rate, abs=4 * (2 / rate + 0.2))


def test_stretched_ticks_of_several_sources_are_at_the_same_times():
    ticks, clock = Ticks(), Clock()
    ticks.interval = LONGEST_TICK
    for started, second in ((100.0, 0), (100.007, 1)):
        clock.now, pace = started, Pace(1_000, started=started, ticks=ticks)
        left = [(piece.num_rows, round(clock.now, 6)) for piece, _ in pace.ticks(numbered(0, 90), clock, clock.wait)]
        assert left[1:-1] == [(20, round(100.0 + 0.02 * (second + number), 6)) for number in range(len(left) - 2)]
        assert sum(rows for rows, _ in left) == 90


def test_ended_wait_ends_the_ticks():
    pace = Pace(10, started=100.0)
    assert [piece.num_rows for piece, _ in pace.ticks(numbered(0, 5), lambda: 100.0, lambda seconds: True)] == [1]
    assert pace.rows == 1


def test_stretched_ticks_are_before_their_first_row_is_due():
    ticks, clock = Ticks(), Clock()
    ticks.interval = LONGEST_TICK
    pace = Pace(1_000, started=100.0, ticks=ticks)
    for piece, due in pace.ticks(numbered(0, 90), clock, clock.wait):
        first = 100.0 + piece["n"][0].as_py() / 1_000
        assert due <= first
        assert clock.now == pytest.approx(first - ticks.within(LONGEST_TICK)[1]) or first < 100.0 + LONGEST_TICK


@pytest.mark.parametrize(("longest", "early"), [(TICK_SECONDS, 0.001), (0.0001, 0.001), (0.005, 0.0055)])
def test_source_in_a_busy_process_sends_early_by_no_more_than_its_longest_tick(longest, early):
    ticks, clock = Ticks(), Clock()
    ticks.interval = LONGEST_TICK
    pace, left = Pace(1_000, started=100.0, ticks=ticks, longest_tick=longest), []
    for piece, _ in pace.ticks(numbered(0, 90), clock, clock.wait):
        left += [(number, 100.0 + number / 1_000 - clock.now) for number in piece["n"].to_pylist()]
    assert [number for number, _ in left] == list(range(90))
    assert max(lead for _, lead in left) <= early + 1e-6
    assert pace.is_stretched == (longest > TICK_SECONDS)
    others = Pace(1_000, started=100.0, ticks=ticks)
    assert others.is_stretched
