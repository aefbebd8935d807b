"""The control records that change the state of one executor, as its home makes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.executor.piece import Block, Receipt, sorted_block
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.table import ShardTable
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.state_record import BEGINNING, END_OF_TIME, Clock, TimersDue

INPUT_SCHEMA = b"dask_elastic.input_schema"
"""In the metadata of a record's rows: the executor's input schema, which remote tasks without rows do not know."""

RECORD_BYTES = 12
"""Bytes that a record takes in a pending queue for each of its shards."""

TICKS_UNSETTLED = 20
"""Records of the clock that may wait for a task that is blocked: no credit bounds their number, as that of rows."""


class Grid(NamedTuple):
    """Points in event time: all multiples of `step` plus `offset`, in microseconds."""

    step: int
    offset: int = 0

    def any_in(self, after: int, until: int) -> bool:
        """Return whether there is one later than `after` and not later than `until`."""
        return (until - self.offset) // self.step > (after - self.offset) // self.step


class StateRecords:
    """Makes the state records of one executor; the caller holds the executor's lock.

    A record is a block with one row for each shard, whose hash is the shard's group. It is routed as rows are: one
    piece for each task that owns some of its shards, which waits if a shard is paused, leaves the queue with a shard
    that moves, and is replayed after a loss for the shards whose primary copy lacks its effect. It is never joined with
    rows or with other records.

    Parameters
    ----------
    space : KeySpace
        The component's key space.
    clocks : collection of str
        The clocks of the component's timers; without any, no record is made.
    grid : Grid, optional
        The event times at which anything is due; by default any.
    executor : int
        The executor's index.

    Examples
    --------
    >>> records = StateRecords(KeySpace(1, 4), {"event"})
    >>> records.reached(5), records.reached(5), records.ticked(7.0)
    (TimersDue(event=5, processing=None, last=False), None, None)
    >>> records.ended()
    TimersDue(event=9223372036854775807, processing=9223372036854775807, last=True)
    """

    __slots__ = ("_event", "_grid", "_groups", "_processing", "_rows", "_sorted", "_space", "_ticks", "clocks")

    def __init__(
        self, space: KeySpace, clocks: Collection[Clock] = (), grid: Grid | None = None, executor: int = 0
    ) -> None:
        self.clocks = frozenset(clocks)
        self._grid = grid
        self._space = space
        self._event: int | None = None
        self._processing = 0
        # A hash that is the number of a group is in its shard.
        self._groups = np.arange(space.shards, dtype=np.uint64) + np.uint64(executor * space.shards)
        self._rows = pa.record_batch({"shard": array_of(np.arange(space.shards, dtype=np.int32))})
        self._sorted: tuple[ShardTable, Block] | None = None
        self._ticks: deque[Receipt] = deque()

    def standing(self) -> tuple[int | None, int]:
        """Return the newest time of each clock for which a record was made: event time, processing time."""
        return self._event, self._processing

    def resume(self, standing: tuple[int | None, int]) -> None:
        """Begin where the clocks stood at the executor's home before."""
        self._event, self._processing = standing

    def stamp(self, event_time: int | None) -> int | None:
        """Return the event time for batches that arrive now, given that of the last record; None without that clock."""
        if "event" not in self.clocks:
            return None
        return BEGINNING if event_time is None else event_time

    def reached(self, event_time: int | None) -> TimersDue | None:
        """Return the record for an event time that the inputs have reached; None if it fires no timer."""
        if "event" not in self.clocks or event_time is None:
            return None
        if self._event is not None and (
            event_time <= self._event or (self._grid is not None and not self._grid.any_in(self._event, event_time))
        ):
            return None
        self._event = event_time
        return TimersDue(event=event_time)

    def ticked(self, now: float) -> TimersDue | None:
        """Return the record for a time of the home's clock, in seconds; None if it fires no timer, or many wait."""
        time = int(now * 1e6)
        while self._ticks and not self._ticks[0].rows:
            self._ticks.popleft()
        if "processing" not in self.clocks or time <= self._processing or len(self._ticks) >= TICKS_UNSETTLED:
            return None
        self._processing = time
        return TimersDue(processing=time)

    def ended(self) -> TimersDue | None:
        """Return the record for the end of the input, at which all timers fire; None without timers."""
        return TimersDue(END_OF_TIME, END_OF_TIME, last=True) if self.clocks else None

    def block(self, record: TimersDue, table: ShardTable, input_schema: pa.Schema | None = None) -> Block:
        """Return the block of a record, addressed to all shards."""
        if input_schema is not None and self._rows.schema.metadata is None:
            self._rows, self._sorted = with_schema(self._rows, input_schema), None
        if self._sorted is None or self._sorted[0] is not table:
            self._sorted = table, sorted_block(self._rows, self._groups, self._space, table)
        return self._sorted[1]._replace(record=record)

    def address(self, shards: Collection[int]) -> None:
        """Address further records to some shards only: the executor's key groups, where these change executor."""
        chosen = np.array(sorted(shards), dtype=np.int32)
        rows = pa.record_batch({"shard": array_of(chosen)})
        self._rows = rows.replace_schema_metadata(self._rows.schema.metadata)
        self._groups, self._sorted = chosen.astype(np.uint64), None

    def entered(self, record: TimersDue, receipt: Receipt) -> None:
        """Note the accounting of a record that is routed."""
        if record.event is None:
            self._ticks.append(receipt)


def with_schema(rows: pa.RecordBatch, input_schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a record with the input schema of the executor."""
    return rows.replace_schema_metadata({INPUT_SCHEMA: input_schema.serialize().to_pybytes()})
