"""The primary copy of an executor's state, with the schema of the executor's input."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dask_elastic.executor.union_types import UnionTypes
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.row_counts import RowCounts


class PrimaryState(ComponentStore):
    """The state of every shard of an executor, at its home.

    Parameters
    ----------
    shards, shard_of, make_lock
        As for `ComponentStore`.

    Attributes
    ----------
    input_schema : Schema or None
        Schema of the executor's input; None before the first batch. State is stored as plain numbers; reading it as
        values needs the types of the input.
    event_time : int or None
        The event time of the last state record, microseconds since the Unix epoch: what the state has closed.
    groups : tuple of int or None
        The key groups whose state this is, where they change executor; None where they do not.
    union : UnionTypes or None
        Compares the types of what several upstream components send; None if there is only one.
    """

    input_schema: pa.Schema | None = None
    event_time: int | None = None
    groups: tuple[int, ...] | None = None
    union: UnionTypes | None = None

    _remote_counts = RowCounts()
    _windowed: Sequence[KeyedStore] = ()

    def hold(self, computes: Sequence[Compute]) -> None:
        """Make the stores of an executor's computes, the first operator's is this one."""
        for operator in computes[1:]:
            self.behind(operator.name)
        self._windowed = [
            self.behind(operator.name) if number else self
            for number, operator in enumerate(computes)
            if operator.windowing is not None
        ]

    @property
    def open_windows(self) -> int:
        """The live keys of the computes with windows."""
        return sum(map(len, self._windowed))

    def stores(self, component: str) -> dict[str, PrimaryState | FusedStore]:
        """Return the store of each compute, by name: that of the component and those that are fused behind it.

        A checkpoint has a part for each of them.
        """
        return {component: self, **self.fused}

    def add_counts(self, counts: tuple[int, ...]) -> None:
        """Add what became of the rows of a remote task; the caller holds the executor's lock."""
        self._remote_counts = self._remote_counts.plus(counts)

    def counted(self) -> RowCounts | None:
        """Return what became of all rows; None without windows, or before the first row."""
        total = self._remote_counts
        for counts in tuple(self.row_counts.values()):
            total = total.plus(counts)
        return total if any(total) else None

    def note_input(self, schema: pa.Schema, component: str) -> None:
        """Remember the schema of the first batch; the caller holds the executor's lock.

        Parameters
        ----------
        schema : Schema
            The schema of a batch.
        component : str
            The upstream component that sent it.

        Raises
        ------
        SchemaMismatch
            When the columns have other types than those of another upstream operator.
        """
        if self.union is not None:
            self.union.note(schema, component)
        if self.input_schema is None:
            self.input_schema = schema
