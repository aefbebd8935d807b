"""The base classes of aggregates: as users write them, and bound to the schema of their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping

Values: TypeAlias = Any
"""A column of state: an ndarray, or a `Ragged` if the field is ragged."""


class Aggregate(ABC):
    """An aggregate over the rows of each key, as users write it; immutable, and picklable if its functions are.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Max
    >>> Max("delay").columns
    ('delay',)
    >>> Max("delay").bind(pa.schema({"delay": pa.int64()})).type
    DataType(int64)
    """

    reads_all: bool = False
    """Whether it reads all columns of its input, also those that `columns` does not name."""

    @property
    def calls_functions(self) -> bool:
        """Whether it calls functions of users, which may have effects; False only of built-in ones over columns."""
        return True

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads."""

    @abstractmethod
    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input.

        Parameters
        ----------
        schema : Schema
            The schema of the input batches.

        Returns
        -------
        BoundAggregate
            The aggregate in the form that operators run.

        Raises
        ------
        SchemaMismatch
            If a column is missing.
        TopologyError
            If the aggregate does not support a column's type.
        """


class BoundAggregate(ABC):
    """An aggregate bound to the schema of its input, in the form that operators run.

    Attributes
    ----------
    fields : tuple of Field
        The columns of its state.
    type : DataType
        The Arrow type of its result.
    reads_chosen : bool
        Whether `update` reads columns by `ChosenRows.column` and `select` alone, so that only these are copied.
    spreads : bool
        Whether `type` is a struct, of which each field is a column of the results.

    Notes
    -----
    State is passed as one array per field, a `Ragged` if the field is ragged. No method modifies its arguments. If a
    field does not change, a method may return the argument itself, so that the store writes nothing.

    Examples
    --------
    The greatest delay of two keys, from two rows of the first and one row of the second:

    >>> from dask_elastic.topology.aggregate import Max
    >>> bound = Max("delay").bind(pa.schema({"delay": pa.int64()}))
    >>> rows = pa.record_batch({"delay": [5, 7, 6]})
    >>> state = bound.update(bound.initial(2), rows, Grouping(np.array([0, 0, 1]), 2))
    >>> bound.result(bound.merge(state, bound.initial(2))).to_pylist()
    [7, 6]
    """

    fields: tuple[Field, ...]
    type: pa.DataType
    reads_chosen: bool = False
    spreads: bool = False

    @abstractmethod
    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        """Return the state of the groups after some rows.

        Parameters
        ----------
        current : sequence of ndarray or Ragged
            The state of the groups, one column per field.
        rows : RecordBatch
            The rows to add.
        grouping : Grouping
            The group of each row; every group has at least one row.

        Returns
        -------
        list of ndarray or Ragged
            The new state, one column per field.

        Raises
        ------
        ElasticError
            If a value does not fit the state, such as an integer sum that overflows.
        """

    @abstractmethod
    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        """Return the state of keys whose rows were aggregated in two parts.

        Parameters
        ----------
        left, right : sequence of ndarray or Ragged
            The states of the same keys; the rows of `left` come before those of `right`.

        Returns
        -------
        list of ndarray or Ragged
            The merged state, one column per field.
        """

    @abstractmethod
    def result(self, current: Sequence[Values]) -> pa.Array:
        """Return the results that users see.

        Parameters
        ----------
        current : sequence of ndarray or Ragged
            The state of some keys, one column per field.

        Returns
        -------
        Array
            One result per key, of the type `type`.
        """

    def initial(self, count: int) -> list[Values]:
        """Return the state of keys without rows.

        Parameters
        ----------
        count : int
            The number of keys.

        Returns
        -------
        list of ndarray or Ragged
            One column per field.
        """
        return [field.initially(count) for field in self.fields]


def present_after(present: npt.NDArray[np.bool_], grouping: Grouping, has_nulls: bool) -> npt.NDArray[np.bool_]:
    """Return which groups have a value after the rows; `has_nulls` if null rows were removed from the grouping."""
    if np.count_nonzero(present) == len(present):
        return present
    if not has_nulls:
        return np.ones(len(present), dtype=np.bool_)
    after = present.copy()
    after[grouping.ordinals] = True
    return after
