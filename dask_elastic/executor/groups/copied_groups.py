"""A portion of the state of key groups, copied to their next executor before they leave the present one."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.executor.homes.outgoing_copy import CopiedRows


@dataclass(frozen=True, slots=True)
class CopiedGroups:
    """Some rows of groups that are about to leave one executor for another.

    Parameters
    ----------
    version : int
        The version of the first tier that the move leads to.
    source : int
        The executor that has the groups.
    groups : tuple of int
        All groups that leave it for that other executor.
    position : int
        How many portions of theirs are before this one.
    rows : tuple of CopiedRows
        The rows.
    """

    version: int
    source: int
    groups: tuple[int, ...]
    position: int
    rows: tuple[CopiedRows, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(part.rows.nbytes for part in self.rows)
