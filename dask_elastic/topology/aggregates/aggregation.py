"""What every aggregate is: a description by the user, and its form once the input's schema is known."""

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
"""A column of state: an ndarray, or a `Ragged` where the field is ragged."""


class Aggregate(ABC):
    """A description of what to keep of each key's rows; immutable, and picklable if its functions are."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The input columns it reads."""

    @abstractmethod
    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Fit the aggregate to its input.

        Parameters
        ----------
        schema : Schema
            Schema of the batches to come.

        Returns
        -------
        BoundAggregate
            What does the work.

        Raises
        ------
        SchemaMismatch
            If a column is missing.
        TopologyError
            If the aggregate does not support the column's type.
        """


class BoundAggregate(ABC):
    """An aggregate that knows its input types.

    Attributes
    ----------
    fields : tuple of Field
        The columns of state it needs.
    type : DataType
        The Arrow type of its result.

    Notes
    -----
    State is passed as one array per field, a `Ragged` where the field is ragged. No method changes its arguments; an
    array that it returns unchanged may be the very array it was given, which tells the store that there is nothing to
    write.
    """

    fields: tuple[Field, ...]
    type: pa.DataType

    @abstractmethod
    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        """Return the state of the groups after the rows; every group has at least one."""

    @abstractmethod
    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        """Return the state of keys whose rows were counted in two parts, `left` before `right`."""

    @abstractmethod
    def result(self, current: Sequence[Values]) -> pa.Array:
        """Return what users see of the state."""

    def initial(self, count: int) -> list[Values]:
        """Return the state of `count` keys without rows."""
        return [field.initially(count) for field in self.fields]


def present_after(present: npt.NDArray[np.bool_], grouping: Grouping, has_nulls: bool) -> npt.NDArray[np.bool_]:
    """Say which groups have seen a value, once the grouping's rows are added; `has_nulls`: some are left out."""
    if np.count_nonzero(present) == len(present):
        return present
    if not has_nulls:
        return np.ones(len(present), dtype=np.bool_)
    after = present.copy()
    after[grouping.ordinals] = True
    return after
