"""Elastic, stateful stream processing on Dask.

Build a `Topology` of sources, operators and sinks, `submit` it to a Dask cluster, and read its state while it runs.

Each name is imported when it is used first: Dask workers and Python workers of Spark need few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_elastic._version import __version__
from dask_elastic.runtime.config.defaults import load_defaults

if TYPE_CHECKING:
    from dask_elastic import windows
    from dask_elastic.checkpoint.read_state import read_state, scan_state
    from dask_elastic.connectors import sinks, sources
    from dask_elastic.control.replay import replay
    from dask_elastic.runtime.client.elastic_adaptive import ElasticAdaptive
    from dask_elastic.runtime.client.job import Job, job, jobs
    from dask_elastic.runtime.client.read_queue import read_queue
    from dask_elastic.runtime.client.recordings import load_snapshots, save_snapshots
    from dask_elastic.runtime.client.resume import resume
    from dask_elastic.runtime.client.retire import retire
    from dask_elastic.runtime.client.submit import submit
    from dask_elastic.runtime.transport.epoch_rows import EpochRows
    from dask_elastic.runtime.transport.queue_rows import QueueRows
    from dask_elastic.state import List, Map, Value
    from dask_elastic.topology import Topology, aggregate
    from dask_elastic.topology.logic_level import per_key, per_row
    from dask_elastic.topology.timer import Timer
    from dask_elastic.topology.windows.consolidate import consolidate
    from dask_elastic.vocab.errors import ElasticError

load_defaults()

__all__ = [
    "ElasticAdaptive",
    "ElasticError",
    "EpochRows",
    "Job",
    "List",
    "Map",
    "QueueRows",
    "Timer",
    "Topology",
    "Value",
    "__version__",
    "aggregate",
    "consolidate",
    "job",
    "jobs",
    "load_snapshots",
    "per_key",
    "per_row",
    "read_queue",
    "read_state",
    "replay",
    "resume",
    "retire",
    "save_snapshots",
    "scan_state",
    "sinks",
    "sources",
    "submit",
    "windows",
]

_DEFINED_IN = {
    "ElasticAdaptive": "runtime.client.elastic_adaptive",
    "ElasticError": "vocab.errors",
    "EpochRows": "runtime.transport.epoch_rows",
    "Job": "runtime.client.job",
    "List": "topology.state_kind",
    "Map": "topology.state_kind",
    "QueueRows": "runtime.transport.queue_rows",
    "Timer": "topology.timer",
    "Topology": "topology",
    "Value": "topology.state_kind",
    "aggregate": "topology",
    "consolidate": "topology.windows.consolidate",
    "job": "runtime.client.job",
    "jobs": "runtime.client.job",
    "load_snapshots": "runtime.client.recordings",
    "per_key": "topology.logic_level",
    "per_row": "topology.logic_level",
    "read_queue": "runtime.client.read_queue",
    "read_state": "checkpoint.read_state",
    "replay": "control.replay",
    "resume": "runtime.client.resume",
    "retire": "runtime.client.retire",
    "save_snapshots": "runtime.client.recordings",
    "scan_state": "checkpoint.read_state",
    "sinks": "connectors",
    "sources": "connectors",
    "submit": "runtime.client.submit",
}
_PACKAGES = frozenset(
    {"connectors", "control", "model", "planning", "runtime", "state", "topology", "vocab", "windows"}
)


def __getattr__(name: str) -> Any:
    if name in _DEFINED_IN:
        value = getattr(import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
    elif name in _PACKAGES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
