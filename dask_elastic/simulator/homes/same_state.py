"""Check of a simulated move: the state that has arrived at the new home is the one that has left the old one."""

from __future__ import annotations

import pyarrow as pa

from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId


def check_same_state(executor: ExecutorId, left: PrimaryState, arrived: PrimaryState) -> None:
    """Compare the state of an executor at both homes.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    left, arrived : PrimaryState
        Its state at the old home and at the new one, before any task has started there.

    Raises
    ------
    ProtocolError
        If any row differs, or a row that has changed since the last checkpoint is not marked at the new home.
    """
    others = arrived.stores(executor.component)
    for name, store in left.stores(executor.component).items():
        if _rows(store) != _rows(others[name]):
            raise ProtocolError(f"{executor} has other state of {name!r} at its new home than at the old one")
        if lost := _changed(store) - _changed(others[name]):
            raise ProtocolError(
                f"{executor} has lost {len(lost)} marks of changes of {name!r} on the way to its new home"
            )


def _rows(store: KeyedStore) -> list[str]:
    # As text, in which values that are not equal to themselves can be compared.
    return sorted(map(repr, _tuples(KeyedStore.extract(store))))


def _changed(store: KeyedStore) -> set[tuple[object, ...]]:
    return {row[:2] for row in _tuples(KeyedStore.extract(store, dirty_only=True, clear=False))}


def _tuples(state: pa.RecordBatch | None) -> list[tuple[object, ...]]:
    """Return the rows, which begin with both hashes; the names of the columns are not unique."""
    return [] if state is None else [*zip(*(column.to_pylist() for column in state.columns), strict=True)]
