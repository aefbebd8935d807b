"""Which index a store has."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import numpy as np

from dask_elastic.state.index.growing_index import GrowingIndex
from dask_elastic.state.index.key_index import KeyIndex
from dask_elastic.state.index.numpy_index import NumpyIndex
from dask_elastic.state.index.pandas_index import PandasIndex


def _pandas_behaves() -> bool:
    hashes = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    try:
        index = PandasIndex()
        index.insert(hashes[:3], np.array([5, 0, 1]))
        frozen = hashes[::-1].copy()
        frozen.flags.writeable = False
        slots = index.lookup(frozen)
        return slots.dtype == np.intp and slots.tolist() == [-1, 1, 0, 5] and len(index) == 3
    except (ImportError, AttributeError, TypeError, ValueError):
        return False


@functools.cache
def _fastest() -> Callable[[], KeyIndex]:
    """Return the fastest kind of index that works with the installed pandas."""
    return GrowingIndex if _pandas_behaves() else NumpyIndex


def _has_pandas() -> bool:
    """Return whether this process has imported pandas."""
    module = sys.modules.get("pandas")
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def make_index() -> KeyIndex:
    """Return an empty index of the fastest kind that works here without importing pandas.

    Notes
    -----
    The import would take longer than all other steps of a job's start. It is not made later in a thread of the engine
    either: where another thread begins to import a part of pandas at the same time, both imports fail.

    Examples
    --------
    >>> len(make_index())
    0
    """
    return _fastest()() if _has_pandas() else NumpyIndex()
