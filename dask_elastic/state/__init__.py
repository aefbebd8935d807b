"""Keyed state: where each key's values lie, who may touch them, and how they travel."""

from __future__ import annotations

from dask_elastic.state.codec import StateRows, decode, encode
from dask_elastic.state.index import KeyIndex, NumpyIndex, PandasIndex, make_index
from dask_elastic.state.session import Located, Session
from dask_elastic.state.store import NO_OWNER, KeyedStore
from dask_elastic.state.view import StateView, value_fields, value_result

__all__ = [
    "NO_OWNER",
    "KeyIndex",
    "KeyedStore",
    "Located",
    "NumpyIndex",
    "PandasIndex",
    "Session",
    "StateRows",
    "StateView",
    "decode",
    "encode",
    "make_index",
    "value_fields",
    "value_result",
]
