"""The rows of a store that are copied to another one while tasks go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dask_elastic.state.codec import StateRows
from dask_elastic.state.index import Slots
from dask_elastic.state.slots import EMPTY, TOMBSTONE
from dask_elastic.state.store import KeyedStore

AT_ONCE = 1 << 13
"""Rows that are copied while tasks wait, at most."""

_WINDOW = 1 << 16

Chosen = npt.NDArray[np.bool_]
"""Which shards are meant; shape (shards,)."""


class Portion(NamedTuple):
    """Rows that were copied at one moment.

    Parameters
    ----------
    unchanged, changed : StateRows
        The rows by whether a checkpoint has them already. Of both, some may be deleted.
    """

    unchanged: StateRows
    changed: StateRows


class Pieces(Protocol):
    """Decides how many rows are copied at once; see `dask_elastic.migration.copy_pieces`."""

    @property
    def rows(self) -> int:
        """Rows of the next piece, at most."""
        ...

    def took(self, rows: int, seconds: float) -> None:
        """Note how long tasks waited for a piece."""
        ...


class OutgoingRows:
    """The rows of a store that another one lacks: at first all, then those that change.

    Parameters
    ----------
    store : KeyedStore
        The store. A newer copy of it ends this one.
    at_once : int
        Rows that are copied while tasks wait, at most.
    pieces : Pieces, optional
        Decides how many rows are copied at once, up to `at_once`, from how long tasks waited.
    clock : callable
        Returns seconds, for `pieces`.
    shards : ndarray of bool, optional
        The shards whose rows are copied, all by default: sweeps visit the rows of others only if these have changed.

    Notes
    -----
    A flag for each slot tells whether the row was copied since it changed last. Tasks wait while a portion is copied,
    as for the cut of a checkpoint, but not while it is encoded and sent. Cuts may be taken meanwhile. They clear the
    marks of changes, so that the other store may mark more rows as changed than this one, but never fewer.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dask_elastic.topology.aggregates.field import Field
    >>> from dask_elastic.state.codec import encode
    >>> def made():
    ...     return KeyedStore(4, lambda hashes: (hashes % 4).astype(int))
    >>> here, there = made(), made()
    >>> here.declare(pa.schema({"k": pa.int64()}), [Field("n", np.dtype(np.int64), 0)])
    >>> rows = OutgoingRows(here)
    >>> for portion in rows.rest():
    ...     there.install(encode(portion.unchanged))
    >>> there.key_schema.names, len(there)
    (['k'], 0)
    """

    def __init__(
        self,
        store: KeyedStore,
        at_once: int = AT_ONCE,
        pieces: Pieces | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        shards: Chosen | None = None,
    ):
        self._store = store
        self._at_once = at_once
        self._pieces = pieces
        self._clock = clock
        self._next = 0
        self._end = 0
        self._declared = False
        with store.still():
            store.outgoing = self
            store.slots.begin_copy()
            if shards is not None and store.slots.uncopied is not None:
                for window in store.slots.windows():
                    store.slots.uncopied[window] &= shards.take(store.slots.shards[window])

    def sweep(self, shards: Chosen | None = None) -> Iterator[Portion]:
        """Yield the rows to be copied once through the store; new ones, and those that change behind, are left.

        Parameters
        ----------
        shards : ndarray of bool, optional
            The shards whose rows are copied; all by default.

        Yields
        ------
        Portion
            Some rows.
        """
        yield from self._swept(shards, self._pieces)

    def _swept(self, shards: Chosen | None, pieces: Pieces | None) -> Iterator[Portion]:
        # Keys may be added as fast as rows are copied.
        self._next, self._end = 0, self._store.slots.used
        while (portion := self._take(shards, pieces)) is not None:
            yield portion

    def rest(self, shards: Chosen | None = None) -> Iterator[Portion]:
        """Yield all rows that are left; no task may change any. Also the declaration of a store without rows.

        Parameters
        ----------
        shards : ndarray of bool, optional
            The shards whose rows are copied; all by default. Tasks may change rows of others.

        Yields
        ------
        Portion
            Some rows.
        """
        any_left = True
        while any_left:
            # Packing during the last sweep may have moved rows to where it had been already.
            any_left = False
            # In few portions: rows wait for the last one.
            for portion in self._swept(shards, None):
                any_left = True
                yield portion
        if not self._declared and self._store.key_schema is not None:
            with self._store.still():
                yield self._portion(np.empty(0, np.intp))

    def end(self) -> None:
        """Copy no more; a sweep in progress in another thread ends."""
        with self._store.still():
            if self._store.outgoing is self:
                self._store.outgoing = self._store.slots.uncopied = None

    def _take(self, shards: Chosen | None, pieces: Pieces | None) -> Portion | None:
        with self._store.still():
            began = self._clock()
            slots = self._found(shards, pieces)
            if not len(slots):
                return None
            slots = self._store.slots.portions(slots)[0]
            portion = self._portion(slots)
            if pieces is not None:
                pieces.took(len(slots), self._clock() - began)
            return portion

    def _found(self, shards: Chosen | None, pieces: Pieces | None) -> Slots:
        """Return the next slots to copy; the caller holds the store still."""
        uncopied = self._store.slots.uncopied
        if self._store.outgoing is not self or uncopied is None:
            return np.empty(0, np.intp)
        end = min(self._end, self._store.slots.used)
        most = self._at_once if pieces is None else min(self._at_once, pieces.rows)
        found: list[Slots] = []
        # Of several windows: what has changed may be few rows among many.
        while most > 0 and self._next < end:
            window = slice(self._next, min(end, self._next + _WINDOW))
            slots: Slots = self._next + np.flatnonzero(uncopied[window])
            if shards is not None:
                slots = slots[shards.take(self._store.slots.shards[slots])]
            slots = slots[:most]
            found.append(slots)
            most -= len(slots)
            self._next += _WINDOW
        return np.concatenate(found) if found else np.empty(0, np.intp)

    def _portion(self, slots: Slots) -> Portion:
        arrays = self._store.slots
        marks = arrays.marks.take(slots)
        changed = (marks & TOMBSTONE) != 0
        old, new = slots[~changed], slots[changed]
        portion = Portion(
            self._store.rows_of(old, marks[~changed] == EMPTY),
            self._store.rows_of(new, marks[changed] == TOMBSTONE),
        )
        if arrays.uncopied is not None and len(slots):
            arrays.uncopied[slots] = False
            self._next = int(slots[-1]) + 1
        self._declared = True
        return portion
