"""The position of a source instance: which of the rows that it has read it has sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition


class ReadPositions:
    """Relates rows that were sent to the offsets of a source; batches may be joined and cut in between.

    One thread calls `read`, another one `sent`.

    Parameters
    ----------
    start : SourcePosition
        Where reading begins.

    Examples
    --------
    >>> positions = ReadPositions(SourcePosition(offset="page 4", skip=2))
    >>> positions.read(10, "page 5")
    >>> positions.read(10, "page 6")
    >>> positions.sent(9), positions.sent(14)
    (SourcePosition(offset='page 4', skip=11, ...), SourcePosition(offset='page 5', skip=4, ...))
    """

    def __init__(self, start: SourcePosition):
        # Rows sent at the last offset that is behind all of them, and at the offsets read ahead.
        self._reached: tuple[int, object] = (-start.skip, start.offset)
        self._ahead: deque[tuple[int, object]] = deque()
        self._count = 0

    def read(self, rows: int, offset: object) -> None:
        """Note rows that the source has yielded, and the offset behind them."""
        self._count += rows
        self._ahead.append((self._count, offset))

    def sent(self, rows: int) -> SourcePosition:
        """Return the position after so many rows were sent since the start; never fewer than in the call before."""
        while self._ahead and self._ahead[0][0] <= rows:
            self._reached = self._ahead.popleft()
        reached, offset = self._reached
        return SourcePosition(offset, rows - reached)


def without_first(
    batches: Iterator[tuple[pa.RecordBatch, object]], rows: int
) -> Iterator[tuple[pa.RecordBatch, object]]:
    """Yield what a source yields, without its first rows.

    Examples
    --------
    >>> batches = [(pa.record_batch({"n": [1, 2]}), 2), (pa.record_batch({"n": [3, 4]}), 4)]
    >>> [(part["n"].to_pylist(), offset) for part, offset in without_first(iter(batches), 3)]
    [([4], 4)]
    """
    for batch, offset in batches:
        if not rows:
            yield batch, offset
            continue
        dropped = min(rows, batch.num_rows)
        rows -= dropped
        if dropped < batch.num_rows or not dropped:
            yield batch.slice(dropped), offset
