"""Joins of each left row with the newest right row that is not later; rows wait for the watermark."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.joins.arrivals import judge, written
from dask_elastic.executor.joins.due_rows import Mask
from dask_elastic.executor.joins.join_logic import JoinLogic
from dask_elastic.executor.joins.join_results import has_ties, in_order, in_parts
from dask_elastic.executor.joins.row_buffer import OF_NEWEST
from dask_elastic.executor.joins.sorted_rows import Times
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.joins.layout import CHECK, HASH, KIND, NEWEST, NUMBER, TIME
from dask_elastic.state.key_table import distinct_keys
from dask_elastic.state.slots import LIVE, Column, SlotArrays
from dask_elastic.topology.joins.joining import LEFT, RIGHT
from dask_elastic.topology.schema import check_schema
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.state_record import TimersDue


class _Due(NamedTuple):
    """Rows of both sides that a watermark has passed, the left ones first."""

    slots: Slots
    left: int
    hashes: Words
    checks: Words
    times: Times
    numbers: Times

    @property
    def of_right(self) -> Mask:
        return np.arange(len(self.slots)) >= self.left


class _Prepared(NamedTuple):
    """What is known of due rows before they are joined.

    Parameters
    ----------
    keys : RecordBatch
        Their keys.
    matches : ndarray of intp
        For each left row the place of its match among the due rows, -1 if it has none there.
    settled : ndarray of intp
        For each left row the slot of the newest right row that was settled before, -1 if there is none.
    newest : ndarray of intp
        The place of the newest due right row of each key that has one.
    written_to : ndarray of intp
        The slot to which each of these is copied.
    """

    keys: pa.RecordBatch
    matches: Slots
    settled: Slots
    newest: Slots
    written_to: Slots


class AsOfJoin(JoinLogic):
    """A join of each left row with the newest right row that is not later, for one task.

    Once a watermark has passed the times of rows, they are removed: each left row is joined, and of the right rows the
    newest of each key stays. So the state has one row per key of the right side, and the rows that wait.
    """

    def process(
        self,
        rows: pa.RecordBatch,
        hashes: np.ndarray,
        now: float = 0.0,
        errors: Errors | None = None,
        settled: bool = False,
    ) -> list[pa.RecordBatch]:
        """Buffer the rows.

        `now` and `errors` are not used. Rows are counted unless they were `settled` before a replay.
        """
        rows = check_schema(self.joining.input, rows, f"the input of {self.name!r}")
        self.buffer.declare()
        judged = judge(self.joining, self.buffer, rows, hashes)
        with written(judged, self.layout, self.buffer):
            pass
        self.buffer.tally(judged.row_counts, settled)
        alone = judged.alone[LEFT]
        return [self.results.unmatched(alone, LEFT)] if alone.num_rows and self.joining.outer[LEFT] else []

    def fire(self, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Join the left rows that a watermark has passed.

        Parameters
        ----------
        batch : Batch
            A state record with a watermark.
        policy : ErrorPolicy
            Not used: no user code is called.

        Returns
        -------
        list of RecordBatch
            The results.
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
                due = self._due(arrays, [buffer.due[side].pop(reached, chosen) for side in (LEFT, RIGHT)])
            # Not while the buffer is open: this takes the store's lock.
            pending = self._prepared(due, numbering)
            if pending is None:
                continue
            with buffer.open() as arrays:
                # If slots have been renumbered, the index is new, so that all rows are due again.
                if buffer.numbering == numbering:
                    outputs = self._joined(arrays, due, pending)
                    self._keep_newest(arrays, due, pending)
                    buffer.remove(arrays, due.slots)
                    if NEWEST in buffer.due:
                        # Also rows that have just been kept, for which no other watermark may come.
                        self._drop(arrays, buffer.due[NEWEST].pop(reached, chosen), reached)
                    buffer.reached(arrays, shards, reached)
                    break
        buffer.tidy()
        return outputs

    def _due(self, arrays: SlotArrays, sides: list[Slots]) -> _Due:
        slots, values = np.concatenate(sides), arrays.values
        fields = (values[field].take(slots) for field in (HASH, CHECK, TIME, NUMBER))
        return _Due(slots, len(sides[LEFT]), *fields)

    def _prepared(self, due: _Due, numbering: int) -> _Prepared | None:
        """Match the due rows with each other, and find the slots of their keys; None if slots have been renumbered."""
        buffer, none = self.buffer, np.empty(0, np.intp)
        keys = buffer.store.keys_at(due.slots, numbering)
        if keys is None:
            return None
        if not len(due.slots):
            return _Prepared(keys, none, none, none, none)
        first, ordinals = distinct_keys(due.hashes, due.checks)
        matches, newest = _matches(due, ordinals, len(first))
        hashes = part_hashes(due.hashes[first], OF_NEWEST, buffer.space.groups)
        checks = part_checks(due.checks[first], OF_NEWEST, len(first))
        found, kept = buffer.store.find(hashes, checks)
        some = np.flatnonzero(newest >= 0)
        again, written_to = buffer.admit_newest(keys, first[some], hashes[some], checks[some])
        if found != numbering or again != numbering:
            return None
        return _Prepared(keys, matches, kept[ordinals[: due.left]], newest[some], written_to)

    def _joined(self, arrays: SlotArrays, due: _Due, pending: _Prepared) -> list[pa.RecordBatch]:
        """Return the results of the left rows."""
        if not due.left:
            return []
        left, times = due.slots[: due.left], due.times[: due.left]
        settled = np.where(_has_row(arrays, pending.settled), pending.settled, -1)
        partners = np.where(pending.matches >= 0, due.slots[pending.matches], settled)
        present = partners >= 0
        partners = np.where(present, partners, left)
        if self.joining.tolerance is not None:
            present &= times - arrays.values[TIME].take(partners) <= self.joining.tolerance
        order = in_order(times, due.numbers[: due.left], arrays.shards.take(left))
        if self.joining.how == "inner":
            order = order[present[order]]
        outputs = []
        for some in in_parts(order):
            columns = []
            for side, slots, has in ((LEFT, left[some], None), (RIGHT, partners[some], present[some])):
                fields = [arrays.values[at].take(slots) for at in self.layout.positions(side)]
                columns.append(self.layout.columns(side, fields, has))
            outputs.append(self.results.both(pending.keys.take(array_of(some)).columns, *columns))
        return outputs

    def _keep_newest(self, arrays: SlotArrays, due: _Due, pending: _Prepared) -> None:
        """Copy the newest due right rows to the slots of their keys."""
        if not len(pending.written_to):
            return
        values: list[Column] = [column.take(due.slots[pending.newest]) for column in arrays.values]
        values[KIND] = np.full(len(pending.newest), NEWEST, np.int8)
        arrays.write(pending.written_to, values, self.buffer.mark)
        self.buffer.index(arrays, NEWEST, pending.written_to)

    def _drop(self, arrays: SlotArrays, outdated: Slots, reached: int) -> None:
        """Remove newest rows that are older than the tolerance allows; some have been replaced since."""
        assert not len(outdated) or self.joining.tolerance is not None
        slots = np.unique(outdated[_has_row(arrays, outdated)])
        old = arrays.values[TIME].take(slots) + (self.joining.tolerance or 0) < reached
        self.buffer.remove(arrays, slots[old])


def _has_row(arrays: SlotArrays, slots: Slots) -> Mask:
    """Return which slots have the newest settled row of a key; -1 has none."""
    if not len(slots):
        return np.zeros(0, np.bool_)
    live = (arrays.marks.take(np.maximum(slots, 0)) & LIVE) != 0
    found: npt.NDArray[np.bool_] = (slots >= 0) & live
    return found


def _by_key_and_time(due: _Due, ordinals: Slots, keys: int) -> Slots:
    """Return the order of rows by key, time and number; right rows come before left rows of the same time."""
    least = int(due.times.min())
    bits = (int(due.times.max()) - least).bit_length() + 1
    if bits + keys.bit_length() < 64:
        # One sort of words is several times as fast as a sort by four columns, which only ties need.
        words = (ordinals.astype(np.int64) << bits) | ((due.times - least) << 1) | ~due.of_right
        order = np.argsort(words)
        if not has_ties(words[order]):
            return order
    return np.lexsort((due.numbers, ~due.of_right, due.times, ordinals))


def _matches(due: _Due, ordinals: Slots, keys: int) -> tuple[Slots, Slots]:
    """Return the place of the newest due right row for each left row, and for each key; -1 where there is none."""
    count = len(due.slots)
    of_right = due.of_right
    order = _by_key_and_time(due, ordinals, keys)
    last = np.maximum.accumulate(np.where(of_right[order], np.arange(count), -1))
    key = ordinals[order]
    match = np.where((last >= 0) & (key[last] == key), order[last], -1)
    found = np.empty(count, np.intp)
    found[order] = match
    newest = np.full(keys, -1, np.intp)
    ends = np.flatnonzero(np.append(key[1:] != key[:-1], True))
    newest[key[ends]] = match[ends]
    return found[: due.left], newest
