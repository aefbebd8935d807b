"""The first tier of routing as one node of a job sees it: where executors are, and where credit goes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.routing.mark_due import MarkDue
from dask_elastic.routing.versioned_sends import VersionedSends
from dask_elastic.runtime.protocol.job_spec import ComponentSummary, JobSpec
from dask_elastic.vocab.identity import ExecutorId


class FirstTier:
    """Where the instances on this node send to, and where this node returns credit.

    Parameters
    ----------
    spec : JobSpec
        The job; its homes are those at the start of the generation.

    Attributes
    ----------
    moving : frozenset of int
        Both homes of an executor that leaves this node.
    spaces : dict of str to KeySpace
        Key space of each operator with executors.

    Notes
    -----
    Decisions 76 and 89. All nodes of a job have the same tables, except while a home or key groups move.
    """

    def __init__(self, spec: JobSpec):
        self._spec = spec
        self._lock = threading.Lock()
        # Replaced as a whole, as are those of emitters: readers need no lock.
        self._tables = {s.name: HomeTable.initial(spec.homes[s.name]) for s in spec.summaries if s.kind == "compute"}
        self._groups = {name: GroupTable.of_owners(owners, spec.homes[name]) for name, owners in spec.groups.items()}
        self.spaces = {s.name: self._space(s) for s in spec.summaries if s.name in self._tables}
        self._emitters = {one: spec.node_of(one) for name in spec.homes for one in spec.instances(name)}
        # Of tables of homes, or of groups where these move.
        self._sends: dict[ExecutorId, dict[str, VersionedSends[Any]]] = {}
        self.moving: frozenset[int] = frozenset()
        self._fixed = {node for name, homes in spec.homes.items() if name not in self._tables for node in homes}
        for sink in (s.name for s in spec.summaries if s.kind == "sink"):
            self._fixed |= {spec.node_of(one) for one in spec.inputs_of(sink)}

    def _space(self, summary: ComponentSummary) -> KeySpace:
        if summary.name in self._groups:
            return KeySpace.of_groups(summary.shards)
        return KeySpace(len(self._spec.homes[summary.name]), summary.shards)

    @property
    def tables(self) -> Mapping[str, HomeTable]:
        """The homes of the executors of each operator."""
        return self._tables

    def groups_of(self, component: str) -> GroupTable | None:
        """Return the executors of key groups to which the instances here send; None if groups do not move."""
        return self._groups.get(component)

    def node_of(self, executor: ExecutorId) -> int:
        """Return the home of an executor, or the node of an instance of a source or a sink."""
        table = self._tables.get(executor.component)
        return self._spec.node_of(executor) if table is None else table.homes[executor.index]

    def sinks_of(self, origin: ExecutorId) -> int:
        """Return the node whose sinks get the outputs of an instance: its home at the start of the generation."""
        return self._spec.node_of(origin)

    def emitter(self, origin: ExecutorId) -> int:
        """Return the node to which credit of an instance goes."""
        return self._emitters[origin]

    @property
    def settled(self) -> frozenset[int]:
        """Nodes without which the job cannot go on: homes of executors, also of one that leaves; sources and sinks."""
        homes = {node for table in self._tables.values() for node in table.homes}
        return frozenset(homes | {*self._emitters.values()} | self._fixed | self.moving)

    # sends

    def sends(self, origin: ExecutorId, component: str) -> VersionedSends[Any] | None:
        """Return the sends of an instance here to an operator; None if that has no executors."""
        found = self._sends.get(origin, {}).get(component)
        if found is None and component in self._tables:
            with self._lock:
                found = self._sends_of(origin, component)
        return found

    def _sends_of(self, origin: ExecutorId, component: str) -> VersionedSends[Any]:
        sends = self._sends.setdefault(origin, {})
        if component not in sends:
            table = self._groups.get(component, self._tables[component])
            sends[component] = VersionedSends(table, threading.Lock)
        return sends[component]

    def restart(self, origin: ExecutorId) -> None:
        """Let an executor that has come to this node send as the tables say."""
        with self._lock:
            self._sends.pop(origin, None)

    # changes

    def adopt(self, tables: Mapping[str, HomeTable]) -> None:
        """Take the tables of the other nodes, at a node where no instance sends to an executor that has moved."""
        with self._lock:
            newer = {name: table for name, table in tables.items() if table.version > self._tables[name].version}
            self._tables = {**self._tables, **newer}
            moved = {ExecutorId(n, index): node for n, t in newer.items() for index, node in enumerate(t.homes)}
            self._emitters = {**self._emitters, **moved}

    def switch(
        self, component: str, table: HomeTable, upstream: Iterable[ExecutorId]
    ) -> list[tuple[ExecutorId, MarkDue]]:
        """Let all further sends to an operator use a newer table.

        Parameters
        ----------
        component : str
            The operator.
        table : HomeTable
            The table.
        upstream : iterable of ExecutorId
            The instances here that send to it, whether they have sent anything or not.

        Returns
        -------
        list of (ExecutorId, MarkDue)
            The end marks that are due now, and the instances that send them.
        """
        with self._lock:
            # Those that have not sent anything must use the old table once as well, so that they send an end mark.
            sends = [(origin, self._sends_of(origin, component)) for origin in upstream]
            if table.version > self._tables[component].version:
                self._tables = {**self._tables, component: table}
        return [(origin, mark) for origin, one in sends for mark in one.switch(table)]

    def switch_groups(
        self, component: str, table: GroupTable, upstream: Iterable[ExecutorId], pauses: bool
    ) -> list[tuple[ExecutorId, MarkDue]]:
        """Let all further sends to an operator use a newer table of its groups; as `switch`.

        Parameters
        ----------
        component, upstream
            As for `switch`.
        table : GroupTable
            The table.
        pauses : bool
            Whether no send of a batch begins before `resume`.

        Returns
        -------
        list of (ExecutorId, MarkDue)
            The end marks that are due now, and the instances that send them.
        """
        with self._lock:
            sends = [(origin, self._sends_of(origin, component)) for origin in upstream]
            if table.version > self._groups[component].version:
                self._groups = {**self._groups, component: table}
        due: list[tuple[ExecutorId, MarkDue]] = []
        for origin, one in sends:
            # Before the switch: no batch is sent under the next table.
            one.paused = pauses
            due += [(origin, mark) for mark in one.switch(table)]
        return due

    def resume(self, component: str, upstream: Iterable[ExecutorId]) -> None:
        """Let batches be sent to an operator again."""
        with self._lock:
            sends = [self._sends_of(origin, component) for origin in upstream]
        for one in sends:
            one.paused = False

    def set_emitter(self, origin: ExecutorId, node: int) -> None:
        """Return credit of an executor to another node from now on."""
        with self._lock:
            self._emitters = {**self._emitters, origin: node}
