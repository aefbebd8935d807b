"""Batches in transit: rows, the hashes of their keys, and the time at which they were due at their source."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.vocab.identity import ExecutorId

MAX_BATCH_ROWS = 65_536
"""The most rows of one unit of work: group numbers within a batch then fit 16 bits, which NumPy radix-sorts."""


class Batch(NamedTuple):
    """Rows for one executor or sink.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The tuples.
    hashes : numpy.ndarray or None
        Key hashes, ``uint64``, one per row; ``None`` if the target has no key.
    stamp : float
        When the oldest of the rows was due to leave its source, in seconds since the Unix epoch.
    now : float
        The processing time for the expiry of state, in seconds since the Unix epoch. The executor's home sets it when a
        task takes the batch, so that a replay uses the same time; 0 until then.
    """

    rows: pa.RecordBatch
    hashes: np.ndarray | None
    stamp: float
    now: float = 0.0

    @property
    def nbytes(self) -> int:
        """Size in bytes, hashes included."""
        return int(self.rows.nbytes) + (0 if self.hashes is None else self.hashes.nbytes)


class Delivery(NamedTuple):
    """A batch and the executor or sink instance that receives it."""

    target: ExecutorId
    batch: Batch
