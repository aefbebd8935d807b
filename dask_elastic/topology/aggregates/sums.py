"""The aggregates `Count`, `Sum` and `Mean`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values, present_after
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.integer_sum import add_integers, merge_integers
from dask_elastic.topology.aggregates.operand import (
    BatchFunction,
    BoundOperand,
    Operand,
    Restoring,
    in_units,
    storage,
    validity,
)
from dask_elastic.vocab.errors import TopologyError

_MAX_INT64_DIGITS = 19


class Count(Aggregate):
    """The number of rows, or of values that are not null.

    Parameters
    ----------
    of : str or callable, optional
        A column, or a function from a batch to an array, whose values that are not null are counted. Counts rows by
        default.
    columns : sequence of str, optional
        The columns that the function reads; required if `of` is a function.

    Raises
    ------
    TopologyError
        If an argument is invalid.

    Examples
    --------
    >>> Count(), Count("delay")
    (Count(), Count('delay'))
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "delay": [3, 7, 5]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"flights": Count()}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'flights': [2, 1]}
    """

    def __init__(self, of: str | BatchFunction | None = None, columns: Sequence[str] | None = None) -> None:
        if of is None and columns is not None:
            raise TopologyError("Count(columns=...) needs a function that reads these columns; Count() counts rows")
        self._operand = None if of is None else Operand(of, columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads."""
        return () if self._operand is None else self._operand.columns

    @property
    def calls_functions(self) -> bool:
        """Whether its values are those of a function."""
        return self._operand is not None and self._operand.is_function

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        return _BoundCount(None if self._operand is None else self._operand.bind(schema, repr(self)))

    def __repr__(self) -> str:
        return "Count()" if self._operand is None else f"Count({self._operand!r})"


class _BoundCount(BoundAggregate):
    reads_chosen = True
    fields = (Field("count", np.dtype(np.int64), 0),)
    type = pa.int64()

    def __init__(self, operand: BoundOperand | None) -> None:
        self._operand = operand
        self._results = Restoring(self.type)

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        valid = None if self._operand is None else validity(self._operand.array(rows))
        return [current[0] + (grouping if valid is None else grouping.restricted(valid)).sizes]

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return [left[0] + right[0]]

    def result(self, current: Sequence[Values]) -> pa.Array:
        return self._results.array(current[0])


class Sum(Aggregate):
    """The sum of a column, or of a vectorised function of a batch.

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
    As in SQL, nulls are ignored and the sum of no value is null; NaN is a value. The sum of integers and booleans is an
    exact int64, or raises `NumericOverflow`; of floats, a float64; of durations, a duration; of decimals of up to 18
    digits, an exact `decimal128(19, scale)`. Other types are not supported.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> Sum("delay"), Sum(lambda batch: pc.binary_length(batch["payload"]), columns=["payload"])
    (Sum('delay'), Sum(<lambda>, columns=['payload']))
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "delay": [3, 7, 5]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"delay": Sum("delay")}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'delay': [8, 7]}
    """

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
        if pa.types.is_floating(operand.type):
            return _BoundFloatSum(operand)
        return _BoundIntegerSum(operand, _sum_type(operand.type, repr(self)), repr(self))

    def __repr__(self) -> str:
        return f"Sum({self._operand!r})"


def _sum_type(type_: pa.DataType, owner: str) -> pa.DataType:
    types = pa.types
    if types.is_integer(type_) or types.is_boolean(type_):
        return pa.int64()
    if types.is_duration(type_):
        return type_
    if types.is_decimal(type_):
        if storage(type_) is None:
            raise TopologyError(
                f"{owner}: values of type {type_} are supported up to 18 digits of precision; cast them to fewer "
                "digits or to float64 in an upstream map"
            )
        return pa.decimal128(_MAX_INT64_DIGITS, type_.scale)
    raise TopologyError(f"{owner}: values of type {type_} cannot be summed; use numbers, durations or booleans")


class _BoundIntegerSum(BoundAggregate):
    reads_chosen = True

    def __init__(self, operand: BoundOperand, type_: pa.DataType, owner: str) -> None:
        self.type = type_
        self.fields: tuple[Field, ...] = (
            Field(in_units("sum", type_), np.dtype(np.int64), 0),
            Field("present", np.dtype(np.bool_), False),
        )
        self._operand = operand
        self._owner = owner
        self._results = Restoring(type_)

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        values, valid = self._operand.read(rows)
        if valid is not None:
            values, grouping = values[valid], grouping.restricted(valid)
        sums = add_integers(current[0], values, grouping, self._owner)
        return [sums, present_after(current[1], grouping, valid is not None)]

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return [merge_integers(left[0], right[0], self._owner), left[1] | right[1]]

    def result(self, current: Sequence[Values]) -> pa.Array:
        return self._results.array(current[0], current[1])


class _BoundFloatSum(BoundAggregate):
    reads_chosen = True
    fields = (Field("sum", np.dtype(np.float64), 0.0), Field("present", np.dtype(np.bool_), False))
    type = pa.float64()

    def __init__(self, operand: BoundOperand) -> None:
        self._operand = operand
        self._results = Restoring(self.type)

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        values, valid = self._operand.read(rows)
        if valid is not None:
            values, grouping = values[valid], grouping.restricted(valid)
        sums = _added(current[0], grouping.sums(values))
        return [sums, present_after(current[1], grouping, valid is not None)]

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return [_added(left[0], right[0]), left[1] | right[1]]

    def result(self, current: Sequence[Values]) -> pa.Array:
        return self._results.array(current[0], current[1])


class Mean(Aggregate):
    """The mean of a column, or of a vectorised function of a batch, as float64.

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
    Nulls are ignored and the mean of no value is null; NaN is a value. Numbers are summed as float64, so the sum of
    integers is exact below 2**53. Only numbers and booleans are supported.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "delay": [3, 7, 5]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"delay": Mean("delay")}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'delay': [4.0, 7.0]}
    """

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
        types = pa.types
        if not (types.is_integer(operand.type) or types.is_floating(operand.type) or types.is_boolean(operand.type)):
            raise TopologyError(
                f"{self!r}: values of type {operand.type} have no mean; cast them to float64 in an upstream map, or "
                "use Mean(function, columns=[...])"
            )
        return _BoundMean(operand)

    def __repr__(self) -> str:
        return f"Mean({self._operand!r})"


class _BoundMean(BoundAggregate):
    reads_chosen = True
    fields = (Field("sum", np.dtype(np.float64), 0.0), Field("count", np.dtype(np.int64), 0))
    type = pa.float64()

    def __init__(self, operand: BoundOperand) -> None:
        self._operand = operand
        self._results = Restoring(self.type)

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        values, valid = self._operand.read(rows)
        if valid is not None:
            values, grouping = values[valid], grouping.restricted(valid)
        sums = _added(current[0], grouping.sums(values))
        return [sums, current[1] + grouping.sizes]

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return [_added(left[0], right[0]), left[1] + right[1]]

    def result(self, current: Sequence[Values]) -> pa.Array:
        sums, counts = current
        present = counts > 0
        if np.count_nonzero(present) == len(present):
            return self._results.array(sums / counts)
        return self._results.array(np.divide(sums, counts, out=np.zeros(len(sums)), where=present), present)


def _added(left: Values, right: Values) -> Values:
    """Add floats as IEEE 754 does: infinities of both signs make NaN, and what is too large an infinity."""
    with np.errstate(invalid="ignore", over="ignore"):
        return left + right
