"""The types of the columns that an executor's state depends on, which all upstream operators must send alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.schema import plain_type
from dask_elastic.vocab.column_types import UNTYPED, ColumnTypes


class UnionTypes:
    """Compares the batches of one executor's upstream operators; the caller holds the executor's lock.

    Parameters
    ----------
    receiver : str
        The operator.
    columns : sequence of str or None
        Its keys and the columns that it aggregates; None for a function, which reads all columns.
    producers : mapping of str to str
        The operators that send to it, as text, by component.

    Attributes
    ----------
    first : ColumnTypes or None
        The types of the first batch; None before it.

    Examples
    --------
    >>> union = UnionTypes("per_k", ["k"], {"north": "north", "south": "south"})
    >>> union.note(pa.schema({"k": pa.int64(), "v": pa.int8()}), "north")
    >>> union.note(pa.schema({"k": pa.int64(), "v": pa.int64()}), "south")
    >>> union.note(pa.schema({"k": pa.string()}), "south")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SchemaMismatch: operator 'per_k' reads a union of 'north' and 'south', whose columns
    differ: 'k' is int64 from 'north' and string from 'south'. ...
    """

    def __init__(self, receiver: str, columns: Sequence[str] | None, producers: Mapping[str, str]):
        self.receiver = receiver
        self.first: ColumnTypes | None = None
        self._columns = None if columns is None else tuple(columns)
        self._producers = dict(producers)
        self._accepted: list[pa.Schema] = []

    def note(self, schema: pa.Schema, component: str) -> None:
        """Compare the schema of a batch with those before.

        Parameters
        ----------
        schema : Schema
            The schema.
        component : str
            The upstream component that sent the batch.

        Raises
        ------
        SchemaMismatch
            When the types of a column differ between two upstream operators.
        """
        if any(schema.equals(accepted) for accepted in self._accepted):
            return
        columns = schema.names if self._columns is None else self._columns
        found = {name: str(plain_type(schema.field(name).type)) for name in columns}
        other = ColumnTypes(self._producers.get(component, component), found, self._columns is None)
        first = self.first or other
        if other.producer != first.producer:
            first.require_same(other, self.receiver)
        known = {name: kind if kind != UNTYPED else found.get(name, kind) for name, kind in first.types.items()}
        self.first = first._replace(types=known)
        self._accepted.append(schema)


def union_types(component: Component, components: Mapping[str, Component]) -> UnionTypes | None:
    """Return the comparison for an executor of a stateful component; None if only one component sends to it.

    Parameters
    ----------
    component : Component
        The component.
    components : mapping of str to Component
        All components, by name.
    """
    if len(component.inputs) < 2:
        return None
    operator = component.operator
    assert isinstance(operator, Compute)
    producers = {name: " and ".join(components[name].producers(component.name)) for name in component.inputs}
    return UnionTypes(operator.name, operator.columns, producers)
