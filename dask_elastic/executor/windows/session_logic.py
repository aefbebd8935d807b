"""Aggregates over sessions whose results may be corrected, or appear before a session is closed."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.windows.amended_sessions import Amended, Positions, Shown
from dask_elastic.executor.windows.cells import Assigned
from dask_elastic.executor.windows.event_times import Times, timestamps
from dask_elastic.executor.windows.partials import Chains, Partials
from dask_elastic.executor.windows.session_cells import SessionCells
from dask_elastic.executor.windows.timed_rows import TimedRows
from dask_elastic.routing.hashing import check_keys
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Words
from dask_elastic.state.key_table import distinct_keys
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slot_search import Found, Mask
from dask_elastic.state.slots import Column, SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import NO_END, session_fields
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.ragged import joined_columns
from dask_elastic.topology.operators import Compute, select_columns
from dask_elastic.topology.schema import check_schema
from dask_elastic.topology.window_time import window_time_type
from dask_elastic.topology.windows.results import bound_columns, result_keys
from dask_elastic.vocab.arrow_arrays import array_of, no_rows, numpy_of
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.state_record import BEGINNING, TimersDue

_START, _END, _HASH, _CHECK, _SHOWN, _FRESH = 0, 1, 2, 3, 4, 7
"""Positions of the fields that follow those of the aggregates."""

_BITS = 16
"""Keys are searched for by so many bits of their hashes first."""


class SessionLogic:
    """Aggregates of one task over sessions that have several results; not shared between threads.

    A result whose session has grown, or was joined with others, is withdrawn just before the new result.

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
    Cells are those of `SessionCells`. One cell of each session has the bounds and the revision of the result that was
    emitted last. Rows that correct a closed session, or with updates any rows, need all cells of their sessions: these
    are found by a search of the task's state, one for each batch with such rows.
    """

    def __init__(self, operator: Compute, store: KeyedStore, session: Session, groups: int, emits: bool):
        assert operator.aggregates is not None
        assert operator.windowing is not None
        self.operator = operator
        self.windowing = operator.windowing
        self.cells = SessionCells(operator.windowing)
        self._late: list[pa.RecordBatch] = []
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
        """Add rows to their sessions; return results that appear before sessions close, or correct earlier ones.

        The arguments are those of `WindowLogic.process`.
        """
        bound = self._bound or self._bind(rows.schema)
        if not rows.schema.equals(bound.schema):
            rows = check_schema(bound.schema, rows, f"the input of {self.operator.name!r}")
        rows, hashes, times, untimed = TimedRows.of(rows, hashes, self.windowing)
        late, outputs = [untimed] if untimed is not None and self.windowing.null_time == "late" else [], []
        counts = RowCounts(untimed=0 if untimed is None else untimed.num_rows)
        if rows.num_rows:
            until = BEGINNING if reached is None else reached
            assigned = self.cells.of_points(times[0], until)
            if assigned.late is not None and self.windowing.late == "stream":
                late.append(rows.filter(array_of(assigned.late)))
            outputs = self._updated(bound, rows, hashes, assigned, until)
            counts = assigned.counts._replace(untimed=counts.untimed)
        if not settled:
            task = self._session.task
            self._store.row_counts[task] = counts.plus(self._store.row_counts.get(task, ()))
        self._late += late
        return outputs

    def take_late(self) -> list[pa.RecordBatch]:
        """Return the rows since the last call that came too late, or have no time; see `WindowLogic.take_late`."""
        late, self._late = self._late, []
        return late

    def _updated(
        self, bound: _Bound, rows: pa.RecordBatch, hashes: Words, assigned: Assigned, until: int
    ) -> list[pa.RecordBatch]:
        if assigned.rows is not None:
            rows, hashes = rows.take(array_of(assigned.rows)), hashes.take(assigned.rows)
        if not rows.num_rows:
            return []
        columns = [rows.column(position) for position in bound.keys]
        checks = check_keys(columns, self.operator.keys)
        parts = part_hashes(hashes, assigned.numbers, self._groups), part_checks(checks, assigned.numbers, len(hashes))
        located = self._session.locate(rows, self.operator.keys, *parts)
        first = located.first
        of_keys = hashes.take(first), np.zeros(len(first), np.uint64) if checks is None else checks.take(first)
        touched = self._added(bound, rows, located, assigned.starts, of_keys)
        asked = np.full(len(first), self.windowing.emit == "updates")
        if assigned.counts.corrected:
            order, starts = located.grouping.order, located.grouping.starts
            asked |= np.minimum.reduceat(assigned.starts.take(order), starts) <= until - self.cells.gap
        outputs: list[pa.RecordBatch] = []
        if self._emits and asked.any():
            keys = [column.take(array_of(first)) for column in columns]
            mine = parts[0].take(first), parts[1].take(first)
            outputs = self._amended(bound, touched, asked, mine, keys, until)
        self._session.scatter(located, touched)
        return outputs

    def _added(
        self, bound: _Bound, rows: pa.RecordBatch, located: Located, times: Times, keys: tuple[Words, Words]
    ) -> list[Column]:
        """Return the values of the cells of rows, with the rows; nothing is written."""
        current = self._session.gather(located)
        own = current[bound.own :]
        known = own[_END] != NO_END
        ordered, starts = times.take(located.grouping.order), located.grouping.starts
        first, last = np.minimum.reduceat(ordered, starts), np.maximum.reduceat(ordered, starts)
        own[_START] = np.where(known, np.minimum(own[_START], first), first)
        own[_END] = np.where(known, np.maximum(own[_END], last), last)
        own[_HASH], own[_CHECK] = keys
        own[_FRESH] = np.ones(len(known), np.bool_)
        return bound.bundle.update(current[: bound.own], rows, located.grouping) + own

    def _amended(
        self,
        bound: _Bound,
        touched: list[Column],
        asked: Mask,
        identity: tuple[Words, Words],
        keys: list[pa.Array],
        until: int,
    ) -> list[pa.RecordBatch]:
        """Return the results of sessions with new rows, and note in the state which they are.

        What is noted for cells with new rows is entered in `touched`, which the caller writes.
        """
        count = len(asked)
        wanted = np.zeros(1 << _BITS, np.bool_)
        wanted[_low_bits(touched[bound.own + _HASH][asked])] = True
        while True:
            # Nothing is written before the results are made: one that raises must leave the state as it was.
            found = self._session.read(partial(_of_keys, wanted, bound), np.ones(self._store.shards, np.bool_))
            others = self._others(bound, found, identity)
            cells = [
                joined_columns([mine, column.take(others)]) for mine, column in zip(touched, found.values, strict=True)
            ]
            chosen = np.concatenate([asked, np.zeros(len(others), np.bool_)])
            partials, chains = self._chained(bound, cells)
            amended = Amended.of(chains, *bound.shown_of(cells), until, chosen, self.windowing.emit == "updates")
            # Each session that is due has a cell with new rows, and so a row with its key.
            of_session = _any_below(amended, count)
            named = [column.take(array_of(of_session)) for column in keys]
            values = partials.merged(amended.groups, 0, len(amended.starts))
            results = bound.results_of(named, amended, slice(None), values)
            outputs = [*bound.withdrawals(named, amended), *([results] if results.num_rows else [])]
            after = (*amended.shown, amended.fresh)
            changed = count + np.flatnonzero(amended.changed[count:])
            if self._session.rewrite(found, others[changed - count], bound.noted(after, changed)):
                break
        touched[bound.own + _SHOWN :] = [column[:count] for column in after]
        return outputs

    def _others(self, bound: _Bound, found: Found, identity: tuple[Words, Words]) -> np.ndarray:
        """Return the positions of the cells found that are not those of given identities."""
        starts, _, hashes, checks = found.values[bound.own : bound.own + _SHOWN]
        numbers = starts // self.cells.gap
        parts = part_hashes(hashes, numbers, self._groups), part_checks(checks, numbers, len(hashes))
        mine = len(identity[0])
        both = [np.concatenate(sides) for sides in zip(identity, parts, strict=True)]
        _, ordinals = distinct_keys(both[0], both[1])
        known = np.zeros(len(ordinals), np.bool_)
        known[ordinals[:mine]] = True
        return np.flatnonzero(~known.take(ordinals[mine:]))

    def _chained(self, bound: _Bound, cells: list[Column]) -> tuple[Partials, Chains]:
        firsts, lasts, hashes, checks = cells[bound.own : bound.own + _SHOWN]
        partials = Partials(bound.bundle, cells[: bound.own], firsts, hashes, checks)
        return partials, partials.chained(lasts, self.cells.gap)

    # closing

    def fire(self, batch: Batch, policy: ErrorPolicy) -> list[pa.RecordBatch]:
        """Close the sessions that a state record makes due, for the shards that it is addressed to.

        Parameters
        ----------
        batch : Batch
            The state record.
        policy : ErrorPolicy
            Runs the aggregates' functions. A dead letter has the key and the session.

        Returns
        -------
        list of RecordBatch
            The withdrawals of results that are replaced, then the results.
        """
        record = batch.record
        assert isinstance(record, TimersDue)
        if record.event is None or self._store.key_schema is None:
            return []
        described = (batch.rows.schema.metadata or {}).get(INPUT_SCHEMA)
        if described is None:
            # No row had arrived before the record.
            return []
        bound = self._bound or self._bind(pa.ipc.read_schema(pa.py_buffer(described)))
        shards = np.zeros(self._store.shards, np.bool_)
        shards[numpy_of(batch.rows.column(0))] = True
        matching = partial(_begun, bound, record.event)
        while True:
            found = self._session.read(matching, shards)
            if not len(found.slots):
                return []
            partials, amended, expired = self._closing(bound, found, record.event)
            keys = self._session.keys_of(found.slots.take(amended.groups.firsts), found.layout)
            if keys is not None:
                break
        outputs: list[pa.RecordBatch] = []
        failed: set[tuple[int, ...]] = set()
        if self._emits and keys.num_rows:
            outputs, made = self._closed(bound, partials, amended, keys, policy)
            failed = {one for one, done in zip(bound.identities(found, amended), made, strict=True) if not done}
        while not self._noted(bound, found, bound.without(failed, found, amended), expired):
            found = self._session.read(matching, shards)
            _, amended, expired = self._closing(bound, found, record.event)
        if expired.any():
            self._session.tidy()
        return outputs

    def _closing(self, bound: _Bound, found: Found, until: int) -> tuple[Partials, Amended, Mask]:
        """Return the results that are due when event time has reached a time, and the cells that expire."""
        partials, chains = self._chained(bound, found.values)
        amended = Amended.of(chains, *bound.shown_of(found.values), until, None, False)
        expired = np.zeros(len(found.slots), np.bool_)
        expired[chains.groups.chosen(chains.ends <= until - self.windowing.allowed_lateness).partials] = True
        return partials, amended, expired

    def _noted(self, bound: _Bound, found: Found, amended: Amended, expired: Mask) -> bool:
        """Write which results are emitted, and remove cells; returns False if slots have other numbers by now."""
        changed = np.flatnonzero(amended.changed & ~expired)
        noted = bound.noted((*amended.shown, amended.fresh), changed)
        return self._session.rewrite(found, changed, noted) and self._session.remove(found, expired)

    def _closed(
        self, bound: _Bound, partials: Partials, amended: Amended, keys: pa.RecordBatch, policy: ErrorPolicy
    ) -> tuple[list[pa.RecordBatch], Mask]:
        """Return the withdrawals and the results, and which sessions have one; the others raise."""
        made = np.zeros(keys.num_rows, np.bool_)
        bounds = [timestamps(times, bound.time) for times in (amended.starts, amended.ends)]
        rows = pa.RecordBatch.from_arrays(
            [*keys.columns, *bounds], names=[*self.operator.keys, *self.windowing.output_columns[:2]]
        )

        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            values = partials.merged(amended.groups, start, stop)
            part = keys.slice(start, stop - start)
            results = bound.results_of(part.columns, amended, slice(start, stop), values)
            made[start:stop] = True
            return [results]

        return [*bound.withdrawals(keys.columns, amended), *policy.run(self.operator.name, run, rows)], made

    def _bind(self, schema: pa.Schema) -> _Bound:
        operator = self.operator
        select_columns(no_rows(schema), (*operator.keys, *self.windowing.time), operator.name)
        bundle = Bundle(self._aggregates, schema)
        keys = pa.schema([schema.field(key) for key in operator.keys])
        self._store.declare(keys, [*bundle.fields, *session_fields()])
        (column,) = self.windowing.time
        kind = schema.field(column).type
        bounds = bound_columns(self.windowing, {column: kind}, operator.name)
        shown = [keys.field(key) for key in result_keys(operator.keys)]
        results = pa.schema([*shown, *map(pa.field, bounds, bounds.values()), *bundle.schema])
        positions = [schema.get_field_index(key) for key in operator.keys]
        time = window_time_type(kind, column)
        self._bound = _Bound(schema, bundle, positions, results, time, len(bundle.fields), len(shown))
        return self._bound


class _Bound(NamedTuple):
    """What depends on the schema of the input; `own` is the position of the first field that is no aggregate's."""

    schema: pa.Schema
    bundle: Bundle
    keys: list[int]
    results: pa.Schema
    time: pa.DataType
    own: int
    shown: int

    def results_of(self, keys: list[pa.Array], amended: Amended, which: slice, values: list[Column]) -> pa.RecordBatch:
        """Return results as rows."""
        times = amended.starts[which], amended.ends[which], amended.revisions[which]
        return self._rows(keys, Shown(*times), False, [*self.bundle.results(values).values()])

    def withdrawals(self, keys: list[pa.Array], amended: Amended) -> list[pa.RecordBatch]:
        """Return the rows that withdraw results; their aggregates are null."""
        replaced = amended.replaced
        if not len(replaced.starts):
            return []
        by = array_of(amended.replaced_by)
        nothing = [pa.nulls(len(by), kind) for kind in self.bundle.schema.types]
        return [self._rows([column.take(by) for column in keys], replaced, True, nothing)]

    def _rows(self, keys: list[pa.Array], of: Shown, withdrawn: bool, values: list[pa.Array]) -> pa.RecordBatch:
        count = len(of.starts)
        bounds = [timestamps(of.starts, self.time), timestamps(of.ends, self.time)]
        # A revision below 0, before a session has closed, is null.
        revision = array_of(of.revisions, mask=of.revisions < 0)
        columns = [*keys[: self.shown], *bounds, revision, array_of(np.full(count, withdrawn)), *values]
        return pa.RecordBatch.from_arrays(columns, schema=self.results)

    def shown_of(self, cells: list[Column]) -> tuple[Shown, Mask]:
        """Return what was emitted last, of each cell, and the cells with rows that are in no result yet."""
        starts, ends, revisions, fresh = (np.asarray(column) for column in cells[self.own + _SHOWN :])
        return Shown(starts, ends, revisions), fresh

    def identities(self, found: Found, amended: Amended) -> list[tuple[int, ...]]:
        """Return what identifies each session that is due, also when its cells are in other slots."""
        columns = (found.values[self.own + field] for field in (_HASH, _CHECK, _START))
        return [*zip(*(np.asarray(column).take(amended.groups.firsts).tolist() for column in columns), strict=True)]

    def without(self, failed: Collection[tuple[int, ...]], found: Found, amended: Amended) -> Amended:
        """Return the same without the results of sessions that raise."""
        if not failed:
            return amended
        return amended.failing(np.array([one in failed for one in self.identities(found, amended)], np.bool_))

    def noted(self, columns: tuple[Column, ...], changed: Positions) -> list[Column | None]:
        """Return the values of cells for which other results are emitted last."""
        return [*[None] * (self.own + _SHOWN), *(column.take(changed) for column in columns)]


def _any_below(amended: Amended, count: int) -> np.ndarray:
    """Return for each session one of its cells that have a position below a count; each has one."""
    cells, lengths = amended.groups
    sessions = np.repeat(np.arange(len(lengths)), lengths)
    found = np.zeros(len(lengths), np.intp)
    mine = cells < count
    found[sessions[mine]] = cells[mine]
    return found


def _low_bits(hashes: Words) -> np.ndarray:
    return (hashes & np.uint64((1 << _BITS) - 1)).astype(np.intp)


def _of_keys(wanted: Mask, bound: _Bound, arrays: SlotArrays, window: slice) -> Mask:
    """Return the cells whose keys may be wanted; results of others are the same as before."""
    found: Mask = wanted.take(_low_bits(arrays.values[bound.own + _HASH][window]))
    return found


def _begun(bound: _Bound, until: int, arrays: SlotArrays, window: slice) -> Mask:
    begun: Mask = arrays.values[bound.own + _START][window] < until
    return begun
