"""Values that have an order, as they are kept in state: numbers where possible, else Python objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.aggregates.operand import restored, storage, stored

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
    ranks[order.to_numpy()] = np.arange(len(order))
    return ranks[encoded.indices.to_numpy()], encoded.dictionary.take(order)


def ranks_of(values: Found, type_: pa.DataType) -> Ranks:
    """Return the rank of each kept value among the distinct ones."""
    if values.dtype == object:
        return ranked(as_arrow(values, type_))[0]
    return np.unique(values, return_inverse=True)[1].astype(np.int64, copy=False)
