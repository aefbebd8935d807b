"""Sources: Parquet, Arrow, Dask collections, generators, Kafka, Dask queues, rows that a program sends, Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_elastic.connectors.sources.arrow import Arrow
from dask_elastic.connectors.sources.dask_partitions import DaskPartitions, from_dask
from dask_elastic.connectors.sources.dask_queue import DaskQueue
from dask_elastic.connectors.sources.iterable import Iterable
from dask_elastic.connectors.sources.kafka import Kafka
from dask_elastic.connectors.sources.parquet import Parquet
from dask_elastic.connectors.sources.push import Push
from dask_elastic.connectors.sources.spark import Spark
from dask_elastic.vocab.unknown_name import unknown_name

__all__ = ["Arrow", "DaskPartitions", "DaskQueue", "Iterable", "Kafka", "Parquet", "Push", "Spark", "from_dask"]

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
        raise unknown_name("sources", name, __all__, _SYNONYMS, _MISSING)
