"""The partials of a shard that its earlier owner hands over, and where they are kept apart at home until then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa

from dask_elastic.executor.moving.handed_state import HandedState, bytes_at_once
from dask_elastic.executor.piece import Piece
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.migration.instant import InstantMove
from dask_elastic.state.store import KeyedStore

Portions: TypeAlias = Iterator[pa.RecordBatch]

PORTION_BYTES = 1 << 19
"""Bytes of state with few columns that are moved within the home at a time, see `bytes_at_once`; events, and keys that
are new to the store, wait as long."""


class HandedOver:
    """The partials of a shard that its earlier owner hands over.

    While two tasks have partials of the shard, the primary copy is of one of them, and the state of the other is set
    aside. A task at home works on the primary copy itself. So if the earlier owner is at home, the flushes of the next
    one are set aside, and take the place of the earlier owner's state once that has left. Otherwise the state of the
    earlier owner is set aside before the next one begins, and then what it flushes.

    Parameters
    ----------
    move : InstantMove
        The move.
    source_at_home : bool
        Whether the earlier owner is at home.

    Attributes
    ----------
    is_aside : bool
        Whether the state of one of the owners is set aside, or begins to be.
    is_free : bool
        Whether no task changes the primary copy of the earlier owner.
    is_taken : bool
        Whether nothing of the earlier owner is left in the primary copy.
    left_behind : list of Piece
        What waited for the earlier owner when it was told to leave.
    has_arrived : bool
        Whether the target has got the shard's rows.
    """

    __slots__ = (
        "_changed", "_parts", "_portions", "_state", "_store", "has_arrived", "is_aside", "is_free", "is_taken",
        "left_behind", "move", "source_at_home",
    )  # fmt: skip

    def __init__(self, move: InstantMove, source_at_home: bool = False):
        self.move = move
        self.source_at_home = source_at_home
        self.is_aside = False
        self.is_free = not source_at_home
        self.is_taken = False
        self.left_behind: list[Piece] = []
        self.has_arrived = False
        self._parts: deque[pa.RecordBatch] = deque()
        self._changed: deque[pa.RecordBatch] = deque()
        self._store: KeyedStore | None = None
        self._portions: Portions | None = None
        self._state: HandedState | None = None

    @property
    def aside_of(self) -> int:
        """The task whose state is set aside."""
        return self.move.target if self.source_at_home else self.move.source

    def begin(self, empty: KeyedStore) -> None:
        """Set aside what is flushed from now on.

        Parameters
        ----------
        empty : KeyedStore
            A store without state.
        """
        self.is_aside = True
        if self.source_at_home or self.move.smooth:
            # Flushes may come for the length of a window: they are applied one by one.
            self._store = empty

    def change(self, state: pa.RecordBatch) -> None:
        """Apply or note what the owner whose state is set aside has flushed."""
        if not state.num_rows:
            return
        # What is noted is newer than the portions that are still to be taken.
        if self._store is not None and (self.source_at_home or self.is_taken):
            self._store.install(state)
        else:
            self._changed.append(state)

    def move_portion(self, store: PrimaryState) -> bool:
        """Take a portion of the earlier owner's state out of the primary copy, or put one of the next owner's in it.

        Parameters
        ----------
        store : PrimaryState
            The primary copy.

        Returns
        -------
        bool
            Whether there may be another portion.
        """
        if not (self.is_aside and self.is_free):
            return False
        if not self.is_taken:
            if self._portions is None:
                nbytes = bytes_at_once(PORTION_BYTES, len(store.fields))
                self._portions = store.portions_of(self.move.shard, int(nbytes))
            part = next(self._portions, None)
            if part is not None:
                self._take(part)
                return True
            self._all_taken()
        return self.source_at_home and self._put_portion(store)

    def _take(self, part: pa.RecordBatch) -> None:
        if self._store is None or self.source_at_home:
            self._parts.append(part)
        else:
            self._store.install(part)

    def _all_taken(self) -> None:
        self.is_taken = True
        if self._store is None:
            return
        if not self.source_at_home:
            while self._changed:
                self._store.install(self._changed.popleft())
            return
        # What the next owner flushes while portions are put in place comes behind them.
        state, self._store = self._store.extract(), None
        if state is not None:
            portions = HandedState([state])
            self._changed.extend(iter(lambda: portions.take(state.num_rows, PORTION_BYTES), None))

    def _put_portion(self, store: PrimaryState) -> bool:
        if not self._changed:
            self.is_aside = False
            return False
        store.install(self._changed.popleft(), dirty=store.track_dirty)
        return True

    def put_back(self, store: PrimaryState) -> None:
        """Put what is set aside of an earlier owner on another node back into the primary copy."""
        if not self.is_aside or self.source_at_home:
            return
        if self._store is not None and (state := self._store.extract()) is not None:
            self._parts.append(state)
        for state in (*self._parts, *self._changed):
            store.install(state, dirty=store.track_dirty)
        self._parts.clear()
        self._changed.clear()
        self._store = None
        self.is_aside = False

    def state(self) -> HandedState:
        """Return the state of the earlier owner, to which nothing is added any more; takes time when called first."""
        if self._state is None:
            if not self.source_at_home and self._store is not None:
                state, self._store = self._store.extract(), None
                self._parts.extend([] if state is None else [state])
            self._state = HandedState(self._parts, () if self.source_at_home else self._changed)
        return self._state
