"""Tools for users' tests: run a topology without a cluster."""

from __future__ import annotations

from dask_elastic.testing.run import Result, run

__all__ = ["Result", "run"]
