"""The static tier of routing: key hash -> group -> executor and shard, fixed for the life of the state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_elastic.vocab.errors import TopologyError


@dataclass(frozen=True)
class KeySpace:
    """How the keys of one component are split among its executors, and those of an executor among its shards.

    Parameters
    ----------
    executors : int
        Number of elastic executors, y.
    shards : int
        Number of shards of each executor, z.

    Raises
    ------
    TopologyError
        If either is below 1, or more than 65,536 of either are asked for.

    Notes
    -----
    A hash h is in group ``h mod G`` with ``G = y·z``; groups are dealt to executors in whole ranges (Elasticutor,
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
                raise TopologyError(f"{name}={value} is out of range: choose from 1 to 65,536")

    @property
    def groups(self) -> int:
        """Number of groups, G."""
        return self.executors * self.shards

    def group_of(self, hashes: np.ndarray) -> np.ndarray:
        """Group of each hash, ``uint64``."""
        return _modulo(hashes, self.groups)

    def executor_of(self, hashes: np.ndarray) -> np.ndarray:
        """Executor of each hash, of the smallest unsigned type that holds it."""
        if self.executors == 1:
            return np.zeros(len(hashes), dtype=np.uint8)
        return _narrow(_divide(self.group_of(hashes), self.shards), self.executors)

    def shard_of(self, hashes: np.ndarray) -> np.ndarray:
        """Shard of each hash within its executor, of the smallest unsigned type that holds it."""
        # The number of groups is a multiple of that of shards: (h mod G) mod z = h mod z.
        if _power_of_two(self.shards):
            return _narrow(hashes, self.shards) & (self.shards - 1)
        return _narrow(_modulo(hashes, self.shards), self.shards)


def _power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def _modulo(values: np.ndarray, divisor: int) -> np.ndarray:
    return values & np.uint64(divisor - 1) if _power_of_two(divisor) else values % np.uint64(divisor)


def _divide(values: np.ndarray, divisor: int) -> np.ndarray:
    if _power_of_two(divisor):
        return values >> np.uint64(divisor.bit_length() - 1)
    return values // np.uint64(divisor)


def _narrow(values: np.ndarray, limit: int) -> np.ndarray:
    """Of 8 or 16 bits, which NumPy's stable argsort handles by radix."""
    return values.astype(np.uint8 if limit <= 256 else np.uint16)
