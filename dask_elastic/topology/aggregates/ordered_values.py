"""Values that have an order, as they are kept in state: numbers where possible, else Python objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.aggregates.operand import restored, storage, stored
from dask_elastic.vocab.arrow_arrays import numpy_of

Found = npt.NDArray[Any]
Ranks = npt.NDArray[np.int64]

SUPPORTED = "numbers, booleans, dates, times, timestamps, durations, decimals, text or bytes"
"""The types that have an order, for messages."""


def order_storage(type_: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy type in which state keeps values that are compared.

    Parameters
    ----------
    type_ : DataType
        A plain Arrow type.

    Returns
    -------
    dtype or None
        `object` for text, bytes and decimals of more than 18 digits; None if the type has no order.

    Examples
    --------
    >>> order_storage(pa.date32()), order_storage(pa.string()), order_storage(pa.list_(pa.int64()))
    (dtype('int32'), dtype('O'), None)
    """
    numbers = storage(type_)
    if numbers is not None:
        return numbers
    types = pa.types
    text = types.is_string(type_) or types.is_large_string(type_)
    binary = types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_)
    return np.dtype(object) if text or binary or types.is_decimal(type_) else None


def kept(array: pa.Array) -> Found:
    """Return the values of an array without nulls as state keeps them."""
    if storage(array.type) is not None:
        return stored(array)
    objects = np.empty(len(array), dtype=object)
    objects[:] = array.to_pylist()
    return objects


def as_arrow(values: Found, type_: pa.DataType) -> pa.Array:
    """Return an Arrow array of kept values; the inverse of `kept`.

    Parameters
    ----------
    values : ndarray
        The values as state keeps them; of objects, None is null.
    type_ : DataType
        Their Arrow type.

    Returns
    -------
    Array
        One element per value.

    Examples
    --------
    >>> as_arrow(kept(pa.array(["b", "a"])), pa.string()).to_pylist()
    ['b', 'a']
    """
    return pa.array(values, type_) if values.dtype == object else restored(values, type_, None)


def prefixes(array: pa.Array) -> npt.NDArray[np.uint64] | None:
    """Return the first eight bytes of each text as a number: of two texts, the lesser one never has the greater number.

    Comparing these numbers first leaves few values to `ranked`, which is slow.

    Parameters
    ----------
    array : Array
        Text or bytes, without nulls.

    Returns
    -------
    ndarray of uint64 or None
        One number per value, equal for values that start alike; None for decimals.

    Examples
    --------
    >>> first, second, third = prefixes(pa.array(["Smith, Ann", "Smith, Bob", "Smythe"]))
    >>> bool(first < second < third)
    True
    """
    types = pa.types
    if types.is_decimal(array.type):
        return None
    if types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    if not len(array):
        return np.empty(0, np.uint64)
    wide = types.is_large_string(array.type) or types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    first, end = int(bounds[0]), int(bounds[-1])
    # Eight zeros follow, so that the last texts can be read beyond their ends.
    content = np.zeros(end - first + 8, np.uint8)
    if data is not None:
        content[:-8] = np.frombuffer(data, np.uint8, end - first, first)
    starts, lengths = bounds[:-1].astype(np.int64) - first, np.diff(bounds)
    found = np.zeros(len(array), np.uint64)
    for place in range(8):
        byte = np.where(lengths > place, content[starts + place], 0).astype(np.uint64)
        found = (found << np.uint64(8)) | byte
    return found


def ranked(array: pa.Array) -> tuple[Ranks, pa.Array]:
    """Return ranks that compare as the values do.

    Parameters
    ----------
    array : Array
        Text, bytes or decimals, without nulls.

    Returns
    -------
    ndarray of int64
        The rank of each value: its position among the distinct values.
    Array
        The distinct values, in ascending order.

    Examples
    --------
    >>> ranks, distinct = ranked(pa.array(["b", "a", "b"]))
    >>> ranks.tolist(), distinct.to_pylist()
    ([1, 0, 1], ['a', 'b'])
    """
    # Only the distinct values are sorted: comparing text is the most expensive part.
    encoded = array.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    ranks = np.empty(len(order), np.int64)
    ranks[numpy_of(order)] = np.arange(len(order))
    return ranks[numpy_of(encoded.indices)], encoded.dictionary.take(order)


def ranks_of(values: Found, type_: pa.DataType) -> Ranks:
    """Return the rank of each kept value among the distinct ones."""
    if values.dtype == object:
        return ranked(as_arrow(values, type_))[0]
    return np.unique(values, return_inverse=True)[1].astype(np.int64, copy=False)
