"""Indexes from 64-bit hashes to slots: hash tables that look up whole batches, and grow without long steps."""

from __future__ import annotations

from dask_elastic.state.index.choice import make_index
from dask_elastic.state.index.direct_index import MANY_ROWS, DirectIndex
from dask_elastic.state.index.growing_index import GrowingIndex
from dask_elastic.state.index.key_index import KeyIndex, Slots, Words
from dask_elastic.state.index.numpy_index import NumpyIndex
from dask_elastic.state.index.pandas_index import PandasIndex

__all__ = [
    "MANY_ROWS",
    "DirectIndex",
    "GrowingIndex",
    "KeyIndex",
    "NumpyIndex",
    "PandasIndex",
    "Slots",
    "Words",
    "make_index",
]
