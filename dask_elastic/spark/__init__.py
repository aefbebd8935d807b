"""Spark at the door: a session that starts, data prepared with it, and its rows handed over to a running job."""

from __future__ import annotations

from dask_elastic.spark.failure import SparkFailed
from dask_elastic.spark.hand_over import drain, handoff, into, register
from dask_elastic.spark.session import session

__all__ = ["SparkFailed", "drain", "handoff", "into", "register", "session"]
