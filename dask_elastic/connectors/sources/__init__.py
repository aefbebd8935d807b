"""Sources: Parquet files, Arrow tables, user generators, Kafka, Dask queues, rows sent by a program, Spark queries."""

from __future__ import annotations

from dask_elastic.connectors.sources.arrow import Arrow
from dask_elastic.connectors.sources.dask_queue import DaskQueue
from dask_elastic.connectors.sources.iterable import Iterable
from dask_elastic.connectors.sources.kafka import Kafka
from dask_elastic.connectors.sources.parquet import Parquet
from dask_elastic.connectors.sources.push import Push
from dask_elastic.connectors.sources.spark import Spark

__all__ = ["Arrow", "DaskQueue", "Iterable", "Kafka", "Parquet", "Push", "Spark"]
