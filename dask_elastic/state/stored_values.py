"""Values as users give them and as NumPy stores them: checking, converting and copying."""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.operand import storage, stored, validity
from dask_elastic.topology.aggregates.user_aggregate import private_copy
from dask_elastic.topology.state_kind import Element

Values = npt.NDArray[Any]
Known = npt.NDArray[np.bool_]


def dtype_of(kind: Element) -> np.dtype[Any]:
    """Return the NumPy type in which values are stored: numbers, booleans and times as such, all else as objects.

    Examples
    --------
    >>> dtype_of(pa.int16()), dtype_of(pa.timestamp("us")), dtype_of(pa.string())
    (dtype('int16'), dtype('<M8[us]'), dtype('O'))
    """
    types = pa.types
    if not isinstance(kind, pa.DataType):
        return np.dtype(object)
    if types.is_timestamp(kind):
        return np.dtype(f"M8[{kind.unit}]")
    if types.is_duration(kind):
        return np.dtype(f"m8[{kind.unit}]")
    if types.is_date(kind):
        return np.dtype("M8[D]" if types.is_date32(kind) else "M8[ms]")
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return (storage(kind) if plain else None) or np.dtype(object)


def to_stored(values: Any, kind: Element) -> tuple[Values, Known]:
    """Return values as they are stored and which are not null; Arrow refuses what does not fit the type."""
    if not isinstance(kind, pa.DataType):
        return _objects_of(values)
    array = to_array(values, kind)
    valid = validity(array)
    known = np.ones(len(array), np.bool_) if valid is None else valid
    dtype = dtype_of(kind)
    if dtype.hasobject:
        return as_objects(array.to_pylist()), known
    numbers = stored(array)
    if dtype.kind in "Mm":
        # Days are 32 bits wide in Arrow and 64 in NumPy.
        numbers = numbers.astype(np.int64, copy=False).view(dtype)
    if valid is not None:
        numbers = np.where(valid, numbers, np.zeros(1, dtype) if dtype.kind not in "Mm" else np.array("NaT", dtype))
    return numbers, known


def to_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Return values as an Arrow array of a type, without loss or not at all."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_integer(kind) and isinstance(values, list | tuple):
        # Arrow would cut the fraction off a list's floats without a word, but not off an array's.
        values = pa.array(values)
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, type=kind)


def to_arrow(values: Values, kind: Element, known: Known | None = None) -> pa.Array:
    """Return stored values as an Arrow array, null where they are not known; those kept as `object` are pickled."""
    if not isinstance(kind, pa.DataType):
        has = np.ones(len(values), np.bool_) if known is None else known
        pickled = [cloudpickle.dumps(value) if is_known else None for value, is_known in zip(values, has, strict=True)]
        return pa.array(pickled, pa.large_binary())
    listed = list(values) if values.dtype == object else values
    return pa.array(listed, kind, mask=None if known is None else ~known)


def to_python(values: Values, kind: Element, known: Known | None = None) -> list[Any]:
    """Return stored values as Python's, None where they are not known; those kept as `object` are no copies."""
    listed: list[Any]
    if values.dtype.kind in "Mm":
        listed = to_arrow(values, kind, known).to_pylist()
        return listed
    listed = values.tolist()
    if known is None:
        return listed
    return [value if is_known else None for value, is_known in zip(listed, known.tolist(), strict=True)]


def as_objects(values: list[Any]) -> Values:
    """Return a list as an array of objects, whatever the objects are."""
    # Not by `np.array`, which would take equally long lists for a matrix.
    return np.fromiter(values, dtype=object, count=len(values))


def private(values: Values) -> Values:
    """Return the values for a user to change: arrays and objects of their own."""
    if values.dtype != object:
        return values.copy()
    return as_objects([private_copy(value) for value in values])


def filled(values: Values, missing: Known, default: object) -> Values:
    """Return the values with a default where they are missing; the array may be the one given."""
    if values.dtype == object:
        for place in np.flatnonzero(missing):
            values[place] = private_copy(default)
    elif missing.any():
        if values.dtype.kind in "iub" and isinstance(default, float) and not default.is_integer():
            values = values.astype(np.float64)
        values[missing] = default
    return values


def _objects_of(values: Any) -> tuple[Values, Known]:
    listed = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)
    return as_objects(listed), np.ones(len(listed), np.bool_)
