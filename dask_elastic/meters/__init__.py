"""Meters: counters and histograms that the data path updates with ``(value, now)`` and the control loop reads.

Meters take no locks. The thread that processes a batch writes, any other thread reads. A read concurrent with a write
may miss the newest values, but never raises and is never older than one slot of the meter.
"""

from __future__ import annotations

from dask_elastic.meters.batch_cost import BatchCost
from dask_elastic.meters.brief_work import BriefWork
from dask_elastic.meters.computing_share import ComputingShare
from dask_elastic.meters.counter_rate import CounterRate
from dask_elastic.meters.departures import Departures
from dask_elastic.meters.edge_rows import EdgeRows
from dask_elastic.meters.flow_window import FlowWindow
from dask_elastic.meters.function_costs import FunctionCosts
from dask_elastic.meters.histogram import LatencyHistogram
from dask_elastic.meters.inline_cost import InlineCost
from dask_elastic.meters.input_traffic import InputTraffic
from dask_elastic.meters.lasting_load import LastingLoad
from dask_elastic.meters.latency_window import LatencyWindow
from dask_elastic.meters.node_speeds import NodeSpeeds, ServedRates
from dask_elastic.meters.phase_time import PhaseTime
from dask_elastic.meters.prompt_reads import PromptReads
from dask_elastic.meters.rate import Rate
from dask_elastic.meters.recent_mean import RecentMean
from dask_elastic.meters.ring import MeterError, SlotRing
from dask_elastic.meters.send_size import SendSize
from dask_elastic.meters.service import ServiceRate
from dask_elastic.meters.shard_arrivals import ShardArrivals
from dask_elastic.meters.shard_load import ShardLoad

__all__ = [
    "BatchCost",
    "BriefWork",
    "ComputingShare",
    "CounterRate",
    "Departures",
    "EdgeRows",
    "FlowWindow",
    "FunctionCosts",
    "InlineCost",
    "InputTraffic",
    "LastingLoad",
    "LatencyHistogram",
    "LatencyWindow",
    "MeterError",
    "NodeSpeeds",
    "PhaseTime",
    "PromptReads",
    "Rate",
    "RecentMean",
    "SendSize",
    "ServedRates",
    "ServiceRate",
    "ShardArrivals",
    "ShardLoad",
    "SlotRing",
]
