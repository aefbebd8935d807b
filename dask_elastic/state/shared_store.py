"""The store of an executor as the sessions of its tasks use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.index import Slots, Words
from dask_elastic.state.key_table import MakeIndex
from dask_elastic.state.slots import SlotArrays
from dask_elastic.vocab.errors import StateError


class Caching(Protocol):
    """How sessions of a store find keys."""

    on_disk: bool
    cached_keys: int | None


class SharedStore(Protocol):
    """The store that sessions share, as they use it; see `KeyedStore`."""

    make_index: MakeIndex
    owner: npt.NDArray[np.intp]
    owner_version: object
    track_dirty: bool
    layout: int
    slots: SlotArrays
    has_checks: bool

    def keys_at(self, slots: Slots, layout: int) -> pa.RecordBatch | None:
        """Return the key columns of slots; None if the store was packed since that layout."""
        ...

    @property
    def storage(self) -> Caching:
        """Where the state is."""
        ...

    def admit(
        self,
        task: int,
        rows: pa.RecordBatch,
        key_columns: Sequence[str],
        picked: Slots,
        hashes: Words,
        check: Words | None,
    ) -> tuple[int, Slots]:
        """Return the layout's number and the slots of the keys in the picked rows; new keys get new slots."""
        ...

    def not_owned(self, shard: int, task: int) -> StateError:
        """Return the error for a task that accessed a shard that it does not own."""
        ...

    def tidy(self) -> None:
        """Free the slots of keys without state, if there are many."""
        ...

    def close_session(self, session: Any) -> None:
        """Close a session."""
        ...
