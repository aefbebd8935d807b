"""Keyed state: its storage, the owner of each shard, the views of user logic, and the encoding for moves."""

from __future__ import annotations

from dask_elastic.state.codec import StateRows, decode, encode
from dask_elastic.state.index import KeyIndex, NumpyIndex, PandasIndex, make_index
from dask_elastic.state.layout import StateLayout
from dask_elastic.state.session import Located, Session
from dask_elastic.state.shard_owners import NO_OWNER
from dask_elastic.state.store import KeyedStore
from dask_elastic.state.view import StateView
from dask_elastic.topology.state_kind import List, Map, Value

__all__ = [
    "NO_OWNER",
    "KeyIndex",
    "KeyedStore",
    "List",
    "Located",
    "Map",
    "NumpyIndex",
    "PandasIndex",
    "Session",
    "StateLayout",
    "StateRows",
    "StateView",
    "Value",
    "decode",
    "encode",
    "make_index",
]
