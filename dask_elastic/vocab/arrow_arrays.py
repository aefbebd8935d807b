"""Arrow arrays that are made without ``pyarrow.array``, whose first call imports pandas.

That takes longer than all other steps of a job's start, and later it would delay rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def array_of(values: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers, times or truth values as an Arrow array.

    Parameters
    ----------
    values : ndarray of int, float, bool, datetime64 or timedelta64
        The values, in one dimension; the result may share their memory.
    mask : ndarray of bool, optional
        Which values are null, beside those that are NaT.

    Returns
    -------
    Array
        The same values.

    Examples
    --------
    >>> array_of(np.array([3, 1], np.int32)).to_pylist()
    [3, 1]
    >>> array_of(np.array([True, False, True]), np.array([False, False, True])).to_pylist()
    [True, False, None]
    """
    dtype, count = values.dtype, len(values)
    type_ = _TYPES.get(dtype) or pa.from_numpy_dtype(dtype)
    if dtype.kind == "b":
        values = np.packbits(values, bitorder="little")
    elif dtype.kind in "Mm":
        none = np.isnat(values)
        mask = none if mask is None else mask | none
        values = values.view(np.int64)
    valid = None if mask is None or not np.count_nonzero(mask) else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(type_, count, [valid, pa.py_buffer(np.ascontiguousarray(values))])


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return an empty batch.

    Parameters
    ----------
    schema : Schema
        Its schema.

    Returns
    -------
    RecordBatch
        No rows.

    Examples
    --------
    >>> no_rows(pa.schema({"plane": pa.string()})).to_pydict()
    {'plane': []}
    """
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def numpy_of(array: pa.Array) -> NDArray[Any]:
    """Return the values of an Arrow array, as its `to_numpy` without a copy where possible, which imports pandas.

    Parameters
    ----------
    array : Array
        Of numbers or truth values without nulls; others are left to `to_numpy`.

    Returns
    -------
    ndarray
        The values; read-only if they share the memory of the array.

    Examples
    --------
    >>> numpy_of(array_of(np.array([4, 2, 3]))[1:]).tolist()
    [2, 3]
    >>> numpy_of(array_of(np.array([True, False, True]))[1:]).tolist()
    [False, True]
    """
    type_, start, count = array.type, array.offset, len(array)
    dtype = _DTYPES.get(type_.id)
    if dtype is None or array.null_count:
        values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return values
    data = array.buffers()[1]
    if not count or data is None:
        return np.empty(0, dtype)
    if dtype.kind != "b":
        return np.frombuffer(data, dtype, count, start * dtype.itemsize)
    first, bits = divmod(start, 8)
    packed = np.frombuffer(data, np.uint8, (bits + count + 7) // 8, first)
    return np.unpackbits(packed, count=bits + count, bitorder="little")[bits:].view(np.bool_)


def has_union(kind: pa.DataType) -> bool:
    """Return whether values of a type contain unions, which Arrow cannot make of objects of Python.

    Examples
    --------
    >>> either = pa.sparse_union([pa.field("number", pa.int64()), pa.field("text", pa.string())])
    >>> has_union(pa.list_(pa.struct({"of": either}))), has_union(pa.list_(pa.int64()))
    (True, False)
    """
    types = pa.types
    if types.is_union(kind):
        return True
    if types.is_struct(kind):
        return any(has_union(field.type) for field in kind)
    if types.is_map(kind):
        return has_union(kind.key_type) or has_union(kind.item_type)
    return bool(types.is_nested(kind)) and hasattr(kind, "value_type") and has_union(kind.value_type)


_CODES = "?bhiqBHIQfd"
_DTYPES = {pa.from_numpy_dtype(np.dtype(code)).id: np.dtype(code) for code in _CODES}
"""The types of NumPy by the ids of Arrow's."""
_TYPES = {np.dtype(code): pa.from_numpy_dtype(np.dtype(code)) for code in _CODES}
"""The types of Arrow by those of NumPy."""
