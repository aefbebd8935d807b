"""The slots of slices: each key uses a few places in turn, whose slots stay; and what closes from them at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.executor.windows.bound_windows import BoundWindows
from dask_elastic.executor.windows.cells import EventCells, Numbers
from dask_elastic.executor.windows.complete_instances import CompleteInstances
from dask_elastic.executor.windows.known_cells import CellsOfRows, KnownCells
from dask_elastic.executor.windows.running_merges import Merged, RunningMerges, merge
from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Slots
from dask_elastic.state.session import Session
from dask_elastic.state.slot_search import Found, Mask
from dask_elastic.state.slots import Column, SlotArrays
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.window_fields import NO_END
from dask_elastic.state.windows.instance_marks import has_mark
from dask_elastic.vocab.gather import take_rows

FIRST_PLACE = -(2**63)
"""The number of the first place, as the number of a part of a key; slices have higher ones."""

MORE_PLACES = 32
"""Places of slices whose first place is occupied."""

MOST_MERGED = 1 << 21
"""With more partials in all places, slots are searched, and all slices of an instance are merged when it closes."""

SKIPPED_CLOSES = 8
"""After closing by places was not possible or not worth it, it is tried again after so many closes."""

_DENSE = 8
"""Slices are counted, not sorted, if they are among up to so many for each group of rows."""

_SPARSE = 4
"""Closing by places is not worth it if fewer than one key in so many is in an instance."""


class ClosedInstance(NamedTuple):
    """The result of an instance: the keys that are in it, by their numbers, and the state of all keys by number."""

    begin: int
    end: int
    keys: Slots
    merged: Merged

    def values(self, start: int, stop: int) -> list[Column]:
        """Return the state of a range of the keys that are in it."""
        if stop - start == len(self.merged.present):
            return self.merged.values
        chosen = self.keys[start:stop]
        return [column.take(chosen) for column in self.merged.values]


class SlicePlaces:
    """Where the slices of one task are, and their instances; not shared between threads.

    A key has a few more places than an instance has slices, and slice n is in the place with the number n modulo these.
    So the slots of a key stay when slices expire, the index of the store does not grow, and a delta has no tombstones
    of slices whose places are used again. If another slice is still in the place, because rows are far ahead of the
    watermark, the slice is in one of `MORE_PLACES`; if that is occupied as well, it has an identity of its own. So a
    slice may have several partials of a key, which are merged as any two.

    If the tables of the task have all of its slots, and a record is for all its shards, instances are closed without a
    search: slices are read by the tables, and merged with `RunningMerges` or `CompleteInstances`, whatever is cheaper.

    Parameters
    ----------
    cells : EventCells
        The slices.
    store : KeyedStore
        The store.
    session : Session
        The task's session with it.
    known : KnownCells
        The tables.
    groups : int
        The number of groups of the component's key space.
    """

    def __init__(self, cells: EventCells, store: KeyedStore, session: Session, known: KnownCells, groups: int) -> None:
        self._cells = cells
        self._store = store
        self._session = session
        self._known = known
        self._groups = groups
        # For which the tables have all slots of the task: layout, owners, and the generation of the tables.
        self._version: tuple[object, ...] = ()
        self._skip = 0
        # The slices that may have partials, with a bit for each kind of place where these may be.
        self._levels: dict[int, int] = {}
        # A slot of each key by number, and all keys if they all have one.
        self._slot_of: Slots = np.empty(0, np.intp)
        self._keys: pa.RecordBatch | None = None
        self._running: dict[int, RunningMerges] = {}
        self._complete = CompleteInstances(cells.windows, cells.slice, cells.offset)
        self._merged = 0
        # Since the slots of keys without rows were last looked for.
        self._expired = 0
        self._most_keys = 0
        # Whether slices had identities of their own since, whose slots are not used again.
        self._has_apart = False

    # rows

    def of(self, numbers: Numbers) -> Numbers:
        """Return the places of slices: where they have been before, if they have."""
        levels = [self._levels.get(number, 1).bit_length() - 1 for number in numbers.tolist()]
        return np.where(np.array(levels) == 0, self._at_level(numbers, 0), self._at_level(numbers, 1))

    def _at_level(self, numbers: Numbers, level: int) -> Numbers:
        places = self._cells.places
        if level:
            return numbers % MORE_PLACES + (FIRST_PLACE + places)
        return numbers % places + FIRST_PLACE

    def move(self, numbers: Numbers) -> bool:
        """Choose other places for slices whose places are occupied; returns False if there are none."""
        if any(self._levels.get(number, 0) & 2 for number in numbers.tolist()):
            return False
        for number in numbers.tolist():
            self._levels[number] = self._levels.get(number, 0) | 2
        return True

    def identities(self, numbers: Numbers) -> list[Numbers]:
        """Return the numbers by which slices may be identified: of their first place, of the other one, their own."""
        return [self._at_level(numbers, 0), self._at_level(numbers, 1), numbers]

    def starts(self, numbers: Numbers) -> Numbers:
        """Return the begins of slices."""
        return self._cells.offset + numbers * self._cells.slice

    def occupied(self, bound: BoundWindows, found: CellsOfRows, starts: Numbers) -> Mask:
        """Return which groups are in places where other slices of the key still are."""
        before, ends = self._session.gather(found.located, [bound.own, bound.own + 1])
        occupied: Mask = (before != starts) & (ends != NO_END)
        return occupied

    def changed(self, numbers: Numbers) -> None:
        """Note that rows have been added to slices."""
        earliest = int(numbers.min())
        for length in [length for length, running in self._running.items() if earliest < running.end]:
            del self._running[length]
        self._complete.changed(earliest)
        if int(numbers.max()) - earliest <= _DENSE * len(numbers):
            distinct = np.flatnonzero(np.bincount(numbers - earliest)) + earliest
        else:
            distinct = np.unique(numbers)
        for number in distinct.tolist():
            self._levels.setdefault(number, 1)

    def added_apart(self) -> None:
        """Note that slices have identities of their own."""
        self.leaves_slots()
        self.forget()

    def leaves_slots(self) -> None:
        """Note that there are, or were, slots that are not used again."""
        self._has_apart = True

    def forget(self) -> None:
        """Note that slots may not be in the tables, or that slices have been changed other than by rows."""
        self._version = ()
        self._running.clear()
        self._complete.forget()

    # closing

    def close(self, bound: BoundWindows, shards: Mask, since: int, until: int) -> list[ClosedInstance] | None:
        """Return the results of the instances that end later than `since` and not later than `until`.

        Returns None, and changes no state, if they cannot be closed so: slots must be searched.
        """
        try:
            return self._closed(bound, shards, since, until) if self._may_close(bound, shards, since) else None
        except Exception:  # user code that merges, or slots that moved; closed again by a search, where errors count
            self.forget()
            self._skip = SKIPPED_CLOSES
            return None

    def _may_close(self, bound: BoundWindows, shards: Mask, since: int) -> bool:
        if self._skip:
            self._skip -= 1
            return False
        owned = self._store.owner == self._session.task
        if self._store.storage.on_disk or (owned & ~shards).any():
            return False
        if self._has_many() or (self._version != self._current() and not self._searched(bound, owned, since)):
            self._skip = SKIPPED_CLOSES
            return False
        return True

    def _has_many(self) -> bool:
        return self._known.count * self._cells.places > MOST_MERGED

    def _current(self) -> tuple[object, ...]:
        return self._store.layout, self._store.owner_version, self._known.generation

    def _searched(self, bound: BoundWindows, shards: Mask, closed: int) -> bool:
        """Enter all slots of some shards in the tables; returns whether all are in their places.

        Not those of instances that are closed up to an event time.
        """
        owners = self._store.owner_version

        def with_rows(arrays: SlotArrays, window: slice) -> Mask:
            starts, ends = (np.asarray(arrays.values[bound.own + side][window], np.int64) for side in (0, 1))
            found: Mask = ends != NO_END
            # Those that are kept for corrections: no result is merged from them.
            return found & ~(has_mark(starts) & (ends <= closed)) if self._cells.lateness else found

        self.forget()
        found = self._session.read(with_rows, shards)
        starts, _, hashes, checks = found.values[bound.own : bound.own + 4]
        if has_mark(starts).any():
            return False
        numbers = (starts - self._cells.offset) // self._cells.slice
        places, levels = np.empty_like(numbers), np.zeros(len(numbers), np.intp)
        for level in (0, 1):
            missing = np.flatnonzero(levels == 0)
            tried = self._at_level(numbers.take(missing), level)
            checked = part_checks(checks.take(missing), tried, len(missing))
            layout, slots = self._store.find(part_hashes(hashes.take(missing), tried, self._groups), checked)
            if layout != found.layout:
                return False
            right = slots == found.slots.take(missing)
            places[missing[right]] = tried[right]
            levels[missing[right]] = level + 1
        if not levels.all():
            self._has_apart = True
            return False
        ordinals = self._known.enter(found.slots, layout, places, hashes, checks)
        if self._has_many():
            # The tables may not have room for all.
            return False
        self._slot_of = np.full(self._known.count, -1, np.intp)
        self._slot_of[ordinals] = found.slots
        self._keys = None
        self._levels = {}
        for level in (1, 2):
            for number in np.unique(numbers[levels == level]).tolist():
                self._levels[number] = self._levels.get(number, 0) | level
        self._version = layout, owners, self._known.generation
        return True

    def _closed(self, bound: BoundWindows, shards: Mask, since: int, until: int) -> list[ClosedInstance]:
        closed: list[ClosedInstance] = []
        if not self._levels:
            return closed
        starts = self.starts(np.array(sorted(self._levels), np.int64))
        read = partial(self._slice, bound, shards)
        # Of those that end together, shorter ones come first, which longer ones may be merged from.
        due = self._cells.closing(starts, since, until)
        for begin, end in sorted(due, key=lambda instance: (instance[1], -instance[0])):
            first = (begin - self._cells.offset) // self._cells.slice
            last = first + (end - begin) // self._cells.slice
            merged = self._instance(bound, first, last, read)
            keys = np.flatnonzero(merged.present)
            self._complete.keep(first, last, merged, len(keys))
            closed.append(ClosedInstance(begin, end, keys, merged))
            self._most_keys = max(self._most_keys, len(keys))
            if len(keys) * _SPARSE < self._known.count:
                self._skip = SKIPPED_CLOSES
        return sorted(closed, key=lambda one: (one.end, one.begin))

    def _instance(self, bound: BoundWindows, first: int, last: int, read: Callable[[int], Merged]) -> Merged:
        """Return the state of an instance, merged at the least cost."""
        if not self._complete.merges_running(first, last):
            return self._complete.form(bound.bundle, first, last, read)
        running = self._running.setdefault(last - first, RunningMerges(bound.bundle, read))
        before = running.merged
        merged = running.of(first, last)
        self._merged += running.merged - before
        return merged

    def take_merged(self) -> int:
        """Return the keys that have been merged since the last call."""
        merged = self._merged + self._complete.merged
        self._merged = self._complete.merged = 0
        return merged

    def _slice(self, bound: BoundWindows, shards: Mask, number: int) -> Merged:
        """Return the partials of a slice by key."""
        parts = [self._part(bound, shards, number, place) for place in self._places_of(number)]
        return parts[0] if len(parts) == 1 else merge(bound.bundle, *parts)

    def _places_of(self, number: int) -> list[int]:
        bits = self._levels.get(number, 1)
        numbers = np.array([number])
        return [int(self._at_level(numbers, level)[0]) for level in (0, 1) if bits & (level + 1)]

    def _part(self, bound: BoundWindows, shards: Mask, number: int, place: int) -> Merged:
        layout = self._store.layout
        slots = self._known.slots(place)
        found = self._session.values_at(np.maximum(slots, 0), layout, shards, slice(bound.own + 1))
        if found is None or self._known.generation is not self._version[2]:
            raise _MovedError
        values, live = found
        present = live & (slots >= 0) & (values.pop() == self._cells.offset + number * self._cells.slice)
        self._note_slots(slots, present)
        return Merged(values, present)

    def _note_slots(self, slots: Slots, present: Mask) -> None:
        if len(self._slot_of) < len(slots):
            more = np.full(len(slots) - len(self._slot_of), -1, np.intp)
            self._slot_of, self._keys = np.append(self._slot_of, more), None
        if self._keys is None:
            self._slot_of[present] = slots[present]

    def keys_of(self, closed: list[ClosedInstance]) -> pa.RecordBatch | None:
        """Return the key columns of results; None if slots moved since."""
        layout = self._store.layout
        if self._version != self._current():
            return None
        if self._keys is None and (self._slot_of >= 0).all():
            self._keys = self._session.keys_of(self._slot_of, layout)
        every = self._keys
        if every is not None and len(closed) == 1 and len(closed[0].keys) == every.num_rows:
            return every
        chosen = np.concatenate([one.keys for one in closed])
        if every is not None:
            return take_rows(every, chosen)
        return self._session.keys_of(self._slot_of.take(chosen), layout)

    # expiry

    def remove(self, bound: BoundWindows, shards: Mask, until: int) -> None:
        """Remove the slices that no instance needs that ends later; after `close`."""
        for number in self._no_longer_needed(until):
            while not all(self._removed(bound, shards, number, place) for place in self._places_of(number)):
                self._searched(bound, shards & (self._store.owner == self._session.task), until)
        self.expired(until)

    def _no_longer_needed(self, until: int) -> list[int]:
        numbers = np.array(sorted(self._levels), np.int64)
        if not len(numbers):
            return []
        starts = self.starts(numbers)
        expired: list[int] = numbers[self._cells.expired(starts, starts + self._cells.slice, until)].tolist()
        return expired

    def _removed(self, bound: BoundWindows, shards: Mask, number: int, place: int) -> bool:
        layout = self._store.layout
        slots = self._known.slots(place)
        slots = slots[slots >= 0]
        found = self._session.values_at(slots, layout, shards, slice(bound.own, bound.own + 1))
        if found is None or not self._version or self._known.generation is not self._version[2]:
            return False
        (starts,), live = found
        start = self._cells.offset + number * self._cells.slice
        return self._session.remove(Found(slots, layout, []), live & (starts == start))

    def expired(self, until: int, keys: int = 0) -> None:
        """Note that slices have been removed, and the keys in a result; sometimes free the slots of keys without rows.

        The slots of other keys stay, though most may be empty just after a close.
        """
        self._complete.closed((until - self._cells.offset) // self._cells.slice)
        expired = self._no_longer_needed(until)
        for number in expired:
            del self._levels[number]
        self._expired += len(expired)
        self._most_keys = max(self._most_keys, keys)
        if self._expired < self._cells.places:
            return
        has_old_keys = self._known.count > 2 * self._most_keys
        if has_old_keys or self._has_apart:
            self._session.tidy()
        if has_old_keys:
            self._known.forget()
            self.forget()
        self._expired = self._most_keys = 0
        self._has_apart = False


class _MovedError(Exception):
    """Slots have other numbers by now."""
