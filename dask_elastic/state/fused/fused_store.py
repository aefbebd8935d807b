"""The state of a compute that runs in the tasks of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.index import Words
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.lock import MakeLock, NoLock


class FusedStore(KeyedStore):
    """A store whose shards have the owners of another store's, and whose changes are marked if that one's are.

    Parameters
    ----------
    first : KeyedStore
        The store of the compute that gives the component its name.
    shard_of, make_lock
        As for `KeyedStore`.

    Attributes
    ----------
    input_schema : Schema or None
        The schema of the compute's input; None before the first batch.
    """

    input_schema: pa.Schema | None = None

    def __init__(
        self, first: KeyedStore, shard_of: Callable[[Words], npt.NDArray[Any]], make_lock: MakeLock = NoLock
    ) -> None:
        self._first = first
        super().__init__(first.shards, shard_of, make_lock)
        self._owner, self.owner, self.changes = first._owner, first.owner, first.changes
        self.reserve = self._reserve

    @property
    def event_time(self) -> int | None:
        """The event time of the component's last state record at its home; None elsewhere, and before the first."""
        return getattr(self._first, "event_time", None)

    @property
    def owner_version(self) -> object:
        """Replaced whenever `owner` changes: by the first store."""
        return self._first.owner_version

    @owner_version.setter
    def owner_version(self, version: object) -> None:
        """Ignore what the base class sets."""

    @property
    def track_dirty(self) -> bool:
        """Whether changes are marked: as in the first store."""
        return self._first.track_dirty

    @track_dirty.setter
    def track_dirty(self, track: bool) -> None:
        """Ignore what the base class sets."""

    def _reserve(self, nbytes: int) -> None:
        self._first.reserve(nbytes)
