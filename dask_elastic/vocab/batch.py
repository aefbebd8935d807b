"""A batch on its way: rows, the hashes of their keys, and when they were due to leave their source."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.vocab.identity import ExecutorId

MAX_BATCH_ROWS = 65_536
"""Most rows of one unit of work: group numbers within a batch then fit 16 bits, which NumPy sorts by radix."""


class Batch(NamedTuple):
    """Rows for one executor or sink.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The tuples.
    hashes : numpy.ndarray or None
        Key hashes, ``uint64``, one a row; ``None`` where the target has no key.
    stamp : float
        Seconds since the epoch when the oldest of the rows was due to leave its source.
    now : float
        The processing time by which state expires, seconds since the epoch: the executor's home gives it when a task
        takes the batch, so that a replay has the same. 0 on the way there.
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
    """A batch and the executor or sink instance that it goes to."""

    target: ExecutorId
    batch: Batch
