"""Columns of buffered rows as fields of the state: numbers and times as numbers, text as bytes, all else as objects."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import dtype_of, to_arrow, to_stored, with_leaves
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.operand import in_units
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.errors import SchemaMismatch

Known = npt.NDArray[np.bool_]

_OFFSETS: dict[pa.DataType, np.dtype[Any]] = {
    pa.string(): np.dtype(np.int32),
    pa.binary(): np.dtype(np.int32),
    pa.large_string(): np.dtype(np.int64),
    pa.large_binary(): np.dtype(np.int64),
}


class PayloadColumn(Protocol):
    """A column of rows, stored in two fields: the values, and which of them are not null."""

    @property
    def fields(self) -> tuple[Field, Field]:
        """The fields."""
        ...

    def stored(self, column: pa.Array) -> list[Column]:
        """Return the fields' values for a column."""
        ...

    def column(self, values: Column, known: Known) -> pa.Array:
        """Return the column for the fields' values."""
        ...


def payload_column(name: str, kind: pa.DataType) -> PayloadColumn:
    """Return how a column of a type is stored.

    Parameters
    ----------
    name : str
        Its name.
    kind : DataType
        Its type, a plain one.

    Returns
    -------
    PayloadColumn
        The storage.

    Examples
    --------
    >>> column = payload_column("item", pa.string())
    >>> values, known = column.stored(pa.array(["lamp", None, ""]))
    >>> column.column(values, known).to_pylist()
    ['lamp', None, '']
    """
    return TextColumn(name, kind) if kind in _OFFSETS else PlainColumn(name, kind)


class PlainColumn:
    """A column of numbers or booleans as an array of these, of times as one of numbers; of other types as objects.

    Parameters
    ----------
    name : str
        Its name.
    kind : DataType
        Its type.
    """

    def __init__(self, name: str, kind: pa.DataType):
        self._kind = kind
        # Objects of Python hold neither nanoseconds of a day nor all dates; for NumPy, the least time is none.
        self._stored = with_leaves(kind, _number_of)
        dtype = dtype_of(self._stored)
        initial = None if dtype.hasobject else 0
        shown = (
            name if self._stored == kind else f"{name} ({kind})" if pa.types.is_nested(kind) else in_units(name, kind)
        )
        self.fields = Field(shown, dtype, initial), Field(f"{name} known", np.dtype(np.bool_), False)

    def stored(self, column: pa.Array) -> list[Column]:
        """Return the fields' values for a column."""
        values, known = to_stored(column, self._stored)
        return [values, known]

    def column(self, values: Column, known: Known) -> pa.Array:
        """Return the column for the fields' values."""
        assert isinstance(values, np.ndarray)
        found = to_arrow(values, self._stored, None if known.all() else known)
        return found if self._stored == self._kind else found.cast(self._kind)


class TextColumn:
    """A column of strings or binaries: the bytes of each value are a list, so that no value becomes an object.

    Parameters
    ----------
    name : str
        Its name.
    kind : DataType
        Its type.
    """

    def __init__(self, name: str, kind: pa.DataType):
        self._kind = kind
        self._offset_type = _OFFSETS[kind]
        known = Field(f"{name} known", np.dtype(np.bool_), False)
        self.fields = Field(name, np.dtype(np.uint8), 0, ragged=True), known

    def stored(self, column: pa.Array) -> list[Column]:
        """Return the fields' values for a column."""
        known = np.ones(len(column), np.bool_)
        if column.null_count:
            known = numpy_of(column.is_valid())
        _, offsets, data = column.buffers()
        places = np.zeros(len(column) + 1, np.int64)
        if offsets is not None and offsets.size:
            found = np.frombuffer(offsets, self._offset_type)[column.offset : column.offset + len(column) + 1]
            places = found.astype(np.int64)
        text = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[places[0] : places[-1]]
        return [Ragged(text, places - places[0]), known]

    def column(self, values: Column, known: Known) -> pa.Array:
        """Return the column for the fields' values."""
        assert isinstance(values, Ragged)
        if len(values.values) > np.iinfo(self._offset_type).max:
            raise SchemaMismatch(
                f"{len(values)} joined rows have {len(values.values):,} bytes in a column of type {self._kind}, which "
                f"holds less; cast it to {'large_string' if self._kind == pa.string() else 'large_binary'} before the "
                "join."
            )
        offsets = np.ascontiguousarray(values.offsets.astype(self._offset_type))
        text: npt.NDArray[Any] = np.ascontiguousarray(values.values)
        valid = None if known.all() else array_of(known).buffers()[1]
        return pa.Array.from_buffers(self._kind, len(values), [valid, pa.py_buffer(offsets), pa.py_buffer(text)])


def _number_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of the whole numbers that dates, times and durations are for Arrow; others unchanged."""
    types = pa.types
    if types.is_time(kind) or types.is_date(kind) or types.is_timestamp(kind) or types.is_duration(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind
