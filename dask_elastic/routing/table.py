"""The dynamic tier of routing: an immutable, versioned table from shard to task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from dask_elastic.vocab.errors import MoveRefused, ProtocolError

PAUSED = -1
"""In place of a task: the shard is on the move, its rows wait in the receiver."""


@dataclass(frozen=True)
class ShardTable:
    """Which task each shard of an executor belongs to.

    A table never changes; every change makes the next version, so that a batch may be split against it without a lock.

    Parameters
    ----------
    version : int
        Counts the changes.
    owner : numpy.ndarray
        Task of each shard, ``int32``; the source task while the shard is paused.
    paused : numpy.ndarray
        Whether each shard is on the move, ``bool``.

    Notes
    -----
    `order` lists the shards so that those of one task are neighbours, paused ones at the end; `rank` is its inverse.
    Rows sorted by rank are therefore contiguous per task and, within it, per shard: a shard is cut out by slicing.

    Examples
    --------
    >>> table = ShardTable.initial(shards=4, tasks=[0, 1])
    >>> table.owner.tolist()
    [0, 1, 0, 1]
    >>> table.pause(1).moved(1, 0).owner.tolist()
    [0, 0, 0, 1]
    """

    version: int
    owner: np.ndarray
    paused: np.ndarray
    order: np.ndarray = field(init=False, repr=False)
    rank: np.ndarray = field(init=False, repr=False)
    routes: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        routes = np.where(self.paused, np.iinfo(np.int32).max, self.owner)
        order = np.argsort(routes, kind="stable")
        rank = np.empty(len(order), dtype=np.uint8 if len(order) <= 256 else np.uint16)
        rank[order] = np.arange(len(order))
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "routes", np.where(self.paused, PAUSED, self.owner)[order])

    @classmethod
    def initial(cls, shards: int, tasks: Iterable[int]) -> ShardTable:
        """Deal the shards to the tasks in turn."""
        dealt = np.resize(np.fromiter(tasks, dtype=np.int32), shards)
        return cls(0, dealt, np.zeros(shards, dtype=bool))

    @property
    def single(self) -> int | None:
        """The one task that owns every shard while none is paused, else None."""
        first = int(self.routes[0])
        return first if first != PAUSED and first == int(self.routes[-1]) else None

    def shards_of(self, task: int) -> np.ndarray:
        """Shards that a task owns, those on their way from it included."""
        return np.flatnonzero(self.owner == task)

    def pause(self, shard: int) -> ShardTable:
        """Stop routing a shard.

        Raises
        ------
        MoveRefused
            If it is paused already: a second move of a moving shard.
        """
        if self.paused[shard]:
            raise MoveRefused(f"shard {shard} is on the move already: wait until it has arrived")
        paused = self.paused.copy()
        paused[shard] = True
        return ShardTable(self.version + 1, self.owner, paused)

    def moved(self, shard: int, task: int) -> ShardTable:
        """Give a paused shard to `task` and resume its routing."""
        if not self.paused[shard]:
            raise ProtocolError(f"shard {shard} changed owner without a pause")
        owner, paused = self.owner.copy(), self.paused.copy()
        owner[shard] = task
        paused[shard] = False
        return ShardTable(self.version + 1, owner, paused)
