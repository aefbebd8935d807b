"""Where a store keeps its slots, its keys and its index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.codec import EncodedRows, StateRows
from dask_elastic.state.index import Slots, make_index
from dask_elastic.state.key_columns import KeyColumns
from dask_elastic.state.key_table import KeyTable, MakeIndex
from dask_elastic.state.slots import TOMBSTONE, SlotArrays
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.lock import MakeLock


class CutSource(Protocol):
    """A store of which a cut is taken, as its storage uses it; see `KeyedStore`."""

    @property
    def slots(self) -> Any:
        """The slots."""
        ...

    def held(self) -> AbstractContextManager[object]:
        """Hold the store's lock, so that its arrays are not replaced."""
        ...

    def rows_of(self, slots: Slots | slice, deleted: npt.NDArray[np.bool_]) -> StateRows:
        """Return a copy of the state of slots, which no other thread changes; the caller holds the lock."""
        ...

    def keys_of(self, slots: Slots) -> pa.RecordBatch:
        """Return the key columns of slots."""
        ...


class Storage:
    """Makes the parts of a store, in memory.

    Parameters
    ----------
    make_index : callable, optional
        Makes an index from hashes to slots.

    Attributes
    ----------
    on_disk : bool
        Whether the parts are in files.
    cached_keys : int or None
        The number of keys above which a session empties its own index; None for no limit.

    Examples
    --------
    >>> len(Storage().table())
    0
    """

    on_disk: bool = False
    cached_keys: int | None = None

    def __init__(self, make_index: MakeIndex = make_index) -> None:
        self.make_index = make_index

    def slots(self, fields: Sequence[Field], make_lock: MakeLock, shards: int) -> SlotArrays:
        """Return empty slots.

        Parameters
        ----------
        fields : sequence of Field
            The fields of state.
        make_lock : callable
            Makes the locks of ragged columns.
        shards : int
            The number of shards.

        Returns
        -------
        SlotArrays
            No slots.
        """
        return SlotArrays(fields, make_lock, shards)

    def keys(self, schema: pa.Schema) -> KeyColumns:
        """Return empty key columns.

        Parameters
        ----------
        schema : Schema
            The key columns' names and types.

        Returns
        -------
        KeyColumns
            No keys.
        """
        return KeyColumns(schema)

    def table(self) -> KeyTable:
        """Return an empty table of keys.

        Returns
        -------
        KeyTable
            No keys.
        """
        return KeyTable(self.make_index)

    def cut(self, store: CutSource, in_full: npt.NDArray[np.bool_]) -> Sequence[StateRows | EncodedRows]:
        """Return what a cut contains, as it is now; the caller holds the lock and all gates, and clears the marks.

        Parameters
        ----------
        store : CutSource
            The store.
        in_full : ndarray of bool
            The shards that it contains in full; of the others it contains what has changed.

        Returns
        -------
        sequence of (StateRows or EncodedRows)
            The rows.

        Raises
        ------
        StateDiskError
            If there is no space for a file.
        """
        chosen = [*_joined(store.slots, in_full)] or [np.empty(0, np.intp)]
        return [store.rows_of(slots, store.slots.marks[slots] == TOMBSTONE) for slots in chosen]

    def is_copied(self, slots: SlotArrays) -> bool:
        """Return whether a cut of the slots is still being copied, so that they should not be packed."""
        return False


def _joined(arrays: SlotArrays, in_full: npt.NDArray[np.bool_]) -> Iterator[Slots | slice]:
    """Yield the slots that a cut contains; slices, which are copied faster, where it contains all of them."""
    for is_whole, group in groupby(arrays.chosen(in_full), key=lambda pair: bool(pair[1].all())):
        windows = list(group)
        if is_whole:
            yield slice(windows[0][0].start, windows[-1][0].stop)
        elif any(wanted.any() for _, wanted in windows):
            yield np.concatenate([window.start + np.flatnonzero(wanted) for window, wanted in windows])
