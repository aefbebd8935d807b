"""Latencies that a sink notes in its worker, of rows that carry the time at which they were due."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

NEVER = 0.0
"""In place of a due time: the latency of the row is not noted."""

LATE: list[float] = []
"""Seconds from the due times in the column `value` to the sink; one for each due time in a batch."""


def note(rows: pa.RecordBatch) -> None:
    """Note the latencies of a batch."""
    now = time.time()
    due = np.unique(rows["value"].to_numpy())
    LATE.extend((now - due[due != NEVER]).tolist())


def taken_late() -> list[float]:
    """Return and clear what `note` noted."""
    found = LATE.copy()
    LATE.clear()
    return found
