"""Kits for tests: of topologies without a cluster."""

from __future__ import annotations

from dask_elastic.testing.run import Result, run

__all__ = ["Result", "run"]
