"""Splitting a batch by executor and by shard: one stable radix sort, one take, then slices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.table import ShardTable
from dask_elastic.vocab.gather import take_rows


def split_by_executor(
    rows: pa.RecordBatch, hashes: np.ndarray, space: KeySpace
) -> list[tuple[int, pa.RecordBatch, np.ndarray]]:
    """Split rows among the executors of a component; each executor's rows keep their order.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The rows.
    hashes : numpy.ndarray
        Their key hashes, ``uint64``.
    space : KeySpace
        The component's key space.

    Returns
    -------
    list of (int, pyarrow.RecordBatch, numpy.ndarray)
        Executor, its rows, their hashes; executors without rows are omitted.

    Examples
    --------
    >>> rows = pa.record_batch({"x": [10, 11, 12]})
    >>> parts = split_by_executor(rows, np.array([0, 1, 0], dtype=np.uint64), KeySpace(2, 1))
    >>> [(executor, part["x"].to_pylist()) for executor, part, _ in parts]
    [(0, [10, 12]), (1, [11])]
    """
    if len(hashes) == 0:
        return []
    if space.executors == 1:
        return [(0, rows, hashes)]
    if len(hashes) == 1:
        return [(space.executor_of_one(hashes.item(0)), rows, hashes)]
    executors = space.executor_of(hashes)
    counts = np.bincount(executors, minlength=space.executors)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return [(int(present[0]), rows, hashes)]
    order = np.argsort(executors, kind="stable")
    rows, hashes = take_rows(rows, order), hashes[order]
    ends = np.cumsum(counts)
    return [
        (int(e), rows.slice(int(ends[e] - counts[e]), int(counts[e])), hashes[ends[e] - counts[e] : ends[e]])
        for e in present
    ]


class ShardOrder(NamedTuple):
    """Rows sorted by the shard order of one table.

    Parameters
    ----------
    order : numpy.ndarray
        Row numbers in sorted order.
    shards : numpy.ndarray
        The shards in the table's order.
    bounds : numpy.ndarray
        Shard ``shards[i]`` has the sorted rows ``bounds[i]`` to ``bounds[i + 1]``.
    """

    order: np.ndarray
    shards: np.ndarray
    bounds: np.ndarray


def order_by_shard(hashes: np.ndarray, space: KeySpace, table: ShardTable) -> ShardOrder:
    """Order rows so that each task's rows, and within them each shard's, are contiguous and keep their order.

    Parameters
    ----------
    hashes : numpy.ndarray
        The rows' key hashes, ``uint64``.
    space : KeySpace
        The component's key space.
    table : ShardTable
        The executor's current table.

    Returns
    -------
    ShardOrder
        The sorted row numbers, and where each shard's rows are among them.

    Examples
    --------
    >>> space, table = KeySpace(1, 4), ShardTable.initial(4, [0, 1])
    >>> found = order_by_shard(np.array([1, 0, 2, 1], dtype=np.uint64), space, table)
    >>> found.order.tolist(), found.shards.tolist(), found.bounds.tolist()
    ([1, 2, 0, 3], [0, 2, 1, 3], [0, 1, 2, 4, 4])
    """
    ranks = table.rank[space.shard_of(hashes)]
    bounds = np.zeros(len(table.order) + 1, dtype=np.int64)
    np.cumsum(np.bincount(ranks, minlength=len(table.order)), out=bounds[1:])
    return ShardOrder(np.argsort(ranks, kind="stable"), table.order, bounds)


def order_few_by_shard(shards: list[int], table: ShardTable) -> ShardOrder:
    """Order a few rows as `order_by_shard` does; shards without rows are omitted.

    Parameters
    ----------
    shards : list of int
        The shard of each row.
    table : ShardTable
        The executor's current table.

    Returns
    -------
    ShardOrder
        The sorted row numbers, and where the rows of each shard that has any are among them.

    Examples
    --------
    >>> found = order_few_by_shard([1, 0, 2, 1], ShardTable.initial(4, [0, 1]))
    >>> found.order.tolist(), found.shards.tolist(), found.bounds.tolist()
    ([1, 2, 0, 3], [0, 2, 1], [0, 1, 2, 4])
    """
    ranks = [table.rank.item(shard) for shard in shards]
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    present: list[int] = []
    bounds: list[int] = []
    for place, row in enumerate(order):
        if not present or shards[row] != present[-1]:
            present.append(shards[row])
            bounds.append(place)
    return ShardOrder(np.array(order), np.array(present), np.array([*bounds, len(order)]))


def count_by_shard(hashes: np.ndarray, space: KeySpace) -> np.ndarray:
    """Return the number of rows per shard, ``int64``.

    Parameters
    ----------
    hashes : numpy.ndarray
        The rows' key hashes, ``uint64``.
    space : KeySpace
        The component's key space.

    Returns
    -------
    numpy.ndarray
        One number per shard.
    """
    return np.bincount(space.shard_of(hashes), minlength=space.shards)
