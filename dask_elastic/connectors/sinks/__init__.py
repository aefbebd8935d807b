"""Sinks: Parquet files, Delta tables, Postgres, Kafka, rows kept for the client, Dask queues, and user functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_elastic.connectors.sinks.call import Call
from dask_elastic.connectors.sinks.collect import Collect
from dask_elastic.connectors.sinks.dask_queue import DaskQueue
from dask_elastic.connectors.sinks.delta import Delta
from dask_elastic.connectors.sinks.kafka import Kafka
from dask_elastic.connectors.sinks.parquet import Parquet
from dask_elastic.connectors.sinks.postgres import Postgres
from dask_elastic.vocab.unknown_name import unknown_name

__all__ = ["Call", "Collect", "DaskQueue", "Delta", "Kafka", "Parquet", "Postgres"]

_SYNONYMS = {
    **dict.fromkeys(("print", "function", "foreach", "foreachbatch", "callback"), "Call"),
    **dict.fromkeys(("list", "memory", "tolist", "table", "arrow", "gather"), "Collect"),
    **dict.fromkeys(("queue", "distributedqueue"), "DaskQueue"),
    **dict.fromkeys(("deltalake", "deltatable"), "Delta"),
    **dict.fromkeys(("postgresql", "adbc"), "Postgres"),
    **dict.fromkeys(("files", "file", "toparquet", "writeparquet"), "Parquet"),
}
_MISSING = {
    "write a function for sinks.Call, or subclass dask_elastic.topology.Sink": (
        *("kinesis", "pulsar", "mqtt", "rabbitmq", "redis", "csv", "json", "orc", "iceberg", "sql"),
    )
}

if not TYPE_CHECKING:  # Type checkers report unknown names themselves.

    def __getattr__(name: str) -> object:
        raise unknown_name("sinks", name, __all__, _SYNONYMS, _MISSING)
