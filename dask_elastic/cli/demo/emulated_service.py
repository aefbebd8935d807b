"""Service time that is emulated by sleeping, so that the cores of the demonstration need no processor time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pyarrow as pa

_own = threading.local()


def serve(seconds: float) -> None:
    """Sleep for a service time; the thread's next sleep is shorter by the overshoot of this one.

    Parameters
    ----------
    seconds : float
        The service time.
    """
    wanted = seconds - getattr(_own, "overslept", 0.0)
    began = time.perf_counter()
    if wanted > 0:
        time.sleep(wanted)
    _own.overslept = time.perf_counter() - began - wanted


def served(column: str, seconds: float) -> Callable[[pa.RecordBatch], pa.Array]:
    """Make a function that returns a column after the service time of its rows.

    Parameters
    ----------
    column : str
        The column.
    seconds : float
        Service time per row.
    """

    def read(batch: pa.RecordBatch) -> pa.Array:
        serve(batch.num_rows * seconds)
        return batch[column]

    return read
