"""Functions over windows: rows wait in the state, and the function gets those of an instance when it closes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.joins.row_buffer import RowBuffer, ranks
from dask_elastic.executor.windows.event_times import Times, bounds_of_spans, rows_numbered, timestamps, window_times
from dask_elastic.executor.windows.function_calls import MOST_ROWS, make_calls, with_column
from dask_elastic.executor.windows.instance_rows import Gathered, InstanceRows
from dask_elastic.executor.windows.row_instances import Judged, RowInstances, RowSessions
from dask_elastic.routing.hashing import check_keys
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.index import Words
from dask_elastic.state.joins.layout import CHECK, HASH, KIND, NUMBER, TIME
from dask_elastic.state.session import Session
from dask_elastic.state.slot_search import Found, Mask, Matching
from dask_elastic.state.slots import Column, SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.windows.row_layout import ARRIVED, END, FIRST, ROW, RowLayout
from dask_elastic.topology.operators import Compute, select_columns
from dask_elastic.topology.schema import check_schema
from dask_elastic.topology.windowing import REVISION, WINDOW_END, WINDOW_START, SessionWindow
from dask_elastic.topology.windows.instances import Instances
from dask_elastic.topology.windows.results import bound_columns, result_keys
from dask_elastic.vocab.arrow_arrays import array_of, no_rows, numpy_of
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.state_record import BEGINNING, END_OF_TIME, TimersDue


class WindowFunctions:
    """A function over windows for one task; not shared between threads.

    Parameters
    ----------
    operator : Compute
        The operator.
    store : KeyedStore
        The state of the executor in this process.
    session : Session
        The task's session with the store.
    space : KeySpace
        The component's key space.
    """

    def __init__(self, operator: Compute, store: KeyedStore, session: Session, space: KeySpace):
        assert operator.windowing is not None
        self.operator = operator
        self.windowing = operator.windowing
        self.instances: RowInstances | RowSessions
        if isinstance(self.windowing.windows[0], SessionWindow):
            self.instances = RowSessions(self.windowing)
        else:
            self.instances = RowInstances(self.windowing)
        self._store = store
        self._session = session
        self._space = space
        self._calls = make_calls(operator)
        self._late: list[pa.RecordBatch] = []
        self._bound: _Bound | None = None

    def take_late(self) -> list[pa.RecordBatch]:
        """Return the rows since the last call that the stream of late rows gets."""
        late, self._late = self._late, []
        return late

    # rows

    def process(self, rows: pa.RecordBatch, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Let rows wait for their instances; return results that appear before a close, or correct earlier ones.

        Parameters
        ----------
        rows : RecordBatch
            The rows of the batch.
        batch : Batch
            Its hashes, and the event time up to which instances were closed when it came.
        policy : ErrorPolicy
            Runs the function.

        Returns
        -------
        list of RecordBatch
            The results.
        """
        assert batch.hashes is not None
        hashes = batch.hashes
        bound = self._bound or self._bind(rows.schema)
        rows = check_schema(bound.layout.schema, rows, f"the input of {self.operator.name!r}")

        def timed(start: int, stop: int, errors: Errors | None) -> list[_Timed]:
            return [self._timed(rows.slice(start, stop - start), hashes[start:stop])]

        # Before any row waits: an error must not let rows wait twice.
        parts = policy.run(self.operator.name, timed, rows)
        reached = BEGINNING if batch.reached is None else batch.reached
        counts, outputs = RowCounts(), []
        for part in parts:
            judged = self.instances.judge(part.begins, part.ends, reached)
            counts = counts.plus(judged.counts._replace(untimed=part.untimed.num_rows))
            self._pass_on(part, judged)
            kept = part if judged.kept.all() else part.chosen(np.flatnonzero(judged.kept))
            if len(kept.begins):
                firsts = self._keep(bound, kept, reached)
                if self.windowing.revised:
                    outputs += self._revised(bound, kept, firsts, reached, policy)
        bound.buffer.tally(counts, batch.settled)
        return outputs

    def _timed(self, rows: pa.RecordBatch, hashes: Words) -> _Timed:
        names = self.windowing.time
        columns = [rows.column(name) for name in names]
        untimed, valid = rows[:0], None
        if any(column.null_count for column in columns):
            valid = np.logical_and.reduce([numpy_of(column.is_valid()) for column in columns])
            if self.windowing.null_time == "refuse":
                error = ValueError(
                    f"the time {' or '.join(map(repr, names))} is null; filter such rows, or choose null_time='drop' "
                    "or null_time='late'"
                )
                error.row = int(valid.argmin())  # type: ignore[attr-defined]
                raise error
            untimed = rows.filter(array_of(~valid))
            rows, hashes = rows.filter(array_of(valid)), hashes[valid]
            columns = [rows.column(name) for name in names]
        with rows_numbered(valid):
            times = [window_times(column, name) for column, name in zip(columns, names, strict=True)]
        begins, ends = times if len(times) > 1 else (times[0], times[0] + 1)
        begins, ends = bounds_of_spans(begins, ends, self.windowing.spans == "overlapping")
        return _Timed(rows, hashes, begins, ends, untimed)

    def _pass_on(self, part: _Timed, judged: Judged) -> None:
        if self.windowing.null_time == "late" and part.untimed.num_rows:
            self._late.append(part.untimed)
        if self.windowing.late == "stream" and judged.late.any():
            self._late.append(part.rows.filter(array_of(judged.late)))

    def _keep(self, bound: _Bound, part: _Timed, reached: int) -> Times:
        """Write rows to the state, with numbers in their shards; returns the first number of each row's shard."""
        buffer, layout, space = bound.buffer, bound.layout, self._space
        keys = self.operator.keys
        checks = check_keys([part.rows.column(key) for key in keys], keys)
        shards = space.shard_of(part.hashes)
        counts = np.bincount(shards, minlength=space.shards)
        present = np.flatnonzero(counts)
        executor = space.executor_of_one(part.hashes.item(0))
        buffer.ensure_marks(present, (present + executor * space.shards).astype(np.uint64))
        next_number = np.zeros(space.shards, np.int64)
        with buffer.open() as arrays:
            next_number[present] = arrays.values[NUMBER].take(buffer.marks[present])
        first = next_number.take(shards)
        numbers = first + ranks(shards, space.shards)
        count = len(part.begins)
        values: list[Column] = [field.initially(count) for field in layout.fields[: FIRST + 1]]
        values[KIND] = np.full(count, ROW, np.int8)
        values[TIME], values[END], values[NUMBER], values[HASH] = part.begins, part.ends, numbers, part.hashes
        values[ARRIVED], values[FIRST] = np.full(count, reached), first
        if checks is not None:
            values[CHECK] = checks
        values += layout.stored(part.rows)
        marked = buffer.unchanged()
        while True:
            numbering, slots = buffer.admit(part.rows, part.hashes, checks, numbers)
            with buffer.open() as arrays:
                if numbering == buffer.numbering:
                    # Both under one gate, so that no copy of the state has one without the other.
                    arrays.write(slots, values, buffer.mark)
                    marked[NUMBER] = next_number[present] + counts[present]
                    arrays.write(buffer.marks[present], marked, buffer.mark)
                    return first

    def _revised(
        self, bound: _Bound, part: _Timed, firsts: Times, reached: int, policy: ErrorPolicy
    ) -> list[pa.RecordBatch]:
        """Return the results of instances that rows have just changed: the closed ones, or all of them."""
        assert isinstance(self.instances, RowInstances)
        since = reached - self.windowing.allowed_lateness
        until = reached if self.windowing.emit == "closed" else END_OF_TIME
        spans = self.instances.closing(part.begins, part.ends, since, until)
        if not spans:
            return []
        least, most = min(begin for begin, _ in spans), max(end for _, end in spans)
        of_rows = self._space.shard_of(part.hashes)
        shards = np.zeros(self._space.shards, np.bool_)
        shards[of_rows] = True
        found, keys = self._read(partial(_of_keys, np.unique(part.hashes), least, most), shards)
        gathered = _rows_of(found).within(spans)
        newest = np.zeros(self._space.shards, np.int64)
        newest[of_rows] = firsts
        is_new = found.values[FIRST] == newest.take(self._space.shard_of(found.values[HASH]))
        changed = np.logical_or.reduceat(is_new.take(gathered.rows), gathered.offsets[:-1])
        return self._results(bound, found, keys, gathered.chosen(np.flatnonzero(changed)), reached, policy)

    # closing

    def fire(self, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Close the instances that a state record makes due, for the shards that it is addressed to.

        Parameters
        ----------
        batch : Batch
            The state record; its `reached` is the event time of the record before.
        policy : ErrorPolicy
            Runs the function. A dead letter has the key and the instance.

        Returns
        -------
        list of RecordBatch
            The results.
        """
        record = batch.record
        assert isinstance(record, TimersDue)
        described = (batch.rows.schema.metadata or {}).get(INPUT_SCHEMA)
        if record.event is None or self._store.key_schema is None or described is None:
            # No row had arrived before the record.
            return []
        bound = self._bound or self._bind(pa.ipc.read_schema(pa.py_buffer(described)))
        numbers = numpy_of(batch.rows.column(0))
        shards = np.zeros(self._store.shards, np.bool_)
        shards[numbers] = True
        since = BEGINNING if batch.reached is None else batch.reached
        touched = self._matching(since, record.event, shards)
        found, keys = self._read(touched, shards)
        outputs: list[pa.RecordBatch] = []
        if len(found.slots):
            gathered, expired = self._closing(found, since, record.event)
            if len(gathered):
                outputs = self._results(bound, found, keys, gathered, None, policy)
            while not self._session.remove(found, expired):
                found = self._session.read(touched, shards)
                _, expired = self._closing(found, since, record.event)
        if record.last:
            self._remove_marks(bound.buffer, numbers)
        if len(found.slots):
            self._session.tidy()
        return outputs

    def _matching(self, since: int, until: int, shards: Mask) -> Matching:
        """Return what finds the rows of instances that close, and those that expire."""
        if isinstance(self.instances, RowInstances):
            return partial(_touched, self.instances, since, until)
        # The last row of a session that closes now was within the gap before: other keys need not be sorted.
        gap = self.instances.gap
        ending = self._session.read(partial(_begun, max(since - gap, BEGINNING), until - gap), shards)
        return partial(_of_keys, np.unique(ending.values[HASH]), BEGINNING, END_OF_TIME)

    def _closing(self, found: Found, since: int, until: int) -> tuple[Gathered, Mask]:
        """Return the instances that close, and which rows leave the state."""
        begins, ends = found.values[TIME], found.values[END]
        if isinstance(self.instances, RowInstances):
            spans = self.instances.closing(begins, ends, since, until)
            return _rows_of(found).within(spans), self.instances.expired(begins, ends, until)
        sessions = _rows_of(found).sessions(self.instances.gap)
        closed = sessions.chosen(np.flatnonzero(sessions.ends <= until))
        expired = np.zeros(len(begins), np.bool_)
        expired[closed.rows] = True
        return closed, expired

    def _remove_marks(self, buffer: RowBuffer, shards: npt.NDArray[np.integer]) -> None:
        """Leave no state behind the end of the input."""
        with buffer.open() as arrays:
            marks = buffer.marks[shards]
            buffer.remove(arrays, marks[marks >= 0])
            buffer.marks[shards] = -1

    def _read(self, matching: Matching, shards: Mask) -> tuple[Found, pa.RecordBatch]:
        """Return the slots that match, with their keys."""
        while True:
            found = self._session.read(matching, shards)
            keys = self._session.keys_of(found.slots, found.layout)
            if keys is not None:
                return found, keys

    def _results(
        self,
        bound: _Bound,
        found: Found,
        keys: pa.RecordBatch,
        gathered: Gathered,
        reached: int | None,
        policy: ErrorPolicy,
    ) -> list[pa.RecordBatch]:
        """Call the function for instances: those that close, or, up to an event time, have closed before."""
        table = keys.select(list(result_keys(self.operator.keys))).take(array_of(gathered.firsts))
        for name, times in ((WINDOW_START, gathered.starts), (WINDOW_END, gathered.ends)):
            table = with_column(table, name, timestamps(times, bound.time))
        if self.windowing.revised:
            table = with_column(table, REVISION, _revisions(found, gathered, reached))

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            outputs: list[pa.RecordBatch] = []
            for first, last in _parts(gathered.offsets, start, stop):
                part = gathered.part(first, last)
                columns = [column.take(part.rows) for column in found.values]
                rows = bound.layout.rows(keys.take(array_of(part.rows)), columns)
                failed: Errors | None = None if errors is None else {}
                instances = Instances(table.slice(first, last - first), part.offsets)
                outputs += self._calls.outputs(rows, instances, failed)
                if errors is not None and failed:
                    errors.update((first - start + number, error) for number, error in failed.items())
            return outputs

        return policy.run(self.operator.name, run, table)

    def _bind(self, schema: pa.Schema) -> _Bound:
        operator = self.operator
        select_columns(no_rows(schema), (*operator.keys, *self.windowing.time), operator.name)
        layout = RowLayout(operator, schema)
        buffer = RowBuffer(layout, self._store, self._session, self._space)
        buffer.declare()
        times = {name: layout.schema.field(name).type for name in self.windowing.time}
        self._bound = _Bound(layout, buffer, bound_columns(self.windowing, times, operator.name)[WINDOW_START])
        return self._bound


class _Bound(NamedTuple):
    """What depends on the schema of the input."""

    layout: RowLayout
    buffer: RowBuffer
    time: pa.DataType


class _Timed(NamedTuple):
    """Rows that have a time, with the spans for which they stand, and the rows without one."""

    rows: pa.RecordBatch
    hashes: Words
    begins: Times
    ends: Times
    untimed: pa.RecordBatch

    def chosen(self, which: npt.NDArray[np.intp]) -> _Timed:
        rows = self.rows.take(array_of(which))
        return _Timed(rows, self.hashes.take(which), self.begins.take(which), self.ends.take(which), self.untimed)


def _touched(instances: RowInstances, since: int, until: int, arrays: SlotArrays, window: slice) -> Mask:
    """Return the rows that are in instances that end within a span of time, or that expire."""
    kinds, begins, ends = (arrays.values[field][window] for field in (KIND, TIME, END))
    found: Mask = (kinds == ROW) & ((begins < until) | (ends <= until))
    some = np.flatnonzero(found)
    begins, ends = begins.take(some), ends.take(some)
    found[some] = instances.due(begins, ends, since, until) | instances.expired(begins, ends, until)
    return found


def _begun(after: int, until: int, arrays: SlotArrays, window: slice) -> Mask:
    """Return the rows that begin within a span of time."""
    kinds, begins = arrays.values[KIND][window], arrays.values[TIME][window]
    found: Mask = (kinds == ROW) & (begins > after) & (begins <= until)
    return found


def _of_keys(hashes: Words, least: int, most: int, arrays: SlotArrays, window: slice) -> Mask:
    """Return the rows of some keys whose spans are within bounds."""
    kinds, begins, ends, keys = (arrays.values[field][window] for field in (KIND, TIME, END, HASH))
    near: Mask = (kinds == ROW) & (begins >= least) & (ends <= most)
    near[near] = np.isin(keys[near], hashes)
    return near


def _rows_of(found: Found) -> InstanceRows:
    begins, ends, numbers, hashes, checks = (found.values[field] for field in (TIME, END, NUMBER, HASH, CHECK))
    return InstanceRows(begins, ends, numbers, hashes, checks)


def _revisions(found: Found, gathered: Gathered, reached: int | None) -> pa.Array:
    """Return the revision of each result, null for instances that have not closed at `reached`.

    Each batch with late rows of an instance has corrected it once. Rows that come together have one `FIRST`.
    """
    lengths, starts = np.diff(gathered.offsets), gathered.offsets[:-1]
    arrived, first = found.values[ARRIVED].take(gathered.rows), found.values[FIRST].take(gathered.rows)
    late = arrived >= np.repeat(gathered.ends, lengths)
    new = np.ones(len(late), np.bool_)
    new[1:] = first[1:] != first[:-1]
    new[starts] = True
    revisions = np.add.reduceat((new & late).astype(np.int64), starts) - np.logical_and.reduceat(late, starts)
    return array_of(revisions, mask=None if reached is None else gathered.ends > reached)


def _parts(offsets: npt.NDArray[np.int64], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Divide instances into parts of limited size."""
    while start < stop:
        last = int(np.searchsorted(offsets, offsets[start] + MOST_ROWS, side="right")) - 1
        last = max(start + 1, min(last, stop))
        yield start, last
        start = last
