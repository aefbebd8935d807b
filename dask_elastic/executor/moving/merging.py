"""Partials at home that the new owners of shards merge, one part after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from dask_elastic.executor.moving.handed_state import HandedState
from dask_elastic.executor.piece import SMALL_BLOCK, Piece

MERGED_ROWS = SMALL_BLOCK
"""Partials that a task merges as one unit of work, at most: rows that arrive meanwhile wait no longer than that."""

MERGED_BYTES = 1 << 19
"""Bytes of partials with few columns that it merges at a time, at most; see `bytes_at_once`."""

Enter = Callable[[pa.RecordBatch, int, float], Piece]
"""Enters partials of a shard as work that is not settled."""


class Merging:
    """The partials at home of shards whose new owner has begun to merge them; the caller holds the executor's lock.

    Attributes
    ----------
    enter : callable
        Enters partials as work.
    """

    def __init__(self) -> None:
        self.enter: Enter
        # Without those that a task is merging.
        self._left: dict[int, HandedState] = {}
        # How many parts of these shards are work that no task has done.
        self._entered: Counter[int] = Counter()

    def __contains__(self, shard: int) -> bool:
        return shard in self._left

    def __len__(self) -> int:
        return len(self._left)

    @property
    def shards(self) -> list[int]:
        """The shards whose partials are not merged."""
        return list(self._left)

    def first(self, shard: int, state: HandedState, now: float) -> Piece | None:
        """Enter the first part of a shard's partials; `merged` enters the others. Returns None if there are none."""
        return self._next(shard, state, now)

    def every(self, shard: int, state: HandedState, now: float) -> list[Piece]:
        """Enter all parts of a shard's partials."""
        return [*iter(lambda: self._next(shard, state, now), None)]

    def rest(self, shard: int, now: float) -> list[Piece]:
        """Enter the parts of a shard's partials that are left."""
        return self.every(shard, self._left[shard], now)

    def merged(self, shard: int, now: float) -> Piece | None:
        """Enter the next part after one has been merged; None if there is none. Ends with the last one."""
        state = self._left.get(shard)
        if state is None:
            return None
        self._entered[shard] -= 1
        piece = self._next(shard, state, now)
        if piece is None and not self._entered[shard]:
            del self._left[shard], self._entered[shard]
        return piece

    def _next(self, shard: int, state: HandedState, now: float) -> Piece | None:
        part = state.take(MERGED_ROWS, MERGED_BYTES)
        if part is None:
            return None
        self._left[shard] = state
        self._entered[shard] += 1
        return self.enter(part, shard, now)
