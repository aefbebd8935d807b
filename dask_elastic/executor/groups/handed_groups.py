"""What an executor hands over with key groups that leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from dask_elastic.executor.executor_parts import ExecutorParts
from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.executor.groups.incoming_groups import IncomingGroups
from dask_elastic.executor.homes.outgoing_copy import CopiedRows
from dask_elastic.state.store import KeyedStore


@dataclass(frozen=True, slots=True)
class HandedGroups:
    """Key groups on their way from one executor to another, with nothing in flight.

    Parameters
    ----------
    version : int
        The version of the first tier that the move leads to.
    source : int
        The executor that they leave.
    groups : tuple of int
        The groups.
    portions : int
        How many portions of their state were copied before, see `OutgoingGroups`.
    rest : tuple of CopiedRows
        The rest of it; empty if there is none.
    schemas : mapping of str to (Schema or None)
        The schema of the input of each compute.
    event_time : int or None
        The event time of their last state record, microseconds since the Unix epoch.
    taken : float
        The newest processing time of a row, seconds.
    across : bool
        Whether they come from another node.
    """

    version: int
    source: int
    groups: tuple[int, ...]
    portions: int
    rest: tuple[CopiedRows, ...]
    schemas: Mapping[str, pa.Schema | None]
    event_time: int | None
    taken: float
    across: bool = False

    @classmethod
    def of(
        cls, executor: ExecutorParts, version: int, groups: tuple[int, ...], event_time: int | None, last: CopiedGroups
    ) -> HandedGroups:
        """Hand over groups whose state was copied but for the last portion; it is removed later."""
        return cls._made(executor, version, groups, event_time, last.position, last.rows)

    @classmethod
    def take_out(
        cls, executor: ExecutorParts, version: int, groups: tuple[int, ...], event_time: int | None
    ) -> HandedGroups:
        """Take groups with all of their state out of an executor that has settled their rows and gets no more of them.

        Its next checkpoint has tombstones for their keys. Takes as long as copying the state: not under a lock.
        """
        store, rows = executor.store, []
        for operator, part in store.stores(executor.identity.component).items():
            # Of each compute alone, not of those behind it as well.
            state = KeyedStore.extract(part, groups)
            if state is not None:
                rows.append(CopiedRows(operator, True, state))
        store.remove(groups)
        return cls._made(executor, version, groups, event_time, 0, rows)

    @classmethod
    def _made(
        cls,
        executor: ExecutorParts,
        version: int,
        groups: tuple[int, ...],
        event_time: int | None,
        portions: int,
        rest: Iterable[CopiedRows],
    ) -> HandedGroups:
        component, source = executor.identity
        schemas = {name: part.input_schema for name, part in executor.store.stores(component).items()}
        return cls(version, source, groups, portions, tuple(rest), schemas, event_time, executor.time_taken)

    @property
    def nbytes(self) -> int:
        """Bytes of the rest of the state."""
        return sum(part.rows.nbytes for part in self.rest)

    def install(self, executor: ExecutorParts, copied: IncomingGroups) -> None:
        """Bring the rest of the state to the next executor, which does not process rows of these groups yet.

        The next checkpoint of this executor has all of their keys. Not under the executor's lock, as `take_out`.

        Parameters
        ----------
        executor : ExecutorParts
            The executor.
        copied : IncomingGroups
            What has come before.

        Raises
        ------
        ProtocolError
            If a portion is missing.
        """
        copied.complete(self.source, self.portions, self.rest)
        with executor.lock:
            for name, part in executor.store.stores(executor.identity.component).items():
                part.input_schema = part.input_schema or self.schemas.get(name)
            executor.time_taken = max(executor.time_taken, self.taken)
