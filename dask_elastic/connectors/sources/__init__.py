"""Sources: Parquet, Arrow, Dask collections, generators, Kafka, Dask queues, rows that a program sends, Spark.

Each is imported when it is used first: a worker needs those of its jobs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dask_elastic.vocab.unknown_name import unknown_name

if TYPE_CHECKING:
    from dask_elastic.connectors.sources.arrow import Arrow
    from dask_elastic.connectors.sources.dask_partitions import DaskPartitions, from_dask
    from dask_elastic.connectors.sources.dask_queue import DaskQueue
    from dask_elastic.connectors.sources.iterable import Iterable
    from dask_elastic.connectors.sources.kafka import Kafka
    from dask_elastic.connectors.sources.parquet import Parquet
    from dask_elastic.connectors.sources.push import Push
    from dask_elastic.connectors.sources.spark import Spark

__all__ = ["Arrow", "DaskPartitions", "DaskQueue", "Iterable", "Kafka", "Parquet", "Push", "Spark", "from_dask"]

_DEFINED_IN = {
    "Arrow": "arrow",
    "DaskPartitions": "dask_partitions",
    "DaskQueue": "dask_queue",
    "Iterable": "iterable",
    "Kafka": "kafka",
    "Parquet": "parquet",
    "Push": "push",
    "Spark": "spark",
    "from_dask": "dask_partitions",
}
_SYNONYMS = {
    **dict.fromkeys(("table", "frame", "pandas", "frompandas", "fromarrow", "memory", "recordbatch"), "Arrow"),
    **dict.fromkeys(("generator", "list", "function", "fromlist", "iterator", "call", "range"), "Iterable"),
    **dict.fromkeys(("dask", "dataframe", "dataframes", "bag", "daskdataframe", "delayed"), "from_dask"),
    **dict.fromkeys(("queue", "distributedqueue"), "DaskQueue"),
    **dict.fromkeys(("send", "http", "socket", "memorystream", "programfed"), "Push"),
    **dict.fromkeys(("pyspark", "structuredstreaming", "sparkstream"), "Spark"),
    **dict.fromkeys(("readparquet", "files", "file", "fromparquet"), "Parquet"),
}
_MISSING = {
    "write a generator for sources.Iterable, or subclass dask_elastic.topology.Source": (
        *("kinesis", "pulsar", "mqtt", "rabbitmq", "redis", "csv", "json", "orc", "delta", "iceberg", "sql"),
    )
}

if not TYPE_CHECKING:  # Type checkers report unknown names themselves.

    def __getattr__(name: str) -> object:
        if name not in _DEFINED_IN:
            raise unknown_name("sources", name, __all__, _SYNONYMS, _MISSING)
        value = globals()[name] = getattr(import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
