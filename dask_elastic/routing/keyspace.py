"""The first tier of routing: key hash -> group -> executor and shard, fixed for the life of the state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.vocab.errors import TopologyError


@dataclass(frozen=True)
class KeySpace:
    """The partition of a component's keys among its executors and, within each executor, among its shards.

    Parameters
    ----------
    executors : int
        Number of elastic executors, y.
    shards : int
        Number of shards of each executor, z.

    Raises
    ------
    TopologyError
        If either is below 1 or above 65,536.

    Notes
    -----
    A hash h is in group ``h mod G`` with ``G = y·z``; each executor has a contiguous range of z groups (Elasticutor,
    section 3.1: the first tier is a static hash).

    Examples
    --------
    >>> space = KeySpace(executors=2, shards=4)
    >>> hashes = np.array([0, 3, 4, 7, 8], dtype=np.uint64)
    >>> space.executor_of(hashes).tolist(), space.shard_of(hashes).tolist()
    ([0, 0, 1, 1, 0], [0, 3, 0, 3, 0])
    """

    executors: int
    shards: int

    def __post_init__(self) -> None:
        for name, value in (("executors", self.executors), ("shards", self.shards)):
            if not 1 <= value <= 65_536:
                raise TopologyError(f"{name}={value} is out of range: choose a number from 1 to 65,536")

    @classmethod
    def of_groups(cls, groups: int) -> KeySpace:
        """Return the key space of an operator whose key groups change executor.

        Each executor has a shard for each group, and a `GroupTable` tells which groups it owns. So hashes that keep the
        group of a key do not depend on the number of executors.

        Parameters
        ----------
        groups : int
            The number of groups, G.

        Examples
        --------
        >>> KeySpace.of_groups(8).groups, KeySpace.of_groups(8).shards
        (8, 8)
        """
        return cls(1, groups)

    @property
    def groups(self) -> int:
        """Number of groups, G."""
        return self.executors * self.shards

    def group_of(self, hashes: np.ndarray) -> np.ndarray:
        """Return the group of each hash, ``uint64``.

        Parameters
        ----------
        hashes : numpy.ndarray
            Key hashes, ``uint64``.

        Returns
        -------
        numpy.ndarray
            One group per hash.
        """
        return _modulo(hashes, self.groups)

    def executor_of(self, hashes: np.ndarray) -> np.ndarray:
        """Return the executor of each hash, ``uint8`` or ``uint16`` by the number of executors.

        Parameters
        ----------
        hashes : numpy.ndarray
            Key hashes, ``uint64``.

        Returns
        -------
        numpy.ndarray
            One executor per hash.
        """
        if self.executors == 1:
            return np.zeros(len(hashes), dtype=np.uint8)
        return _narrow(_divide(self.group_of(hashes), self.shards), self.executors)

    def executor_of_one(self, hashed: int) -> int:
        """Return the executor of one hash; for one faster than `executor_of`.

        Parameters
        ----------
        hashed : int
            A key hash, below 2**64.

        Returns
        -------
        int
            Its executor.

        Examples
        --------
        >>> KeySpace(executors=2, shards=4).executor_of_one(7)
        1
        """
        return hashed % self.groups // self.shards

    def shard_of(self, hashes: np.ndarray) -> np.ndarray:
        """Return the shard of each hash within its executor, ``uint8`` or ``uint16`` by the number of shards.

        Parameters
        ----------
        hashes : numpy.ndarray
            Key hashes, ``uint64``.

        Returns
        -------
        numpy.ndarray
            One shard per hash.
        """
        # G is a multiple of z, so (h mod G) mod z = h mod z.
        if _power_of_two(self.shards):
            return _narrow(hashes, self.shards) & (self.shards - 1)
        return _narrow(_modulo(hashes, self.shards), self.shards)

    def shards_of_few(self, hashes: np.ndarray) -> list[int]:
        """Return the shard of each of a few hashes; for these faster than `shard_of`.

        Parameters
        ----------
        hashes : numpy.ndarray
            Key hashes, ``uint64``.

        Returns
        -------
        list of int
            One shard per hash.
        """
        return [value % self.shards for value in hashes.tolist()]


def _power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def _modulo(values: np.ndarray, divisor: int) -> np.ndarray:
    return values & np.uint64(divisor - 1) if _power_of_two(divisor) else values % np.uint64(divisor)


def _divide(values: np.ndarray, divisor: int) -> np.ndarray:
    if _power_of_two(divisor):
        return values >> np.uint64(divisor.bit_length() - 1)
    return values // np.uint64(divisor)


def _narrow(values: np.ndarray, limit: int) -> np.ndarray:
    """Cast to 8 or 16 bits, for which NumPy's stable argsort is a radix sort."""
    return values.astype(np.uint8 if limit <= 256 else np.uint16)
