"""The rows of a batch as a join sees them: which are late, which can match, and how they are numbered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.executor.joins.due_rows import Mask
from dask_elastic.executor.joins.row_buffer import RowBuffer, ranks
from dask_elastic.executor.joins.sorted_rows import Times
from dask_elastic.routing.hashing import check_keys
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.joins.layout import CHECK, HASH, KIND, MATCHED, NUMBER, TIME, JoinLayout
from dask_elastic.state.slots import Column, SlotArrays
from dask_elastic.topology.joins.joining import LEFT, RIGHT, SIDE, Joining
from dask_elastic.topology.joins.joining import TIME as TIME_COLUMN
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.row_counts import RowCounts


class Arrivals(NamedTuple):
    """Rows of one side that are to be buffered.

    Parameters
    ----------
    side : int
        `LEFT` or `RIGHT`.
    rows : RecordBatch
        The rows, in the schema of the join's input.
    hashes, checks : ndarray of uint64
        The hashes of their keys; no checks if all are zero.
    times, numbers : ndarray of int64
        Their times, and numbers within their shards.
    first : ndarray of int64
        The first number of the batch in the shard of each row.
    positions : ndarray of intp
        Their places in the batch.
    """

    side: int
    rows: pa.RecordBatch
    hashes: Words
    checks: Words | None
    times: Times
    numbers: Times
    first: Times
    positions: Slots

    def __len__(self) -> int:
        return len(self.hashes)

    def values(self, layout: JoinLayout) -> list[Column]:
        """Return the values of all fields."""
        count = len(self)
        values: list[Column] = [field.initially(count) for field in layout.fields[: MATCHED + 1]]
        values[KIND] = np.full(count, self.side, np.int8)
        values[TIME], values[NUMBER], values[HASH] = self.times, self.numbers, self.hashes
        if self.checks is not None:
            values[CHECK] = self.checks
        return values + layout.stored(self.rows, self.side)


class Judged(NamedTuple):
    """A batch, divided.

    Parameters
    ----------
    sides : list of Arrivals
        The rows of each side that are to be buffered.
    alone : list of RecordBatch
        The rows of each side that match none, and are not late: without a time, or with a null key.
    counts : tuple of ndarray
        Per shard: the rows to be buffered, the late rows, and the rows without a time.
    shards : ndarray of intp
        The shards of the batch.
    """

    sides: list[Arrivals]
    alone: list[pa.RecordBatch]
    counts: tuple[Slots, Slots, Slots]
    shards: Slots

    @property
    def row_counts(self) -> RowCounts:
        """What became of the rows, as the operator's metrics have it; each row is counted once."""
        kept, late, untimed = (int(each.sum()) for each in self.counts)
        null_keys = sum(rows.num_rows for rows in self.alone) - untimed
        return RowCounts(on_time=kept + null_keys, late=late, untimed=untimed)


def judge(joining: Joining, buffer: RowBuffer, rows: pa.RecordBatch, hashes: Words) -> Judged:
    """Divide the rows of a batch by what the marks of their shards say.

    Parameters
    ----------
    joining : Joining
        The join.
    buffer : RowBuffer
        The task's buffer.
    rows : RecordBatch
        The rows, in the schema of the join's input.
    hashes : ndarray of uint64
        The hashes of their keys.

    Returns
    -------
    Judged
        The parts of the batch. Nothing is counted yet.
    """
    space, keys = buffer.space, joining.left.keys
    checks = check_keys([rows.column(key) for key in keys], keys)
    shards = space.shard_of(hashes)
    present = np.flatnonzero(np.bincount(shards, minlength=space.shards))
    executor = space.executor_of_one(hashes.item(0))
    buffer.ensure_marks(present, (present + executor * space.shards).astype(np.uint64))
    with buffer.open() as arrays:
        marks = buffer.marks[present]
        reached, next_number = np.zeros(space.shards, np.int64), np.zeros(space.shards, np.int64)
        reached[present] = arrays.values[TIME].take(marks)
        next_number[present] = arrays.values[NUMBER].take(marks)
    column = rows.column(TIME_COLUMN)
    times: Times = numpy_of(column.fill_null(0))
    timed = _valid(column)
    late = timed & (times + joining.grace < reached.take(shards))
    alone = ~timed
    if not joining.nulls_equal:
        for key in keys:
            if rows.column(key).null_count:
                alone |= ~_valid(rows.column(key))
    alone &= ~late
    kept = np.flatnonzero(~late & ~alone)
    first = next_number.take(shards[kept])
    numbers = first + ranks(shards[kept], space.shards)
    sides = numpy_of(rows.column(SIDE))
    made = []
    for side in (LEFT, RIGHT):
        own = sides[kept] == side
        at = kept[own]
        made.append(
            Arrivals(
                side,
                rows if len(at) == rows.num_rows else rows.take(array_of(at)),
                hashes[at],
                None if checks is None else checks[at],
                times[at],
                numbers[own],
                first[own],
                at,
            )
        )
    lonely = [rows.filter(array_of(alone & (sides == side))) if alone.any() else rows[:0] for side in (LEFT, RIGHT)]
    per_shard = (np.bincount(shards[where], minlength=space.shards) for where in (kept, late, ~timed))
    counted, late_rows, timeless = per_shard
    return Judged(made, lonely, (counted, late_rows, timeless), present)


@contextmanager
def written(judged: Judged, layout: JoinLayout, buffer: RowBuffer) -> Iterator[tuple[SlotArrays, list[Slots]]]:
    """Write the rows of a batch to the state, and hold it open.

    Parameters
    ----------
    judged : Judged
        The batch.
    layout : JoinLayout
        The fields of the state.
    buffer : RowBuffer
        The task's buffer.

    Yields
    ------
    arrays : SlotArrays
        The store's arrays.
    slots : list of ndarray of intp
        The slots of the rows of each side.
    """
    values = [arrivals.values(layout) for arrivals in judged.sides]
    some = [arrivals for arrivals in judged.sides if len(arrivals)]
    while True:
        admitted = {one.side: buffer.admit(one.rows, one.hashes, one.checks, one.numbers) for one in some}
        with buffer.open() as arrays:
            if any(numbering != buffer.numbering for numbering, _ in admitted.values()):
                continue
            for side, (_, slots) in admitted.items():
                arrays.write(slots, values[side], buffer.mark)
                buffer.index(arrays, side, slots)
            buffer.count(arrays, *judged.counts)
            none = np.empty(0, np.intp)
            yield arrays, [admitted[side][1] if side in admitted else none for side in (LEFT, RIGHT)]
            return


def _valid(column: pa.Array) -> Mask:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: npt.NDArray[np.bool_] = numpy_of(pc.is_valid(column))
    return valid
