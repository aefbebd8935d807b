"""Where rows come from and where results go: the sources and sinks that the library brings."""

from __future__ import annotations

from dask_elastic.connectors import sinks, sources

__all__ = ["sinks", "sources"]
