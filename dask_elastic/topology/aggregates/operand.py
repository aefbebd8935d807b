"""The operands of built-in aggregates: a column, or a vectorised function of some columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.schema import plain_column, plain_type
from dask_elastic.vocab.arrow_arrays import no_rows
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

BatchFunction = Callable[[pa.RecordBatch], Any]

_EXACT_DECIMAL_DIGITS = 18


@dataclass(frozen=True, repr=False)
class Operand:
    """The column or function over which an aggregate is computed.

    Parameters
    ----------
    of : str or callable
        A column's name, or a function from a batch to an array with one value per row.
    columns : sequence of str, optional
        The columns that the function reads, and the only ones of the batches that it gets.

    Examples
    --------
    >>> Operand("delay").columns
    ('delay',)
    """

    of: str | BatchFunction
    columns: tuple[str, ...]

    def __init__(self, of: str | BatchFunction, columns: Sequence[str] | None = None) -> None:
        if isinstance(of, str):
            if columns is not None:
                raise TopologyError(f"columns={list(columns)!r} is for functions; omit it for the column {of!r}")
            columns = (of,)
        elif not callable(of):
            raise TopologyError(f"an aggregate takes the name of a column or a function of a batch, not {of!r}")
        elif columns is None or isinstance(columns, str):
            raise TopologyError(
                f"the function {_name(of)} needs columns=[...], a list of the columns it reads, not {columns!r}"
            )
        object.__setattr__(self, "of", of)
        object.__setattr__(self, "columns", tuple(columns))

    @property
    def is_function(self) -> bool:
        """Whether it is a function of users."""
        return not isinstance(self.of, str)

    def __repr__(self) -> str:
        if isinstance(self.of, str):
            return repr(self.of)
        return f"{_name(self.of)}, columns={list(self.columns)!r}"

    def bind(self, schema: pa.Schema, owner: str) -> BoundOperand:
        """Bind the operand to the schema of its input; `owner` is the aggregate's repr, for error texts."""
        for column in self.columns:
            if column not in schema.names:
                raise SchemaMismatch(
                    f"{owner} reads column {column!r}, which its input lacks; "
                    f"the columns are {', '.join(map(repr, schema.names))}"
                )
        return BoundOperand(self, schema, owner)


class BoundOperand:
    """An operand bound to the schema of its input.

    Attributes
    ----------
    type : DataType
        The plain type of its values, as of `plain_type`: of a dictionary-encoded column, the value type.
    """

    def __init__(self, operand: Operand, schema: pa.Schema, owner: str) -> None:
        self._of = operand.of
        self._columns = list(operand.columns)
        self._owner = owner
        found = schema.field(self._of).type if isinstance(self._of, str) else self._probe(schema)
        self.type: pa.DataType = plain_type(found)
        self._encoded = found != self.type
        self._flat = _flat_storage(self.type)

    def _probe(self, schema: pa.Schema) -> pa.DataType:
        fields = [schema.field(name) for name in self._columns]
        batch = no_rows(pa.schema(fields))
        try:
            return self._evaluate(batch).type
        except (SchemaMismatch, TopologyError):
            raise
        except Exception as error:
            raise TopologyError(
                f"{self._owner}: the function failed on an empty batch with the columns {self._columns!r}, which "
                f"determines its type: {type(error).__name__}: {error}. Name every column it reads in columns=[...]"
            ) from error

    def _evaluate(self, rows: pa.RecordBatch | ChosenRows) -> pa.Array:
        if isinstance(rows, ChosenRows):
            return rows.evaluated(self._values, self._columns)
        return self._values(rows.select(self._columns))

    def _values(self, rows: pa.RecordBatch) -> pa.Array:
        """Return what the function returns for its columns, as an array."""
        assert not isinstance(self._of, str)
        values = self._of(rows)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        elif not isinstance(values, pa.Array):
            values = pa.array(values, from_pandas=True) if hasattr(values, "__array__") else values
        if not isinstance(values, pa.Array):
            raise TopologyError(f"{self._owner}: the function must return an array, not {type(values).__name__}")
        if len(values) != len(rows):
            raise TopologyError(
                f"{self._owner}: the function returned {len(values)} values for {len(rows)} rows; "
                "it must return one per row"
            )
        return values

    def array(self, rows: pa.RecordBatch | ChosenRows) -> pa.Array:
        """Return the operand's values for the rows, in the plain type."""
        if not isinstance(self._of, str):
            return plain_column(self._evaluate(rows), self.type)
        values = rows.column(self._of)
        return plain_column(values, self.type) if self._encoded else values

    def read(self, rows: pa.RecordBatch) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
        """Return the stored values without a copy, and a mask of those that are not null (None if all are)."""
        array = self.array(rows)
        valid = validity(array) if array.null_count else None
        if self._flat is None or not len(array):
            return stored(array), valid
        # The storage type is cached: determining it takes longer than summing a small batch.
        offset = self._flat.itemsize * array.offset
        return np.frombuffer(array.buffers()[1], self._flat, len(array), offset), valid


def _name(function: BatchFunction) -> str:
    return getattr(function, "__qualname__", repr(function)).rpartition(".")[2]


def storage(type_: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy type as which Arrow stores values of a type.

    Parameters
    ----------
    type_ : DataType
        An Arrow type.

    Returns
    -------
    dtype or None
        None if the values are not stored as numbers, or as decimals of more than 18 digits.

    Examples
    --------
    >>> storage(pa.date32()), storage(pa.string())
    (dtype('int32'), None)
    """
    types = pa.types
    if types.is_boolean(type_):
        return np.dtype(np.bool_)
    if types.is_integer(type_) or types.is_floating(type_):
        plain: np.dtype[Any] = np.dtype(type_.to_pandas_dtype())
        return plain
    if types.is_temporal(type_) and not types.is_interval(type_):
        return np.dtype(f"i{type_.bit_width // 8}")
    if types.is_decimal(type_) and type_.precision <= _EXACT_DECIMAL_DIGITS and type_.bit_width <= 128:
        return np.dtype(f"i{min(type_.bit_width, 64) // 8}")
    return None


def in_units(name: str, type_: pa.DataType) -> str:
    """Return the name of a field of state for numbers of a type, with what they count.

    A job that continues with times of another unit, or decimals of another scale, is then refused, since the numbers in
    its state mean something else.

    Parameters
    ----------
    name : str
        The name of the field.
    type_ : DataType
        The type of the values that it has, or is made of.

    Returns
    -------
    str
        The name alone for numbers, text and bytes.

    Examples
    --------
    >>> in_units("value", pa.int64()), in_units("value", pa.timestamp("us", "UTC"))
    ('value', 'value (timestamp[us])')
    """
    if pa.types.is_timestamp(type_):
        # The zone is of the results only: the numbers are in UTC.
        return f"{name} (timestamp[{type_.unit}])"
    if pa.types.is_decimal(type_):
        return f"{name} (decimal of scale {type_.scale})"
    return f"{name} ({type_})" if pa.types.is_temporal(type_) else name


def _flat_storage(type_: pa.DataType) -> np.dtype[Any] | None:
    """Return the type of values that are contiguous in Arrow's buffer, or None if they are not."""
    dtype = storage(type_)
    if dtype is None or dtype == np.bool_ or dtype.itemsize * 8 != type_.bit_width:
        return None
    return dtype


def stored(array: pa.Array) -> npt.NDArray[Any]:
    """Return an array's numbers as Arrow stores them; numbers of nulls are arbitrary."""
    type_, count, start = array.type, len(array), array.offset
    dtype = storage(type_)
    assert dtype is not None, f"{type_} is not stored as numbers"
    if count == 0:
        return np.empty(0, dtype)
    data = array.buffers()[1]
    if dtype == np.bool_:
        return _bits(data, start, count)
    if pa.types.is_decimal(type_) and type_.bit_width == 128:
        # At most 18 digits fit the low word.
        return np.ascontiguousarray(np.frombuffer(data, "<i8", 2 * count, 16 * start)[::2])
    return np.frombuffer(data, dtype, count, dtype.itemsize * start)


def validity(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the values that are not null, or None if all are."""
    if array.null_count == 0:
        return None
    return stored(pc.is_valid(array)).astype(np.bool_, copy=False)


def _bits(data: pa.Buffer, start: int, count: int) -> npt.NDArray[np.bool_]:
    packed = np.frombuffer(data, np.uint8, (start % 8 + count + 7) // 8, start // 8)
    return np.unpackbits(packed, count=start % 8 + count, bitorder="little")[start % 8 :].view(np.bool_)


class Restoring:
    """Makes Arrow arrays of one type from stored numbers; the inverse of `stored`.

    Parameters
    ----------
    type_ : DataType
        The type of the arrays.

    Examples
    --------
    >>> Restoring(pa.duration("s")).array(np.array([1, 2]), np.array([True, False])).to_pylist()
    [datetime.timedelta(seconds=1), None]
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        self._dtype = storage(type_)
        self._is_boolean = pa.types.is_boolean(type_)
        self._is_decimal = pa.types.is_decimal128(type_)

    def array(self, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Return an Arrow array with given stored numbers.

        Parameters
        ----------
        values : ndarray
            The stored numbers.
        valid : ndarray of bool, optional
            False for values that are null; None if there are none.

        Returns
        -------
        Array
            The array.
        """
        count = len(values)
        bitmap = None
        if valid is not None and np.count_nonzero(valid) < count:
            bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        if self._is_boolean:
            numbers = np.packbits(values.astype(np.bool_), bitorder="little")
        elif self._is_decimal:
            numbers = np.empty((count, 2), np.int64)
            numbers[:, 0] = values
            numbers[:, 1] = values.astype(np.int64) >> 63
        else:
            numbers = np.ascontiguousarray(values, dtype=self._dtype)
        return pa.Array.from_buffers(self.type, count, [bitmap, pa.py_buffer(numbers)])


def restored(values: npt.NDArray[Any], type_: pa.DataType, valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return `Restoring(type_).array(values, valid)`, for one array of a type."""
    return Restoring(type_).array(values, valid)
