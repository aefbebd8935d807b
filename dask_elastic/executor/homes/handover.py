"""What the old home of an executor hands over to the new one: state and standing, with nothing in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.sharing import Sharing
from dask_elastic.executor.control_records.watermarks import Standing
from dask_elastic.executor.executor_parts import ExecutorParts
from dask_elastic.vocab.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Handover:
    """All that an executor is between two rows, apart from its tasks: these begin anew.

    Parameters
    ----------
    state, changes : RecordBatch or None
        The state of all keys, and of those that have changed since the last checkpoint, with tombstones.
    input_schema : Schema or None
        The schema of the input.
    event_time : int or None
        The event time of the last state record.
    counts : tuple of int
        What became of the rows, the numbers of a `ComputeTally` for each compute.
    inputs : Inputs
        Which inputs have not ended, and their watermarks.
    watermarks : tuple of Standing
        See `Watermarks.standing`.
    sharing : Sharing
        Whether rows of windows are added to slices or to instances.
    clocks : tuple of int
        See `StateRecords.standing`.
    taken : float
        The newest processing time of a row.
    incarnations : mapping of int to int
        See `Links.incarnations`.
    flushes : tuple of int
        Requested flushes that are not complete; the handed over state is up to date.
    cores : mapping of int to int
        The cores by node.
    rows : int
        Tuples processed so far.
    """

    state: pa.RecordBatch | None
    changes: pa.RecordBatch | None
    input_schema: pa.Schema | None
    event_time: int | None
    counts: tuple[int, ...]
    inputs: Inputs
    watermarks: tuple[Standing, Standing, Standing]
    sharing: Sharing
    clocks: tuple[int | None, int]
    taken: float
    incarnations: Mapping[int, int]
    flushes: tuple[int, ...]
    cores: Mapping[int, int]
    rows: int = 0

    @classmethod
    def of(cls, executor: ExecutorParts, marks: bool = True) -> Handover:
        """Take the state and the standing of an executor that is drained; it must not go on.

        Parameters
        ----------
        executor : ExecutorParts
            The executor.
        marks : bool
            Whether to take what has changed since the last checkpoint; the next one contains all state otherwise.

        Raises
        ------
        ProtocolError
            If a row is not settled.
        """
        if executor.pending_rows:
            raise ProtocolError(f"{executor.identity} leaves its home with {executor.pending_rows} unsettled rows")
        store = executor.store
        state, changes = store.extract(), store.extract(dirty_only=True) if marks else None
        with executor.lock:
            watermarks = executor.watermarks.standing()
        return cls(
            state,
            changes,
            store.input_schema,
            store.event_time,
            store.counts(),
            executor.inputs,
            watermarks,
            executor.sharing,
            executor.records.standing(),
            executor.time_taken,
            executor.links.incarnations(),
            tuple(token for token in executor.flushes.requested() if token >= 0),
            executor.cores.by_node(),
            executor.measures.rows,
        )

    def install(self, executor: ExecutorParts) -> None:
        """Let an executor that has not started continue at its home what was handed over."""
        store = executor.store
        if self.state is not None:
            store.install(self.state)
        if self.changes is not None:
            # The marks of what has changed since the last checkpoint, deletions included.
            store.install(self.changes, dirty=True)
        store.add_counts(self.counts)
        store.input_schema = self.input_schema
        store.event_time = self.event_time
        executor.inputs.resume(self.inputs)
        executor.watermarks.resume(self.watermarks)
        executor.sharing = self.sharing
        executor.records.resume(self.clocks)
        executor.time_taken = self.taken
        executor.measures.rows_before = self.rows
        executor.links.resume(self.incarnations)
