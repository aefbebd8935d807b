"""Where the executors of one generation of a job are, and the move in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.vocab.errors import MoveRefused
from dask_elastic.vocab.identity import ExecutorId


@dataclass
class MovingHome:
    """The move of one home.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    source, target : int
        The nodes of its old and its new home.
    table : HomeTable
        Where the executors of the operator are after the move.
    begun : bool
        Whether the old home was called: from then on the loss of either home ends the generation.
    cores : int
        Cores of the new home that are kept free for the executor.
    waits : bool
        Whether it waits for a checkpoint: the job may finish meanwhile.
    """

    executor: ExecutorId
    source: int
    target: int
    table: HomeTable
    begun: bool = False
    cores: int = 0
    waits: bool = False


class JobHomes:
    """The homes of one generation of a job. The spec has those with which the generation started.

    Parameters
    ----------
    spec : JobSpec
        The generation's spec. Sources, and sinks beside the first homes of their inputs, stay where it says.

    Attributes
    ----------
    moving : MovingHome or None
        The move in progress.
    """

    def __init__(self, spec: JobSpec):
        self._tables = {operator: HomeTable.initial(spec.homes[operator]) for operator in spec.cores}
        sources = {node for name, homes in spec.homes.items() if name not in spec.cores for node in homes}
        sinks = [summary.name for summary in spec.summaries if summary.kind == "sink"]
        self._fixed = frozenset(sources | {spec.node_of(one) for name in sinks for one in spec.inputs_of(name)})
        self._still = asyncio.Event()
        self._still.set()
        self._settled = asyncio.Event()
        self._settled.set()
        self.moving: MovingHome | None = None

    def of(self, operator: str) -> tuple[int, ...]:
        """Return the home of each executor of an operator."""
        return self._tables[operator].homes

    def node(self, operator: str, executor: int) -> int:
        """Return the home of an executor; during a move, it is the old one."""
        return self._tables[operator].homes[executor]

    def at(self, node: int) -> list[ExecutorId]:
        """Return the executors at home on a node."""
        return [
            ExecutorId(operator, executor)
            for operator, table in self._tables.items()
            for executor, home in enumerate(table.homes)
            if home == node
        ]

    @property
    def tables(self) -> Mapping[str, HomeTable]:
        """The table of each operator."""
        return self._tables

    @property
    def current(self) -> dict[str, tuple[int, ...]] | None:
        """The home of each executor of each operator; None while one is on its way to another home."""
        if not self._settled.is_set():
            return None
        return {operator: table.homes for operator, table in self._tables.items()}

    @property
    def fixed(self) -> frozenset[int]:
        """The nodes of sources and sinks."""
        return self._fixed

    @property
    def needed(self) -> frozenset[int]:
        """The nodes whose loss ends the generation: of executors, sources and sinks."""
        homes = {node for table in self._tables.values() for node in table.homes}
        target = {self.moving.target} if self.moving is not None and self.moving.begun else set()
        return self._fixed | homes | target

    @property
    def emitting(self) -> frozenset[int]:
        """The nodes that emit, or may soon, and therefore hold leases."""
        return self.needed | ({self.moving.target} if self.moving is not None else set())

    def begin(self, executor: ExecutorId, target: int) -> MovingHome:
        """Note that a move is about to begin.

        Raises
        ------
        MoveRefused
            If one is in progress, or the home is there already.
        """
        if self.moving is not None:
            raise MoveRefused(
                f"the home of {self.moving.executor} is moving: one home of a job moves at a time. Try again later."
            )
        operator, index = executor
        table = self._tables[operator].moved(index, target)
        self.moving = MovingHome(executor, self.node(operator, index), target, table)
        self._still.clear()
        return self.moving

    def depart(self) -> None:
        """Note that the old home is about to be called, from which the executor departs."""
        assert self.moving is not None, "a move is in progress"
        self.moving.begun = True
        self._settled.clear()

    def arrived(self) -> None:
        """Note that the executor has begun at its new home; `end` follows."""
        assert self.moving is not None, "a move is in progress"
        self._tables[self.moving.executor.component] = self.moving.table

    def end(self) -> None:
        """End the move in progress, whether the executor has arrived or stays."""
        assert self.moving is not None, "a move is in progress"
        operator, _ = self.moving.executor
        # A cancelled move may have switched the nodes back, with one more version.
        self._tables[operator] = HomeTable(self.moving.table.version + 1, self._tables[operator].homes)
        self.moving = None
        self._settled.set()
        self._still.set()

    async def still(self) -> None:
        """Return when no home is moving."""
        await self._still.wait()

    async def settled(self) -> None:
        """Return when all executors are where the tables say; one of which the state is copied is still there."""
        await self._settled.wait()
