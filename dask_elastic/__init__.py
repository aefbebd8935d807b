"""Elastic, stateful stream processing on Dask.

Build a `Topology` of sources, operators and sinks, `submit` it to a Dask cluster, and read its state while it runs.
"""

from __future__ import annotations

from dask_elastic._version import __version__
from dask_elastic.connectors import sinks, sources
from dask_elastic.control.replay import replay
from dask_elastic.runtime.client.job import Job, job, jobs
from dask_elastic.runtime.client.read_queue import read_queue
from dask_elastic.runtime.client.recordings import load_snapshots, save_snapshots
from dask_elastic.runtime.client.retire import retire
from dask_elastic.runtime.client.submit import submit
from dask_elastic.runtime.config.job_options import load_defaults
from dask_elastic.state import List, Map, Value
from dask_elastic.topology import Topology, aggregate
from dask_elastic.topology.logic_level import per_key, per_row
from dask_elastic.vocab.errors import ElasticError

load_defaults()

__all__ = [
    "ElasticError",
    "Job",
    "List",
    "Map",
    "Topology",
    "Value",
    "__version__",
    "aggregate",
    "job",
    "jobs",
    "load_snapshots",
    "per_key",
    "per_row",
    "read_queue",
    "replay",
    "retire",
    "save_snapshots",
    "sinks",
    "sources",
    "submit",
]
