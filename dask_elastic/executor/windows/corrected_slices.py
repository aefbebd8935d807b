"""Corrections of closed instances in jobs whose windows share slices: a late row makes a partial of its instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cells import EventCells
from dask_elastic.executor.windows.event_times import Times
from dask_elastic.executor.windows.known_cells import CellsOfRows, keys_at
from dask_elastic.executor.windows.partial_kinds import PartialKinds
from dask_elastic.executor.windows.partials import placed
from dask_elastic.executor.windows.running_merges import Merged, by_key, merge
from dask_elastic.executor.windows.slice_places import SlicePlaces
from dask_elastic.executor.windows.slices_of_keys import MOST_LOOKUPS, SlicesOfKeys
from dask_elastic.routing.hashing import checks_of
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.session import Located, Session
from dask_elastic.state.slot_search import Mask
from dask_elastic.state.slots import Column, SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import NO_END, NOT_CLOSED
from dask_elastic.state.windows.instance_marks import has_mark, marked
from dask_elastic.topology.aggregates.ragged import joined_columns, spans
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.chosen_rows import ChosenRows, copied, taken
from dask_elastic.vocab.window_costs import WindowCosts, update_lookups


class Corrections(NamedTuple):
    """Instances with late rows: where they are stored, their values, which are not written yet, and the results."""

    located: Located
    values: list[Column]
    outputs: list[pa.RecordBatch]


class CorrectedSlices(SlicesOfKeys):
    """The instances of one task that late rows have corrected, beside the slices; not shared between threads.

    The first late row of a key makes a partial of the closed instance, merged from its slices. From then on, the result
    is that of this partial, which late rows are added to, and counts its revisions. A late row that is on time for
    other instances is added to its slice as well, which only those are merged from.

    If rows were added to instances when this one was open, it has a partial of these rows already. It takes its place,
    merged from it as well; a revision tells both apart.

    Parameters
    ----------
    operator : Compute
        A compute with windows that may share slices, and allowed lateness.
    store : KeyedStore
        The store.
    session : Session
        The task's session with it.
    places : SlicePlaces
        Where its slices are.
    groups : int
        The number of groups of the component's key space.
    emits : bool
        Whether the output is read.
    kinds : PartialKinds
        Up to which event time the task may have slices.
    clock : callable
        Returns the CPU seconds of the thread.

    Notes
    -----
    Slices hold the rows that were on time for one of their instances when they came, and instances beside them those
    that were on time for them. All rows that are late for an instance of their key go to its corrected partial, the
    first of which makes it: until then its slices have just the rows that were on time for it.
    """

    def __init__(
        self,
        operator: Compute,
        store: KeyedStore,
        session: Session,
        places: SlicePlaces,
        groups: int,
        emits: bool,
        kinds: PartialKinds,
        clock: Callable[[], float],
    ) -> None:
        assert operator.windowing is not None
        super().__init__(operator.windowing, operator.keys, store, session, places, groups)
        self._cells = EventCells(operator.windowing, separate=True)
        self._emits = emits
        self._kinds = kinds
        self._clock = clock
        self._costs = WindowCosts()
        # The earliest end of the partials of instances, as of some owners of the shards.
        self._earliest: int | None = None
        self._owners: object = None

    def take_costs(self) -> WindowCosts:
        """Return what merging slices into corrected instances has cost since the last call."""
        costs, self._costs = self._costs, WindowCosts()
        return costs

    def added(self, ends: Times) -> None:
        """Note that rows were added to instances beside slices, which stay until their lateness has passed."""
        earliest = int(ends.min())
        self._earliest = earliest if self._earliest is None else min(self._earliest, earliest)

    def of(
        self, bound: BoundWindows, rows: pa.RecordBatch | ChosenRows, hashes: Words, times: Times, reached: int
    ) -> Corrections | None:
        """Return the instances that rows correct, with these rows; nothing is written.

        Parameters
        ----------
        bound : BoundWindows
            What depends on the schema.
        rows : RecordBatch or ChosenRows
            The rows.
        hashes : ndarray of uint64
            The hashes of their keys.
        times : ndarray of int64
            Their times.
        reached : int
            The event time up to which instances were closed when they arrived.

        Returns
        -------
        Corrections or None
            None if no row is late within the allowed lateness.
        """
        assigned = self._cells.of_closed(times, reached)
        if assigned.rows is not None:
            rows, hashes = taken(rows, assigned.rows), hashes.take(assigned.rows)
        if not len(hashes) or not len(assigned.numbers):
            return None
        checks = checks_of(rows, bound.keys, self._keys)
        # Late rows are few, and the tables of `KnownCells` are for slices.
        salts = int(assigned.numbers[0]) if assigned.cells is None else assigned.numbers.take(assigned.cells)
        parts = part_hashes(hashes, salts, self._groups), part_checks(checks, salts, len(hashes))
        located = self._session.locate(copied(rows), self._keys, *parts)
        found = CellsOfRows(located, hashes, checks, None, assigned.numbers, assigned.cells)
        cells = assigned.of_groups(located)
        starts, ends = assigned.starts.take(cells), assigned.ends.take(cells)
        before, revisions = self._before(bound, found, starts, ends)
        after = bound.bundle.update(before, rows, located.grouping)
        outputs: list[pa.RecordBatch] = []
        if self._emits:
            keys = keys_at(rows, self._keys, located.first)
            outputs = [bound.batch(keys.columns, starts, ends, after, revisions)]
        self.added(ends)
        return Corrections(located, [*after, marked(starts), ends, *found.identities(), revisions], outputs)

    def _before(
        self, bound: BoundWindows, found: CellsOfRows, starts: Times, ends: Times
    ) -> tuple[list[Column], npt.NDArray[np.int64]]:
        """Return the values of instances without the new rows, and the revisions of their next results."""
        current = self._session.gather(found.located)
        own = bound.own
        before, revisions = current[:own], current[own + 4] + 1
        fresh = np.flatnonzero(current[own + 4] == NOT_CLOSED)
        if len(fresh):
            began = self._clock()
            hashes, checks = (words.take(fresh) for words in found.identities())
            bounds = starts.take(fresh), ends.take(fresh)
            lookups = self._lookups(*bounds)
            self._costs = WindowCosts(lookups=lookups)
            # A partial of an instance that is not corrected yet has the rows that were added to instances.
            made = Merged([column.take(fresh) for column in before], current[own + 1].take(fresh) != NO_END)
            if self._kinds.last_end(bound, of_instances=False) > int(bounds[0].min()):
                merged, having = self._of_slices(bound, hashes, checks, *bounds)
                of_slices = by_key(bound.bundle, merged, np.arange(len(having)), having, len(fresh))
                made = merge(bound.bundle, of_slices, made)
                self._costs = WindowCosts(lookups=lookups, looked=lookups, consolidating=self._clock() - began)
            having = np.flatnonzero(made.present)
            before = [
                placed(old, new.take(having), fresh.take(having)) for old, new in zip(before, made.values, strict=True)
            ]
            # The close of an instance has emitted revision 0, unless this is its first row of the key.
            revisions[fresh] = made.present
        return before, revisions

    def _lookups(self, starts: Times, ends: Times) -> float:
        """Return the work of merging instances of keys from slices, whether there are any or not."""
        lengths = (ends - starts) // self._slices.slice
        return update_lookups(keys=lengths.sum() / lengths.max(), slices=lengths.max(), instances=0)

    def _of_slices(
        self, bound: BoundWindows, hashes: Words, checks: Words, starts: Times, ends: Times
    ) -> tuple[list[Column], Slots]:
        """Return the values of instances of keys, merged from slices; and the instances that have any, by number."""
        size = self._slices.slice
        first, lengths = (starts - self._slices.offset) // size, (ends - starts) // size
        parts: list[tuple[list[Column], Slots]] = []
        step = max(1, MOST_LOOKUPS // int(lengths.max()))
        for begin in range(0, len(hashes), step):
            owners = np.repeat(np.arange(begin, min(begin + step, len(hashes))), lengths[begin : begin + step])
            numbers = spans(first[begin : begin + step], lengths[begin : begin + step])
            parts.append(self._merged(bound, hashes.take(owners), checks.take(owners), numbers, owners))
        columns = [joined_columns(some) for some in zip(*(values for values, _ in parts), strict=True)]
        return columns, np.concatenate([having for _, having in parts])

    def write(self, made: Corrections | None) -> list[pa.RecordBatch]:
        """Write corrected instances; returns their results."""
        if made is None:
            return []
        self._session.scatter(made.located, made.values)
        return made.outputs

    def expire(self, bound: BoundWindows, shards: Mask, until: int) -> None:
        """Remove the partials of instances that no row can correct any more, if there may be any.

        Parameters
        ----------
        bound : BoundWindows
            What depends on the schema.
        shards : ndarray of bool
            The shards to search.
        until : int
            The event time up to which instances are closed.
        """
        until -= self._slices.lateness
        owners = self._store.owner_version
        if owners == self._owners and (self._earliest is None or self._earliest > until):
            return

        def of_instances(arrays: SlotArrays, window: slice) -> Mask:
            return has_mark(np.asarray(arrays.values[bound.own][window]))

        found = self._session.read(of_instances, shards)
        while not self._session.remove(found, found.values[bound.own + 1] <= until):
            found = self._session.read(of_instances, shards)
        left = found.values[bound.own + 1]
        left = left[left > until]
        self._earliest = int(left.min()) if len(left) else None
        self._owners = owners
        if len(left) < len(found.slots):
            self._places.leaves_slots()
