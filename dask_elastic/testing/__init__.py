"""Tools for users' tests: run a topology without a cluster, and check sources and sinks of one's own."""

from __future__ import annotations

from dask_elastic.testing.run import Result, run
from dask_elastic.testing.sinks import check_sink
from dask_elastic.testing.sources import check_source

__all__ = ["Result", "check_sink", "check_source", "run"]
