"""Rows and windows for the tests of windows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

import dask_elastic as de
from dask_elastic.topology.windowing import EventWindow

SECOND = 1_000_000
EVENT = st.builds(EventWindow, st.integers(-9, 9), st.integers(1, 60), st.integers(1, 60))


def readings(seed, rows=300, keys=5, seconds=500, disorder=0, nulls=0.0):
    """Return rows in the order of time, but for `disorder` seconds; some of the times and values are null."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(-seconds // 4, seconds, rows)) - rng.integers(0, disorder + 1, rows)
    spans = rng.integers(0, 20, rows)
    lost = rng.random(rows) < nulls
    names = np.array([f"k{number}" for number in range(keys)])
    return pa.table(
        {
            "key": pa.array(rng.choice(names, rows), mask=rng.random(rows) < 0.1),
            "at": pa.array(times * SECOND, pa.timestamp("us"), mask=lost),
            "until": pa.array((times + spans) * SECOND, pa.timestamp("us")),
            "value": pa.array(rng.integers(-50, 50, rows), mask=rng.random(rows) < 0.2),
        }
    )


def source(rows, slack=None, parallel=1):
    arrow = de.sources.Arrow(rows, batch_rows=37, event_time="at", slack=slack, parallel=parallel)
    return de.Topology("windows").source("rows", arrow)
