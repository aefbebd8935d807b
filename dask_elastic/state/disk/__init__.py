"""Keyed state in files: the arrays of a store in mapped files, which the page cache holds and evicts."""

from __future__ import annotations

from dask_elastic.state.disk.disk_storage import DiskStorage
from dask_elastic.state.disk.unnamed_files import UnnamedFiles

__all__ = ["DiskStorage", "UnnamedFiles"]
