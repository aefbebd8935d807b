"""The demonstration's topology: running delays per airplane and per route."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dask_elastic.cli.demo.emulated_service import served
from dask_elastic.cli.demo.load import Load
from dask_elastic.connectors import sinks
from dask_elastic.topology import Stream, Topology
from dask_elastic.topology import aggregate as agg

KEYS = {"per_plane": "tailnum", "per_route": "route"}
"""The stateful operators and their key columns."""

EXECUTORS = {"per_plane": 1, "per_route": 2}
"""Number of executors of each operator in the elastic job; the static job has one for each slot."""

SHARDS = 64
"""Shards of each executor."""


def delays(service: float) -> dict[str, agg.Aggregate]:
    """Return the aggregates that an operator computes per key, with a service time per flight in seconds."""
    return {
        "flights": agg.Count(),
        "total": agg.Sum(served("arr_delay", service), columns=["arr_delay"]),
        "mean": agg.Mean("arr_delay"),
        "worst": agg.Max("arr_delay"),
    }


def build(name: str, arrivals: Callable[[Topology, float], Stream], load: Load, updates: Path) -> Topology:
    """Build the topology.

    Parameters
    ----------
    name : str
        Its name.
    arrivals : callable
        Adds the source with a rate to a topology, and returns the stream of flights that arrived.
    load : Load
        Rate and service times.
    updates : Path
        Directory for the updates: the new values of each route that a batch touched.
    """
    topology = Topology(name)
    arrived = arrivals(topology, load.rate)
    per = {
        operator: arrived.key_by(key).compute(
            delays(load.service[operator]), name=operator, executors=EXECUTORS[operator], shards=SHARDS
        )
        for operator, key in KEYS.items()
    }
    per["per_route"].sink(sinks.Parquet(updates, mode="overwrite"), name="route_updates")
    return topology
