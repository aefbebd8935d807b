"""Aggregates over windows of a number of rows of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.executor.error_policy import Errors
from dask_elastic.executor.windows.event_times import Times, timestamps
from dask_elastic.executor.windows.row_slices import Numbers, Positions, Ring, RowSlices, SliceLength
from dask_elastic.executor.windows.timed_rows import TimedRows
from dask_elastic.routing.hashing import check_keys
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Words
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slots import Column
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import count_fields
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.ragged import joined_columns
from dask_elastic.topology.operators import Compute, select_columns
from dask_elastic.topology.schema import check_schema
from dask_elastic.topology.windowing import CountWindow
from dask_elastic.topology.windows.results import bound_columns, result_keys
from dask_elastic.vocab.arrow_arrays import array_of, no_rows
from dask_elastic.vocab.row_counts import RowCounts

_START, _END, _ROWS, _OLDEST, _NEWEST = range(5)
"""Positions of the fields that follow those of the aggregates; the last two only if rows have times."""


class CountLogic:
    """Aggregates of one task over windows of a number of rows; not shared between threads.

    Rows are numbered per key as the task processes them. A result appears with the row that completes its instance, so
    no control record is needed; that of an incomplete instance never does.

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

    Notes
    -----
    The state of a key is a ring of slots, one for each slice of an instance, whose identity is made of the key's and of
    the place in the ring. The slot of place 0 has the number of the key's rows, too. So the state is bounded without
    removing slots; slices that no later instance needs are emptied.

    If a result raises, the batch has no effect, and the row that completes the instance is found to raise.
    """

    def __init__(self, operator: Compute, store: KeyedStore, session: Session, groups: int, emits: bool):
        assert operator.aggregates is not None
        assert operator.windowing is not None
        window = operator.windowing.windows[0]
        assert isinstance(window, CountWindow)
        self.operator = operator
        self.windowing = operator.windowing
        self.window = window
        self.length = SliceLength.of(window)
        self._aggregates = operator.aggregates
        self._store = store
        self._session = session
        self._groups = groups
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
        """Add rows to their slices, and return the results of the instances that they complete.

        Parameters
        ----------
        rows : RecordBatch
            The rows.
        hashes : ndarray of uint64
            The hashes of their keys.
        now : float
            Not used: this state does not expire.
        errors : dict of int to str, optional
            Not used: which row raises is found by a search.
        reached : int or None
            Not used: no row is late.
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
        timed = TimedRows.of(rows, hashes, self.windowing)
        counts = RowCounts(untimed=0 if timed.untimed is None else timed.untimed.num_rows)
        outputs: list[pa.RecordBatch] = []
        if timed.rows.num_rows:
            outputs, pairs, outside = self._updated(bound, timed)
            counts = counts._replace(on_time=pairs, outside=outside)
        if not settled:
            task = self._session.task
            self._store.row_counts[task] = counts.plus(self._store.row_counts.get(task, ()))
        return outputs

    def take_late(self) -> list[pa.RecordBatch]:
        """Return no rows: none is late."""
        return []

    def _updated(self, bound: _Bound, timed: TimedRows) -> tuple[list[pa.RecordBatch], int, int]:
        """Write the slices of rows; return the results, and how many pairs and rows outside there are."""
        columns = [timed.rows.column(position) for position in bound.keys]
        checks = check_keys(columns, self.operator.keys)
        zeros = self._located(timed.rows, timed.hashes, checks, 0)
        (before,) = self._session.gather(zeros, [bound.own + _ROWS])
        assert isinstance(before, np.ndarray)
        slices = RowSlices(self.window, before, zeros.grouping)
        ring = slices.places()
        located, order = zeros, np.arange(len(ring.keys))
        if self.length.kept > 1:
            owners = zeros.first.take(ring.keys)
            keys = pa.RecordBatch.from_arrays(columns, names=list(self.operator.keys)).take(array_of(owners))
            of_keys = None if checks is None else checks.take(owners)
            located = self._located(keys, timed.hashes.take(owners), of_keys, ring.places)
            order = located.grouping.ordinals
        stored = [column.take(order) for column in self._session.gather(located)]
        added = self._added(bound, slices, ring, stored, timed)
        table = [joined_columns(parts) for parts in zip(stored, added, strict=True)]
        results = self._results(bound, slices, ring, table, [column.take(array_of(zeros.first)) for column in columns])
        after, written = self._after(bound, slices, ring, table)
        back = np.empty(len(order), np.intp)
        back[order] = np.arange(len(order))
        self._session.scatter(located, [column.take(back) for column in after], written.take(back))
        return results, *slices.contained()

    def _located(self, rows: pa.RecordBatch, hashes: Words, checks: Words | None, places: Numbers | int) -> Located:
        parts = part_hashes(hashes, places, self._groups), part_checks(checks, places, len(hashes))
        return self._session.locate(rows, self.operator.keys, *parts)

    def _added(
        self, bound: _Bound, slices: RowSlices, ring: Ring, stored: list[Column], timed: TimedRows
    ) -> list[Column]:
        """Return the slices with new rows, and an empty one."""
        continued = slices.continued
        of_stored = slices.place_of(ring, continued, slices.first.take(continued))
        count = slices.grouping.count
        chosen = np.full(count, len(ring.keys), np.intp)
        chosen[slices.of_first(continued)] = of_stored
        empty = [field.initially(1) for field in self._store.fields]
        begun = [joined_columns(parts).take(chosen) for parts in zip(stored, empty, strict=True)]
        after = bound.bundle.update(begun[: bound.own], timed.rows, slices.grouping)
        starts = slices.numbers * self.length.rows
        ends = np.minimum(starts + self.length.rows, slices.after.take(slices.keys))
        own = [starts, ends, np.zeros(count, np.int64)]
        if timed.times:
            own += _widened(begun[bound.own + _OLDEST :], timed.times, slices)
        return [joined_columns(parts) for parts in zip([*after, *own], empty, strict=True)]

    def _results(
        self, bound: _Bound, slices: RowSlices, ring: Ring, table: list[Column], keys: list[pa.Array]
    ) -> list[pa.RecordBatch]:
        if not self._emits or not len(slices.instances):
            return []
        chain, starts = slices.chains(ring, len(ring.keys))
        read = [*range(bound.own), *range(bound.own + _OLDEST, len(table))]
        merged = _Runs(bound, [table[position].take(chain) for position in read]).merged(starts, self.length.kept)
        if self.windowing.time:
            bounds = [timestamps(times, bound.results.field("window_start").type) for times in merged[bound.own :]]
        else:
            begins = slices.instances * self.window.frequency
            bounds = [array_of(begins), array_of(begins + self.window.length)]
        owners = array_of(slices.instance_keys)
        shown = [column.take(owners) for column in keys] if result_keys(self.operator.keys) else []
        values = bound.bundle.results(merged[: bound.own]).values()
        return [pa.RecordBatch.from_arrays([*shown, *bounds, *values], schema=bound.results)]

    def _after(
        self, bound: _Bound, slices: RowSlices, ring: Ring, table: list[Column]
    ) -> tuple[list[Column], np.ndarray[Any, np.dtype[np.bool_]]]:
        """Return the values of all places, and which of them have changed."""
        chosen = np.arange(len(ring.keys))
        firsts = slices.first.take(ring.keys)
        written, obsolete = ring.newest >= firsts, ring.obsolete(slices)
        chosen[written] = len(ring.keys) + (slices.of_first(ring.keys) + ring.newest - firsts)[written]
        chosen[obsolete] = len(table[0]) - 1
        after = [column.take(chosen) for column in table]
        rows = after[bound.own + _ROWS]
        assert isinstance(rows, np.ndarray)
        rows[ring.zeros] = slices.after
        written[ring.zeros] = True
        return after, written | obsolete

    def _bind(self, schema: pa.Schema) -> _Bound:
        operator = self.operator
        select_columns(no_rows(schema), (*operator.keys, *self.windowing.time), operator.name)
        bundle = Bundle(self._aggregates, schema)
        keys = pa.schema([schema.field(key) for key in operator.keys])
        self._store.declare(keys, [*bundle.fields, *count_fields(self.windowing)])
        types = {column: schema.field(column).type for column in self.windowing.time}
        bounds = bound_columns(self.windowing, types, operator.name)
        shown = [keys.field(key) for key in result_keys(operator.keys)]
        results = pa.schema([*shown, *map(pa.field, bounds, bounds.values()), *bundle.schema])
        positions = [schema.get_field_index(key) for key in operator.keys]
        self._bound = _Bound(schema, bundle, positions, results, len(bundle.fields))
        return self._bound


class _Bound(NamedTuple):
    """What depends on the schema of the input; `own` is the position of the first field that is no aggregate's."""

    schema: pa.Schema
    bundle: Bundle
    keys: list[int]
    results: pa.Schema
    own: int


class _Runs(NamedTuple):
    """Slices, from which runs of consecutive ones are merged."""

    bound: _Bound
    slices: list[Column]

    def merged(self, starts: Positions, length: int) -> list[Column]:
        """Return the state of runs of a length.

        Runs that overlap share the halves of which they are merged: a run is merged in about log2(length) steps.
        """
        if length == 1:
            return [column.take(starts) for column in self.slices]
        half = length // 2
        distinct = np.unique(np.concatenate([starts, starts + half]))
        halves = self.merged(distinct, half)
        sides = (np.searchsorted(distinct, at) for at in (starts, starts + half))
        left, right = ([column.take(side) for column in halves] for side in sides)
        both = self._merge(left, right)
        if length % 2:
            both = self._merge(both, [column.take(starts + 2 * half) for column in self.slices])
        return both

    def _merge(self, left: list[Column], right: list[Column]) -> list[Column]:
        own = self.bound.own
        both = self.bound.bundle.merge(left[:own], right[:own])
        if len(left) > own:
            both += [np.minimum(left[own], right[own]), np.maximum(left[own + 1], right[own + 1])]
        return both


def _widened(known: Sequence[Any], times: list[Times], slices: RowSlices) -> list[Times]:
    """Return the bounds of the times of slices with new rows; the end of a point is the next microsecond."""
    order, starts = slices.grouping.order, slices.grouping.starts
    ends = times[-1] if len(times) > 1 else times[0] + 1
    first = np.minimum.reduceat(times[0].take(order), starts)
    last = np.maximum.reduceat(ends.take(order), starts)
    return [np.minimum(known[0], first), np.maximum(known[1], last)]
