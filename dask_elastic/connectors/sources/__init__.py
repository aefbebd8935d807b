"""Sources: files, tables, generators of one's own, and rows that a program sends."""

from __future__ import annotations

from dask_elastic.connectors.sources.arrow import Arrow
from dask_elastic.connectors.sources.iterable import Iterable
from dask_elastic.connectors.sources.parquet import Parquet
from dask_elastic.connectors.sources.push import Push

__all__ = ["Arrow", "Iterable", "Parquet", "Push"]
