"""Conversion between the values users give and the NumPy arrays that are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from numbers import Number
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.operand import storage, stored, validity
from dask_elastic.topology.aggregates.user_aggregate import private_copy
from dask_elastic.topology.state_kind import Element
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.listed_arrays import check_truncation, listed_array

Values = npt.NDArray[Any]
Known = npt.NDArray[np.bool_]

_SINGLE = (str, bytes, bytearray, Mapping, Number, date)


def dtype_of(kind: Element) -> np.dtype[Any]:
    """Return the NumPy type for values of a declared type: native for numbers, booleans and times, else object.

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
    """Return values in stored form and which are not null; Arrow raises if they do not fit the type.

    Parameters
    ----------
    values : array-like
        Arrow, NumPy or Python values.
    kind : DataType or object
        The declared type.

    Returns
    -------
    stored : ndarray
        The values in the type of `dtype_of`.
    known : ndarray of bool
        Which values are not null.

    Raises
    ------
    TypeError
        If it is one value in place of an array: the characters of a text would be taken for the values.
    """
    if values is None or isinstance(values, _SINGLE):
        raise TypeError(f"{values!r:.60} is a single value; give an array or a list of values")
    if not isinstance(kind, pa.DataType):
        return _objects_of(values)
    if (numbers := _as_stored(values, kind)) is not None:
        return numbers, np.ones(len(numbers), np.bool_)
    array = to_array(values, kind)
    valid = validity(array)
    known = np.ones(len(array), np.bool_) if valid is None else valid
    dtype = dtype_of(kind)
    if dtype.hasobject:
        # Python's times have microseconds; from an array, Arrow refuses to drop more.
        shorter = with_leaves(kind, _microseconds)
        return as_objects((array if shorter == kind else array.cast(shorter)).to_pylist()), known
    numbers = stored(array)
    if dtype.kind in "Mm":
        # Days are 32 bits wide in Arrow and 64 in NumPy.
        numbers = numbers.astype(np.int64, copy=False).view(dtype)
    if valid is not None:
        numbers = np.where(valid, numbers, np.zeros(1, dtype) if dtype.kind not in "Mm" else np.array("NaT", dtype))
    return numbers, known


def with_leaves(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type in which the types of values that are not nested are changed.

    Parameters
    ----------
    kind : DataType
        A plain type.
    change : callable
        Returns another type for a type that is not nested, or the same one.

    Returns
    -------
    DataType
        A type to which Arrow casts arrays of `kind` if it can cast the values.

    Examples
    --------
    >>> with_leaves(pa.list_(pa.time64("ns")), lambda kind: pa.int64())
    ListType(list<item: int64>)
    """
    types = pa.types
    if types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return pa.struct([field.with_type(with_leaves(field.type, change)) for field in fields])
    if types.is_map(kind):
        return pa.map_(with_leaves(kind.key_type, change), with_leaves(kind.item_type, change), kind.keys_sorted)
    if not types.is_nested(kind) or types.is_union(kind):
        return change(kind)
    element = kind.value_field.with_type(with_leaves(kind.value_type, change))
    if types.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    if types.is_list(kind):
        return pa.list_(element)
    return pa.large_list(element) if types.is_large_list(kind) else kind


def _microseconds(kind: pa.DataType) -> pa.DataType:
    return pa.time64("us") if kind == pa.time64("ns") else kind


_NATIVE = {kind.id: (item, np.dtype(item)) for kind, item in ((pa.int64(), int), (pa.float64(), float))}


def _as_stored(values: Any, kind: pa.DataType) -> Values | None:
    """Return values that need no conversion, in the most frequent types, without Arrow's; None for all others.

    For a few values, a conversion by Arrow takes longer than everything else that is done with them.
    """
    item, dtype = _NATIVE.get(kind.id, (None, None))
    if type(values) is np.ndarray:
        return values if values.dtype == dtype and values.ndim == 1 else None
    if dtype is None or type(values) is not list or any(type(value) is not item for value in values):
        return None
    try:
        return np.array(values, dtype)
    except OverflowError:
        return None


def to_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Return values as an Arrow array of a type; raise an Arrow error if a value cannot be converted without loss."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_integer(kind) and isinstance(values, list | tuple) and not all(map(_is_whole, values)):
        # From a list Arrow would truncate floats silently; from an array it refuses to.
        values = listed_array(values)
    if isinstance(values, list | tuple):
        return listed_array(list(values), kind)
    if not isinstance(values, pa.Array):
        made = pa.array(values, type=kind)
        if getattr(values, "dtype", None) == np.dtype(object):
            known = made.is_valid().to_pylist()
            check_truncation([value for value, is_known in zip(values, known, strict=True) if is_known], kind)
        return made
    # A cast takes longer than all other steps of storing a few values, even if it changes nothing.
    return values if values.type == kind else values.cast(kind)


def _is_whole(value: object) -> bool:
    return type(value) is int or value is None


def to_arrow(values: Values, kind: Element, known: Known | None = None) -> pa.Array:
    """Return stored values as an Arrow array, null where `known` is false; values declared `object` are pickled.

    Parameters
    ----------
    values : ndarray
        Stored values.
    kind : DataType or object
        The declared type.
    known : ndarray of bool, optional
        Which values are not null; all by default.

    Returns
    -------
    Array
        One element per value.
    """
    if isinstance(kind, pa.DataType) and values.dtype != object:
        mask = None if known is None else ~known
        is_same = values.dtype.kind in "biuf" and pa.from_numpy_dtype(values.dtype) == kind
        return array_of(values, mask) if is_same else pa.array(values, kind, mask=mask)
    has = [True] * len(values) if known is None else known.tolist()
    if isinstance(kind, pa.DataType):
        return listed_array([value if is_known else None for value, is_known in zip(values, has, strict=True)], kind)
    pickled = [cloudpickle.dumps(value) if is_known else None for value, is_known in zip(values, has, strict=True)]
    return listed_array(pickled, pa.large_binary())


def to_python(values: Values, kind: Element, known: Known | None = None) -> list[Any]:
    """Return stored values as Python objects, None where `known` is false; values declared `object` are not copied."""
    listed: list[Any]
    if values.dtype.kind in "Mm":
        listed = to_arrow(values, kind, known).to_pylist()
        return listed
    listed = values.tolist()
    if known is None:
        return listed
    return [value if is_known else None for value, is_known in zip(listed, known.tolist(), strict=True)]


def as_objects(values: list[Any]) -> Values:
    """Return a list as a one-dimensional array of objects."""
    # Not `np.array`, which would make a matrix of equally long lists.
    return np.fromiter(values, dtype=object, count=len(values))


def private(values: Values) -> Values:
    """Return deep copies of the values, which a user may change."""
    if values.dtype != object:
        return values.copy()
    return as_objects([private_copy(value) for value in values])


def filled(values: Values, missing: Known, default: object) -> Values:
    """Return the values with a default where they are missing; may change the given array.

    Parameters
    ----------
    values : ndarray
        The values.
    missing : ndarray of bool
        Which elements to replace.
    default : object
        The default, of which each element gets its own copy.

    Returns
    -------
    ndarray
        The values; float64 if an integer column gets a fractional default.
    """
    if values.dtype == object:
        for place in np.flatnonzero(missing):
            values[place] = private_copy(default)
    elif missing.any():
        if values.dtype.kind in "iub" and isinstance(default, float | np.floating | Decimal) and default % 1:
            values = values.astype(np.float64)
        values[missing] = default
    return values


def _objects_of(values: Any) -> tuple[Values, Known]:
    listed = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)
    return as_objects(listed), np.ones(len(listed), np.bool_)
