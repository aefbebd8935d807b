"""The second tier of routing: an immutable, versioned table from shard to task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from dask_elastic.vocab.errors import MoveRefused, ProtocolError

PAUSED = -1
"""The route of a paused shard: the shard is moving and the receiver buffers its rows."""

_LAST = np.iinfo(np.int32).max
"""Greater than every task."""


@dataclass(frozen=True)
class ShardTable:
    """The task that owns each shard of an executor.

    A table is immutable: each change returns a new version, so that a batch can be split against a table without a
    lock.

    Parameters
    ----------
    version : int
        The number of changes since the first table.
    owner : numpy.ndarray
        Task of each shard, ``int32``; the source task while the shard is paused.
    paused : numpy.ndarray
        Whether each shard is moving, ``bool``.

    Attributes
    ----------
    order : numpy.ndarray
        The shards ordered by task, paused shards last.
    rank : numpy.ndarray
        The position of each shard in `order`.
    routes : numpy.ndarray
        The task of each shard in `order`, or `PAUSED`.
    single : int or None
        The task that owns all shards, or None if there are several or a shard is paused.

    Notes
    -----
    Rows sorted by rank are contiguous per task and, within a task, per shard: one slice holds a shard's rows.

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
    single: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        routes = np.where(self.paused, _LAST, self.owner)
        order = np.argsort(routes, kind="stable")
        rank = np.empty(len(order), dtype=np.uint8 if len(order) <= 256 else np.uint16)
        rank[order] = np.arange(len(order))
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "rank", rank)
        ordered = np.where(self.paused, PAUSED, self.owner)[order]
        object.__setattr__(self, "routes", ordered)
        first, last = int(ordered[0]), int(ordered[-1])
        object.__setattr__(self, "single", first if first == last != PAUSED else None)

    @classmethod
    def initial(cls, shards: int, tasks: Iterable[int]) -> ShardTable:
        """Return the first table, with the shards assigned to the tasks round-robin.

        Parameters
        ----------
        shards : int
            The number of shards.
        tasks : iterable of int
            The tasks.

        Returns
        -------
        ShardTable
            The table of version 0.
        """
        dealt = np.resize(np.fromiter(tasks, dtype=np.int32), shards)
        return cls(0, dealt, np.zeros(shards, dtype=bool))

    def task_of(self, shards: Iterable[int]) -> int | None:
        """Return the task that owns all of a few shards, or None if there are several or a shard is paused.

        Parameters
        ----------
        shards : iterable of int
            The shards; at least one.

        Returns
        -------
        int or None
            The task.
        """
        tasks = {PAUSED if self.paused.item(shard) else self.owner.item(shard) for shard in shards}
        task = tasks.pop()
        return None if tasks or task == PAUSED else task

    def shards_of(self, task: int) -> np.ndarray:
        """Return the shards that a task owns, including those that are moving away from it.

        Parameters
        ----------
        task : int
            The task.

        Returns
        -------
        numpy.ndarray
            The shards in ascending order.
        """
        return np.flatnonzero(self.owner == task)

    def pause(self, shard: int) -> ShardTable:
        """Return the next table, in which a shard is paused.

        Parameters
        ----------
        shard : int
            The shard.

        Returns
        -------
        ShardTable
            The next table.

        Raises
        ------
        MoveRefused
            If the shard is already moving.
        """
        if self.paused[shard]:
            raise MoveRefused(f"shard {shard} is already moving: wait until the move has finished")
        paused = self.paused.copy()
        paused[shard] = True
        return ShardTable(self.version + 1, self.owner, paused)

    def moved(self, shard: int, task: int) -> ShardTable:
        """Return the next table, in which a paused shard is owned by `task` and no longer paused.

        Parameters
        ----------
        shard : int
            The shard.
        task : int
            Its new owner.

        Returns
        -------
        ShardTable
            The next table.

        Raises
        ------
        ProtocolError
            If the shard is not paused.
        """
        if not self.paused[shard]:
            raise ProtocolError(f"shard {shard} cannot change its owner: it is not paused")
        owner, paused = self.owner.copy(), self.paused.copy()
        owner[shard] = task
        paused[shard] = False
        return ShardTable(self.version + 1, owner, paused)
