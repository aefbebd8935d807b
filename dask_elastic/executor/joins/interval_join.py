"""Joins of rows whose times are within bounds, or in one window: pairs at once, rows without a match when due."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.joins.arrivals import Arrivals, Judged, judge, written
from dask_elastic.executor.joins.join_logic import JoinLogic
from dask_elastic.executor.joins.join_results import in_order, in_parts
from dask_elastic.state.index import Slots
from dask_elastic.state.joins.layout import CHECK, HASH, KIND, MATCHED, NUMBER, TIME
from dask_elastic.state.slots import Column, SlotArrays
from dask_elastic.topology.joins.joining import LEFT, RIGHT
from dask_elastic.topology.schema import check_schema
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.state_record import TimersDue

_NUMBER_BITS = np.uint64(46)
"""Numbers of rows are below 2**46, so that a word orders pairs by the place of one row and the number of the other."""

Found = tuple[Slots, list[Column]]
"""Some pairs: the position of the arrived row of each, and the fields of the buffered one."""


class IntervalJoin(JoinLogic):
    """A join whose rows match if their times are within bounds, for one task; not shared between threads.

    A pair is found by the row that is processed last, so that the results do not depend on how rows are divided into
    batches.
    """

    def process(
        self,
        rows: pa.RecordBatch,
        hashes: np.ndarray,
        now: float = 0.0,
        errors: Errors | None = None,
        settled: bool = False,
    ) -> list[pa.RecordBatch]:
        """Buffer the rows, and return their pairs with buffered rows.

        `now` and `errors` are not used. Rows are counted unless they were `settled` before a replay.
        """
        rows = check_schema(self.joining.input, rows, f"the input of {self.name!r}")
        self.buffer.declare()
        judged = judge(self.joining, self.buffer, rows, hashes)
        outputs = [
            self.results.unmatched(alone, side)
            for side, alone in enumerate(judged.alone)
            if alone.num_rows and self.joining.outer[side]
        ]
        for arrivals, found in zip(judged.sides, self._buffered(judged), strict=True):
            other = 1 - arrivals.side
            for chosen, fields in found:
                others = self.layout.columns(other, fields)
                outputs.append(self.results.pairs(arrivals.rows, arrivals.side, chosen, others))
        self.buffer.tally(judged.row_counts, settled)
        return outputs

    def _buffered(self, judged: Judged) -> list[list[Found]]:
        """Write the rows to the state, and return the pairs that the rows of each side make with buffered rows."""
        with written(judged, self.layout, self.buffer) as (arrays, slots):
            return [self._pairs(arrays, *each) for each in zip(judged.sides, slots, strict=True)]

    def _pairs(self, arrays: SlotArrays, arrivals: Arrivals, slots: Slots) -> list[Found]:
        if not len(arrivals):
            return []
        other = 1 - arrivals.side
        least, most = self.joining.lower, self.joining.upper
        if arrivals.side == RIGHT:
            least, most = -most, -least
        rows, partners = self.buffer.sorted[other].between(
            arrivals.hashes, arrivals.times + least, arrivals.times + most
        )
        if not len(rows):
            return []
        rows, partners, numbers = self._verified(arrays, arrivals, rows, partners)
        # Pairs in the order of the batch, then of arrival: a replay emits them alike, whatever the index looks like.
        order = np.argsort((arrivals.positions[rows].astype(np.uint64) << _NUMBER_BITS) | numbers.view(np.uint64))
        rows, partners = rows[order], partners[order]
        for side, matched in ((other, partners), (arrivals.side, slots[rows])):
            if self.joining.outer[side]:
                self._match(arrays, matched)
        positions = self.layout.positions(other)
        parts = zip(in_parts(rows), in_parts(partners), strict=True)
        return [(some, [arrays.values[at].take(others) for at in positions]) for some, others in parts]

    def _verified(
        self, arrays: SlotArrays, arrivals: Arrivals, rows: Slots, partners: Slots
    ) -> tuple[Slots, Slots, np.ndarray]:
        """Drop pairs of different keys; of two rows of the batch, the right one finds the left one."""
        values, other = arrays.values, 1 - arrivals.side
        same = values[HASH].take(partners) == arrivals.hashes[rows]
        same &= values[KIND].take(partners) == other
        checks = values[CHECK].take(partners)
        same &= checks == (0 if arrivals.checks is None else arrivals.checks[rows])
        numbers = values[NUMBER].take(partners)
        if arrivals.side == LEFT:
            same &= numbers < arrivals.first[rows]
        return (rows, partners, numbers) if same.all() else (rows[same], partners[same], numbers[same])

    def _match(self, arrays: SlotArrays, slots: Slots) -> None:
        new = np.unique(slots[~arrays.values[MATCHED].take(slots)])
        if len(new):
            values = self.buffer.unchanged()
            values[MATCHED] = np.ones(len(new), np.bool_)
            arrays.write(new, values, self.buffer.mark)

    def fire(self, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Remove the rows that no row can match any more, and return those that had no match, of outer sides.

        Parameters
        ----------
        batch : Batch
            A state record with a watermark.
        policy : ErrorPolicy
            Not used: no user code is called.

        Returns
        -------
        list of RecordBatch
            Rows without a match.
        """
        assert isinstance(batch.record, TimersDue)
        assert batch.hashes is not None
        reached = batch.record.limit("event")
        if reached is None:
            return []
        buffer = self.buffer
        buffer.declare()
        shards = numpy_of(batch.rows.column(0))
        buffer.ensure_marks(shards, batch.hashes)
        while True:
            with buffer.open() as arrays:
                numbering, chosen = buffer.numbering, buffer.in_shards(shards)
                due = [buffer.due[side].pop(reached, chosen) for side in (LEFT, RIGHT)]
                alone = [
                    (side, part, [arrays.values[at].take(part) for at in (TIME, *self.layout.positions(side))])
                    for side, slots in enumerate(due)
                    for part in in_parts(self._alone(arrays, side, slots))
                ]
            # Not while the buffer is open: this takes the store's lock.
            keys = [buffer.store.keys_at(slots, numbering) for _, slots, _ in alone]
            with buffer.open() as arrays:
                # If slots have been renumbered, the index is new, so that the rows are due again.
                if buffer.numbering == numbering:
                    buffer.remove(arrays, np.concatenate(due))
                    buffer.reached(arrays, shards, reached)
                    break
        buffer.tidy()
        outputs = []
        for (side, _, (times, *values)), columns in zip(alone, keys, strict=True):
            assert columns is not None, "slots have kept their numbers"
            own = self.layout.columns(side, values)
            outputs.append(self.results.alone(columns.columns, side, own, array_of(times)))
        return outputs

    def _alone(self, arrays: SlotArrays, side: int, due: Slots) -> Slots:
        """Return the rows without a match that are to be emitted, in their order."""
        if not self.joining.outer[side]:
            return due[:0]
        slots = due[~arrays.values[MATCHED].take(due)]
        times, numbers = arrays.values[TIME].take(slots), arrays.values[NUMBER].take(slots)
        ordered: Slots = slots[in_order(times, numbers, arrays.shards.take(slots))]
        return ordered
