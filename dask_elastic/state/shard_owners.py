"""Ownership of an executor's shards: each shard has one owner at most, the only task that may access its state."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dask_elastic.vocab.errors import StateError

NO_OWNER = -1
"""In place of a task: the shard has no owner."""


class ShardOwners:
    """The task that owns each shard; sessions check it for every batch.

    Parameters
    ----------
    shards : int
        The number of shards.

    Attributes
    ----------
    owner : ndarray of intp
        The task that owns each shard, `NO_OWNER` for none; read-only.
    owner_version : object
        Replaced by a new object whenever `owner` changes.
    changes : ndarray of int64
        How often the owner of each shard has changed.

    Examples
    --------
    >>> owners = ShardOwners(3)
    >>> owners.grant(1, task=7)
    >>> owners.owner.tolist()
    [-1, 7, -1]
    """

    def __init__(self, shards: int) -> None:
        self._owner: npt.NDArray[np.intp] = np.full(shards, NO_OWNER, np.intp)
        self.owner: npt.NDArray[np.intp] = self._owner.view()
        self.owner.flags.writeable = False
        self.owner_version = object()
        self.changes: npt.NDArray[np.int64] = np.zeros(shards, np.int64)

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.owner)

    def grant(self, shard: int, task: int) -> None:
        """Make a task the owner of a shard.

        Parameters
        ----------
        shard : int
            The shard.
        task : int
            The task's number.

        Raises
        ------
        StateError
            If another task owns the shard, or there is no such shard.
        """
        self.require_shards([shard])
        if self.owner[shard] not in (NO_OWNER, task):
            raise StateError(
                f"shard {shard} is owned by task {self.owner[shard]}; revoke it before granting it to task {task}"
            )
        self._set_owner(shard, task)

    def revoke(self, shard: int) -> None:
        """Leave a shard without an owner.

        Parameters
        ----------
        shard : int
            The shard.

        Raises
        ------
        StateError
            If there is no such shard.
        """
        self.require_shards([shard])
        self._set_owner(shard, NO_OWNER)

    def grant_all(self, tasks: npt.NDArray[np.intp]) -> None:
        """Make tasks the owners of shards, all at once.

        Parameters
        ----------
        tasks : ndarray of intp
            The owner of each shard; `NO_OWNER` leaves it without one.

        Raises
        ------
        StateError
            If another task owns one of the shards.

        Examples
        --------
        >>> owners = ShardOwners(3)
        >>> owners.grant_all(np.array([7, NO_OWNER, 7]))
        >>> owners.owner.tolist()
        [7, -1, 7]
        """
        given = tasks != NO_OWNER
        others = given & (self._owner != NO_OWNER) & (self._owner != tasks)
        if owned := np.flatnonzero(others).tolist():
            raise StateError(f"shards {owned} are owned by other tasks; revoke them before granting them")
        self._owner[given] = tasks[given]
        self.changes[given] += 1
        self.owner_version = object()

    def _set_owner(self, shard: int, task: int) -> None:
        # In this order: a session that sees the new version also sees the new owner. The version is an object, because
        # two threads that increment a counter at once could produce one number.
        self._owner[shard] = task
        self.changes[shard] += 1
        self.owner_version = object()

    def not_owned(self, shard: int, task: int) -> StateError:
        """Return the error for a task that accessed a shard that it does not own.

        Parameters
        ----------
        shard : int
            The shard.
        task : int
            The task that accessed it.

        Returns
        -------
        StateError
            The error to raise.
        """
        owner = int(self.owner[shard])
        whose = "no task" if owner == NO_OWNER else f"task {owner}"
        return StateError(f"task {task} touched shard {shard}, which {whose} owns; route its rows to the owner")

    def require_shards(self, shards: Iterable[int]) -> list[int]:
        """Return shards as integers.

        Parameters
        ----------
        shards : iterable of int
            The shards.

        Returns
        -------
        list of int
            The same shards.

        Raises
        ------
        StateError
            If one of them does not exist.
        """
        chosen = [int(shard) for shard in shards]
        for shard in chosen:
            if not 0 <= shard < self.shards:
                raise StateError(f"there is no shard {shard}: the store has the shards 0 to {self.shards - 1}")
        return chosen
