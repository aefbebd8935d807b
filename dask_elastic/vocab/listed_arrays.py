"""Arrow arrays of Python objects, without ``pyarrow.array`` where that would import pandas.

Its first call imports pandas, to see whether it is given a column of pandas. In a worker that takes 0.2 s or more, in
which rows wait and other threads get little of the interpreter.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.columns.time_zones import check_zones

_TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), bytes: pa.binary(),
}  # fmt: skip
"""The types of Arrow that objects of Python get by themselves."""

_NUMBERS: dict[Any, dict[int, np.dtype[Any]]] = {
    kind: {pa.from_numpy_dtype(np.dtype(code)).id: np.dtype(code) for code in codes}
    for kind, codes in {int: "bhiqBHIQ", float: "d", bool: "?"}.items()
}
"""Types of NumPy that hold objects of Python without loss, or raise an error, by the ids of Arrow's."""

_OFFSETS: dict[Any, dict[int, type]] = {
    str: {pa.string().id: np.int32, pa.large_string().id: np.int64},
    bytes: {pa.binary().id: np.int32, pa.large_binary().id: np.int64},
}


_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


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
        Those of `pyarrow.array`, if an object does not fit the type; also where `pyarrow.array` truncates: a number
        with a fraction as an integer, a time in a coarser unit. Without a type, also if some times have a zone and
        others do not.

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
    if type_ is None:
        check_zones(values, made.type)
    else:
        check_truncation(values, type_)
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


def check_truncation(values: Sequence[Any] | NDArray[np.object_], type_: pa.DataType) -> None:
    """Raise if a type cannot hold an object as it is; Arrow has accepted all of them.

    Parameters
    ----------
    values : sequence
        Objects of Python or NumPy; None is null.
    type_ : DataType
        The type, of integers or times, or a nested one of these. Values of any other type pass.

    Raises
    ------
    ArrowInvalid
        Names the first value that would be truncated.

    Examples
    --------
    >>> check_truncation([1, 2.0, None], pa.int64())
    >>> check_truncation([[datetime.time(1, 2, 3)]], pa.list_(pa.time32("s")))
    >>> check_truncation([[1.5]], pa.list_(pa.int64()))
    Traceback (most recent call last):
        ...
    pyarrow.lib.ArrowInvalid: 1.5 has a fraction, and would be truncated as int64
    """
    if not _truncates(type_):
        return
    if pa.types.is_nested(type_):
        _check_nested([value for value in values if hasattr(value, "__iter__")], type_)
        return
    if set(map(type, values)) <= _kept(type_):
        return
    unit = 1 if pa.types.is_integer(type_) else _NANOSECONDS[type_.unit]
    for value in values:
        if isinstance(value, float | np.floating | Decimal) and value == value and value % 1:
            raise pa.ArrowInvalid(f"{value!r} has a fraction, and would be truncated as {type_}")
        # Of no time, all parts are not a number.
        if _nanoseconds(value) % unit > 0:
            raise pa.ArrowInvalid(f"{value!r} is not a whole number of units of {type_}, and would be truncated")


def _check_nested(values: list[Any], type_: pa.DataType) -> None:
    if pa.types.is_struct(type_):
        rows = [value if isinstance(value, Mapping) else dict(value) for value in values]
        for field in type_:
            check_truncation([row.get(field.name) for row in rows], field.type)
    elif pa.types.is_map(type_):
        pairs = [pair for value in values for pair in (value.items() if isinstance(value, Mapping) else value)]
        keys, items = zip(*pairs, strict=True) if pairs else ((), ())
        check_truncation(keys, type_.key_type)
        check_truncation(items, type_.item_type)
    else:
        for value in values:
            check_truncation(value.to_pylist() if isinstance(value, pa.Array) else value, type_.value_type)


@lru_cache(maxsize=1024)
def _truncates(type_: pa.DataType) -> bool:
    """Whether Arrow may truncate objects of Python as values of a type."""
    types = pa.types
    if types.is_struct(type_):
        return any(_truncates(field.type) for field in type_)
    if types.is_map(type_):
        return _truncates(type_.key_type) or _truncates(type_.item_type)
    if types.is_nested(type_):
        return not types.is_union(type_) and hasattr(type_, "value_type") and _truncates(type_.value_type)
    # A time as a date is its day.
    is_time = types.is_timestamp(type_) or types.is_time(type_) or types.is_duration(type_)
    return bool(types.is_integer(type_) or is_time)


@lru_cache(maxsize=1024)
def _kept(type_: pa.DataType) -> frozenset[type]:
    """Return types of Python whose objects are never truncated as values of a type."""
    whole = {int, bool, NoneType}
    if not pa.types.is_integer(type_) and type_.unit in ("us", "ns"):
        return frozenset({*whole, datetime.datetime, datetime.timedelta, datetime.time})
    return frozenset(whole)


def _nanoseconds(value: object) -> float:
    """Return what a time has beyond its last whole day, in nanoseconds; 0 for all else.

    That includes times of NumPy, which Arrow only takes in the unit of the type.
    """
    if isinstance(value, datetime.timedelta):
        return (value.seconds * 10**6 + value.microseconds) * 1_000 + getattr(value, "nanoseconds", 0)
    if isinstance(value, datetime.datetime | datetime.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 10**6 + value.microsecond) * 1_000 + getattr(value, "nanosecond", 0)
    return 0
