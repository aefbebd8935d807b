"""What a user writes: topologies of sources, operators and sinks; their validation, and their division into components.

What aggregates run on is in `dask_elastic.topology.aggregates`.
"""

from __future__ import annotations

from dask_elastic.topology import aggregate
from dask_elastic.topology.component import Branch, Component, Exit, build_components
from dask_elastic.topology.operators import (
    Compute,
    Filter,
    MapOperator,
    Operator,
    SinkOperator,
    SourceOperator,
    select_columns,
)
from dask_elastic.topology.sink import Sink, SinkContext, SinkWriter
from dask_elastic.topology.source import Source, SourceContext
from dask_elastic.topology.stream import KeyedStream, Stream
from dask_elastic.topology.tables import as_batches
from dask_elastic.topology.topology import Topology

__all__ = [
    "Branch",
    "Component",
    "Compute",
    "Exit",
    "Filter",
    "KeyedStream",
    "MapOperator",
    "Operator",
    "Sink",
    "SinkContext",
    "SinkOperator",
    "SinkWriter",
    "Source",
    "SourceContext",
    "SourceOperator",
    "Stream",
    "Topology",
    "aggregate",
    "as_batches",
    "build_components",
    "select_columns",
]
