"""Shards of which two tasks have windows: each row goes to those whose windows it is in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.executor.piece import Block, Piece
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.state_record import BEGINNING
from dask_elastic.vocab.window_side import WindowSide

Mask = npt.NDArray[np.bool_]


class Sides(Protocol):
    """What the home knows about the windows of rows; `windows.row_sides.RowSides`."""

    in_both: float

    def latest(self, rows: pa.RecordBatch) -> int | None:
        """Return the latest event time of rows, in microseconds; None if none has any."""

    def divide(self, rows: pa.RecordBatch, begin: int) -> tuple[Mask, Mask]:
        """Return which rows are in windows that begin before an event time, and which in later ones, or in none."""

    def last_end(self, begin: int) -> int:
        """Return the latest end of a window that begins before an event time."""


class SharedShard(NamedTuple):
    """A shard of which two tasks have windows.

    Parameters
    ----------
    source, target : int
        The task with the windows that begin before `begin`, and the one with the others.
    begin : int
        The event time, in microseconds since the Unix epoch.
    last_end : int
        When the last window of the source ends.

    Notes
    -----
    Enorm, section 4.5, smooth migration: rows of windows of both are processed twice.
    """

    source: int
    target: int
    begin: int
    last_end: int


class SharedShards:
    """The shards of one executor of which two tasks have windows; the caller holds the executor's lock.

    Attributes
    ----------
    sides : Sides or None
        What is known of the windows of rows; None if the shards of the executor cannot be shared.
    added : int
        Rows, of state records as well, that were added to arriving batches since `take_added`: those that two tasks
        get.
    latest : int or None
        The latest event time of a row that was received, in microseconds.
    """

    def __init__(self) -> None:
        self.sides: Sides | None = None
        self.added = 0
        self.latest: int | None = None
        self._by_shard: dict[int, SharedShard] = {}

    def __contains__(self, shard: int) -> bool:
        return shard in self._by_shard

    def add(self, shard: int, shared: SharedShard) -> None:
        """Begin to divide the rows of a shard."""
        self._by_shard[shard] = shared

    def remove(self, shard: int) -> SharedShard:
        """Divide the rows of a shard no more."""
        return self._by_shard.pop(shard)

    def take_added(self) -> int:
        """Return how many rows were added since the last call."""
        added, self.added = self.added, 0
        return added

    def note(self, latest: int | None) -> None:
        """Note the latest event time of rows that were received."""
        if latest is not None and (self.latest is None or latest > self.latest):
            self.latest = latest

    def next_begin(self, event_time: int | None) -> int:
        """Return an event time later than all rows that were received, and not before that of the last record."""
        times = [time for time in (event_time, None if self.latest is None else self.latest + 1) if time is not None]
        return max(times, default=BEGINNING)

    def has_closed(self, shard: int, event_time: int | None) -> bool:
        """Whether the last window of a shard's earlier task has ended by an event time."""
        return event_time is not None and event_time >= self._by_shard[shard].last_end

    def parts(self, shard: int, piece: Piece) -> list[tuple[int, Piece]]:
        """Return the parts of rows of one shard, or of a state record, with the task of each.

        Both tasks get state records, and the rows that are in windows of both. They count once more in the batch's
        accounting.
        """
        shared = self._by_shard[shard]
        before, after = WindowSide(shared.begin, later=False), WindowSide(shared.begin, later=True)
        if piece.block.record is not None:
            of_tasks = ((shared.source, before), (shared.target, after))
            found = [(task, piece._replace(block=piece.block._replace(side=side))) for task, side in of_tasks]
        else:
            assert self.sides is not None, "only executors that know the windows of rows share shards"
            rows, hashes = piece.block.part(piece.start, piece.stop)
            earlier, later = self.sides.divide(rows, shared.begin)
            of_rows: list[tuple[int, Mask, WindowSide | None]] = [
                (shared.source, earlier & ~later, None),
                (shared.source, earlier & later, before),
                (shared.target, later & ~earlier, None),
                (shared.target, earlier & later, after),
            ]
            found = [(task, _part(piece, rows, hashes, chosen, side)) for task, chosen, side in of_rows if chosen.any()]
        added = sum(part.length for _, part in found) - piece.length
        piece.receipt.rows += added
        self.added += added
        return found


def _part(piece: Piece, rows: pa.RecordBatch, hashes: np.ndarray, chosen: Mask, side: WindowSide | None) -> Piece:
    if chosen.all():
        block = Block(rows, hashes, side=side)
    else:
        block = Block(rows.filter(array_of(chosen)), hashes[chosen], side=side)
    return piece._replace(block=block, start=0, stop=len(block.hashes))


def mixed(piece: Piece) -> Piece:
    """Return a piece that meets partials of both sides of an event time."""
    side = piece.block.side
    if side is None or piece.block.record is None:
        return piece
    return piece._replace(block=piece.block._replace(side=side.of_task(mixed=True)))
