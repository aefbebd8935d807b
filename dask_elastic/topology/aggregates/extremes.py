"""The aggregates `Min` and `Max`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values, present_after
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.operand import (
    BatchFunction,
    BoundOperand,
    Operand,
    Restoring,
    in_units,
    storage,
    validity,
)
from dask_elastic.topology.aggregates.ordered_values import SUPPORTED, as_arrow, kept, order_storage, prefixes, ranked
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import TopologyError


class _Extreme(Aggregate):
    _least: ClassVar[bool]

    def __init__(self, of: str | BatchFunction, columns: Sequence[str] | None = None) -> None:
        self._operand = Operand(of, columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads."""
        return self._operand.columns

    @property
    def calls_functions(self) -> bool:
        """Whether its values are those of a function."""
        return self._operand.is_function

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        operand = self._operand.bind(schema, repr(self))
        if order_storage(operand.type) is None:
            raise TopologyError(
                f"{self!r}: values of type {operand.type} are not supported; use {SUPPORTED}, or write an "
                "agg.custom(...)"
            )
        is_number = storage(operand.type) is not None
        return _BoundExtreme(operand, self._least) if is_number else _BoundObjectExtreme(operand, self._least)

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
    Supports numbers, booleans, dates, times, timestamps, durations, decimals, text and bytes. Nulls are ignored; the
    minimum of no value is null. NaN is ignored too, as in pandas and Arrow, unless all values are NaN. Text is compared
    by code points, as in pandas and Arrow. Text, bytes and decimals of more than 18 digits are kept as Python objects,
    which is slower than numbers.

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
    reads_chosen = True

    def __init__(self, operand: BoundOperand, least: bool) -> None:
        dtype = storage(operand.type)
        assert dtype is not None, "refused when bound"
        if dtype.kind == "f":
            self._better: np.ufunc = np.fmin if least else np.fmax
        else:
            self._better = np.minimum if least else np.maximum
        self.type = operand.type
        self.fields = (
            Field(in_units("value", operand.type), dtype, _neutral(dtype, least)),
            Field("present", np.dtype(np.bool_), False),
        )
        self._operand = operand
        self._results = Restoring(operand.type)

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        values, valid = self._operand.read(rows)
        if valid is not None:
            values, grouping = values[valid], grouping.restricted(valid)
        if grouping.single:
            best = self._better(current[0], values)
        else:
            best = current[0].copy()
            self._better.at(best, grouping.ordinals, values)
        return [best, present_after(current[1], grouping, valid is not None)]

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return [self._better(left[0], right[0]), left[1] | right[1]]

    def result(self, current: Sequence[Values]) -> pa.Array:
        return self._results.array(current[0], current[1])


_NONE = np.array(None, dtype=object)


class _BoundObjectExtreme(BoundAggregate):
    """Keeps text, bytes and long decimals as Python objects; None until there is a value."""

    reads_chosen = True
    fields = (Field("value", np.dtype(object), None),)

    def __init__(self, operand: BoundOperand, least: bool) -> None:
        self.type = operand.type
        self._operand = operand
        self._better: np.ufunc = np.less if least else np.greater
        self._best: np.ufunc = np.minimum if least else np.maximum
        self._least = least

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        array = self._operand.array(rows)
        valid = validity(array)
        if valid is not None:
            array, grouping = array.drop_null(), grouping.restricted(valid)
        array, grouping = self._first_alike(array, grouping)
        ranks, distinct = ranked(array)
        # Only the best value of each group becomes a Python object.
        best = np.full(grouping.count, len(distinct) if self._least else -1)
        self._best.at(best, grouping.ordinals, ranks)
        groups = np.flatnonzero((best >= 0) & (best < len(distinct)))
        return [self._improved(current[0], groups, kept(distinct.take(array_of(best[groups]))))]

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        groups = np.flatnonzero(right[0] != _NONE)
        return [self._improved(left[0], groups, right[0][groups])]

    def result(self, current: Sequence[Values]) -> pa.Array:
        return as_arrow(current[0], self.type)

    def _first_alike(self, array: pa.Array, grouping: Grouping) -> tuple[pa.Array, Grouping]:
        """Return the values that start like the best one of their group."""
        found = prefixes(array)
        if found is None:
            return array, grouping
        best = np.full(grouping.count, np.iinfo(np.uint64).max if self._least else 0, np.uint64)
        self._best.at(best, grouping.ordinals, found)
        alike = found == best[grouping.ordinals]
        return array.filter(array_of(alike)), grouping.restricted(alike)

    def _improved(self, current: Values, groups: npt.NDArray[np.intp], values: Values) -> Values:
        """Return the state after adding one value to each of the groups; the argument itself if none is better."""
        before = current[groups]
        better = before == _NONE
        known = ~better
        better[known] = self._better(values[known], before[known])
        if not better.any():
            return current
        after = current.copy()
        after[groups[better]] = values[better]
        return after


def _neutral(dtype: np.dtype[Any], least: bool) -> Any:
    """Return the identity of the minimum or maximum."""
    if dtype.kind == "f":
        return np.nan
    if dtype.kind == "b":
        return least
    limits = np.iinfo(dtype)
    return limits.max if least else limits.min
