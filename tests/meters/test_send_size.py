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
