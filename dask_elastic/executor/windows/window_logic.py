"""Aggregates over windows: partials per key and cell of event time, and results when instances close."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.windows.cells import Assigned, EventCells
from dask_elastic.executor.windows.event_times import Times, timestamps
from dask_elastic.executor.windows.known_cells import KnownCells
from dask_elastic.executor.windows.partials import Partials
from dask_elastic.executor.windows.session_cells import SessionCells
from dask_elastic.executor.windows.timed_rows import TimedRows
from dask_elastic.routing.hashing import check_keys
from dask_elastic.state.index import Words
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slot_search import Found, Mask
from dask_elastic.state.slots import Column, SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import NO_END, window_fields
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.operators import Compute, select_columns
from dask_elastic.topology.schema import check_schema
from dask_elastic.topology.window_time import window_time_type
from dask_elastic.topology.windowing import (
    REVISION,
    WINDOW_END,
    WINDOW_START,
    SessionWindow,
    Windowing,
)
from dask_elastic.topology.windows.results import result_keys
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.state_record import BEGINNING


class WindowLogic:
    """Aggregates of one task over windows of event time; not shared between threads.

    Parameters
    ----------
    operator : Compute
        The operator.
    store : KeyedStore
        The state of the executor in this process.
    session : Session
        The task's session with the store.
    groups : int
        The number of groups of the component's key space.
    emits : bool
        Whether the output is read.
    """

    def __init__(self, operator: Compute, store: KeyedStore, session: Session, groups: int, emits: bool):
        assert operator.aggregates is not None
        assert operator.windowing is not None
        self.operator = operator
        self.windowing = operator.windowing
        self.cells = make_cells(operator.windowing)
        self._late: list[pa.RecordBatch] = []
        self._aggregates = operator.aggregates
        self._store = store
        self._session = session
        self._known = KnownCells(store, session, groups)
        self._emits = emits
        self._bound: _Bound | None = None

    def process(
        self,
        rows: pa.RecordBatch,
        hashes: Words,
        now: float = 0.0,
        errors: Errors | None = None,
        reached: int | None = None,
        settled: bool = False,
    ) -> list[pa.RecordBatch]:
        """Update the partials; return results if they appear before instances close, or correct earlier ones.

        Parameters
        ----------
        rows : RecordBatch
            The rows.
        hashes : ndarray of uint64
            The hashes of their keys.
        now : float
            Not used: this state does not expire by the clock.
        errors : dict of int to str, optional
            Not used: which row raises is found by a search.
        reached : int or None
            The event time up to which instances were closed when the rows arrived; None if none were.
        settled : bool
            Whether the rows were counted before they were replayed.

        Returns
        -------
        list of RecordBatch
            One batch of results, or none.
        """
        bound = self._bound or self._bind(rows.schema)
        if not rows.schema.equals(bound.schema):
            rows = check_schema(bound.schema, rows, f"the input of {self.operator.name!r}")
        rows, hashes, times, untimed = TimedRows.of(rows, hashes, self.windowing)
        late, outputs = [untimed] if untimed is not None and self.windowing.null_time == "late" else [], []
        counts = RowCounts(untimed=0 if untimed is None else untimed.num_rows)
        if rows.num_rows:
            assigned = self._assigned(times, BEGINNING if reached is None else reached)
            if assigned.late is not None and self.windowing.late == "stream":
                late.append(rows.filter(pa.array(assigned.late)))
            outputs = self._updated(bound, rows, hashes, assigned)
            counts = assigned.counts._replace(untimed=counts.untimed)
        if not settled:
            task = self._session.task
            self._store.row_counts[task] = counts.plus(self._store.row_counts.get(task, ()))
        self._late += late
        return outputs

    def take_late(self) -> list[pa.RecordBatch]:
        """Return the rows since the last call that came too late for all of their instances, or have no time.

        Only those that have a stream of their own.
        """
        late, self._late = self._late, []
        return late

    def _assigned(self, times: list[Times], reached: int) -> Assigned:
        if len(times) == 1:
            return self.cells.of_points(times[0], reached)
        assert isinstance(self.cells, EventCells)
        return self.cells.of_spans(times[0], times[1], reached)

    def _updated(self, bound: _Bound, rows: pa.RecordBatch, hashes: Words, assigned: Assigned) -> list[pa.RecordBatch]:
        """Add rows to their cells; returns the results that appear at once."""
        if assigned.rows is not None:
            if not len(assigned.rows):
                return []
            rows, hashes = rows.take(pa.array(assigned.rows)), hashes.take(assigned.rows)
        keys = self.operator.keys
        columns = [rows.column(position) for position in bound.keys]
        checks = check_keys(columns, keys)
        located = self._known.locate(rows, keys, hashes, checks, assigned.numbers, assigned.cells)
        first = located.first
        cells = np.zeros(len(first), np.intp) if assigned.cells is None else assigned.cells.take(first)
        outputs: list[pa.RecordBatch] = []

        def update(current: list[Column]) -> list[Column]:
            after = bound.bundle.update(current[: bound.own], rows, located.grouping)
            own = current[bound.own :]
            known = own[1] != NO_END
            if isinstance(self.cells, SessionCells):
                own[:2] = _bounds(assigned.starts, located, known, own)
            if not known.all():
                if isinstance(self.cells, EventCells):
                    own[:2] = assigned.starts.take(cells), assigned.ends.take(cells)
                if self.cells.merges:
                    own[2:] = hashes.take(first), np.zeros(len(first), np.uint64) if checks is None else checks[first]
            if self.windowing.revised and (closed := assigned.closed.take(cells)).any():
                # The close of an instance has emitted revision 0, unless this is its first row of the key.
                own[2] = np.where(closed, np.where(known, np.maximum(own[2], 0) + 1, 0), own[2])
            if self._emits and self.windowing.revised:
                # A result that raises leaves the state as it was: its rows may be processed again without others.
                outputs.extend(self._results_now(bound, columns, located, assigned.closed.take(cells), after + own))
            return after + own

        self._session.apply(located, update)
        return outputs

    def _results_now(
        self,
        bound: _Bound,
        columns: list[pa.Array],
        located: Located,
        closed: npt.NDArray[np.bool_],
        after: list[Column],
    ) -> list[pa.RecordBatch]:
        """Return the results of instances that rows have just changed: the closed ones, or all of them."""
        first = located.first
        if self.windowing.emit == "closed":
            if not closed.any():
                return []
            chosen = np.flatnonzero(closed)
            first, after = first.take(chosen), [column.take(chosen) for column in after]
        keys = [column.take(pa.array(first)) for column in columns]
        starts, ends, revisions = after[bound.own :]
        return [bound.batch(keys, starts, ends, after[: bound.own], revisions)]

    # closing

    def fire(self, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Close the instances that a state record makes due, for the shards that it is addressed to.

        Parameters
        ----------
        batch : Batch
            The state record; its `reached` is the event time of the record before.
        policy : ErrorPolicy
            Runs the aggregates' functions. A dead letter has the key and the instance.

        Returns
        -------
        list of RecordBatch
            The results.
        """
        record = batch.record
        assert record is not None
        if record.event is None or self._store.key_schema is None:
            return []
        described = (batch.rows.schema.metadata or {}).get(INPUT_SCHEMA)
        if described is None:
            # No row had arrived before the record.
            return []
        bound = self._bound or self._bind(pa.ipc.read_schema(pa.py_buffer(described)))
        shards = np.zeros(self._store.shards, np.bool_)
        shards[batch.rows.column(0).to_numpy()] = True
        since = BEGINNING if batch.reached is None else batch.reached
        while True:
            found = self._session.read(partial(self._touched, bound, record.event), shards)
            if not len(found.slots):
                return []
            made = self._closing(bound, found, since, record.event)
            keys = self._session.keys_of(found.slots.take(made.firsts), found.layout)
            if keys is not None:
                break
        outputs = self._results(bound, made, keys, policy) if self._emits and keys.num_rows else []
        while not self._session.remove(found, made.expired):
            found = self._session.read(partial(self._touched, bound, record.event), shards)
            made = self._closing(bound, found, since, record.event)
        if made.expired.any():
            self._session.tidy()
        return outputs

    def _touched(self, bound: _Bound, until: int, arrays: SlotArrays, window: slice) -> Mask:
        """Return the cells that may be of instances that end up to a time, or expire then."""
        if isinstance(self.cells, SessionCells):
            begun: Mask = arrays.values[bound.own][window] < until
            return begun
        ended: Mask = arrays.values[bound.own + 1][window] <= until
        return ended

    def _closing(self, bound: _Bound, found: Found, since: int, until: int) -> _Closing:
        if isinstance(self.cells, SessionCells):
            return self._chained(bound, found, self.cells.gap, until)
        starts, ends = found.values[bound.own : bound.own + 2]
        expired = self.cells.expired(starts, ends, until)
        return (self._merged if self.cells.merges else self._single)(bound, found, expired, since, until)

    def _results(
        self, bound: _Bound, made: _Closing, keys: pa.RecordBatch, policy: ErrorPolicy
    ) -> list[pa.RecordBatch]:
        rows = pa.RecordBatch.from_arrays(
            [*keys.columns, timestamps(made.starts, bound.time), timestamps(made.ends, bound.time)],
            names=[*self.operator.keys, WINDOW_START, WINDOW_END],
        )

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            part = keys.slice(start, stop - start)
            values = made.values(start, stop)
            return [bound.batch(part.columns, made.starts[start:stop], made.ends[start:stop], values, 0)]

        return policy.run(self.operator.name, run, rows)

    def _single(self, bound: _Bound, found: Found, expired: Mask, since: int, until: int) -> _Closing:
        """Return the results of cells that are instances."""
        starts, ends = found.values[bound.own : bound.own + 2]
        order = np.lexsort((starts, ends))
        # Those that have ended before are kept for corrections.
        order = order[np.searchsorted(ends, since, side="right", sorter=order) :]

        def part(start: int, stop: int) -> list[Column]:
            chosen = order[start:stop]
            return [column.take(chosen) for column in found.values[: bound.own]]

        return _Closing(order, starts.take(order), ends.take(order), part, expired)

    def _chained(self, bound: _Bound, found: Found, gap: int, until: int) -> _Closing:
        """Return the results of sessions, each merged from the cells of a key."""
        firsts, lasts, hashes, checks = found.values[bound.own :]
        partials = Partials(bound.bundle, found.values[: bound.own], firsts, hashes, checks)
        chains = partials.chained(lasts, gap)
        closed = chains.ends <= until
        groups = chains.groups.chosen(closed)
        expired = np.zeros(len(firsts), np.bool_)
        expired[groups.partials] = True
        values = partial(partials.merged, groups)
        return _Closing(groups.firsts, chains.starts[closed], chains.ends[closed], values, expired)

    def _merged(self, bound: _Bound, found: Found, expired: Mask, since: int, until: int) -> _Closing:
        """Return the results of instances, each merged from the slices of a key."""
        starts, _, hashes, checks = found.values[bound.own :]
        ordinals = self._known.ordinals(hashes, checks if checks.any() else None)
        partials = Partials(bound.bundle, found.values[: bound.own], starts, hashes, checks, ordinals)
        assert isinstance(self.cells, EventCells)
        instances = self.cells.closing(starts, since, until)
        parts = [partials.within(begin, end) for begin, end in instances]
        bounds = np.cumsum([0, *(len(groups.lengths) for groups in parts)])

        def part(start: int, stop: int) -> list[Column]:
            merged: list[list[Column]] = []
            for groups, first in zip(parts, bounds.tolist(), strict=False):
                begin, end = max(start, first) - first, min(stop, first + len(groups.lengths)) - first
                if begin < end:
                    merged.append(partials.merged(groups, begin, end))
            return merged[0] if len(merged) == 1 else [_joined(columns) for columns in zip(*merged, strict=True)]

        firsts = np.concatenate([np.empty(0, np.intp), *(groups.firsts for groups in parts)])
        lengths = np.diff(bounds)
        begins, ends = (np.repeat([one[side] for one in instances], lengths) for side in (0, 1))
        return _Closing(firsts, begins.astype(np.int64), ends.astype(np.int64), part, expired)

    def _bind(self, schema: pa.Schema) -> _Bound:
        operator = self.operator
        select_columns(pa.RecordBatch.from_pylist([], schema), (*operator.keys, *self.windowing.time), operator.name)
        bundle = Bundle(self._aggregates, schema)
        keys = pa.schema([schema.field(key) for key in operator.keys])
        self._store.declare(keys, [*bundle.fields, *window_fields(operator, self.cells.merges)])
        column = self.windowing.time[0]
        kind = window_time_type(schema.field(column).type, column)
        spans = {name: pa.int64() if name == REVISION else kind for name in self.windowing.output_columns}
        shown = [keys.field(key) for key in result_keys(operator.keys)]
        results = pa.schema([*shown, *map(pa.field, spans, spans.values()), *bundle.schema])
        positions = [schema.get_field_index(key) for key in operator.keys]
        self._bound = _Bound(schema, bundle, positions, results, kind, len(bundle.fields))
        return self._bound


class _Bound(NamedTuple):
    """What depends on the schema of the input; `own` is the position of the first field that is no aggregate's."""

    schema: pa.Schema
    bundle: Bundle
    keys: list[int]
    results: pa.Schema
    time: pa.DataType
    own: int

    def batch(
        self,
        keys: list[pa.Array],
        starts: Times,
        ends: Times,
        values: list[Column],
        revision: npt.NDArray[np.int64] | int,
    ) -> pa.RecordBatch:
        """Return results as rows; a revision below 0, before an instance has closed, is null."""
        # Results of windows over all rows have no key.
        shown = [] if self.results.names[0] == WINDOW_START else keys
        columns = [*shown, timestamps(starts, self.time), timestamps(ends, self.time)]
        if REVISION in self.results.names:
            numbers = np.broadcast_to(np.asarray(revision, np.int64), len(starts))
            columns.append(pa.array(numbers, mask=numbers < 0))
        columns += self.bundle.results(values).values()
        return pa.RecordBatch.from_arrays(columns, schema=self.results)


class _Closing(NamedTuple):
    """Results to be: the position of a partial of each one's key, the instances, and the state of a range of them.

    `expired` says which of the cells no later result needs.
    """

    firsts: npt.NDArray[np.intp]
    starts: Times
    ends: Times
    values: Callable[[int, int], list[Column]]
    expired: Mask


def make_cells(windowing: Windowing) -> EventCells | SessionCells:
    """Return the cells of windows.

    Parameters
    ----------
    windowing : Windowing
        Windows over event time.

    Returns
    -------
    EventCells or SessionCells
        The cells.
    """
    first = windowing.windows[0]
    return SessionCells(windowing) if isinstance(first, SessionWindow) else EventCells(windowing)


def _bounds(times: Times, located: Located, known: Mask, before: list[Column]) -> list[Times]:
    """Return the times of the first and the last row of each cell."""
    ordered, starts = times.take(located.grouping.order), located.grouping.starts
    first, last = np.minimum.reduceat(ordered, starts), np.maximum.reduceat(ordered, starts)
    return [
        np.where(known, np.minimum(before[0], first), first),
        np.where(known, np.maximum(before[1], last), last),
    ]


def _joined(columns: tuple[Column, ...]) -> Column:
    first = columns[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(columns)
    lengths = np.concatenate([column.lengths for column in columns])
    return type(first).of_lengths(np.concatenate([column.values for column in columns]), lengths)
