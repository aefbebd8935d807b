"""Cores that the model asks for, in a column: a large cluster has many executors, and a thousand decisions are kept."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView

import numpy as np
from numpy.typing import NDArray

from dask_elastic.vocab.cores.small_integers import small_integers
from dask_elastic.vocab.identity import ExecutorId


class WantedCores(Mapping[ExecutorId, int]):
    """Cores by executor.

    Parameters
    ----------
    executors : tuple of ExecutorId
        The executors; decisions about the same executors may share it.
    counts : array of int
        The cores of each.

    Examples
    --------
    >>> wanted = WantedCores.of({ExecutorId("per_route", 0): 3, ExecutorId("per_route", 1): 1})
    >>> wanted[ExecutorId("per_route", 0)], len(wanted), wanted == dict(wanted)
    (3, 2, True)
    """

    __slots__ = ("counts", "executors")

    def __init__(self, executors: tuple[ExecutorId, ...], counts: NDArray[np.integer]):
        self.executors = executors
        self.counts = counts

    @staticmethod
    def of(wanted: Mapping[ExecutorId, int]) -> WantedCores:
        """Return cores by executor in a column."""
        if isinstance(wanted, WantedCores):
            return wanted
        return WantedCores(tuple(wanted), small_integers([*wanted.values()]))

    def sharing(self, other: WantedCores) -> WantedCores:
        """Return the same cores, with the executors of another one if these are equal."""
        return WantedCores(other.executors, self.counts) if self.executors == other.executors else self

    def __getitem__(self, executor: ExecutorId) -> int:
        try:
            return int(self.counts[self.executors.index(executor)])
        except ValueError:
            raise KeyError(executor) from None

    def __iter__(self) -> Iterator[ExecutorId]:
        return iter(self.executors)

    def __len__(self) -> int:
        return len(self.executors)

    def items(self) -> ItemsView[ExecutorId, int]:
        """Return the executors with their cores."""
        return self._mapping().items()

    def values(self) -> ValuesView[int]:
        """Return the cores of each executor."""
        return self._mapping().values()

    def _mapping(self) -> dict[ExecutorId, int]:
        return dict(zip(self.executors, self.counts.tolist(), strict=True))

    def __repr__(self) -> str:
        return repr(self._mapping())
