"""Rows that wait for a task: a routed block, and the pieces into which it is cut without copying."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.executor.control_records.watermarks import Span
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.split import count_by_shard, order_by_shard, order_few_by_shard
from dask_elastic.routing.table import ShardTable
from dask_elastic.vocab.batch import FEW_ROWS, Batch
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.gather import take_rows
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import StateRecord
from dask_elastic.vocab.window_side import WindowSide


class Receipt:
    """Accounting of one received batch: the credit to release when all of its rows are settled.

    Parameters
    ----------
    origin : ExecutorId
        The upstream instance that sent it.
    nbytes : int
        Credit to release.
    rows : int
        Rows that are not settled.
    stamp, arrived : float
        When the oldest row was due to leave its source, and when the batch reached the receiver.

    Attributes
    ----------
    row_bytes : float
        Bytes of one row.
    settled : bool
        Whether the rows were settled before a loss, and are only replayed.
    span : Span or None
        The span of watermarks in which the batch counts.
    reached : int or None
        As of `Batch`: whether rows are late depends on it, also in a replay.
    separate : bool
        As of `Batch`: a replay adds rows to the partials to which they were added before.
    is_part : bool
        Whether another receipt counts for the batch, of which this one has some rows.
    """

    __slots__ = (
        "arrived", "is_part", "nbytes", "origin", "reached", "row_bytes", "rows", "separate", "settled", "span",
        "stamp",
    )  # fmt: skip

    def __init__(self, origin: ExecutorId, nbytes: int, rows: int, stamp: float, arrived: float, is_part: bool = False):
        self.origin = origin
        self.nbytes = nbytes
        self.rows = rows
        self.stamp = stamp
        self.arrived = arrived
        self.row_bytes = nbytes / rows
        self.settled = False
        self.span: Span | None = None
        self.reached: int | None = None
        self.separate = False
        self.is_part = is_part

    @classmethod
    def for_replay(cls, origin: ExecutorId, nbytes: int, batch: Batch, now: float) -> Receipt:
        """Return the receipt of rows that were settled before a loss: no credit is released for them."""
        receipt = cls(origin, nbytes, batch.rows.num_rows, batch.stamp, now)
        receipt.reached, receipt.separate = batch.reached, batch.separate
        receipt.nbytes = 0
        receipt.settled = True
        return receipt


class Block(NamedTuple):
    """Rows as the receiver routed them: sorted by shard, or in order of arrival if one task owns all of their shards.

    Parameters
    ----------
    rows, hashes
        Rows and key hashes.
    order : numpy.ndarray or None
        Row numbers in sorted order, perhaps of some rows only; None if the rows themselves are in it.
    shards, bounds : numpy.ndarray or None
        As in `ShardOrder`; None if the rows are not sorted. Shards without rows may be omitted.
    row_shards : list of int or None
        The shard of each row; None if there are more than `FEW_ROWS`.
    record : StateRecord or None
        The state record that the block stands for, with one row for each shard that it is addressed to; None for rows.
    side : WindowSide or None
        The instances of windows that it is about; None for all.
    latest : int or None
        The latest event time of a row that was received, in microseconds, if it is looked for.
    """

    rows: pa.RecordBatch
    hashes: np.ndarray
    order: np.ndarray | None = None
    shards: np.ndarray | None = None
    bounds: np.ndarray | None = None
    row_shards: list[int] | None = None
    record: StateRecord | None = None
    side: WindowSide | None = None
    latest: int | None = None

    def part(self, start: int, stop: int) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return rows `start` to `stop` of the sorted order, and their hashes; rows of a shard in order of arrival."""
        rows, hashes = self.chosen(start, stop)
        return (rows.copied() if isinstance(rows, ChosenRows) else rows), hashes

    def chosen(self, start: int, stop: int) -> tuple[pa.RecordBatch | ChosenRows, np.ndarray]:
        """Return the same as `part`; rows that are not contiguous are not copied yet."""
        if self.order is None and stop - start == len(self.hashes):
            return self.rows, self.hashes
        if self.order is None:
            return self.rows.slice(start, stop - start), self.hashes[start:stop]
        # Copying rows in order of arrival takes half as long as in the order of their shards.
        chosen = np.zeros(len(self.hashes), dtype=np.bool_)
        chosen[self.order[start:stop]] = True
        order = chosen.nonzero()[0]
        return ChosenRows(self.rows, order), self.hashes.take(order)


SMALL_BLOCK = 8_192
"""Rows of the largest block that the receiver sorts itself; tasks copy the rows of larger blocks, in parallel."""


def routed_block(rows: pa.RecordBatch, hashes: np.ndarray, space: KeySpace, table: ShardTable) -> Block:
    """Return a block in order of arrival if one task owns the shards of all rows, else in the table's shard order."""
    if len(hashes) <= FEW_ROWS:
        shards = space.shards_of_few(hashes)
        if table.single is None and table.task_of(shards) is None:
            return _few_sorted(rows, hashes, shards, table)
        return Block(rows, hashes, row_shards=shards)
    return Block(rows, hashes) if table.single is not None else sorted_block(rows, hashes, space, table)


def sorted_block(rows: pa.RecordBatch, hashes: np.ndarray, space: KeySpace, table: ShardTable) -> Block:
    """Return a block in the shard order of a table."""
    if len(hashes) <= FEW_ROWS:
        return _few_sorted(rows, hashes, space.shards_of_few(hashes), table)
    found = order_by_shard(hashes, space, table)
    if len(hashes) > SMALL_BLOCK:
        return Block(rows, hashes, *found)
    return Block(take_rows(rows, found.order), hashes[found.order], None, found.shards, found.bounds)


def _few_sorted(rows: pa.RecordBatch, hashes: np.ndarray, row_shards: list[int], table: ShardTable) -> Block:
    found = order_few_by_shard(row_shards, table)
    if (order := found.order.tolist()) == [*range(len(order))]:
        return Block(rows, hashes, None, found.shards, found.bounds, row_shards)
    taken = [row_shards[row] for row in order]
    return Block(take_rows(rows, found.order), hashes[found.order], None, found.shards, found.bounds, taken)


class Replay(Enum):
    """Whether rows are replayed after the loss of their task, and whether their outputs were already emitted."""

    NONE = "not replayed"
    LOUD = "replayed; the outputs were not emitted before"
    SILENT = "replayed; the outputs were emitted before"


class Piece(NamedTuple):
    """The rows `start` to `stop` of a block; `suspect` if a node may have died of them.

    Replayed rows keep the processing time `taken` of the first run, so that state expires as it did then.
    """

    block: Block
    start: int
    stop: int
    receipt: Receipt
    replay: Replay = Replay.NONE
    suspect: bool = False
    taken: float | None = None

    @property
    def length(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def row_shards(self, space: KeySpace) -> list[int]:
        """Return the shard of each row; for a few rows faster than `rows_by_shard`."""
        block = self.block
        if block.row_shards is not None:
            return block.row_shards[self.start : self.stop]
        return space.shards_of_few(self.hashes)

    def cut(self, rows: int) -> tuple[Piece, Piece]:
        """Return a piece of the first `rows` rows, and one of the rest."""
        middle = self.start + rows
        return self._replace(stop=middle), self._replace(start=middle)

    def sorted(self, space: KeySpace, table: ShardTable) -> Piece:
        """Return the same rows in a block that is sorted by shard."""
        if self.block.bounds is not None:
            return self
        rows, hashes = self.block.part(self.start, self.stop)
        block = sorted_block(rows, hashes, space, table)._replace(record=self.block.record, side=self.block.side)
        return self._replace(block=block, start=0, stop=self.length)

    def without(self, shard: int) -> tuple[list[Piece], Piece | None]:
        """Cut one shard out of a sorted piece: the remaining pieces, and the shard's rows or None."""
        shards, bounds = self.block.shards, self.block.bounds
        assert shards is not None
        assert bounds is not None
        found = np.flatnonzero(shards == shard)
        if not len(found):
            return [self], None
        position = int(found[0])
        first = min(max(int(bounds[position]), self.start), self.stop)
        last = min(max(int(bounds[position + 1]), self.start), self.stop)
        if first == last:
            return [self], None
        stays = [p for p in (self._replace(stop=first), self._replace(start=last)) if p.length]
        return stays, self._replace(start=first, stop=last)

    @property
    def hashes(self) -> np.ndarray:
        """The key hash of each row."""
        order, rows = self.block.order, slice(self.start, self.stop)
        return self.block.hashes[rows] if order is None else self.block.hashes.take(order[rows])

    def divided(self, chosen: np.ndarray) -> tuple[Piece | None, Piece | None]:
        """Divide the rows by whether they are in a mask: those that are not, and those that are; None if none.

        Both are in the order of the piece. Copies no rows: the caller has a lock for which threads wait that receive.
        """
        parts = (chosen.nonzero()[0] for chosen in (~chosen, chosen))
        others, part = (self._only(places) if len(places) else None for places in parts)
        return others, part

    def _only(self, places: np.ndarray) -> Piece:
        if len(places) == self.length:
            return self
        block, order = self.block, self.start + places
        if block.order is not None:
            order = block.order.take(order)
        part = Block(block.rows, block.hashes, order, record=block.record, side=block.side)
        return self._replace(block=part, start=0, stop=len(order))

    def rows_by_shard(self, space: KeySpace) -> np.ndarray:
        """Rows of each shard, ``int64``."""
        if self.length <= FEW_ROWS:
            return np.bincount(self.row_shards(space), minlength=space.shards)
        if self.block.bounds is None:
            return count_by_shard(self.hashes, space)
        counts = np.zeros(space.shards, dtype=np.int64)
        counts[self.block.shards] = np.diff(np.clip(self.block.bounds, self.start, self.stop))
        return counts


def pieces_by_route(block: Block, receipt: Receipt, table: ShardTable) -> Iterator[tuple[int, int, Piece]]:
    """Cut a sorted block where the route changes: (task or `PAUSED`, first shard of the run, piece).

    The block may have been sorted under an older table: a shard whose task has changed since ends a run.
    """
    if block.row_shards is not None:
        yield from _few_by_route(block, block.row_shards, receipt, table)
        return
    assert block.shards is not None
    assert block.bounds is not None
    present = np.flatnonzero(np.diff(block.bounds))
    shards = block.shards[present]
    routes = np.where(table.paused[shards], -1 - shards, table.owner[shards])
    starts = np.flatnonzero(np.diff(routes, prepend=np.iinfo(np.int64).min))
    ends = np.append(starts[1:], len(routes))
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first, last = int(block.bounds[present[begin]]), int(block.bounds[present[end - 1] + 1])
        yield int(routes[begin]), int(shards[begin]), Piece(block, first, last, receipt)


def _few_by_route(
    block: Block, row_shards: list[int], receipt: Receipt, table: ShardTable
) -> Iterator[tuple[int, int, Piece]]:
    routes = [-1 - shard if table.paused.item(shard) else table.owner.item(shard) for shard in row_shards]
    begin = 0
    for end in range(1, len(routes) + 1):
        if end == len(routes) or routes[end] != routes[begin]:
            yield routes[begin], row_shards[begin], Piece(block, begin, end, receipt)
            begin = end
