"""Operators that emulate service time by sleeping, so that two cores stand for many, and log what they processed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa

PROCESSED: list[tuple[float, int, float]] = []
"""Each processed batch of this process: end time, number of rows, and their mean latency."""

_own = threading.local()


def forget_processed() -> None:
    """Clear the log of this process."""
    PROCESSED.clear()


def processed() -> list[tuple[float, int, float]]:
    """Return the log of this process."""
    return PROCESSED


def serve(rows: int, seconds: float) -> None:
    """Sleep for the service time of the rows; the thread's next sleep is shorter by the overshoot of this one."""
    wanted = rows * seconds - getattr(_own, "overslept", 0.0)
    began = time.perf_counter()
    if wanted > 0:
        time.sleep(wanted)
    _own.overslept = time.perf_counter() - began - wanted


def served_in_1_ms(batch: pa.RecordBatch) -> pa.Array:
    """Return the value column after a millisecond per row; a column has the times at which rows were read."""
    serve(batch.num_rows, 1e-3)
    _note_latency(batch, "read")
    return batch["value"]


def served_in_about_1_ms(batch: pa.RecordBatch) -> pa.Array:
    """The same after a normally distributed time per row: 1 ms, with a standard deviation of 0.5 ms."""
    rng = _own.__dict__.setdefault("rng", np.random.default_rng(threading.get_ident()))
    times = np.maximum(rng.normal(1e-3, 5e-4, batch.num_rows), 0.0)
    serve(1, float(times.sum()))
    _note_latency(batch, "read")
    return batch["value"]


def served_in_10_ms(batch: pa.RecordBatch) -> pa.Array:
    """Return the value column after ten milliseconds per row; a column has the due times."""
    serve(batch.num_rows, 1e-2)
    _note_latency(batch, "due")
    return batch["value"]


def _note_latency(batch: pa.RecordBatch, since: str) -> None:
    now = time.time()
    if batch.num_rows:
        PROCESSED.append((now, batch.num_rows, float(np.mean(now - batch[since].to_numpy()))))


def per_second(done: list[tuple[float, int, float]], began: float, ended: float, step: float) -> np.ndarray:
    """Return rows per second in each time step."""
    times, rows = np.array([entry[0] for entry in done]), np.array([entry[1] for entry in done])
    edges = np.arange(began, ended, step)
    return np.histogram(times, edges, weights=rows)[0] / step
