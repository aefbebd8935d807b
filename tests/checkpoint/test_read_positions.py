"""Positions of sources: from each of them, reading continues behind the rows that were sent."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.worker.sources.read_positions import ReadPositions, without_first


def read(sizes, offset):
    """A source of numbers in batches of some sizes; an offset is the number of batches before it."""
    for batch in range(offset or 0, len(sizes)):
        first = sum(sizes[:batch])
        yield pa.record_batch({"n": pa.array(range(first, first + sizes[batch]), pa.int64())}), batch + 1


@given(st.lists(st.integers(0, 6), max_size=8), st.data())
def test_reading_continues_behind_the_rows_that_were_sent(sizes, data):
    position, sent = SourcePosition(), []
    for _ in range(3):
        positions = ReadPositions(position)
        rows = 0
        read_ahead = []
        for batch, offset in without_first(read(sizes, position.offset), position.skip):
            positions.read(batch.num_rows, offset)
            read_ahead += batch["n"].to_pylist()
        stop = data.draw(st.integers(0, len(read_ahead)))
        while rows < stop:
            rows += data.draw(st.integers(1, stop - rows))
            positions.sent(rows)
        sent += read_ahead[:stop]
        position = positions.sent(rows)
    assert sent + [
        number
        for batch, _ in without_first(read(sizes, position.offset), position.skip)
        for number in batch["n"].to_pylist()
    ] == list(range(sum(sizes)))
