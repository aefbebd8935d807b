from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.meters import FlowWindow, SendSize
from dask_elastic.meters.send_size import LEAST_ROWS
from dask_elastic.vocab.batch import MAX_BATCH_ROWS

ROW_BYTES = 156


def sent_parts(rows: int, rows_per_second: float) -> list[int]:
    """Send a batch to a receiver that returns the credit of a part once it is processed."""
    window = FlowWindow(limit=32 * 2**20, queue_time=0.1)
    size = SendSize(lambda: window.join_bytes)
    size.emitted(1, ROW_BYTES)
    times, parts = [0.0], []
    for start, count in size.parts(rows, lambda: times[-1]):
        assert start == sum(parts)
        times.append(times[-1] + count / rows_per_second)
        window.released(count * ROW_BYTES, times[-1])
        size.sent(count, times[-1])
        parts.append(count)
    return parts


def test_parts_of_the_first_batch_grow_while_they_are_sent():
    """A batch that is cut by the first window alone would be a thousand parts."""
    parts = sent_parts(1_000_000, rows_per_second=10e6)
    assert parts[0] == LEAST_ROWS
    assert len(parts) < 60
    assert max(parts) == MAX_BATCH_ROWS


def test_parts_stay_small_at_a_slow_receiver():
    parts = sent_parts(100_000, rows_per_second=20_000)
    assert max(parts) < 4 * LEAST_ROWS


@given(st.integers(0, 300_000), st.lists(st.none() | st.integers(0, 2**25), min_size=1, max_size=5))
def test_parts_are_consecutive_and_no_row_is_left_out(rows, windows):
    answers = iter(windows * (rows // LEAST_ROWS + 1))
    size = SendSize(lambda: next(answers))
    size.emitted(10, 1_560)
    parts = list(size.parts(rows, lambda: 0.0))
    assert [start for start, _ in parts] == [sum(count for _, count in parts[:number]) for number in range(len(parts))]
    assert sum(count for _, count in parts) == rows
    assert all(LEAST_ROWS <= count <= MAX_BATCH_ROWS for _, count in parts[:-1])


class SlowCalls:
    """A source whose sends take a fixed time and a time per row, as a map that calls a service does.

    A receiver, if it is not faster, holds the source back.
    """

    def __init__(self, fixed: float, each: float, receiver_rows_per_second: float = 1e9):
        self.window = FlowWindow(limit=32 * 2**20, queue_time=0.2)
        self.size = SendSize(lambda: self.window.join_bytes)
        self.fixed, self.each, self.receiver = fixed, each, receiver_rows_per_second
        self.now = self.processed = 0.0
        self.parts: list[int] = []

    def send(self, rows: int) -> None:
        busy = self.fixed + rows * self.each
        self.processed = max(self.now + busy, self.processed + rows / self.receiver)
        self.now = self.processed
        self.size.took(rows, busy)
        self.size.emitted(rows, rows * ROW_BYTES)
        self.window.released(rows * ROW_BYTES, self.now)
        self.size.sent(rows, self.now)
        self.parts.append(rows)


@given(st.sampled_from([0.0, 0.001, 0.05, 0.3, 2.0]), st.sampled_from([1e-7, 1e-5, 1e-4]))
def test_large_batches_are_cut_into_parts_that_spread_the_fixed_cost_of_a_call(fixed, each):
    source = SlowCalls(fixed, each)
    for start, count in source.size.parts(10_000_000, lambda: source.now):
        if start > 5_000_000:
            break
        source.send(count)
    recent = source.parts[-10:]
    best = (fixed + MAX_BATCH_ROWS * each) / MAX_BATCH_ROWS
    assert sum(fixed + count * each for count in recent) / sum(recent) <= 1.5 * best


def test_single_rows_that_wait_for_a_slow_call_are_joined():
    """Each row alone would take 0.3 s, while another one comes every 20 ms."""
    source = SlowCalls(fixed=0.3, each=1e-5)
    sent = 0
    while source.now < 60:
        waiting = int(source.now / 0.02) + 1 - sent
        count = min(max(waiting, 1), max(source.size.joins(source.now), 1))
        source.send(count)
        sent += count
    assert sent >= (source.now - 2) / 0.02


def test_parts_stay_small_where_each_row_takes_long():
    source = SlowCalls(fixed=0.0, each=0.001)
    for _, count in source.size.parts(300_000, lambda: source.now):
        source.send(count)
    assert max(source.parts[20:]) == LEAST_ROWS


def test_a_slow_call_before_a_slower_receiver_has_few_seconds_of_its_rows():
    source = SlowCalls(fixed=0.3, each=0.0, receiver_rows_per_second=2_000)
    for _, count in source.size.parts(300_000, lambda: source.now):
        source.send(count)
    assert max(source.parts[20:]) <= 4 * LEAST_ROWS
