"""Core changes of a decision in columns: a large cluster has many of them, and a thousand decisions are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.cores.small_integers import small_integers
from dask_elastic.vocab.identity import ExecutorId


class ChangeColumns(Sequence[CoreChange]):
    """Core changes in columns.

    Objects would take ten times the memory, and each garbage collection, which stops all threads, would visit them.

    Parameters
    ----------
    changes : sequence of CoreChange
        The changes.

    Examples
    --------
    >>> change = CoreChange("flights", 1, ExecutorId("per_route", 3), {0: 1}, {0: 1, 2: 4}, 2e6)
    >>> columns = ChangeColumns.of([change])
    >>> len(columns), columns[0].after, columns == (change,)
    (1, {0: 1, 2: 4}, True)
    """

    __slots__ = ("_after", "_before", "_components", "_generations", "_indexes", "_jobs", "_moved_bytes")

    def __init__(self, changes: Sequence[CoreChange]):
        self._jobs = _Names.of([change.job for change in changes])
        self._components = _Names.of([change.executor.component for change in changes])
        self._generations = small_integers([change.generation for change in changes])
        self._indexes = small_integers([change.executor.index for change in changes])
        self._moved_bytes = np.array([change.moved_bytes for change in changes], dtype=np.float64)
        self._before = _Cores.of([change.before for change in changes])
        self._after = _Cores.of([change.after for change in changes])

    @staticmethod
    def of(changes: Iterable[CoreChange]) -> ChangeColumns:
        """Return changes in columns."""
        if isinstance(changes, ChangeColumns):
            return changes
        return ChangeColumns(kept) if (kept := tuple(changes)) else _NO_CHANGES

    def __len__(self) -> int:
        return len(self._indexes)

    @overload
    def __getitem__(self, place: int) -> CoreChange: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[CoreChange, ...]: ...

    def __getitem__(self, place: int | slice) -> CoreChange | tuple[CoreChange, ...]:
        if isinstance(place, slice):
            return tuple([self._at(one) for one in range(*place.indices(len(self)))])
        return self._at(range(len(self))[place])

    def _at(self, place: int) -> CoreChange:
        return CoreChange(
            self._jobs.of_change(place),
            int(self._generations[place]),
            ExecutorId(self._components.of_change(place), int(self._indexes[place])),
            self._before.of_change(place),
            self._after.of_change(place),
            float(self._moved_bytes[place]),
        )

    def __iter__(self) -> Iterator[CoreChange]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


class _Names(NamedTuple):
    """Names of several changes, most of which have the same: each one once, and which of them each change has."""

    distinct: tuple[str, ...]
    places: NDArray[np.integer]

    @staticmethod
    def of(names: Sequence[str]) -> _Names:
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return _Names(tuple(numbers), small_integers([numbers[name] for name in names]))

    def of_change(self, place: int) -> str:
        return self.distinct[int(self.places[place])]


class _Cores(NamedTuple):
    """Cores by node of several changes, one change after the other; those of one end where those of the next begin."""

    nodes: NDArray[np.integer]
    counts: NDArray[np.integer]
    ends: NDArray[np.integer]

    @staticmethod
    def of(cores: Sequence[Mapping[int, int]]) -> _Cores:
        nodes = [node for one in cores for node in one]
        counts = [count for one in cores for count in one.values()]
        ends = [*accumulate(map(len, cores))]
        return _Cores(*map(small_integers, (nodes, counts, ends)))

    def of_change(self, place: int) -> dict[int, int]:
        begin, end = int(self.ends[place - 1]) if place else 0, int(self.ends[place])
        return dict(zip(self.nodes[begin:end].tolist(), self.counts[begin:end].tolist(), strict=True))


_NO_CHANGES = ChangeColumns(())
