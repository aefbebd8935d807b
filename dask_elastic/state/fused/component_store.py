"""The state of a component: that of its first compute, and of those that are fused behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.fused import packing
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.state.index import Words
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.compute_measure import ComputeTally
from dask_elastic.vocab.lock import MakeLock, NoLock
from dask_elastic.vocab.row_counts import RowCounts


class ComponentStore(KeyedStore):
    """The store of the first compute, which copies, installs and drops shards of the stores behind it as well.

    Parameters
    ----------
    shards, shard_of, make_lock
        As for `KeyedStore`.

    Attributes
    ----------
    fused : dict of str to FusedStore
        The stores of the computes behind the first one, by name; each is made when it is first needed.

    Examples
    --------
    >>> store = ComponentStore(4, lambda hashes: (hashes % 4).astype(int))
    >>> store.behind("worst").owner is store.owner
    True
    """

    def __init__(
        self, shards: int, shard_of: Callable[[Words], npt.NDArray[Any]], make_lock: MakeLock = NoLock
    ) -> None:
        super().__init__(shards, shard_of, make_lock)
        self.fused: dict[str, FusedStore] = {}

    def behind(self, operator: str) -> FusedStore:
        """Return the store of a fused compute.

        Parameters
        ----------
        operator : str
            Its name.

        Returns
        -------
        FusedStore
            The store; all callers get the same one.
        """
        found = self.fused.get(operator)
        if found is None:
            # Two threads may make one at once; `setdefault` keeps the first.
            found = self.fused.setdefault(operator, FusedStore(self, self._shard_of, self._make_lock))
        return found

    def extract(
        self, shards: Iterable[int] | None = None, dirty_only: bool = False, clear: bool | None = None
    ) -> pa.RecordBatch | None:
        """Return an encoded copy of the state of shards, of all computes; see `KeyedStore.extract`."""
        chosen = None if shards is None else [*shards]
        own = super().extract(chosen, dirty_only, clear)
        if not self.fused:
            return own
        parts = {packing.FIRST: (own, None)}
        for name, store in tuple(self.fused.items()):
            parts[name] = (store.extract(chosen, dirty_only, clear), store.input_schema)
        return packing.pack(parts)

    def install(self, batch: pa.RecordBatch, dirty: bool = False) -> None:
        """Install state that `extract` returned; see `KeyedStore.install`."""
        if not packing.is_packed(batch):
            super().install(batch, dirty)
            return
        for name, (state, schema) in packing.unpack(batch).items():
            if name == packing.FIRST:
                super().install(state, dirty)
                continue
            store = self.behind(name)
            store.input_schema = store.input_schema or schema
            store.install(state, dirty)

    def drop(self, shards: Iterable[int]) -> None:
        """Delete the state of shards, of all computes; see `KeyedStore.drop`."""
        chosen = [*shards]
        super().drop(chosen)
        for store in tuple(self.fused.values()):
            store.drop(chosen)

    def remove(self, shards: Iterable[int]) -> None:
        """Delete the state of shards, of all computes; see `KeyedStore.remove`."""
        chosen = [*shards]
        super().remove(chosen)
        for store in tuple(self.fused.values()):
            store.remove(chosen)

    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """Return the approximate bytes of each shard's live keys, of all computes."""
        total = np.zeros(self.shards, np.int64)
        for part in self.shard_bytes_by_compute().values():
            total += part
        return total

    def shard_bytes_by_compute(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the approximate bytes of each shard's live keys, by compute.

        Returns
        -------
        dict of str to ndarray of int64
            The first compute is `packing.FIRST`.
        """
        return {packing.FIRST: super().shard_bytes()} | {name: s.shard_bytes() for name, s in self._behind().items()}

    def tallies(self, task: int) -> dict[str, ComputeTally]:
        """Return what became of the rows that a task has processed, by compute.

        Parameters
        ----------
        task : int
            The task.

        Returns
        -------
        dict of str to ComputeTally
            The first compute, which is `packing.FIRST`, then the others by name: in one order in all processes.
        """
        return {
            name: ComputeTally(store.row_counts.get(task, RowCounts()), store.microseconds.get(task, 0))
            for name, store in self._stores()
        }

    def take_tallies(self, task: int) -> dict[str, ComputeTally]:
        """Return what `tallies` returns, and begin anew."""
        found = self.tallies(task)
        for _, store in self._stores():
            store.row_counts.pop(task, None)
            store.microseconds.pop(task, None)
        return found

    def _behind(self) -> dict[str, FusedStore]:
        # Another thread may add a store meanwhile.
        return dict(tuple(self.fused.items()))

    def _stores(self) -> list[tuple[str, KeyedStore]]:
        return [(packing.FIRST, self), *sorted(self._behind().items())]
