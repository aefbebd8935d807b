"""The first tier of routing as far as it changes: an immutable, versioned table from executor to home."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dask_elastic.routing.mark_due import MarkDue
from dask_elastic.vocab.errors import MoveRefused


@dataclass(frozen=True, slots=True)
class HomeTable:
    """The home of each executor of one operator.

    A table is immutable: each change returns the next version. Key group -> executor is fixed, see `KeySpace`; where it
    is not, the table is a `GroupTable`.

    Parameters
    ----------
    version : int
        The number of changes since the job began.
    homes : tuple of int
        The node where the receiver of each executor is.

    Examples
    --------
    >>> table = HomeTable.initial([0, 0, 1])
    >>> table.moved(2, to=0)
    HomeTable(version=1, homes=(0, 0, 0))
    >>> table.moved(2, to=0).differences(table)
    [2]
    """

    version: int
    homes: tuple[int, ...]

    @classmethod
    def initial(cls, homes: Iterable[int]) -> HomeTable:
        """Return the first table.

        Parameters
        ----------
        homes : iterable of int
            The home of each executor.

        Returns
        -------
        HomeTable
            The table of version 0.
        """
        return cls(0, tuple(homes))

    def moved(self, executor: int, to: int) -> HomeTable:
        """Return the next table, in which the home of an executor is another node.

        Parameters
        ----------
        executor : int
            The number of the executor.
        to : int
            The node of its next home.

        Returns
        -------
        HomeTable
            The next table.

        Raises
        ------
        MoveRefused
            If the operator has no such executor, or its home is there already.
        """
        if not 0 <= executor < len(self.homes):
            raise MoveRefused(f"executor {executor} does not exist: the executors are 0 to {len(self.homes) - 1}")
        if self.homes[executor] == to:
            raise MoveRefused(f"the home of executor {executor} is on node {to} already")
        return HomeTable(self.version + 1, (*self.homes[:executor], to, *self.homes[executor + 1 :]))

    def differences(self, other: HomeTable) -> list[int]:
        """Return the executors whose homes differ between two tables of one operator.

        Parameters
        ----------
        other : HomeTable
            The other table.

        Returns
        -------
        list of int
            Their numbers, ascending.
        """
        pairs = zip(self.homes, other.homes, strict=True)
        return [executor for executor, (one, two) in enumerate(pairs) if one != two]

    def marks_since(self, before: HomeTable) -> list[MarkDue]:
        """Return the end marks that an upstream instance owes which has used the table before this one."""
        return [MarkDue(executor, before.homes[executor], self.version) for executor in self.differences(before)]
