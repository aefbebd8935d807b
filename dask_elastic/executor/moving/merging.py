"""Partials at home that the new owners of shards merge, one part after the other, when nothing else waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.moving.handed_state import HandedState
from dask_elastic.executor.piece import SMALL_BLOCK, Piece

MERGED_ROWS = SMALL_BLOCK
"""Partials that a task merges as one unit of work, at most: rows that arrive meanwhile wait no longer than that."""

MERGED_BYTES = 1 << 19
"""Bytes of partials with few columns that it merges at a time, at most; see `bytes_at_once`."""

PATIENCE = 9
"""A part waits for at most so many times as long as the part before took, if its task is never idle: merging has at
least a tenth of the task's time, so that it ends on an overloaded task as well. If a flush waits for it, it waits only
for as long as that part took."""

Enter = Callable[[pa.RecordBatch, int, float], Piece]
"""Enters partials of a shard as work that is not settled."""


class _Held(NamedTuple):
    """The next part of a shard's partials, which waits until its task is idle; and how long the part before took."""

    part: pa.RecordBatch
    since: float
    busy: float


class Merging:
    """The partials at home of shards whose new owner has begun to merge them; the caller holds the executor's lock.

    Only the first part is entered at once. The next one waits until its task has nothing else to do: a task whose rows
    keep it busy for most of its time would be overloaded if it merged without a break.

    Attributes
    ----------
    enter : callable
        Enters partials as work.
    is_awaited : callable
        Whether a flush waits until all is merged.
    """

    def __init__(self) -> None:
        self.enter: Enter
        self.is_awaited: Callable[[], bool] = lambda: False
        # Without those that a task is merging.
        self._left: dict[int, HandedState] = {}
        # How many parts of these shards are work that no task has done.
        self._entered: Counter[int] = Counter()
        # The parts that wait, by shard.
        self._held: dict[int, _Held] = {}

    def __contains__(self, shard: int) -> bool:
        return shard in self._left

    def __len__(self) -> int:
        return len(self._left)

    @property
    def shards(self) -> list[int]:
        """The shards whose partials are not merged."""
        return list(self._left)

    def waiting(self, tasks: Collection[int], owner: npt.NDArray[np.int32]) -> list[int]:
        """Return the shards of which a part waits until its task is idle.

        Parameters
        ----------
        tasks : collection of int
            The tasks.
        owner : int32 array
            The task of each shard.

        Returns
        -------
        list of int
            Those of these tasks.
        """
        return [shard for shard in self._held if int(owner[shard]) in tasks]

    def first(self, shard: int, state: HandedState, now: float) -> Piece | None:
        """Enter the first part of a shard's partials; `merged` enters the others. Returns None if there are none."""
        return self._next(shard, state, now)

    def every(self, shard: int, state: HandedState, now: float) -> list[Piece]:
        """Enter all parts of a shard's partials."""
        return [*iter(lambda: self._next(shard, state, now), None)]

    def rest(self, shard: int, now: float) -> list[Piece]:
        """Enter the parts of a shard's partials that are left."""
        return [*self.release(shard), *self.every(shard, self._left[shard], now)]

    def merged(self, shard: int, busy: float, now: float) -> None:
        """Let the next part wait after one has been merged; if there is none, and it was the last one, end.

        Parameters
        ----------
        shard : int
            The shard.
        busy : float
            Seconds that merging the part took.
        now : float
            The time in seconds.
        """
        state = self._left.get(shard)
        if state is None:
            return
        self._entered[shard] -= 1
        if shard not in self._held and (part := self._taken(state)) is not None:
            self._held[shard] = _Held(part, now, busy)
        if shard not in self._held and not self._entered[shard]:
            del self._left[shard], self._entered[shard]

    def is_late(self, shard: int, among: int, now: float) -> bool:
        """Whether the part of a shard that waits, among so many of its task, has to be merged although it is busy."""
        held = self._held[shard]
        # The parts of all shards together have no larger share of the task.
        return now >= held.since + held.busy * among * (1 if self.is_awaited() else PATIENCE)

    def release(self, shard: int) -> list[Piece]:
        """Enter the part of a shard that waits, if any."""
        held = self._held.pop(shard, None)
        return [] if held is None else [self._enter(shard, held.part, held.since)]

    def _next(self, shard: int, state: HandedState, now: float) -> Piece | None:
        part = self._taken(state)
        if part is None:
            return None
        self._left[shard] = state
        return self._enter(shard, part, now)

    @staticmethod
    def _taken(state: HandedState) -> pa.RecordBatch | None:
        return state.take(MERGED_ROWS, MERGED_BYTES)

    def _enter(self, shard: int, part: pa.RecordBatch, now: float) -> Piece:
        self._entered[shard] += 1
        return self.enter(part, shard, now)
