"""When rows of each key group leave their source and are processed, noted in each process of a job."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import numpy as np
import pyarrow as pa

GROUPS = 64


class NotedBatch(NamedTuple):
    """A batch that was processed.

    Parameters
    ----------
    at : float
        When, in seconds since the Unix epoch.
    rows : int
        Its rows.
    groups : ndarray of int
        The groups that it has rows of.
    left : ndarray of float
        When the first row of each of these groups left its source.
    """

    at: float
    rows: int
    groups: np.ndarray
    left: np.ndarray


_noted: list[NotedBatch] = []
_lock = threading.Lock()


def stamped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the time at which it leaves its source."""
    return batch.append_column("left", pa.array(np.full(batch.num_rows, time.time())))


def noted(batch: pa.RecordBatch, service: float) -> pa.Array:
    """Return the value column after the service time of the rows, and note when which groups were processed.

    Rows that have no time, which make the first state, are neither served nor noted.
    """
    if not batch.num_rows or not batch["left"][0].as_py():
        return batch["value"]
    time.sleep(batch.num_rows * service)
    at = time.time()
    # Rows of a group are in the order in which they left.
    groups, first = np.unique(batch["group"].to_numpy(), return_index=True)
    with _lock:
        _noted.append(NotedBatch(at, batch.num_rows, groups, batch["left"].to_numpy()[first]))
    return batch["value"]


def take_noted() -> list[NotedBatch]:
    """Return the batches so far, and forget them."""
    with _lock:
        taken = _noted.copy()
        _noted.clear()
    return taken
