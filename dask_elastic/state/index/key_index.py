"""What an index from 64-bit hashes to slots does: it looks up whole batches."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.intp]


class KeyIndex(Protocol):
    """A map from uint64 to slot numbers, read and written in whole arrays; entries are never removed."""

    def lookup(self, hashes: Words) -> Slots:
        """Return each hash's slot, or -1 if it has none.

        Parameters
        ----------
        hashes : ndarray of uint64
            Hashes, in any order; the array may be read-only.

        Returns
        -------
        ndarray of intp
            One slot per hash.
        """
        ...

    def insert(self, hashes: Words, slots: Slots) -> None:
        """Add hashes, which must be distinct and not in the index yet.

        Parameters
        ----------
        hashes : ndarray of uint64
            The new hashes.
        slots : ndarray of intp
            Their slots.
        """
        ...

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """The approximate memory, in bytes."""
        ...
