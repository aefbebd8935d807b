"""A hash for telling values of one column apart; the same in every process."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.operand import storage, stored

Words = npt.NDArray[np.uint64]

BITS = 48
"""How many bits a hash has: the number of a group within a batch fits into one word with it."""

_DIGEST = 8


def can_hash(type_: pa.DataType) -> bool:
    """Return whether values of a type can be hashed: numbers, booleans, times, text and bytes."""
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
        Equal values have equal hashes; different ones have different ones but for chance. −0.0 equals 0.0, and NaN
        equals NaN.

    Notes
    -----
    Numbers are mixed by the finaliser of SplitMix64, a bijection of 64 bits; each distinct text of the batch is hashed
    once, by BLAKE2b. Both are part of the state of `DistinctCount`: to change them is to lose it.

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
    hashes: Words = np.frombuffer(digests, "<u8").astype(np.uint64).take(encoded.indices.to_numpy())
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
