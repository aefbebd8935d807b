"""What an executor hands over with key groups that leave it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from dask_elastic.executor.executor_parts import ExecutorParts


@dataclass(frozen=True, slots=True)
class HandedGroups:
    """Key groups on their way from one executor to another, with nothing in flight.

    Parameters
    ----------
    version : int
        The version of the first tier that the move leads to.
    groups : tuple of int
        The groups.
    state : RecordBatch or None
        Their state; None before the first batch.
    input_schema : Schema or None
        The schema of the input.
    event_time : int or None
        The event time of their last state record, microseconds since the Unix epoch.
    taken : float
        The newest processing time of a row, seconds.
    across : bool
        Whether they come from another node.
    """

    version: int
    groups: tuple[int, ...]
    state: pa.RecordBatch | None
    input_schema: pa.Schema | None
    event_time: int | None
    taken: float
    across: bool = False

    @classmethod
    def take_out(
        cls, executor: ExecutorParts, version: int, groups: tuple[int, ...], event_time: int | None
    ) -> HandedGroups:
        """Take groups out of an executor that has settled their rows and gets no more of them.

        Its next checkpoint has tombstones for their keys. Takes as long as copying the state: not under a lock.
        """
        store = executor.store
        state = store.extract(groups)
        store.remove(groups)
        return cls(version, groups, state, store.input_schema, event_time, executor.time_taken)

    def install(self, executor: ExecutorParts) -> None:
        """Bring the state to the next executor, which does not process rows of these groups yet.

        The next checkpoint of this executor has all of their keys. Not under a lock, as `take_out`.
        """
        store = executor.store
        if self.state is not None:
            store.install(self.state, dirty=True)
        with executor.lock:
            if store.input_schema is None:
                store.input_schema = self.input_schema
            executor.time_taken = max(executor.time_taken, self.taken)
