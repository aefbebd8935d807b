"""Sinks: Parquet files, Delta tables, Postgres, Kafka, rows kept for the client, Dask queues, and user functions.

Each is imported when it is used first: a worker needs those of its jobs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dask_elastic.vocab.unknown_name import unknown_name

if TYPE_CHECKING:
    from dask_elastic.connectors.sinks.call import Call
    from dask_elastic.connectors.sinks.collect import Collect
    from dask_elastic.connectors.sinks.dask_queue import DaskQueue
    from dask_elastic.connectors.sinks.delta import Delta
    from dask_elastic.connectors.sinks.kafka import Kafka
    from dask_elastic.connectors.sinks.parquet import Parquet
    from dask_elastic.connectors.sinks.postgres import Postgres

__all__ = ["Call", "Collect", "DaskQueue", "Delta", "Kafka", "Parquet", "Postgres"]

_DEFINED_IN = {
    "Call": "call",
    "Collect": "collect",
    "DaskQueue": "dask_queue",
    "Delta": "delta",
    "Kafka": "kafka",
    "Parquet": "parquet",
    "Postgres": "postgres",
}
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
        if name not in _DEFINED_IN:
            raise unknown_name("sinks", name, __all__, _SYNONYMS, _MISSING)
        value = globals()[name] = getattr(import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
