"""A task's search of its slots by what they contain: reading and removing whole parts of the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.index import Slots
from dask_elastic.state.shared_store import SharedStore
from dask_elastic.state.slots import DIRTY, EMPTY, LIVE, TOMBSTONE, Column, SlotArrays
from dask_elastic.vocab.lock import Lock

Mask = npt.NDArray[np.bool_]

Matching = Callable[[SlotArrays, slice], Mask]
"""Says which slots of a range are wanted, whether they have state or not."""


class Found(NamedTuple):
    """Slots and copies of their values; the slots are valid for one layout of the store."""

    slots: Slots
    layout: int
    values: list[Column]


class SlotSearch(ABC):
    """Reads and removes those of a task's slots that match; see `Session`, which has these methods."""

    task: int
    gate: Lock
    _store: SharedStore

    @abstractmethod
    def _require_open(self) -> None:
        """Raise `StateError` if the session is closed."""

    def read(self, matching: Matching, shards: Mask) -> Found:
        """Return the slots that match, among those with state in shards that this task owns, with all values.

        Parameters
        ----------
        matching : callable
            Gets the store's arrays and a range of slots, and returns one bool for each.
        shards : ndarray of bool
            The shards to search.

        Returns
        -------
        Found
            The slots and their values.
        """
        with self.gate:
            self._require_open()
            arrays = self._store.slots
            slots = self._matching(matching, shards)
            return Found(slots, self._store.layout, [column.take(slots) for column in arrays.values])

    def values_at(self, slots: Slots, layout: int, shards: Mask, fields: slice) -> tuple[list[Column], Mask] | None:
        """Return values of slots, and which of them have state in shards that this task owns.

        Parameters
        ----------
        slots : ndarray of intp
            The slots.
        layout : int
            The layout for which they are valid.
        shards : ndarray of bool
            The shards that count.
        fields : slice
            The fields to read.

        Returns
        -------
        tuple or None
            Copies of the values, and one bool for each slot; None if the slots have other numbers by now.
        """
        with self.gate:
            self._require_open()
            if layout != self._store.layout:
                return None
            arrays = self._store.slots
            live = (arrays.marks.take(slots) & LIVE) != 0
            wanted = shards & (self._store.owner == self.task)
            if not wanted.all():
                live &= wanted.take(arrays.shards.take(slots))
            return [column.take(slots) for column in arrays.values[fields]], live

    def keys_of(self, slots: Slots, layout: int) -> pa.RecordBatch | None:
        """Return the key columns of slots; None if the slots have other numbers by now.

        Parameters
        ----------
        slots : ndarray of intp
            Slots that `read` returned.
        layout : int
            The layout that it returned.

        Returns
        -------
        RecordBatch or None
            The key columns.
        """
        return self._store.keys_at(slots, layout)

    def remove(self, found: Found, chosen: Mask) -> bool:
        """Remove the state of slots.

        Parameters
        ----------
        found : Found
            What `read` returned.
        chosen : ndarray of bool
            Which of its slots to remove.

        Returns
        -------
        bool
            False, and nothing is removed, if the slots have other numbers by now.
        """
        slots = found.slots[chosen]
        with self.gate:
            self._require_open()
            if found.layout != self._store.layout:
                return False
            if len(slots):
                self._store.slots.reset(slots, TOMBSTONE if self._store.track_dirty else EMPTY)
        return True

    def rewrite(self, found: Found, chosen: Slots, values: Sequence[Column | None]) -> bool:
        """Write values of slots.

        Parameters
        ----------
        found : Found
            What `read` returned.
        chosen : ndarray of intp
            The positions in it of the slots to write.
        values : sequence of (ndarray, Ragged or None)
            One column per field, with a value for each of these slots; a field given as None stays unchanged.

        Returns
        -------
        bool
            False, and nothing is written, if the slots have other numbers by now.
        """
        with self.gate:
            self._require_open()
            if found.layout != self._store.layout:
                return False
            if len(chosen):
                mark = DIRTY if self._store.track_dirty else LIVE
                self._store.slots.write(found.slots.take(chosen), values, mark)
        return True

    def _matching(self, matching: Matching, shards: Mask) -> Slots:
        arrays = self._store.slots
        wanted = shards & (self._store.owner == self.task)
        found: list[Slots] = [np.empty(0, np.intp)]
        for window in arrays.windows():
            chosen: Slots = np.flatnonzero(matching(arrays, window) & ((arrays.marks[window] & LIVE) != 0))
            if len(chosen):
                chosen += window.start
                found.append(chosen[wanted.take(arrays.shards.take(chosen))])
        return found[1] if len(found) == 2 else np.concatenate(found)
