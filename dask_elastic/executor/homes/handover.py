"""What the old home of an executor hands over to the new one: state and standing, with nothing in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.sharing import Sharing
from dask_elastic.executor.control_records.watermarks import Standing
from dask_elastic.executor.executor_parts import ExecutorParts
from dask_elastic.executor.homes.incoming_copy import IncomingCopy
from dask_elastic.executor.homes.outgoing_copy import CopiedRows
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.vocab.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Handover:
    """All that an executor is between two rows, apart from its tasks: these begin anew.

    Parameters
    ----------
    copy : int
        The number of the copy of the state, see `OutgoingCopy`.
    portions : int
        How many portions of it were sent before.
    rest : tuple of CopiedRows
        The last portion; empty if there is no further one.
    schemas : mapping of str to (Schema or None)
        The schema of the input of each compute.
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
    rows : int
        Tuples processed so far.
    """

    copy: int
    portions: int
    rest: tuple[CopiedRows, ...]
    schemas: Mapping[str, pa.Schema | None]
    event_time: int | None
    counts: tuple[int, ...]
    inputs: Inputs
    watermarks: tuple[Standing, Standing, Standing]
    sharing: Sharing
    clocks: tuple[int | None, int]
    taken: float
    incarnations: Mapping[int, int]
    flushes: tuple[int, ...]
    rows: int = 0

    @classmethod
    def of(cls, executor: ExecutorParts, copy: int, portions: int, rest: tuple[CopiedRows, ...]) -> Handover:
        """Take the standing of an executor that is drained; it must not go on.

        Parameters
        ----------
        executor : ExecutorParts
            The executor.
        copy, portions, rest
            Its state, see the attributes.

        Raises
        ------
        ProtocolError
            If a row is not settled.
        """
        if executor.pending_rows:
            raise ProtocolError(f"{executor.identity} leaves its home with {executor.pending_rows} unsettled rows")
        store = executor.store
        stores = store.stores(executor.identity.component)
        with executor.lock:
            watermarks = executor.watermarks.standing()
        return cls(
            copy,
            portions,
            rest,
            {name: part.input_schema for name, part in stores.items()},
            store.event_time,
            store.counts(),
            executor.inputs,
            watermarks,
            executor.sharing,
            executor.records.standing(),
            executor.time_taken,
            executor.links.incarnations(),
            tuple(token for token in executor.flushes.requested() if token >= 0),
            executor.measures.rows,
        )

    def state(self, copy: IncomingCopy) -> PrimaryState:
        """Return the state, of which the earlier portions are in a copy, for an executor at its new home.

        Raises
        ------
        ProtocolError
            If it is another copy, or a portion is missing.
        """
        if not self.rest:
            return copy.complete(self.copy, self.portions)
        copy.install(self.copy, self.portions, self.rest)
        return copy.complete(self.copy, self.portions + 1)

    def install(self, executor: ExecutorParts) -> None:
        """Let an executor that has `state`, and has not started, continue at its home what was handed over."""
        store = executor.store
        for name, part in store.stores(executor.identity.component).items():
            part.input_schema = self.schemas.get(name)
        store.add_counts(self.counts)
        store.event_time = self.event_time
        executor.inputs.resume(self.inputs)
        executor.watermarks.resume(self.watermarks)
        executor.sharing = self.sharing
        executor.records.resume(self.clocks)
        executor.time_taken = self.taken
        executor.measures.rows_before = self.rows
        executor.links.resume(self.incarnations)
