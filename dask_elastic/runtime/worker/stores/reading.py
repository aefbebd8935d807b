"""Reads of the state of an executor at its home, for clients; state on disk is not loaded as a whole."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dask_elastic.runtime.protocol.tables import first_rows
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.memory import Memory
from dask_elastic.vocab.errors import StateMemoryExceeded

_COPIES = 3
"""Copies of the state that answering a client takes: the columns, the table, and the message."""


def read(
    home: ExecutorThreads, operator: str, key: tuple[Any, ...] | None, first: int | None, memory: Memory
) -> pa.Table | None:
    """Return the state of a compute of an executor, its first rows, or the row of one key.

    Parameters
    ----------
    home : ExecutorThreads
        The executor.
    operator : str
        The compute.
    key : tuple, optional
        The key; all keys by default.
    first : int, optional
        How many rows to return, with the number of all in the metadata; all by default.
    memory : Memory
        The worker's memory.

    Returns
    -------
    Table or None
        The rows; None before the first one.

    Raises
    ------
    StateMemoryExceeded
        If the state is on disk and its copy does not fit in memory.
    """
    if key is not None:
        return home.find_key(key, operator)
    store = home.store_of(operator)
    if not store.storage.on_disk:
        found = home.read_state(operator=operator)
        return found if found is None or first is None else first_rows(found, first)
    if first is not None:
        return _first(home, operator, first)
    nbytes = store.state_bytes()
    if not memory.has_room(_COPIES * nbytes):
        raise StateMemoryExceeded(
            f"the state of {home.identity} has {nbytes / 2**20:,.0f} MiB on disk, and a copy of it does not fit in "
            f"memory: {memory.account()}. Look up single keys with job.state(...).get, or read all of it from a "
            "checkpoint with read_state"
        )
    return home.read_state(operator=operator)


def _first(home: ExecutorThreads, operator: str, count: int) -> pa.Table | None:
    """Return the first rows, of as many shards as are needed."""
    store, parts, rows = home.store_of(operator), [], 0
    for shard in range(store.shards):
        part = home.read_state([shard], operator)
        if part is None:
            return None
        parts.append(part)
        rows += part.num_rows
        if rows >= count:
            break
    return first_rows(pa.concat_tables(parts), count, len(store))
