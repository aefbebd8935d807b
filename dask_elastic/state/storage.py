"""Where a store keeps its slots, its keys and its index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from dask_elastic.state.codec import EncodedRows, StateRows
from dask_elastic.state.index import make_index
from dask_elastic.state.key_columns import KeyColumns
from dask_elastic.state.key_table import KeyTable, MakeIndex
from dask_elastic.state.slots import SlotArrays
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.lock import MakeLock


class Spool(Protocol):
    """Takes the rows of a cut, part by part."""

    def append(self, rows: StateRows) -> None:
        """Add rows."""
        ...

    @property
    def parts(self) -> Sequence[StateRows | EncodedRows]:
        """All rows."""
        ...


class RowsInMemory:
    """The rows of a cut in memory."""

    def __init__(self) -> None:
        self.parts: list[StateRows | EncodedRows] = []

    def append(self, rows: StateRows) -> None:
        """Add rows."""
        self.parts.append(rows)


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

    def slots(self, fields: Sequence[Field], make_lock: MakeLock) -> SlotArrays:
        """Return empty slots.

        Parameters
        ----------
        fields : sequence of Field
            The fields of state.
        make_lock : callable
            Makes the locks of ragged columns.

        Returns
        -------
        SlotArrays
            No slots.
        """
        return SlotArrays(fields, make_lock)

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

    def spool(self) -> Spool:
        """Return what holds the rows of a cut until they are written.

        Returns
        -------
        Spool
            No rows.
        """
        return RowsInMemory()
