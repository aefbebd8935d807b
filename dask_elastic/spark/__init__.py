"""Spark: start a session, prepare recordings, and send the rows of batches and streaming queries to a running job."""

from __future__ import annotations

from dask_elastic.spark.epoch_handoff import drain, handoff, into, register
from dask_elastic.spark.failure import SparkFailed
from dask_elastic.spark.session import session

__all__ = ["SparkFailed", "drain", "handoff", "into", "register", "session"]
