"""The library's own sources and sinks."""

from __future__ import annotations

from dask_elastic.connectors import sinks, sources

__all__ = ["sinks", "sources"]
