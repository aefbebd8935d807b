"""State whose keys have other shards than before: they are routed by other columns, or among more or fewer shards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dask_elastic.checkpoint.manifest import OperatorState
from dask_elastic.routing.co_partition import key_hashes
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.codec import IDENTITY
from dask_elastic.vocab.arrow_arrays import array_of

HASH, SHARD = (IDENTITY.index(name) for name in ("__hash", "__shard"))


@dataclass(frozen=True)
class OtherPlacing:
    """Where the keys of restored state are now.

    Parameters
    ----------
    keys : tuple of str
        The key columns.
    routed_by : tuple of str
        The key columns that decide in which shard a key is now.
    space : KeySpace
        The executors and shards.

    Notes
    -----
    A compute that runs in the tasks of another one has that one's shards, and its keys are routed by the columns that
    all computes of the component have. So both may differ between a fused job and one that is not.

    Examples
    --------
    >>> state = OperatorState("kinds", ("area", "kind"), 2, 4, ())
    >>> OtherPlacing.of(state, KeySpace(4, 2), ("area", "kind")) is None
    True
    >>> OtherPlacing.of(state, KeySpace(2, 4), ("area",)).routed_by
    ('area',)
    """

    keys: tuple[str, ...]
    routed_by: tuple[str, ...]
    space: KeySpace

    @classmethod
    def of(cls, state: OperatorState, space: KeySpace, routed_by: tuple[str, ...]) -> OtherPlacing | None:
        """Return where the keys of some state are now; None if each is in the group that it was in.

        Parameters
        ----------
        state : OperatorState
            The operator's part of the manifest.
        space : KeySpace
            The executors and shards.
        routed_by : tuple of str
            The key columns that decide in which shard a key is now.
        """
        if state.groups == space.groups and (state.routed_by or state.keys) == routed_by:
            return None
        return cls(state.keys, routed_by, space)

    def of_executor(self, batch: pa.RecordBatch, executor: int) -> pa.RecordBatch:
        """Return the rows of encoded state that an executor has now, tombstones included, with their new identity.

        Parameters
        ----------
        batch : RecordBatch
            Encoded state.
        executor : int
            The executor.

        Returns
        -------
        RecordBatch
            The rows.
        """
        first = len(IDENTITY)
        columns = batch.select(range(first, first + len(self.keys)))
        assert columns.schema.names == [*self.keys], f"encoded state begins with {columns.schema.names}"
        hashes = key_hashes(columns, self.keys, self.routed_by, self.space.groups)
        shards = self.space.shard_of(hashes).astype(np.int32)
        batch = batch.set_column(HASH, batch.schema.field(HASH), array_of(hashes))
        batch = batch.set_column(SHARD, batch.schema.field(SHARD), array_of(shards))
        return batch.filter(array_of(self.space.executor_of(hashes) == executor))
