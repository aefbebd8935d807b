"""Meters: counters and histograms fed ``(value, now)`` by the data path and read by the control loop.

A meter takes no lock. Its writer is the thread that holds the batch, its reader any other thread. What a reader sees
beside a running writer may lack the newest values; it never raises and is never older than one slot of the meter.
"""

from __future__ import annotations

from dask_elastic.meters.batch_cost import BatchCost
from dask_elastic.meters.flow_window import FlowWindow
from dask_elastic.meters.histogram import LatencyHistogram
from dask_elastic.meters.latency_window import LatencyWindow
from dask_elastic.meters.rate import Rate
from dask_elastic.meters.recent_mean import RecentMean
from dask_elastic.meters.ring import MeterError, SlotRing
from dask_elastic.meters.service import ServiceRate
from dask_elastic.meters.shard_demand import ShardDemand
from dask_elastic.meters.shard_load import ShardLoad

__all__ = [
    "BatchCost",
    "FlowWindow",
    "LatencyHistogram",
    "LatencyWindow",
    "MeterError",
    "Rate",
    "RecentMean",
    "ServiceRate",
    "ShardDemand",
    "ShardLoad",
    "SlotRing",
]
