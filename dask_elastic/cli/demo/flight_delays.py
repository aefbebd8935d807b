"""The demonstration's topology: running delays per airplane and per route."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from dask_elastic.connectors import sinks
from dask_elastic.topology import Stream, Topology
from dask_elastic.topology import aggregate as agg

SERVICE_SECONDS = {"per_plane": 150e-6, "per_route": 600e-6}
"""Seconds of service time per flight, emulated by sleeping, for each stateful operator."""

KEYS = {"per_plane": "tailnum", "per_route": "route"}
"""The stateful operators and their key columns."""

EXECUTORS = {"per_plane": 1, "per_route": 2}
"""Number of executors of each operator; a hot route loads one of them."""


def emulated(column: str, seconds: float) -> Callable[[pa.RecordBatch], pa.Array]:
    """Make a function that returns a column after sleeping some time per row, to load the cores."""

    def read(batch: pa.RecordBatch) -> pa.Array:
        time.sleep(batch.num_rows * seconds)
        return batch[column]

    return read


def delays(operator: str) -> dict[str, agg.Aggregate]:
    """Return the aggregates that an operator computes per key."""
    return {
        "flights": agg.Count(),
        "total": agg.Sum(emulated("arr_delay", SERVICE_SECONDS[operator]), columns=["arr_delay"]),
        "mean": agg.Mean("arr_delay"),
        "worst": agg.Max("arr_delay"),
    }


def build(arrivals: Callable[[Topology], Stream], updates: Path) -> Topology:
    """Build the topology.

    Parameters
    ----------
    arrivals : callable
        Adds the source to a topology, and returns the stream of flights that arrived.
    updates : Path
        Directory for the updates: the new values of each route that a batch touched.
    """
    topology = Topology("flight-delays")
    arrived = arrivals(topology)
    per = {
        operator: arrived.key_by(key).compute(delays(operator), name=operator, executors=EXECUTORS[operator])
        for operator, key in KEYS.items()
    }
    per["per_route"].sink(sinks.Parquet(updates, mode="overwrite"), name="route_updates")
    return topology
