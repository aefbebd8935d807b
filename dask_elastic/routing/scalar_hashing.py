"""The hash functions of `string_hashing` on Python's own values, for a few keys at a time.

A call of NumPy takes about as long for one word as for a hundred, and hashing takes a dozen calls. For a single key,
Python's integers are several times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dask_elastic.routing.string_hashing import CHECK, HASH, SHORT, Family, Words

Value: TypeAlias = int | bytes | None
"""A key: an integer or a string, None for a null."""

FEW_KEYS = 8
"""Up to this many keys are hashed one by one."""

LONGEST = 64
"""Strings of more bytes are hashed by NumPy."""

_INTEGERS = {
    kind.id
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
_TEXTS = {pa.string().id, pa.large_string().id}
_BINARIES = {pa.binary().id, pa.large_binary().id}
_MASK = 2**64 - 1
_LANE = 8


def few_values(array: pa.Array) -> Sequence[Value] | None:
    """Return the values of a column if they can be hashed one by one.

    Parameters
    ----------
    array : pyarrow.Array
        A column.

    Returns
    -------
    sequence of (int, bytes or None), or None
        The values, text as UTF-8; None if there are many, if one is long, or if they are no integers or strings.
    """
    if len(array) > FEW_KEYS:
        return None
    kind = array.type.id
    values: list[Value]
    if kind in _INTEGERS:
        values = array.to_pylist()
        return values
    if kind in _BINARIES:
        values = array.to_pylist()
    elif kind in _TEXTS:
        try:
            values = [None if text is None else text.encode() for text in array.to_pylist()]
        except UnicodeDecodeError:
            # Arrow does not check what it takes for text.
            return None
    else:
        return None
    return None if any(value is not None and len(value) > LONGEST for value in values) else values  # type: ignore[arg-type]


class ScalarFamily:
    """The hash functions of a `Family`, one key at a time; the results are equal.

    Parameters
    ----------
    family : Family
        The constants.

    Examples
    --------
    >>> SCALAR[HASH].hashes([0]).tolist() == HASH.mix(np.array([0], dtype=np.uint64)).tolist()
    True
    """

    def __init__(self, family: Family) -> None:
        self._offset = int(family.offset)
        self._shifts = tuple(map(int, family.shifts))
        self._multipliers = tuple(map(int, family.multipliers))
        self._lane = int(family.lane)
        self._null = int(family.null)
        lanes = np.arange(LONGEST // _LANE, dtype=np.int64)
        self._lane_keys: list[int] = family.lane_keys(lanes).tolist()

    def hashes(self, values: Sequence[Value]) -> Words:
        """Return the hash of each value, as a writable array."""
        return np.array([self.hash(value) for value in values], np.uint64)

    def hash(self, value: Value) -> int:
        """Return the hash of one value: that of its word, as `Family.mix` computes it, or that of nulls."""
        if value is None:
            return self._null
        word = value if isinstance(value, int) else self.word(value)
        x = (word + self._offset) & _MASK
        first, second, third = self._shifts
        before, after = self._multipliers
        x = (x ^ x >> first) * before & _MASK
        x = (x ^ x >> second) * after & _MASK
        return x ^ x >> third

    def word(self, text: bytes) -> int:
        """Fold a string of at most `LONGEST` bytes into one word, as `string_words` does."""
        length = len(text)
        word = int.from_bytes(text[:_LANE], "little") + (length << 56)
        if length > _LANE:
            word += length * self._lane
            for number in range(1, -(-length // _LANE)):
                at = min(_LANE * number, length - _LANE)
                key = self._lane_keys[number]
                term = (int.from_bytes(text[at : at + _LANE], "little") ^ key) * self._lane & _MASK
                word += (term ^ term >> 32) * (key | 1)
        return word & _MASK


SCALAR = {family: ScalarFamily(family) for family in (HASH, CHECK)}


def few_checks(values: Sequence[Value]) -> Words | None:
    """Return the checks of the strings of a single key column, as `check_columns` does; those of nulls are zero.

    Parameters
    ----------
    values : sequence of (bytes or None)
        The keys.

    Returns
    -------
    numpy.ndarray of uint64 or None
        One check per key; None if all are zero.
    """
    check = SCALAR[CHECK].hash
    checks = [check(value) if isinstance(value, bytes) and len(value) > SHORT else 0 for value in values]
    return np.array(checks, np.uint64) if any(checks) else None
