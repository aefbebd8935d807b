"""The primary copy of an executor's state, with the schema of the executor's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType

import pyarrow as pa

from dask_elastic.executor.union_types import UnionTypes
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.state.fused.packing import FIRST
from dask_elastic.state.store import KeyedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.compute_measure import ComputeMeasure, ComputeTally, flattened, unflattened
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.window_costs import WindowCosts


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

    _remote_costs = WindowCosts()
    _windowed: Mapping[str, KeyedStore] = MappingProxyType({})
    # What became of rows that were processed in remote tasks, and at earlier homes.
    _elsewhere: Mapping[str, ComputeTally] = MappingProxyType({})

    def hold(self, computes: Sequence[Compute]) -> None:
        """Make the stores of an executor's computes, the first operator's is this one."""
        for operator in computes[1:]:
            self.behind(operator.name)
        self._windowed = {
            operator.name if number else FIRST: self.behind(operator.name) if number else self
            for number, operator in enumerate(computes)
            if operator.windowing is not None
        }

    @property
    def open_windows(self) -> int:
        """The live keys of the computes with windows."""
        return sum(map(len, self._windowed.values()))

    def stores(self, component: str) -> dict[str, PrimaryState | FusedStore]:
        """Return the store of each compute, by name: that of the component and those that are fused behind it.

        A checkpoint has a part for each of them.
        """
        return {component: self, **self.fused}

    def add_counts(self, counts: tuple[int, ...]) -> None:
        """Add what became of the rows of a remote task; the caller holds the executor's lock.

        Parameters
        ----------
        counts : tuple of int
            The numbers of a `ComputeTally` for each compute, or none.
        """
        if counts:
            names = [FIRST, *sorted(self.fused)]
            added = zip(names, unflattened(counts), strict=True)
            self._elsewhere = {name: tally.plus(self._elsewhere.get(name, ComputeTally())) for name, tally in added}

    def counts(self) -> tuple[int, ...]:
        """Return what became of all rows so far, as `add_counts` takes it."""
        return flattened(self._totals().values())

    def counted(self) -> RowCounts | None:
        """Return what became of the rows of all computes; None without windows, or before the first row."""
        return _known(reduce(RowCounts.plus, (tally.windows for tally in self._totals().values())))

    def compute_measures(self, component: str, state_bytes: Mapping[str, int]) -> tuple[ComputeMeasure, ...]:
        """Return the measures of each of several computes; nothing if there is only one.

        Parameters
        ----------
        component : str
            The name of the first one.
        state_bytes : mapping of str to int
            The size of the state, as `shard_bytes_by_compute` names them.

        Returns
        -------
        tuple of ComputeMeasure
            The first one, then the others by name.
        """
        if not self.fused:
            return ()
        return tuple(
            ComputeMeasure(
                name or component,
                state_bytes[name],
                tally.microseconds / 1e6,
                _known(tally.windows),
                len(self._windowed[name]) if name in self._windowed else None,
            )
            for name, tally in self._totals().items()
        )

    def _totals(self) -> dict[str, ComputeTally]:
        found = {name: self._elsewhere.get(name, ComputeTally()) for name, _ in self._stores()}
        tasks = {task for _, store in self._stores() for task in (*tuple(store.row_counts), *tuple(store.microseconds))}
        for task in tasks:
            for name, tally in self.tallies(task).items():
                found[name] = found[name].plus(tally)
        return found

    def add_costs(self, costs: tuple[float, ...]) -> None:
        """Add what the windows of a remote task have cost; the caller holds the executor's lock."""
        self._remote_costs = self._remote_costs.plus(costs)

    def costs(self) -> WindowCosts | None:
        """Return what the windows of the first compute have cost so far at this home; None if that is not measured."""
        total = self._remote_costs
        for tally in tuple(self.window_costs.values()):
            total = total.plus(tally.costs())
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


def _known(counts: RowCounts) -> RowCounts | None:
    return counts if any(counts) else None
