"""Operators whose service time is emulated by sleeping, so that two cores stand for many; and what they did when."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa

PROCESSED: list[tuple[float, int, float]] = []
"""Of each batch in this process: when it was done, how many rows it had, and their mean latency (0 if unknown)."""

_own = threading.local()


def forget_processed() -> None:
    """Start anew in this process."""
    PROCESSED.clear()


def processed() -> list[tuple[float, int, float]]:
    """Return what was processed in this process."""
    return PROCESSED


def serve(rows: int, seconds: float) -> None:
    """Sleep as long as so many rows of service take; what a sleep was too long is taken off the thread's next one."""
    wanted = rows * seconds - getattr(_own, "overslept", 0.0)
    began = time.perf_counter()
    if wanted > 0:
        time.sleep(wanted)
    _own.overslept = time.perf_counter() - began - wanted


def served_in_1_ms(batch: pa.RecordBatch) -> pa.Array:
    """Return the value column after a millisecond a row."""
    serve(batch.num_rows, 1e-3)
    PROCESSED.append((time.time(), batch.num_rows, 0.0))
    return batch["value"]


def served_in_10_ms(batch: pa.RecordBatch) -> pa.Array:
    """Return the value column after ten milliseconds a row; the rows know when they were due."""
    serve(batch.num_rows, 1e-2)
    now = time.time()
    if batch.num_rows:
        PROCESSED.append((now, batch.num_rows, float(np.mean(now - batch["due"].to_numpy()))))
    return batch["value"]


def per_second(done: list[tuple[float, int, float]], began: float, ended: float, step: float) -> np.ndarray:
    """Rows per second in each step of time."""
    times, rows = np.array([entry[0] for entry in done]), np.array([entry[1] for entry in done])
    edges = np.arange(began, ended, step)
    return np.histogram(times, edges, weights=rows)[0] / step
