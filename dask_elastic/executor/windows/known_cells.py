"""The slots of the cells that a task has used recently, found by small tables instead of the store's index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.routing.part_identity import part_checks, part_hashes
from dask_elastic.state.index import Slots, Words
from dask_elastic.state.key_table import distinct_keys, few_grouped, key_cache
from dask_elastic.state.session import Located, Session
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.vocab.batch import FEW_ROWS
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.gather import take_rows

MOST_KEYS = 1 << 20
"""With more keys, the tables begin again."""

MOST_TABLES = 64
"""Tables are of the cells used last."""

MOST_ENTRIES = 1 << 23
"""The entries of all tables, of 8 bytes each. With many keys there are fewer tables than places."""

FEW_ENTRIES = 1 << 20
"""Tables with so many entries are kept, however few of these are slots."""

MOST_CELLS = 16
"""Batches with more cells are looked up in the store's index."""

_SPARSE = 8
"""The rows of each place are counted, with up to so many places for each row."""

_UNUSED = 8
"""The tables begin again if they have more entries than this for each slot: most keys do not come again."""


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
    places : int
        The cells of one key that are in use at a time, if that is known.

    Attributes
    ----------
    generation : object
        Replaced whenever slots that were in the tables are in them no more, or new ones were not entered.
    """

    def __init__(self, store: KeyedStore, session: Session, groups: int, places: int = 0) -> None:
        self._store = store
        self._session = session
        self._groups = groups
        self._most_tables = MOST_TABLES + places
        self._layout = -1
        self._tables: dict[int, Slots] = {}
        self.forget()

    def forget(self) -> None:
        """Forget all keys and slots."""
        self._forget_tables()
        self._scratch: Slots = np.empty(0, np.intp)
        self._made, self._has_old_keys = 0, False
        self._keys = key_cache(self._store.make_index)
        # As of `key_table.Identity`, by ordinal.
        self.hashes: Words = np.zeros(1024, np.uint64)
        self.checks: Words = np.zeros(1024, np.uint64)
        self._has_checks = False

    def _forget_tables(self) -> None:
        self._tables.clear()
        self.generation = object()

    def locate(
        self,
        rows: pa.RecordBatch | ChosenRows,
        key_columns: Sequence[str],
        hashes: Words,
        checks: Words | None,
        numbers: npt.NDArray[np.int64],
        cells: npt.NDArray[np.int64] | None,
    ) -> CellsOfRows:
        """Find the slots of rows; see `Session.locate`.

        Parameters
        ----------
        rows : RecordBatch or ChosenRows
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
        CellsOfRows
            The rows by key and cell.
        """
        if len(numbers) > MOST_CELLS or self._store.storage.on_disk:
            salts = int(numbers[0]) if cells is None else numbers.take(cells)
            parts = part_hashes(hashes, salts, self._groups), part_checks(checks, salts, len(hashes))
            self.generation = object()
            return CellsOfRows(self._session.locate(rows, key_columns, *parts), hashes, checks, None, numbers, cells)
        if cells is not None and len(numbers) > 1:
            # Sessions have a cell for each row.
            distinct = np.unique(numbers)
            if len(distinct) < len(numbers):
                cells, numbers = np.searchsorted(distinct, numbers).take(cells), distinct
        else:
            cells = None
        ordinals = self.ordinals(hashes, checks)
        width = len(self.hashes)
        places, grouping = self._grouped(ordinals if cells is None else cells * width + ordinals, numbers)
        keys = _Keys(rows, key_columns, hashes, checks, grouping, numbers.take(places // width), self._groups)
        again = partial(self._again, keys)
        while True:
            layout = self._store.layout
            self._at_layout(layout)
            slots = self._found(numbers, places, width)
            missing = np.flatnonzero(slots < 0)
            if len(missing) and not self._admit(keys, numbers, places, missing, slots):
                continue
            located = self._session.locate_at(slots, layout, grouping, again)
            if located is not None:
                ordinals = places if cells is None else places % width
                return CellsOfRows(located, self.hashes, self.checks, ordinals, keys.numbers, None)

    def grouped(
        self,
        hashes: Words,
        checks: Words | None,
        numbers: npt.NDArray[np.int64],
        cells: npt.NDArray[np.int64],
        by_index: bool,
    ) -> Grouping:
        """Group rows by key and cell with the work of `locate`, but find or make no slots for the cells.

        Parameters
        ----------
        hashes, checks, numbers, cells : ndarray
            As of `locate`.
        by_index : bool
            Whether to look the cells up in the store's index, as those of batches with many cells are.
        """
        if by_index:
            salts = numbers.take(cells)
            parts = part_hashes(hashes, salts, self._groups), part_checks(checks, salts, len(hashes))
            self._store.find(*parts)
            first, ordinals = distinct_keys(parts[0], None if checks is None else parts[1])
            return Grouping(ordinals, len(first))
        # First: new keys may make the tables longer, or let them begin again.
        ordinals = self.ordinals(hashes, checks)
        return self._grouped(cells * len(self.hashes) + ordinals, numbers)[1]

    def _at_layout(self, layout: int) -> None:
        if self._layout != layout:
            self._forget_tables()
            self._layout = layout

    def _grouped(self, of_row: Slots, numbers: npt.NDArray[np.int64]) -> tuple[Slots, Grouping]:
        """Return the distinct places, and the rows by place."""
        if len(of_row) <= FEW_ROWS:
            places, ordinals, _ = few_grouped(of_row)
            return places, Grouping(ordinals, len(places))
        most = len(self.hashes) * len(numbers)
        if len(self._scratch) < most:
            self._scratch = np.empty(most, np.intp)
        scratch = self._scratch
        if most > _SPARSE * len(of_row):
            # If several rows have one place, the last write wins.
            rows = np.arange(len(of_row))
            scratch[of_row] = rows
            places = of_row.take(np.flatnonzero(scratch.take(of_row) == rows))
            counts = None
        else:
            counts = np.bincount(of_row, minlength=most)
            places = counts.nonzero()[0]
            if len(places) == most:
                return places, Grouping(of_row, most, counts)
            counts = counts.take(places)
        scratch[places] = np.arange(len(places))
        return places, Grouping(scratch.take(of_row), len(places), counts)

    @property
    def count(self) -> int:
        """The number of known keys."""
        return len(self._keys)

    def slots(self, number: int) -> Slots:
        """Return the slots of a cell by the number of the key, -1 if it is not known."""
        self._at_layout(self._store.layout)
        return self._table(number, len(self.hashes))[: self.count]

    def enter(self, slots: Slots, layout: int, numbers: npt.NDArray[np.int64], hashes: Words, checks: Words) -> Slots:
        """Enter slots in the tables, given their cells and the identities of the keys; returns the keys' numbers."""
        self._at_layout(layout)
        if not len(slots):
            return slots
        ordinals = self.ordinals(hashes, checks if checks.any() else None)
        for number in np.unique(numbers).tolist():
            inside = np.flatnonzero(numbers == number)
            self._table(number, len(self.hashes))[ordinals.take(inside)] = slots.take(inside)
        return ordinals

    def ordinals(self, hashes: Words, checks: Words | None) -> Slots:
        """Return a number for each key, the same for the same key until the tables begin again.

        Parameters
        ----------
        hashes, checks : ndarray of uint64
            The identities of keys; no checks if all are zero.

        Returns
        -------
        ndarray of intp
            Numbers from 0, without large gaps.
        """
        if len(self._keys) > MOST_KEYS or self._has_old_keys:
            self.forget()
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
            self._look_for_old_keys()
            self.hashes, self.checks = (np.concatenate([old, np.zeros_like(old)]) for old in (self.hashes, self.checks))
            self._make_room(len(self.hashes), 0)
            for number, table in self._tables.items():
                self._tables[number] = np.concatenate([table, np.full(len(table), -1, np.intp)])
        self.hashes[new] = hashes
        self._has_checks |= checks is not None
        self.checks[new] = 0 if checks is None else checks
        self._keys.add(hashes, self.checks[new], new)
        return new

    def _found(self, numbers: npt.NDArray[np.int64], places: Slots, width: int) -> Slots:
        """Return the slots of places, or -1."""
        if len(numbers) == 1:
            return self._table(int(numbers[0]), width).take(places)
        slots = np.empty(len(places), np.intp)
        for inside, number, ordinals in self._by_cell(numbers, places, width):
            slots[inside] = self._table(number, width).take(ordinals)
        return slots

    @staticmethod
    def _by_cell(numbers: npt.NDArray[np.int64], places: Slots, width: int) -> Iterator[tuple[Slots, int, Slots]]:
        """Yield which of the places are of each cell, its number, and their ordinals."""
        cells = places // width
        for cell, number in enumerate(numbers.tolist()):
            inside = np.flatnonzero(cells == cell)
            if len(inside):
                yield inside, number, places.take(inside) - cell * width

    def _table(self, number: int, width: int) -> Slots:
        table = self._tables.pop(number, None)
        if table is None:
            self._make_room(width, 1)
            table = np.full(width, -1, np.intp)
            self._made += 1
            if self._made % MOST_TABLES == 0:
                self._look_for_old_keys()
        # The cells used last are the last ones.
        self._tables[number] = table
        return table

    def _look_for_old_keys(self) -> None:
        """Let the tables begin again, at the next rows, if few entries are slots: each has one for every known key."""
        entries = sum(map(len, self._tables.values()))
        if entries > FEW_ENTRIES:
            slots = sum(int(np.count_nonzero(table >= 0)) for table in self._tables.values())
            self._has_old_keys = entries > _UNUSED * slots

    def _make_room(self, width: int, more: int) -> None:
        """Forget the tables used longest ago, so that there may be some more, all of a length."""
        most = max(MOST_CELLS, min(self._most_tables, MOST_ENTRIES // width))
        while self._tables and len(self._tables) + more > most:
            del self._tables[next(iter(self._tables))]
            self.generation = object()

    def _admit(self, keys: _Keys, numbers: npt.NDArray[np.int64], places: Slots, missing: Slots, slots: Slots) -> bool:
        """Find or make the slots of missing places in the store, and enter them in `slots` and the tables.

        Returns whether the other slots are still valid; other tasks, or adding keys, may have moved all of them.
        """
        layout, found, missing = keys.admitted(self._store, self._session.task, missing)
        if layout != self._layout:
            return False
        slots[missing] = found
        for inside, number, ordinals in self._by_cell(numbers, places.take(missing), len(self.hashes)):
            self._table(number, len(self.hashes))[ordinals] = found.take(inside)
        return True

    def _again(self, keys: _Keys) -> tuple[int, Slots]:
        every = np.arange(keys.grouping.count)
        layout, found, order = keys.admitted(self._store, self._session.task, every)
        slots = np.empty_like(found)
        slots[order] = found
        return layout, slots


class CellsOfRows:
    """Rows by key and cell, with what is known of each group: the identity of its key, and the number of its cell.

    Parameters
    ----------
    located : Located
        The rows by key and cell.
    hashes, checks : ndarray of uint64
        The identities of keys; no checks if all are zero.
    ordinals : ndarray of intp or None
        The position of each group's key among them; None if they are those of the rows.
    numbers : ndarray of int64
        The number of each group's cell, or those of the cells of rows.
    cells : ndarray of int64 or None
        The cell of each row, by its position in `numbers`.
    """

    def __init__(
        self,
        located: Located,
        hashes: Words,
        checks: Words | None,
        ordinals: Slots | None,
        numbers: npt.NDArray[np.int64],
        cells: npt.NDArray[np.int64] | None,
    ) -> None:
        self.located = located
        self._hashes = hashes
        self._checks = checks
        self._ordinals = ordinals
        self._numbers = numbers
        self._cells = cells

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The number of each group's cell."""
        if self._ordinals is not None:
            return self._numbers
        if self._cells is None:
            return np.broadcast_to(self._numbers[0], len(self.located))
        return self._numbers.take(self._cells.take(self.located.first))

    def identities(self) -> tuple[Words, Words]:
        """Return the hash and the check of each group's key."""
        chosen = self.located.first if self._ordinals is None else self._ordinals
        checks = np.zeros(len(chosen), np.uint64) if self._checks is None else self._checks.take(chosen)
        return self._hashes.take(chosen), checks


class _Keys(NamedTuple):
    """The keys and cells of groups of rows; `numbers` has the number of each group's cell."""

    rows: pa.RecordBatch | ChosenRows
    key_columns: Sequence[str]
    hashes: Words
    checks: Words | None
    grouping: Grouping
    numbers: npt.NDArray[np.int64]
    groups: int

    def admitted(self, store: KeyedStore, task: int, groups: Slots) -> tuple[int, Slots, Slots]:
        """Find or make the slots of groups; returns their layout, the slots, and the groups in the order of these."""
        salts, rows = self.numbers.take(groups), self.grouping.rows.take(groups)
        hashes = part_hashes(self.hashes.take(rows), salts, self.groups)
        # The store adds keys in the order of their hashes faster.
        order = np.argsort(hashes)
        groups, salts, rows = (array.take(order) for array in (groups, salts, rows))
        hashes = hashes.take(order)
        checks = part_checks(None if self.checks is None else self.checks.take(rows), salts, len(rows))
        keys = keys_at(self.rows, self.key_columns, rows)
        layout, slots = store.admit(task, keys, self.key_columns, np.arange(len(rows)), hashes, checks)
        return layout, slots, groups


def keys_at(rows: pa.RecordBatch | ChosenRows, names: Sequence[str], positions: Slots) -> pa.RecordBatch:
    """Return the key columns of some rows.

    Parameters
    ----------
    rows : RecordBatch or ChosenRows
        The rows.
    names : sequence of str
        The key columns.
    positions : ndarray of intp
        The numbers of the rows.

    Returns
    -------
    RecordBatch
        A copy.
    """
    if isinstance(rows, ChosenRows):
        rows, positions = rows.source, rows.numbers.take(positions)
    return take_rows(rows.select(list(names)), positions)
