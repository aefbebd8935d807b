"""The partials of a shard that its earlier owner hands over, and where they are kept apart at home until then."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.executor.piece import Piece
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.migration.instant import InstantMove
from dask_elastic.state.store import KeyedStore


class HandedOver:
    """The partials of a shard that its earlier owner hands over.

    While two tasks have windows of the shard, the primary copy is of one of them: of the task at home, since it works
    on the primary copy itself, or else of the target. The state of the other one is set aside.

    Parameters
    ----------
    move : InstantMove
        The move.
    source_at_home : bool
        Whether the earlier owner is at home and keeps its windows.

    Attributes
    ----------
    is_aside : bool
        Whether the primary copy of one of the owners is set aside.
    aside_of : int
        The task whose state it is.
    partials : RecordBatch or None
        The encoded state of the earlier owner, once it is complete; None if there is none.
    left_behind : list of Piece
        What waited for the earlier owner when it was told to leave.
    has_arrived : bool
        Whether the target has got the shard's rows.
    """

    __slots__ = (
        "_changed", "_source_at_home", "_store", "has_arrived", "is_aside", "left_behind", "move", "partials",
    )  # fmt: skip

    def __init__(self, move: InstantMove, source_at_home: bool = False):
        self.move = move
        self.is_aside = False
        self.partials: pa.RecordBatch | None = None
        self.left_behind: list[Piece] = []
        self.has_arrived = False
        self._changed: list[pa.RecordBatch] = []
        self._source_at_home = source_at_home
        self._store: KeyedStore | None = None

    @property
    def aside_of(self) -> int:
        """The task whose state is set aside."""
        return self.move.target if self._source_at_home else self.move.source

    def set_aside(self, store: PrimaryState, empty: KeyedStore) -> None:
        """Set the primary copy of the earlier owner aside, or make a place for the state of the target.

        Parameters
        ----------
        store : PrimaryState
            The primary copy.
        empty : KeyedStore
            A store without state.
        """
        if self.is_aside:
            return
        self.is_aside = True
        if self.move.smooth:
            # Flushes may come for the length of a window: they are applied one by one.
            self._store = empty
        if not self._source_at_home:
            self.partials = store.take_out(self.move.shard)
            if self._store is not None and self.partials is not None:
                self._store.install(self.partials)

    def change(self, state: pa.RecordBatch) -> None:
        """Apply or note what the owner whose state is set aside has changed since."""
        if not state.num_rows:
            return
        if self._store is not None:
            self._store.install(state)
        else:
            self._changed.append(state)

    def exchange(self, store: PrimaryState) -> None:
        """Put the state of the target, which was set aside, in the place of that of the earlier owner, which has left.

        Does nothing if the earlier owner was not at home, or no state is set aside.
        """
        if not (self._source_at_home and self.is_aside) or self._store is None:
            return
        self.partials = store.take_out(self.move.shard)
        of_target = self._store.extract()
        if of_target is not None:
            store.install(of_target, dirty=store.track_dirty)
        self._store = None
        self.is_aside = False

    def complete(self, empty: KeyedStore) -> None:
        """Apply what has changed, to which nothing is added any more.

        Parameters
        ----------
        empty : KeyedStore
            A store without state.
        """
        if self._store is not None:
            self.partials = self._store.extract()
            self._store = None
            return
        changed, self._changed = self._changed, []
        if not changed:
            return
        # Not when the shard is opened, which pauses it.
        for state in changed if self.partials is None else [self.partials, *changed]:
            empty.install(state)
        self.partials = empty.extract()
