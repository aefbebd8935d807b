"""Aggregates as users write them: ``from dask_elastic import aggregate as agg``."""

from __future__ import annotations

from dask_elastic.topology.aggregation import Aggregate, BoundAggregate
from dask_elastic.topology.bundle import Bundle
from dask_elastic.topology.distinct_count import DistinctCount
from dask_elastic.topology.extremes import Max, Min
from dask_elastic.topology.field import Field
from dask_elastic.topology.sums import Count, Mean, Sum
from dask_elastic.topology.top_k import TopK
from dask_elastic.topology.user_aggregate import UserAggregate, custom

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
