"""The queue of one task: pieces of batches, labels, and a stop item."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dask_elastic.executor.piece import Piece, Receipt, Replay
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.table import ShardTable
from dask_elastic.vocab.batch import FEW_ROWS, MAX_BATCH_ROWS, Batch
from dask_elastic.vocab.state_record import StateRecord
from dask_elastic.vocab.window_side import WindowSide

JOIN_ROWS = 16_384
"""Joining small pieces beyond this many rows costs more in copies than it saves in calls."""

LARGE_PIECE = 4_096
"""A piece of more rows than this is processed by itself: copying it into a joined batch would not pay."""


class LabelItem(NamedTuple):
    """A label in a task's queue; the shard moves to `target`, which is on the same node when `stays`."""

    shard: int
    target: int
    stays: bool


class StopItem(NamedTuple):
    """The last item of a task's queue."""


class Work:
    """Pieces that one task processes as one batch.

    Parameters
    ----------
    pieces : list of Piece
        At least one; all of the same kind of replay. The piece of a state record is the only one.

    Attributes
    ----------
    record : StateRecord or None
        The state record that it stands for; None for rows.
    side : WindowSide or None
        The instances of windows that it is about; None for all.
    now : float
        The processing time that the home gave it when a task took it.
    wanted_more : bool
        Whether the task would have taken more rows, had they waited.
    """

    __slots__ = ("_built", "keeps", "now", "pieces", "record", "replay", "rows", "side", "wanted_more")

    def __init__(self, pieces: list[Piece]):
        self.now = 0.0
        self.pieces = pieces
        self.rows = pieces[0].length if len(pieces) == 1 else sum(piece.length for piece in pieces)
        self.replay = pieces[0].replay
        self.record: StateRecord | None = pieces[0].block.record
        self.side = pieces[0].block.side
        self.keeps = False
        self.wanted_more = False
        self._built: Batch | None = None

    def __repr__(self) -> str:
        return f"<Work: {self.rows} rows in {len(self.pieces)} pieces>"

    @property
    def silent(self) -> bool:
        """Whether its outputs were emitted before the replay, and are dropped."""
        return self.replay is Replay.SILENT

    @property
    def is_suspect(self) -> bool:
        """Whether a node may have died of its rows, which are all suspects or none."""
        return bool(self.pieces) and self.pieces[0].suspect

    @property
    def nbytes(self) -> int:
        """Size in bytes, from the mean row size of each batch that it has rows of."""
        return int(sum(piece.receipt.row_bytes * piece.length for piece in self.pieces))

    def batch(self, copied: bool = True) -> Batch:
        """Return the rows as one batch; copies contiguous rows only if there are several pieces.

        Work of a remote task `keeps` its batch for a replay: it returns the same one again. Unless they are to be
        `copied`, the rows of a large block that is shared with other tasks are `ChosenRows`.
        """
        if self._built is not None:
            return self._built
        built = self._build(copied or self.keeps)
        if self.keeps:
            self._built = built
        return built

    @property
    def _effective_side(self) -> WindowSide | None:
        """The side that matters: a record that meets partials of its own side only need not look at it."""
        if self.side is None or self.record is None or self.side.mixed or self.replay is not Replay.NONE:
            return self.side
        return None

    def settle(self) -> None:
        """Drop the pieces, and with them the blocks that others share; keep the batch."""
        self._built = self.batch()
        self.pieces = []

    def _build(self, copied: bool) -> Batch:
        if len(self.pieces) == 1:
            piece = self.pieces[0]
            part = piece.block.part if copied or self.record is not None else piece.block.chosen
            rows, hashes = part(piece.start, piece.stop)
            receipt = piece.receipt
            kinds = (receipt.reached, receipt.settled, receipt.separate, self._effective_side)
            return Batch(rows, hashes, receipt.stamp, self.now, None, self.record, *kinds)
        parts = [piece.block.part(piece.start, piece.stop) for piece in self.pieces]
        stamp = min(piece.receipt.stamp for piece in self.pieces)
        rows = pa.concat_batches([rows for rows, _ in parts])
        hashes = np.concatenate([hashes for _, hashes in parts])
        receipt = self.pieces[0].receipt
        kinds = (receipt.reached, receipt.settled, receipt.separate, self._effective_side)
        return Batch(rows, hashes, stamp, self.now, None, None, *kinds)

    def rows_by_shard(self, space: KeySpace) -> np.ndarray:
        """Rows of each shard, ``int64``."""
        # Many small batches may be joined: their rows are counted together.
        few: list[int] = []
        counts: np.ndarray | None = None
        for piece in self.pieces:
            if piece.length <= FEW_ROWS:
                few += piece.row_shards(space)
            else:
                by_shard = piece.rows_by_shard(space)
                counts = by_shard if counts is None else counts + by_shard
        if counts is None:
            return np.bincount(few, minlength=space.shards)
        return counts + np.bincount(few, minlength=space.shards) if few else counts

    def by_shard(self, space: KeySpace) -> np.ndarray | list[int]:
        """Rows of each shard, or of a few rows the shard of each, which is found and counted faster."""
        if self.rows > FEW_ROWS:
            return self.rows_by_shard(space)
        return [shard for piece in self.pieces for shard in piece.row_shards(space)]


Item = Work | LabelItem | StopItem


class TaskQueue:
    """FIFO of one task. Rows in it can still be routed to another task; items that `take` has returned cannot.

    A piece is large and immutable, so cutting a shard out of the whole queue copies no row.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._items: deque[Piece | LabelItem | StopItem] = deque()
        # Pieces at the head that are not joined with those behind, for which they would wait.
        self._urgent = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def pieces(self) -> list[Piece]:
        """The rows that wait, in order."""
        return [item for item in self._items if isinstance(item, Piece)]

    def put(self, piece: Piece) -> None:
        """Append rows."""
        self._items.append(piece)
        self.rows += piece.length

    def put_before_rows(self, piece: Piece) -> None:
        """Insert what may be processed before the rows that wait, but not before a state record or replayed rows."""
        place = len(self._items)
        while place and _may_follow(self._items[place - 1]):
            place -= 1
        self._items.insert(place, piece)
        self.rows += piece.length

    def put_first(self, pieces: Iterable[Piece]) -> None:
        """Insert rows before all others, in order; no row or state record of their shards waits."""
        urgent = [*pieces]
        controls = []
        while self.has_control:
            controls.append(self._items.popleft())
        self._items.extendleft(reversed([*controls, *urgent]))
        self.rows += sum(piece.length for piece in urgent)
        self._urgent += len(urgent)

    def put_control(self, item: LabelItem | StopItem) -> None:
        """Put a control record before all waiting rows: none of them is of the label's shard; at a stop none waits."""
        self._items.appendleft(item)

    @property
    def begins_with_suspect(self) -> bool:
        """Whether the next item is rows of which a node may have died."""
        first = self._items[0] if self._items else None
        return isinstance(first, Piece) and first.suspect

    @property
    def has_control(self) -> bool:
        """Whether the next item is a control record."""
        return bool(self._items) and not isinstance(self._items[0], Piece)

    def take_control(self) -> LabelItem | StopItem | None:
        """Return the next item if it is a control record, else None."""
        if not self.has_control:
            return None
        item = self._items.popleft()
        assert not isinstance(item, Piece)
        return item

    def take(self, limit: int) -> Item | None:
        """Return the next item.

        Parameters
        ----------
        limit : int
            Rows to return, at most.

        Returns
        -------
        Work, LabelItem, StopItem or None
            A control record, or waiting pieces joined up to `limit` rows; None if the queue is empty. A state record is
            work of its own.
        """
        if not self._items:
            return None
        first = self._items.popleft()
        if not isinstance(first, Piece):
            return first
        is_urgent, self._urgent = self._urgent > 0, max(0, self._urgent - 1)
        if first.block.record is not None:
            self.rows -= first.length
            return Work([first])
        limit = min(max(limit, 1), MAX_BATCH_ROWS)
        pieces = [self._cut(first, limit, is_urgent)]
        rows = pieces[0].length
        while rows < min(limit, JOIN_ROWS) and self._items and (self._urgent or not is_urgent):
            following = self._items[0]
            if not isinstance(following, Piece) or following.length > LARGE_PIECE:
                break
            if following.replay is not first.replay or following.taken != first.taken or following.block.record:
                # The outputs of one batch leave all or not at all, and it has one processing time.
                break
            if following.suspect is not first.suspect:
                break
            if following.block.side != first.block.side or not _may_join(first.receipt, following.receipt):
                break
            self._items.popleft()
            self._urgent = max(0, self._urgent - 1)
            pieces.append(self._cut(following, limit - rows, is_urgent))
            rows += pieces[-1].length
        self.rows -= rows
        work = Work(pieces)
        # A large piece is not joined with others: what would help is that senders join more.
        work.wanted_more = rows < min(limit, JOIN_ROWS) and (not self._items or self._has_large_piece)
        return work

    @property
    def _has_large_piece(self) -> bool:
        first = self._items[0]
        return isinstance(first, Piece) and first.length > LARGE_PIECE

    def _cut(self, piece: Piece, limit: int, is_urgent: bool) -> Piece:
        if piece.length <= limit:
            return piece
        head, rest = piece.cut(limit)
        self._items.appendleft(rest)
        self._urgent += is_urgent
        return head

    def hasten(self, shards: np.ndarray, space: KeySpace) -> int:
        """Let the rows and state records of some shards, given as a mask, be taken before those of all others.

        Returns
        -------
        int
            How many wait.
        """
        pieces = self.pieces
        if not pieces:
            return 0
        # Of all pieces together: many may be small, and few of them have such rows.
        chosen = shards.take(space.shard_of(np.concatenate([piece.hashes for piece in pieces])))
        starts = np.cumsum([0, *(piece.length for piece in pieces)])[:-1]
        found = zip(starts.tolist(), np.logical_or.reduceat(chosen, starts).tolist(), strict=True)
        kept: deque[Piece | LabelItem | StopItem] = deque()
        hastened: list[Piece] = []
        for item in self._items:
            others: Piece | LabelItem | StopItem | None = item
            if isinstance(item, Piece):
                start, has_some = next(found)
                if has_some:
                    others, part = item.divided(chosen[start : start + item.length])
                    hastened += [] if part is None else [part]
            if others is not None:
                kept.append(others)
        count = int(np.count_nonzero(chosen))
        self._items, self._urgent = kept, 0
        self.rows -= count
        self.put_first(hastened)
        return count

    def extract(self, shard: int, space: KeySpace, table: ShardTable) -> list[Piece]:
        """Cut the rows of a shard out of the queue, in order."""
        kept: deque[Piece | LabelItem | StopItem] = deque()
        taken: list[Piece] = []
        for item in self._items:
            if not isinstance(item, Piece):
                kept.append(item)
                continue
            stays, moved = item.sorted(space, table).without(shard)
            kept.extend(stays)
            if moved is not None:
                taken.append(moved)
        self._items = kept
        self.rows -= sum(piece.length for piece in taken)
        return taken


def _may_follow(item: Piece | LabelItem | StopItem) -> bool:
    """Return whether an item may wait for a piece that is entered later: rows of all windows that are not replayed."""
    if not isinstance(item, Piece) or item.replay is not Replay.NONE:
        return False
    return item.block.record is None and item.block.side is None


def _may_join(first: Receipt, following: Receipt) -> bool:
    """Return whether rows may be in one batch, as far as event time matters."""
    if first.reached != following.reached or first.separate is not following.separate:
        # A shard that has moved here brought rows along that arrived before others.
        return False
    # Where event time counts, rows are counted by how late they are, but not again in a replay.
    return first.reached is None or first.settled is following.settled
