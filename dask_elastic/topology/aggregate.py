"""The public namespace of aggregates: ``from dask_elastic import aggregate as agg``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.distinct_count import DistinctCount
from dask_elastic.topology.aggregates.extremes import Max, Min
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.sums import Count, Mean, Sum
from dask_elastic.topology.aggregates.top_k import TopK
from dask_elastic.topology.aggregates.user_aggregate import UserAggregate, custom
from dask_elastic.vocab.unknown_name import unknown_name

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

_SYNONYMS = {
    **dict.fromkeys(("avg", "average", "arithmeticmean"), "Mean"),
    **dict.fromkeys(("total", "add", "sumof"), "Sum"),
    **dict.fromkeys(("size", "len", "length", "rows", "counter", "countall"), "Count"),
    **dict.fromkeys(("minimum", "least", "smallest"), "Min"),
    **dict.fromkeys(("maximum", "most", "greatest"), "Max"),
    **dict.fromkeys(("top", "topn", "nlargest", "largest", "heavyhitters"), "TopK"),
    **dict.fromkeys(
        ("countdistinct", "nunique", "unique", "uniquecount", "distinct", "cardinality", "hyperloglog", "hll"),
        "DistinctCount",
    ),
    **dict.fromkeys(("approxcountdistinct", "approxdistinct", "countunique"), "DistinctCount"),
    **dict.fromkeys(("udaf", "userdefined", "useraggregatefunction", "aggregatefunction"), "UserAggregate"),
    **dict.fromkeys(("apply", "reduce", "fold"), "custom"),
}
_MISSING = {
    "write an agg.custom(...), or a function with state": (
        *("quantile", "quantiles", "percentile", "approxquantile", "approxpercentile", "median", "mode", "histogram"),
        *(
            "std",
            "stddev",
            "var",
            "variance",
            "skew",
            "kurtosis",
            "corr",
            "covariance",
            "product",
            "prod",
            "any",
            "all",
        ),
    ),
    "use compute(function, state={...}) with a Value or a List": (
        *("first", "last", "list", "collectlist", "arrayagg", "collectset", "set", "anyvalue", "latest"),
    ),
}

if not TYPE_CHECKING:  # Type checkers report unknown names themselves.

    def __getattr__(name: str) -> object:
        raise unknown_name("agg", name, __all__, _SYNONYMS, _MISSING)
