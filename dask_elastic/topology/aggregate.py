"""The public namespace of aggregates: ``from dask_elastic import aggregate as agg``."""

from __future__ import annotations

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.distinct_count import DistinctCount
from dask_elastic.topology.aggregates.extremes import Max, Min
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.sums import Count, Mean, Sum
from dask_elastic.topology.aggregates.top_k import TopK
from dask_elastic.topology.aggregates.user_aggregate import UserAggregate, custom

__all__ = [
    "Aggregate",
    "BoundAggregate",
    "Bundle",
    "Count",
    "DistinctCount",
    "Field",
    "Max",
    "Mean",
    "Min",
    "Sum",
    "TopK",
    "UserAggregate",
    "custom",
]
