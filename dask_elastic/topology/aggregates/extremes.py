"""The aggregates `Min` and `Max`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values, present_after
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.operand import BatchFunction, BoundOperand, Operand, Restoring, storage
from dask_elastic.vocab.errors import TopologyError


class _Extreme(Aggregate):
    _least: ClassVar[bool]

    def __init__(self, of: str | BatchFunction, columns: Sequence[str] | None = None) -> None:
        self._operand = Operand(of, columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads."""
        return self._operand.columns

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        operand = self._operand.bind(schema, repr(self))
        if storage(operand.type) is None:
            raise TopologyError(
                f"{self!r}: values of type {operand.type} are not supported; use numbers, booleans, dates, times, "
                "timestamps, durations or decimals of at most 18 digits, or write an agg.custom(...)"
            )
        return _BoundExtreme(operand, self._least)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._operand!r})"


class Min(_Extreme):
    """The minimum of a column, or of a vectorised function of a batch, in the column's type.

    Parameters
    ----------
    of : str or callable
        A column, or a function from a batch to an array with one value per row.
    columns : sequence of str, optional
        The columns that the function reads; required if `of` is a function.

    Raises
    ------
    TopologyError
        If an argument is invalid.

    Notes
    -----
    Supports numbers, booleans, dates, times, timestamps, durations, and decimals of at most 18 digits. Nulls are
    ignored; the minimum of no value is null. NaN is ignored too, as in pandas and Arrow, unless all values are NaN.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "delay": [3, 7, 5]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"delay": Min("delay")}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'delay': [3, 7]}
    """

    _least = True


class Max(_Extreme):
    """The maximum of a column, or of a vectorised function of a batch, in the column's type.

    Parameters
    ----------
    of : str or callable
        A column, or a function from a batch to an array with one value per row.
    columns : sequence of str, optional
        The columns that the function reads; required if `of` is a function.

    Raises
    ------
    TopologyError
        If an argument is invalid.

    Notes
    -----
    Supports the same types as `Min`, and treats nulls and NaN the same way.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "delay": [3, 7, 5]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"delay": Max("delay")}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'delay': [5, 7]}
    """

    _least = False


class _BoundExtreme(BoundAggregate):
    def __init__(self, operand: BoundOperand, least: bool) -> None:
        dtype = storage(operand.type)
        assert dtype is not None, "refused when bound"
        if dtype.kind == "f":
            self._better: np.ufunc = np.fmin if least else np.fmax
        else:
            self._better = np.minimum if least else np.maximum
        self.type = operand.type
        self.fields = (Field("value", dtype, _neutral(dtype, least)), Field("present", np.dtype(np.bool_), False))
        self._operand = operand
        self._results = Restoring(operand.type)

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        values, valid = self._operand.read(rows)
        if valid is not None:
            values, grouping = values[valid], grouping.restricted(valid)
        best = current[0].copy()
        self._better.at(best, grouping.ordinals, values)
        return [best, present_after(current[1], grouping, valid is not None)]

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return [self._better(left[0], right[0]), left[1] | right[1]]

    def result(self, current: Sequence[Values]) -> pa.Array:
        return self._results.array(current[0], current[1])


def _neutral(dtype: np.dtype[Any], least: bool) -> Any:
    """Return the identity of the minimum or maximum."""
    if dtype.kind == "f":
        return np.nan
    if dtype.kind == "b":
        return least
    limits = np.iinfo(dtype)
    return limits.max if least else limits.min
