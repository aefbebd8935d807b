"""Index over the hash table of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_elastic.state.index.key_index import Slots, Words

_FIRST_BITS = 10
_BYTES_PER_BUCKET = 17


class PandasIndex:
    """A `KeyIndex` over the hash table inside pandas, which looks up without the GIL.

    Notes
    -----
    The table is not public API of pandas; `make_index` uses it only if it passes a check, once in a process.
    """

    def __init__(self) -> None:
        from pandas._libs.hashtable import Int64HashTable

        self._table: Any = Int64HashTable()

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none."""
        slots: Slots = self._table.lookup(hashes.view(np.int64))
        return slots

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet."""
        self._table.map_keys_to_values(hashes.view(np.int64), slots.astype(np.int64, copy=False))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """The approximate memory, in bytes."""
        return _BYTES_PER_BUCKET * (1 << max(_FIRST_BITS, (4 * len(self) // 3).bit_length()))
