"""The first tier of a simulated job, as each of its nodes sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.routing.versioned_sends import VersionedSends
from dask_elastic.simulator.placement import Placement
from dask_elastic.vocab.identity import ExecutorId

Table: TypeAlias = HomeTable | GroupTable


class FirstTier:
    """Where the instances of each node send to, and where the nodes return credit.

    Parameters
    ----------
    placement : Placement
        Where the homes are in the beginning.
    groups : mapping of str to GroupTable, optional
        The executors of key groups in the beginning, by operator, where they move.
    """

    def __init__(self, placement: Placement, groups: Mapping[str, GroupTable] | None = None):
        self._groups = groups or {}
        self._first: dict[str, Table] = {
            **{name: HomeTable.initial(homes) for name, homes in placement.homes.items()},
            **self._groups,
        }
        self._tables: dict[tuple[int, str], Table] = {}
        self._emitters: dict[tuple[int, ExecutorId], int] = {}
        self._sends: dict[tuple[ExecutorId, str], VersionedSends[Any]] = {}
        self.placement = placement

    def first(self, component: str) -> Table:
        """Return the table in the beginning."""
        return self._first[component]

    def groups_at(self, node: int, component: str) -> GroupTable | None:
        """Return the executors of key groups to which the instances on a node send; None if groups do not move."""
        found = self.table(node, component) if component in self._groups else None
        return found if isinstance(found, GroupTable) else None

    def table(self, node: int, component: str) -> Table:
        """Return the homes, or executors of groups, to which the instances on a node send."""
        return self._tables.get((node, component), self._first[component])

    def set_table(self, node: int, component: str, table: Table) -> None:
        """Let further instances on a node send as another table says; one that is not newer changes nothing."""
        if table.version > self.table(node, component).version:
            self._tables[node, component] = table

    def sends(self, origin: ExecutorId, node: int, component: str) -> VersionedSends[Any]:
        """Return the sends of an instance on a node to an operator."""
        found = self._sends.get((origin, component))
        if found is None:
            found = self._sends[origin, component] = VersionedSends(self.table(node, component))
        return found

    def restart(self, origin: ExecutorId) -> None:
        """Let an instance begin to send at another node, as the tables there say."""
        for key in [key for key in self._sends if key[0] == origin]:
            del self._sends[key]

    def emitter(self, node: int, origin: ExecutorId) -> int:
        """Return the node to which another one returns the credit of an instance."""
        return self._emitters.get((node, origin), self.placement.node_of(origin))

    def set_emitter(self, node: int, origin: ExecutorId, home: int) -> None:
        """Let a node return the credit of an instance to another home."""
        self._emitters[node, origin] = home
