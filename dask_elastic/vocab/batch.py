"""Batches in transit: rows, the hashes of their keys, and the time at which they were due at their source."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import StateRecord
from dask_elastic.vocab.window_side import WindowSide

MAX_BATCH_ROWS = 65_536
"""The most rows of one unit of work: group numbers within a batch then fit 16 bits, which NumPy radix-sorts."""

FEW_ROWS = 16
"""Up to this many rows, loops in Python take less time than calls of NumPy, which cost as much for hundreds of rows."""


class Batch(NamedTuple):
    """Rows for one executor or sink.

    Parameters
    ----------
    rows : pyarrow.RecordBatch or ChosenRows
        The tuples; `ChosenRows` only where a task at home processes them.
    hashes : numpy.ndarray or None
        Key hashes, ``uint64``, one per row; ``None`` if the target has no key.
    stamp : float
        When the oldest of the rows was due to leave its source, in seconds since the Unix epoch.
    now : float
        The processing time for the expiry of state, in seconds since the Unix epoch. The executor's home sets it when a
        task takes the batch, so that a replay uses the same time; 0 until then.
    row_bytes : int or None
        Size of the rows in bytes, if the emitter has determined it.
    record : StateRecord or None
        The state record that the batch stands for, with one row for each shard that it is addressed to; None for rows.
    reached : int or None
        The event time of the state record that the executor entered last before the batch, in microseconds since the
        Unix epoch; None before the first one.
    settled : bool
        Whether the rows had been settled before a loss, and are replayed.
    separate : bool
        Whether rows of windows are added to a state for each instance, in the place of slices that instances share.
    side : WindowSide or None
        The instances of windows for which the rows count, or that a state record may close; None for all.
    version : int
        The version of the first tier by which the target was chosen, see `GroupTable`; 0 if key groups never move.
    """

    rows: pa.RecordBatch | ChosenRows
    hashes: np.ndarray | None
    stamp: float
    now: float = 0.0
    row_bytes: int | None = None
    record: StateRecord | None = None
    reached: int | None = None
    settled: bool = False
    separate: bool = False
    side: WindowSide | None = None
    version: int = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes, hashes included."""
        row_bytes = int(self.rows.nbytes) if self.row_bytes is None else self.row_bytes
        return row_bytes + (0 if self.hashes is None else self.hashes.nbytes)


class Delivery(NamedTuple):
    """A batch and the executor or sink instance that receives it."""

    target: ExecutorId
    batch: Batch
