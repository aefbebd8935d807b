"""Aggregates over windows: partials per key and cell of event time, and results when instances close."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from dask_elastic.executor.control_records.state_records import INPUT_SCHEMA
from dask_elastic.executor.error_policy import ErrorPolicy, Errors
from dask_elastic.executor.windows.added_rows import AddedRows, Rows
from dask_elastic.executor.windows.bound_windows import BoundWindows, bind_windows
from dask_elastic.executor.windows.cell_writes import write_cells
from dask_elastic.executor.windows.cells import Assigned, EventCells, Numbers
from dask_elastic.executor.windows.closing import (
    Closing,
    closed_instances,
    closing_costs,
    closing_of,
    touched,
)
from dask_elastic.executor.windows.corrected_slices import CorrectedSlices
from dask_elastic.executor.windows.handed_partials import HandedPartials
from dask_elastic.executor.windows.known_cells import CellsOfRows, KnownCells
from dask_elastic.executor.windows.partial_kinds import PartialKinds
from dask_elastic.executor.windows.rehearsed_rows import RehearsedRows
from dask_elastic.executor.windows.session_cells import make_cells
from dask_elastic.executor.windows.slice_places import SlicePlaces
from dask_elastic.executor.windows.timed_rows import TimedRows
from dask_elastic.executor.windows.updated_instances import UpdatedInstances, update_costs
from dask_elastic.state.index import Words
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slot_search import Mask
from dask_elastic.state.slots import Column
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import NO_END
from dask_elastic.state.windows.instance_marks import has_mark
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.schema import check_schema
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.chosen_rows import copied, taken
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.state_record import BEGINNING, TimersDue
from dask_elastic.vocab.window_costs import WindowCosts, WindowTally
from dask_elastic.vocab.window_side import WindowSide


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

    Attributes
    ----------
    clock : callable or None
        Returns the CPU seconds of the thread, by which the store's `window_costs` are measured; None not to measure.
    """

    def __init__(self, operator: Compute, store: KeyedStore, session: Session, groups: int, emits: bool):
        assert operator.aggregates is not None
        assert operator.windowing is not None
        self.operator = operator
        self.windowing = operator.windowing
        self.cells = make_cells(operator.windowing)
        self._late: list[pa.RecordBatch] = []
        self._store = store
        self._session = session
        self._known = KnownCells(store, session, groups, self.cells.places)
        self._places: SlicePlaces | None = None
        self._instances: EventCells | None = None
        self._corrected: CorrectedSlices | None = None
        self._adding = AddedRows(operator, self.cells, self._known, session)
        self._updates: UpdatedInstances | None = None
        self._kinds: PartialKinds | None = None
        self._rehearsed: RehearsedRows | None = None
        self._updating = WindowCosts()
        if isinstance(self.cells, EventCells) and self.cells.merges:
            self._places = SlicePlaces(self.cells, store, session, self._known, groups)
            self._instances = EventCells(operator.windowing, separate=True)
            shared, self._kinds = (store, session, self._places, groups), PartialKinds(store, session)
            if RehearsedRows.measures(operator):
                self._rehearsed = RehearsedRows(operator, self._known, self._began)
            if operator.windowing.allowed_lateness:
                self._corrected = CorrectedSlices(operator, *shared, emits, self._kinds, self._began)
            if operator.windowing.emit == "updates" and emits:
                self._updates = UpdatedInstances(operator, *shared, self._kinds, self._began)
        self._emits = emits
        self._bound: BoundWindows | None = None
        self.clock: Callable[[], float] | None = None
        self._separate = self._places is None
        self._made: Closing | None = None

    def process(
        self,
        rows: Rows,
        hashes: Words,
        now: float = 0.0,
        errors: Errors | None = None,
        reached: int | None = None,
        settled: bool = False,
        separate: bool = False,
        side: WindowSide | None = None,
    ) -> list[pa.RecordBatch]:
        """Update the partials; return results if they appear before instances close, or correct earlier ones.

        Parameters
        ----------
        rows : RecordBatch or ChosenRows
            The rows; of chosen rows, only columns that are read are copied.
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
        separate : bool
            Whether to add rows to a partial for each instance; only if cells are slices of event time.
        side : WindowSide, optional
            The instances for which the rows count, each with a partial of its own; by default all.

        Returns
        -------
        list of RecordBatch
            One batch of results, or none.
        """
        bound = self._bound or self._bind(rows.schema)
        if not rows.schema.equals(bound.schema):
            rows = check_schema(bound.schema, copied(rows), f"the input of {self.operator.name!r}")
        rows, hashes, times, untimed = TimedRows.of(rows, hashes, self.windowing)
        late, outputs = [untimed] if untimed is not None and self.windowing.null_time == "late" else [], []
        counts = RowCounts(untimed=0 if untimed is None else untimed.num_rows)
        if rows.num_rows:
            closed = BEGINNING if reached is None else reached
            if self._rehearsed is not None and self.clock is not None and not separate and side is None:
                self._tally().add(self._rehearsed.of(bound, rows, hashes, times[0], closed) or ())
            began, count, self._updating = self._began(), rows.num_rows, WindowCosts()
            cells = self.cells if side is None and not separate else self._instances or self.cells
            assigned = cells.of(times, closed, side)
            if assigned.late is not None and self.windowing.late == "stream":
                late.append(copied(rows).filter(array_of(assigned.late)))
            corrected = None
            if self._corrected is not None and assigned.counts.corrected:
                corrected = self._corrected.of(bound, rows, hashes, times[0], closed)
                began, since = self._began(), began
                self._note_corrections(assigned, began - since, self._corrected.take_costs())
            outputs = self._updated(bound, rows, hashes, assigned, closed)
            if self._corrected is not None:
                outputs += self._corrected.write(corrected)
            self._separate = separate or side is not None or self._places is None
            if self.clock is not None:
                seconds = self.clock() - began - self._updating.updating
                self._tally().add_batch(count, assigned.pairs(count), max(0.0, seconds))
                if self._updating.updates:
                    self._tally().add(self._updating)
                if corrected is None and assigned.counts.corrected:
                    self._note_corrections(assigned, 0.0, WindowCosts())
                if self._rehearsed is not None and not self._separate:
                    self._rehearsed.took(seconds + self._updating.updating)
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

    def _updated(
        self, bound: BoundWindows, rows: Rows, hashes: Words, assigned: Assigned, reached: int
    ) -> list[pa.RecordBatch]:
        """Add rows to their cells; returns the results that appear at once."""
        if assigned.rows is not None:
            if not len(assigned.rows):
                return []
            rows, hashes = taken(rows, assigned.rows), hashes.take(assigned.rows)
        if self._places is not None and len(assigned.numbers):
            if self._kinds is not None:
                self._kinds.added(assigned.of_instances, assigned.ends)
            if self._corrected is not None and assigned.of_instances:
                self._corrected.added(assigned.ends)
            if not assigned.of_instances:
                writes = self._adding.in_places(bound, rows, hashes, assigned, self._places)
                if self._updates is None:
                    return write_cells(self._session, writes)
                outputs = self._updates.write(bound, writes, reached)
                self._updating = self._updates.take_costs()
                return outputs
            if self._updates is not None:
                write = self._adding.apart(bound, rows, hashes, assigned, self._places)
                outputs = self._updates.write_instances(bound, write)
                self._updating = self._updates.take_costs()
                return outputs
            self._places.added_apart()
        found = self._adding.located(bound, rows, hashes, assigned, assigned.numbers)
        return self._added(bound, rows, assigned, found)

    def _added(self, bound: BoundWindows, rows: Rows, assigned: Assigned, found: CellsOfRows) -> list[pa.RecordBatch]:
        """Add rows to the cells that were found; returns the results that appear at once."""
        located = found.located
        outputs: list[pa.RecordBatch] = []

        def update(current: list[Column]) -> list[Column]:
            after = self._adding.to(bound, rows, assigned, found, current)
            if not self.windowing.revised:
                return after
            closed = assigned.closed.take(assigned.of_groups(located))
            if closed.any():
                # The close of an instance has emitted revision 0, unless this is its first row of the key.
                known, place = current[bound.own + 1] != NO_END, bound.own + 2
                after[place] = np.where(closed, np.where(known, np.maximum(after[place], 0) + 1, 0), after[place])
            if self._emits:
                # A result that raises leaves the state as it was: its rows may be processed again without others.
                chosen = closed if self.windowing.emit == "closed" else np.ones_like(closed)
                outputs.extend(self._shown(bound, rows, located, np.flatnonzero(chosen), after))
            return after

        self._session.apply(located, update)
        return outputs

    def _shown(
        self, bound: BoundWindows, rows: Rows, located: Located, chosen: Numbers, after: list[Column]
    ) -> list[pa.RecordBatch]:
        """Return the results of instances that rows have changed, and note what those of open ones cost."""
        cells, keys = self.cells, self.operator.keys
        if self.windowing.emit != "updates" or self.clock is None or not isinstance(cells, EventCells):
            return bound.results_now(rows, keys, located, chosen, after)
        began = self.clock()
        outputs = bound.results_now(rows, keys, located, chosen, after)
        if outputs:
            starts, ends = (column.take(chosen) for column in after[bound.own : bound.own + 2])
            self._updating = update_costs(cells, starts, ends, self.clock() - began)
        return outputs

    # partials of shards that have moved

    def merge(self, batch: Batch, policy: ErrorPolicy) -> None:
        """Merge the partials that the earlier owner of a shard has handed over.

        Parameters
        ----------
        batch : Batch
            Their encoding, with the input schema in the metadata.
        policy : ErrorPolicy
            Runs the aggregates' functions. A dead letter has the key and the cell.
        """
        described = (batch.rows.schema.metadata or {}).get(INPUT_SCHEMA)
        assert described is not None, "partials come from rows, whose schema is known"
        bound = self._bound or self._bind(pa.ipc.read_schema(pa.py_buffer(described)))
        handed = HandedPartials(bound, copied(batch.rows), self.operator.keys)

        for part in handed.distinct():

            def run(start: int, stop: int, errors: Errors | None, part: Numbers = part) -> list[pa.RecordBatch]:
                chosen = part[start:stop]
                if self._places is None or handed.of_instances(chosen):
                    if self._places is not None:
                        self._places.added_apart()
                    handed.merge_into(self._session, chosen)
                    return []
                assert isinstance(self.cells, EventCells)
                rows, hashes, assigned = handed.in_slices(chosen, self.cells)
                writes = self._adding.in_places(handed.bound, rows, hashes, assigned, self._places)
                return write_cells(self._session, writes)

            policy.run(self.operator.name, run, handed.rows.take(array_of(part)))

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
        began, self._made = self._began(), None
        outputs, share = self._fired(batch, policy)
        if self.clock is not None:
            self._tally().add(closing_costs(self._made, share, self._separate, self.clock() - began))
        return outputs

    def _fired(self, batch: Batch, policy: ErrorPolicy) -> tuple[list[pa.RecordBatch], float]:
        """Close instances; returns the results, and for which share of all shards."""
        record = batch.record
        assert isinstance(record, TimersDue)
        if record.event is None or self._store.key_schema is None:
            return [], 0.0
        described = (batch.rows.schema.metadata or {}).get(INPUT_SCHEMA)
        if described is None:
            # No row had arrived before the record.
            return [], 0.0
        bound = self._bound or self._bind(pa.ipc.read_schema(pa.py_buffer(described)))
        shards = np.zeros(self._store.shards, np.bool_)
        shards[numpy_of(batch.rows.column(0))] = True
        since = BEGINNING if batch.reached is None else batch.reached
        if self._places is not None:
            outputs = None
            if batch.side is None:
                outputs = self._closed_by_places(bound, self._places, shards, since, record.event, policy)
            if outputs is not None:
                return outputs, float(shards.mean())
            self._places.forget()
        return self._closed_by_search(bound, shards, since, record.event, batch.side, policy), float(shards.mean())

    def _closed_by_search(
        self, bound: BoundWindows, shards: Mask, since: int, until: int, side: WindowSide | None, policy: ErrorPolicy
    ) -> list[pa.RecordBatch]:
        in_question = partial(touched, bound, self.cells, until, side)
        while True:
            found = self._session.read(in_question, shards)
            if not len(found.slots):
                return []
            self._made = made = closing_of(bound, found, self.cells, self._known, since, until)
            keys = self._session.keys_of(found.slots.take(made.firsts), found.layout)
            if keys is not None:
                break
        outputs = self._results(bound, made, keys, policy) if self._emits and keys.num_rows else []
        while not self._session.remove(found, made.expired):
            found = self._session.read(in_question, shards)
            made = closing_of(bound, found, self.cells, self._known, since, until)
        if self._places is not None:
            self._places.expired(until, len(np.unique(found.values[bound.own + 2].take(made.firsts))))
        if made.expired.any() and (self._places is None or has_mark(found.values[bound.own]).any()):
            # Corrected instances are few beside slices, which free their slots from time to time.
            if self._corrected is None or self._separate:
                self._session.tidy()
            elif self._places is not None:
                self._places.leaves_slots()
        return outputs

    def _closed_by_places(
        self, bound: BoundWindows, places: SlicePlaces, shards: Mask, since: int, until: int, policy: ErrorPolicy
    ) -> list[pa.RecordBatch] | None:
        """Close instances without a search; returns None, and changes nothing, if that is not possible."""
        closed = places.close(bound, shards, since, until)
        if closed is None:
            return None
        outputs: list[pa.RecordBatch] = []
        made = closed_instances([(one.begin, one.end, len(one.keys), one.values) for one in closed])
        if closed and self._emits:
            keys = places.keys_of(closed)
            if keys is None:
                return None
            outputs = self._results(bound, made, keys, policy) if keys.num_rows else []
        places.remove(bound, shards, until)
        if self._corrected is not None:
            self._corrected.expire(bound, shards, until)
        self._made = made._replace(merged=places.take_merged())
        return outputs

    def _results(
        self, bound: BoundWindows, made: Closing, keys: pa.RecordBatch, policy: ErrorPolicy
    ) -> list[pa.RecordBatch]:
        def run(start: int, stop: int, errors: Errors | None) -> list[pa.RecordBatch]:
            part = keys.slice(start, stop - start)
            values = made.values(start, stop)
            return [bound.batch(part.columns, made.starts[start:stop], made.ends[start:stop], values, 0)]

        return policy.run(self.operator.name, run, bound.instances(keys, made.starts, made.ends))

    def _bind(self, schema: pa.Schema) -> BoundWindows:
        self._bound = bind_windows(self.operator, self.cells.merges, self._store, schema)
        return self._bound

    def _began(self) -> float:
        return 0.0 if self.clock is None else self.clock()

    def _note_corrections(self, assigned: Assigned, seconds: float, merging: WindowCosts) -> None:
        if self.clock is not None:
            correcting = seconds - merging.consolidating
            self._tally().add(merging._replace(corrections=assigned.counts.corrected, correcting=correcting))

    def _tally(self) -> WindowTally:
        tallies, task = self._store.window_costs, self._session.task
        return tallies.get(task) or tallies.setdefault(task, WindowTally())
