"""Rows that wait for a task: a routed block, and the pieces it is cut into without copying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.split import SortedRows, count_by_shard, sort_by_shard
from dask_elastic.routing.table import ShardTable
from dask_elastic.vocab.identity import ExecutorId


class Receipt:
    """What is owed to the sender of a batch once all of its rows are processed.

    Parameters
    ----------
    origin : ExecutorId
        The upstream instance that sent it.
    nbytes : int
        Credit to give back.
    rows : int
        Rows not processed yet.
    stamp, arrived : float
        When the oldest row was due to leave its source, and when the batch reached the receiver.
    """

    __slots__ = ("arrived", "nbytes", "origin", "rows", "stamp")

    def __init__(self, origin: ExecutorId, nbytes: int, rows: int, stamp: float, arrived: float):
        self.origin = origin
        self.nbytes = nbytes
        self.rows = rows
        self.stamp = stamp
        self.arrived = arrived


class Block(NamedTuple):
    """Rows as the receiver routed them: sorted by shard, or as they came where one task owns every shard."""

    rows: pa.RecordBatch
    hashes: np.ndarray
    shards: np.ndarray | None
    bounds: np.ndarray | None


class Piece(NamedTuple):
    """The rows `start` to `stop` of a block."""

    block: Block
    start: int
    stop: int
    receipt: Receipt

    @property
    def length(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def cut(self, rows: int) -> tuple[Piece, Piece]:
        """The first `rows` rows, and the rest."""
        middle = self.start + rows
        return self._replace(stop=middle), self._replace(start=middle)

    def sorted(self, space: KeySpace, table: ShardTable) -> Piece:
        """The same rows in a block that is sorted by shard."""
        if self.block.bounds is not None:
            return self
        part = sort_by_shard(
            self.block.rows.slice(self.start, self.length), self.block.hashes[self.start : self.stop], space, table
        )
        return Piece(Block(*part), 0, self.length, self.receipt)

    def without(self, shard: int) -> tuple[list[Piece], Piece | None]:
        """Cut one shard out of a sorted piece: what stays, and the shard's rows."""
        shards, bounds = self.block.shards, self.block.bounds
        assert shards is not None and bounds is not None
        position = int(np.flatnonzero(shards == shard)[0])
        first = min(max(int(bounds[position]), self.start), self.stop)
        last = min(max(int(bounds[position + 1]), self.start), self.stop)
        if first == last:
            return [self], None
        stays = [p for p in (self._replace(stop=first), self._replace(start=last)) if p.length]
        return stays, self._replace(start=first, stop=last)

    def rows_by_shard(self, space: KeySpace) -> np.ndarray:
        """Rows of each shard, ``int64``."""
        if self.block.bounds is None:
            return count_by_shard(self.block.hashes[self.start : self.stop], space)
        counts = np.zeros(space.shards, dtype=np.int64)
        counts[self.block.shards] = np.diff(np.clip(self.block.bounds, self.start, self.stop))
        return counts


def block_of(part: SortedRows) -> Block:
    """The block of rows that are sorted by shard."""
    return Block(part.rows, part.hashes, part.shards, part.bounds)


def pieces_by_route(block: Block, receipt: Receipt, table: ShardTable) -> Iterator[tuple[int, int, Piece]]:
    """Cut a sorted block where the route changes: (task or `PAUSED`, first shard of the run, piece).

    The block may have been sorted under an older table: a shard that changed its task since ends a run.
    """
    assert block.shards is not None and block.bounds is not None
    present = np.flatnonzero(np.diff(block.bounds))
    shards = block.shards[present]
    routes = np.where(table.paused[shards], -1 - shards, table.owner[shards])
    starts = np.flatnonzero(np.diff(routes, prepend=np.iinfo(np.int64).min))
    ends = np.append(starts[1:], len(routes))
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first, last = int(block.bounds[present[begin]]), int(block.bounds[present[end - 1] + 1])
        yield int(routes[begin]), int(shards[begin]), Piece(block, first, last, receipt)
