"""The executors and shards to which the groups of a key space belong, for any number of executors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dask_elastic.vocab.errors import CheckpointError


@dataclass(frozen=True)
class Regrouping:
    """Groups of y executors with z shards each, that are restored to another number of executors.

    Parameters
    ----------
    executors : int
        The number of executors before, y.
    shards : int
        The number of shards of each, z.
    wanted : int
        The number of executors afterwards, y'.

    Raises
    ------
    CheckpointError
        If there are more executors than groups.

    Notes
    -----
    A group g of G = y·z belongs to executor ⌊g·y'/G⌋, so each has a contiguous range. If y' divides G, all have
    z' = G/y' shards, and a `KeySpace(y', z')` finds the same executor and shard.

    Examples
    --------
    >>> regrouping = Regrouping(executors=2, shards=4, wanted=4)
    >>> [list(regrouping.groups(executor)) for executor in range(4)]
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    >>> regrouping.sources(1)
    [0]
    >>> regrouping.shards_of(1, 0, np.array([0, 2, 3])).tolist()
    [-1, 0, 1]
    """

    executors: int
    shards: int
    wanted: int

    def __post_init__(self) -> None:
        total = self.executors * self.shards
        if not 1 <= self.wanted <= total:
            raise CheckpointError(
                f"state of {total} shards cannot be restored to {self.wanted} executors: choose executors= from 1 to "
                f"{total}"
            )

    @property
    def identical(self) -> bool:
        """Whether all executors keep their shards."""
        return self.wanted == self.executors

    def groups(self, executor: int) -> range:
        """Return the groups of an executor afterwards."""
        total = self.executors * self.shards
        # The first group g with g·y' // G == executor is the ceiling of executor·G / y'.
        first, end = (-(-bound * total // self.wanted) for bound in (executor, executor + 1))
        return range(first, end)

    def sources(self, executor: int) -> list[int]:
        """Return the executors before that had any of the groups."""
        groups = self.groups(executor)
        return list(range(groups[0] // self.shards, groups[-1] // self.shards + 1))

    def shards_of(self, executor: int, source: int, shards: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Return the shard of each row afterwards, -1 for rows of other executors.

        Parameters
        ----------
        executor : int
            The executor afterwards.
        source : int
            The executor before, whose rows these are.
        shards : ndarray of int
            The shard of each row before.

        Returns
        -------
        ndarray of int32
            One shard per row.
        """
        own = self.groups(executor)
        moved = shards.astype(np.int64) + (source * self.shards - own.start)
        return np.where((moved >= 0) & (moved < len(own)), moved, -1).astype(np.int32)
