"""The slots of the cells that a task has used recently, found by small tables instead of the store's index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.key_table import KeyTable, distinct_keys
from dask_elastic.state.session import Located, Session
from dask_elastic.state.store import KeyedStore

MOST_KEYS = 1 << 20
"""With more keys, the tables begin again."""

MOST_TABLES = 64
"""Tables are of the cells used last."""

MOST_CELLS = 16
"""Batches with more cells are looked up in the store's index."""


class KnownCells:
    """Locates rows in their cells; belongs to the thread of one task.

    A cell is looked up in two steps: the key in a small index, which gives it an ordinal, and the slot in a table of
    the cell by ordinal. The index of the store has an entry for each cell of each key, most of which are not in the
    cache of the processor.

    Parameters
    ----------
    store : KeyedStore
        The store.
    session : Session
        The task's session with it.
    groups : int
        The number of groups of the component's key space.
    """

    def __init__(self, store: KeyedStore, session: Session, groups: int) -> None:
        self._store = store
        self._session = session
        self._groups = groups
        self._layout = -1
        self._tables: dict[int, Slots] = {}
        self._forget_keys()

    def _forget_keys(self) -> None:
        self._keys = KeyTable(self._store.make_index)
        # As of `key_table.Identity`, by ordinal.
        self.hashes: Words = np.zeros(1024, np.uint64)
        self.checks: Words = np.zeros(1024, np.uint64)
        self._has_checks = False
        self._tables.clear()

    def locate(
        self,
        rows: pa.RecordBatch,
        key_columns: Sequence[str],
        hashes: Words,
        checks: Words | None,
        numbers: npt.NDArray[np.int64],
        cells: npt.NDArray[np.int64] | None,
    ) -> Located:
        """Find the slots of rows; see `Session.locate`.

        Parameters
        ----------
        rows : RecordBatch
            The rows.
        key_columns : sequence of str
            Their key columns.
        hashes, checks : ndarray of uint64
            The identities of their keys; no checks if all are zero.
        numbers : ndarray of int64
            The numbers of the cells.
        cells : ndarray of int64 or None
            The cell of each row, by its position in `numbers`; None if there is only one.

        Returns
        -------
        Located
            The rows by key and cell.
        """
        salts = int(numbers[0]) if cells is None else numbers.take(cells)
        parts = part_hashes(hashes, salts, self._groups), part_checks(checks, salts, len(hashes))
        if len(numbers) > MOST_CELLS or self._store.storage.on_disk:
            return self._session.locate(rows, key_columns, *parts)
        if cells is not None:
            numbers, inverse = np.unique(numbers, return_inverse=True)
            cells = inverse.reshape(-1).take(cells)
        ordinals = self.ordinals(hashes, checks)
        width = len(self.hashes)
        places = ordinals if cells is None else cells * width + ordinals
        while True:
            layout = self._store.layout
            if self._layout != layout:
                self._tables.clear()
                self._layout = layout
            slots = self._joined(numbers, width).take(places)
            missing = np.flatnonzero(slots < 0)
            if len(missing) and not self._admit(rows, key_columns, parts, numbers, places, missing, slots):
                continue
            located = self._session.locate_at(slots, layout, rows, key_columns, *parts)
            if located is not None:
                return located

    def ordinals(self, hashes: Words, checks: Words | None) -> Slots:
        """Return a number for each key, the same for the same key as long as there are fewer than `MOST_KEYS`.

        Parameters
        ----------
        hashes, checks : ndarray of uint64
            The identities of keys; no checks if all are zero.

        Returns
        -------
        ndarray of intp
            Numbers from 0, without large gaps.
        """
        if len(self._keys) > MOST_KEYS:
            self._forget_keys()
        found = self._keys.find(hashes, checks, self, verify=checks is not None or self._has_checks)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            first, ordinals = distinct_keys(hashes[missing], None if checks is None else checks[missing])
            new = self._added(hashes[missing[first]], None if checks is None else checks[missing[first]])
            found[missing] = new.take(ordinals)
        return found

    def _added(self, hashes: Words, checks: Words | None) -> Slots:
        new = np.arange(len(self._keys), len(self._keys) + len(hashes))
        while new[-1] >= len(self.hashes):
            self.hashes, self.checks = (np.concatenate([old, np.zeros_like(old)]) for old in (self.hashes, self.checks))
            self._tables.clear()
        self.hashes[new] = hashes
        self._has_checks |= checks is not None
        self.checks[new] = 0 if checks is None else checks
        self._keys.add(hashes, self.checks[new], new)
        return new

    def _joined(self, numbers: npt.NDArray[np.int64], width: int) -> Slots:
        """Return the tables of some cells, one after the other."""
        tables = [self._table(number, width) for number in numbers.tolist()]
        return tables[0] if len(tables) == 1 else np.concatenate(tables)

    def _table(self, number: int, width: int) -> Slots:
        table = self._tables.pop(number, None)
        if table is None:
            if len(self._tables) >= MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            table = np.full(width, -1, np.intp)
        # The cells used last are the last ones.
        self._tables[number] = table
        return table

    def _admit(
        self,
        rows: pa.RecordBatch,
        key_columns: Sequence[str],
        parts: tuple[Words, Words],
        numbers: npt.NDArray[np.int64],
        places: Slots,
        missing: Slots,
        slots: Slots,
    ) -> bool:
        """Find or make the slots of missing rows in the store, and enter them in `slots` and the tables.

        Returns whether the other slots are still valid; other tasks, or adding keys, may have moved all of them.
        """
        width = len(self.hashes)
        wanted = places.take(missing)
        # If several rows have one place, the last write wins, and its row represents the place.
        scratch = np.empty(width * len(numbers), np.intp)
        scratch[wanted] = missing
        picked = missing[scratch.take(wanted) == missing]
        # The store adds keys in the order of their hashes faster.
        picked = picked.take(np.argsort(parts[0].take(picked)))
        layout, found = self._store.admit(self._session.task, rows, key_columns, picked, *parts)
        if layout != self._layout:
            return False
        scratch[places.take(picked)] = found
        slots[missing] = scratch.take(wanted)
        positions = places.take(picked) // width
        for position, number in enumerate(numbers.tolist()):
            inside = np.flatnonzero(positions == position)
            self._table(number, width)[places.take(picked.take(inside)) - position * width] = found.take(inside)
        return True
