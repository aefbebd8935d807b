"""Sinks: Parquet files, Delta tables, Postgres, Kafka, rows kept for the client, Dask queues, and user functions."""

from __future__ import annotations

from dask_elastic.connectors.sinks.call import Call
from dask_elastic.connectors.sinks.collect import Collect
from dask_elastic.connectors.sinks.dask_queue import DaskQueue
from dask_elastic.connectors.sinks.delta import Delta
from dask_elastic.connectors.sinks.kafka import Kafka
from dask_elastic.connectors.sinks.parquet import Parquet
from dask_elastic.connectors.sinks.postgres import Postgres

__all__ = ["Call", "Collect", "DaskQueue", "Delta", "Kafka", "Parquet", "Postgres"]
