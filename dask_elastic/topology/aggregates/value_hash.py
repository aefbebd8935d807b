"""Hashes of the values of one column, equal in all processes."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.operand import storage, stored
from dask_elastic.vocab.arrow_arrays import numpy_of

Words = npt.NDArray[np.uint64]

BITS = 48
"""The number of bits of a hash, which leaves 16 bits of a word for the group within a batch."""

_DIGEST = 8


def can_hash(type_: pa.DataType) -> bool:
    """Return whether values of a type can be hashed.

    Parameters
    ----------
    type_ : DataType
        An Arrow type.

    Returns
    -------
    bool
        True for numbers, booleans, times, text and bytes.
    """
    types = pa.types
    text = types.is_string(type_) or types.is_large_string(type_)
    raw = types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_)
    return bool(text or raw) or storage(type_) is not None


def hash_values(values: pa.Array) -> Words:
    """Return a hash of `BITS` bits for each value.

    Parameters
    ----------
    values : Array
        Values of a type that `can_hash`, without nulls.

    Returns
    -------
    ndarray of uint64
        Equal values have equal hashes; distinct values have distinct hashes with high probability. −0.0 equals 0.0, and
        NaN equals NaN.

    Notes
    -----
    Numbers are hashed by the finaliser of SplitMix64, a bijection on 64 bits, and text by BLAKE2b, once per distinct
    value of the batch. The state of `DistinctCount` contains these hashes, so changing them invalidates that state.

    Examples
    --------
    >>> first, second, third = hash_values(pa.array(["a", "b", "a"])).tolist()
    >>> first == third, first == second, first < 2**48
    (True, False, True)
    """
    if storage(values.type) is not None:
        return _mixed(_words(stored(values))) >> np.uint64(64 - BITS)
    encoded = values.dictionary_encode()
    digests = b"".join(hashlib.blake2b(value.as_buffer(), digest_size=_DIGEST).digest() for value in encoded.dictionary)
    hashes: Words = np.frombuffer(digests, "<u8").astype(np.uint64).take(numpy_of(encoded.indices))
    return hashes >> np.uint64(64 - BITS)


def _words(numbers: npt.NDArray[np.generic]) -> Words:
    if numbers.dtype.kind == "f":
        floats = numbers.astype(np.float64) + 0.0
        floats[np.isnan(floats)] = np.nan
        return floats.view(np.uint64)
    if numbers.dtype.kind in "bu":
        return numbers.astype(np.uint64)
    return numbers.astype(np.int64).view(np.uint64)


def _mixed(words: Words) -> Words:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
