"""Arrow arrays of Python objects, without ``pyarrow.array`` where that would import pandas.

Its first call imports pandas, to see whether it is given a column of pandas. In a worker that takes 0.2 s or more, in
which rows wait and other threads get little of the interpreter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_elastic.vocab.arrow_arrays import array_of

_TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), bytes: pa.binary(),
}  # fmt: skip
"""The types of Arrow that objects of Python get by themselves."""

_NUMBERS: dict[Any, dict[int, np.dtype[Any]]] = {
    kind: {pa.from_numpy_dtype(np.dtype(code)).id: np.dtype(code) for code in codes}
    for kind, codes in {int: "bhiqBHIQ", float: "d", bool: "?"}.items()
}
"""Types of NumPy that hold objects of Python without loss, or raise an error, by the ids of Arrow's."""

_INTEGERS = frozenset(_NUMBERS[int])

_OFFSETS: dict[Any, dict[int, type]] = {
    str: {pa.string().id: np.int32, pa.large_string().id: np.int64},
    bytes: {pa.binary().id: np.int32, pa.large_binary().id: np.int64},
}


def listed_array(values: Sequence[Any] | NDArray[np.object_], type_: pa.DataType | None = None) -> pa.Array:
    """Return Python objects as an Arrow array, as `pyarrow.array` does.

    Numbers, text, bytes and truth values do not import pandas. Where pandas is imported already, `pyarrow.array` is
    used for all objects: it is faster.

    Parameters
    ----------
    values : sequence
        The objects, in a list or an array of objects; None is null.
    type_ : DataType, optional
        Their type, by default that of the objects.

    Returns
    -------
    Array
        One element per object.

    Raises
    ------
    ArrowException, TypeError, ValueError, OverflowError
        Those of `pyarrow.array`, if an object does not fit the type; also if it is a number with a fraction, and the
        type is one of integers, where `pyarrow.array` truncates.

    Examples
    --------
    >>> listed_array([3, None]).to_pylist()
    [3, None]
    >>> listed_array(["a", "bc"], pa.large_string()).to_pylist()
    ['a', 'bc']
    """
    plain = None if "pandas" in sys.modules else _plain_array(values, type_)
    if plain is not None:
        return plain
    made = pa.array(values, type_)
    if type_ is not None and type_.id in _INTEGERS:
        _check_whole(values, type_)
    return made


def batch_of_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Return rows as a batch, as `RecordBatch.from_pylist` does, with columns of `listed_array`.

    Parameters
    ----------
    rows : sequence of mapping
        At least one row; what a row lacks is null.
    schema : Schema, optional
        Columns and types; by default those of the first row.

    Returns
    -------
    RecordBatch
        The rows.

    Raises
    ------
    ArrowException, TypeError, ValueError, OverflowError
        If a value does not fit its column.

    Examples
    --------
    >>> batch_of_dicts([{"a": 1}, {"a": 2}]).to_pydict()
    {'a': [1, 2]}
    """
    if schema is None:
        columns = {name: listed_array([row.get(name) for row in rows]) for name in rows[0]}
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
    made = [listed_array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(made, schema=schema)


def table_of_columns(columns: Mapping[str, Any]) -> pa.Table:
    """Return columns as a table, as `Table.from_pydict` does; lists and arrays of numbers do not import pandas.

    Parameters
    ----------
    columns : mapping of str to Array, ChunkedArray, ndarray, list or any other sequence
        The values of each column.

    Returns
    -------
    Table
        The rows.

    Raises
    ------
    ArrowException, TypeError, ValueError, OverflowError
        If the values of a column have no common type, or the columns are of different lengths.

    Examples
    --------
    >>> table_of_columns({"a": [1, 2], "b": np.array([0.5, 1.5])}).to_pydict()
    {'a': [1, 2], 'b': [0.5, 1.5]}
    """
    return pa.Table.from_pydict({name: _column(values) for name, values in columns.items()})


def _column(values: Any) -> Any:
    if type(values) is list:
        return listed_array(values)
    is_plain = type(values) is np.ndarray and values.ndim == 1 and values.dtype.isnative
    # Arrow keeps an array alive that shares its memory, but its owner could change it.
    return array_of(values.copy()) if is_plain and values.dtype.kind in "biuf" else values


def _check_whole(values: Sequence[Any] | NDArray[np.object_], type_: pa.DataType) -> None:
    """Raise if a number has a fraction; Arrow has accepted all of them as integers."""
    if set(map(type, values)) <= {int, NoneType}:
        return
    for value in values:
        if isinstance(value, float | np.floating | Decimal) and value % 1:
            raise pa.ArrowInvalid(f"{value!r} has a fraction, and would be truncated as {type_}")


def _plain_array(values: Sequence[Any] | NDArray[np.object_], type_: pa.DataType | None) -> pa.Array | None:
    """Return objects of one frequent type as an array; None for others."""
    kinds = set(map(type, values))
    has_none = NoneType in kinds
    kinds.discard(NoneType)
    if not kinds and type_ is not None and not pa.types.is_nested(type_):
        return pa.nulls(len(values), type_)
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    # A struct without fields is false.
    wanted = _TYPES.get(kind) if type_ is None else type_
    if wanted is None:
        return None
    known = np.array([value is not None for value in values], np.bool_) if has_none else None
    try:
        if (dtype := _NUMBERS.get(kind, {}).get(wanted.id)) is not None:
            numbers = np.array([0 if value is None else value for value in values] if has_none else values, dtype)
            return array_of(numbers, None if known is None else ~known)
        if (offset := _OFFSETS.get(kind, {}).get(wanted.id)) is not None:
            texts = [kind() if value is None else value for value in values] if has_none else values
            return _of_texts(texts, kind, wanted, offset, known)
    except (OverflowError, UnicodeError):
        pass  # Arrow's own error names the value.
    return None


def _of_texts(
    texts: Sequence[Any] | NDArray[np.object_],
    kind: type,
    type_: pa.DataType,
    offset: type,
    known: NDArray[np.bool_] | None,
) -> pa.Array:
    joined = kind().join(texts)
    data = joined.encode() if isinstance(joined, str) else joined
    if len(data) > np.iinfo(offset).max:
        raise OverflowError("the offsets have too few bits")
    length: Callable[[Any], int] = len if len(data) == len(joined) else _bytes_of
    ends: NDArray[Any] = np.zeros(len(texts) + 1, offset)
    np.cumsum(np.fromiter(map(length, texts), offset, len(texts)), out=ends[1:])
    valid = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(type_, len(texts), [valid, pa.py_buffer(ends), pa.py_buffer(data)])


def _bytes_of(text: str) -> int:
    return len(text.encode())
