"""End marks that upstream instances owe, and the tables of the first tier that say which these are."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar


class MarkDue(NamedTuple):
    """An end mark that is due: the instance sends nothing more to this home of an executor under an older version."""

    executor: int
    home: int
    version: int


Table = TypeVar("Table", bound="VersionedTable")


class VersionedTable(Protocol):
    """An immutable table of the first tier of one operator; implemented by `HomeTable` and `GroupTable`."""

    @property
    def version(self) -> int:
        """The number of changes since the job began."""
        ...

    def marks_since(self: Table, before: Table) -> list[MarkDue]:
        """Return the end marks that an upstream instance owes which has used the table before this one."""
        ...
