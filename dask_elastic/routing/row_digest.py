"""A digest of many rows that does not depend on their order, nor on how they are cut into batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.string_hashing import HASH, Words, combine

MODULUS = 2**64

_LANE = 8
_NO_ROWS = np.zeros(0, dtype=np.uint64)
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_LANE + 1)], dtype=np.uint64)
_LENGTH = np.uint64(0xA24BAED4963EE407)
_ITEM = np.uint64(0xD1342543DE82EF95)


class RowDigest:
    """The sum of the hashes of rows, modulo 2**64.

    Two deliveries of the same rows have one digest, whatever their partitions and order; rows that differ in any
    column, or that are there more or less often, have another (but for one chance in 2**64).

    Attributes
    ----------
    rows : int
        How many rows were added.
    value : int
        The digest, 0 <= value < 2**64; 0 where there are no rows.

    Examples
    --------
    >>> digest, other = RowDigest(), RowDigest()
    >>> digest.add(pa.record_batch({"a": [1, 2], "b": ["x", "y"]}))
    >>> other.add(pa.record_batch({"a": [2], "b": ["y"]}))
    >>> other.add(pa.record_batch({"a": [1], "b": ["x"]}))
    >>> digest.value == other.value, digest.rows
    (True, 2)
    """

    def __init__(self) -> None:
        self.rows = 0
        self.value = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of any types, nested ones included.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            The rows. The order of the columns counts, their names do not.
        """
        hashes = row_hashes(rows)
        self.rows += rows.num_rows
        self.value = (self.value + int(hashes.sum(dtype=np.uint64))) % MODULUS


def row_hashes(rows: pa.RecordBatch) -> Words:
    """Hash whole rows.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The rows.

    Returns
    -------
    numpy.ndarray of uint64
        One hash a row; equal rows have equal hashes.
    """
    hashes = np.full(rows.num_rows, _LENGTH, dtype=np.uint64)
    for column in rows.columns:
        hashes = combine(hashes, _hashes(column))
    return HASH.mix(hashes)


def _hashes(array: pa.Array) -> Words:
    kind = array.type
    if len(array) == 0:
        return _NO_ROWS
    if isinstance(kind, pa.BaseExtensionType):
        return _hashes(array.storage)
    if pa.types.is_dictionary(kind):
        return _hashes(array.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _with_nulls(array, HASH.mix(_string_words(array, "<i4")))
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _with_nulls(array, HASH.mix(_string_words(array, "<i8")))
    if pa.types.is_struct(kind):
        return _with_nulls(array, _struct_hashes(array))
    if pa.types.is_map(kind):
        # The entries of a map have no order.
        return _with_nulls(array, _list_hashes(array, ordered=False))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _with_nulls(array, _list_hashes(array, ordered=True))
    return hash_columns(pa.RecordBatch.from_arrays([array], names=["column"]), ["column"])


def _with_nulls(array: pa.Array, hashes: Words) -> Words:
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = HASH.null
    return hashes


def _struct_hashes(array: pa.StructArray) -> Words:
    hashes = np.full(len(array), _ITEM, dtype=np.uint64)
    for child in array.flatten():
        hashes = combine(hashes, _hashes(child))
    return HASH.mix(hashes)


def _list_hashes(array: Any, ordered: bool) -> Words:
    """Add up the hashes of the items of each list, which know their places where the order counts."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(array.type):
        entries = [array.keys.slice(begin, end - begin), array.items.slice(begin, end - begin)]
        items = pa.StructArray.from_arrays(entries, names=["key", "value"])
    else:
        items = array.values.slice(begin, end - begin)
    lengths = np.diff(offsets)
    hashes = _hashes(items).copy()
    if ordered:
        place = np.arange(end - begin, dtype=np.int64) - np.repeat(offsets[:-1] - begin, lengths)
        hashes = HASH.mix(hashes + place.astype(np.uint64) * _ITEM)
    sums = np.zeros(len(hashes) + 1, dtype=np.uint64)
    np.cumsum(hashes, out=sums[1:])
    within = offsets - begin
    return HASH.mix(sums[within[1:]] - sums[within[:-1]] + lengths.astype(np.uint64) * _LENGTH)


def _string_words(array: pa.Array, offset_type: str) -> Words:
    """Fold each string into one word: the sum of its lanes of eight bytes, each times an odd number of its place.

    The hashes of keys fold more thoroughly, which long strings pay for; a digest need not tell single rows apart when
    somebody chooses them with care.
    """
    _, offset_buffer, data_buffer = array.buffers()
    width = np.dtype(offset_type).itemsize
    offsets = np.frombuffer(offset_buffer, offset_type, len(array) + 1, array.offset * width).astype(np.int64)
    lengths = np.diff(offsets)
    words: Words = lengths.astype(np.uint64) * _LENGTH
    begin, end = int(offsets[0]), int(offsets[-1])
    if end == begin:
        return words
    padded = np.zeros(end - begin + _LANE, dtype=np.uint8)
    padded[: end - begin] = np.frombuffer(data_buffer, np.uint8, end - begin, begin)
    # Entry i is the eight bytes from byte i on, so that a lane is one load wherever it begins.
    windows: Words = np.ndarray((end - begin + 1,), dtype=np.dtype("<u8"), buffer=padded.data, strides=(1,))
    _add_lanes(words, windows, offsets[:-1] - begin, lengths)
    return words


def _add_lanes(words: Words, windows: Words, begins: np.ndarray, lengths: np.ndarray) -> None:
    shortest, longest = int(lengths.min()), int(lengths.max())
    whole = shortest // _LANE
    factors = _factors(-(-longest // _LANE))
    if shortest == longest:
        _add_equal_lanes(words, windows, longest, factors)
        return
    for lane in range(whole):
        terms = windows[begins + _LANE * lane]
        terms *= factors[lane]
        words += terms
    rows = np.flatnonzero(lengths > _LANE * whole)
    for lane in range(whole, len(factors)):
        left = lengths[rows] - _LANE * lane
        if lane > whole:
            rows, left = rows[left > 0], left[left > 0]
        terms = windows[begins[rows] + _LANE * lane] & _MASKS.take(left, mode="clip")
        words[rows] += terms * factors[lane]


def _add_equal_lanes(words: Words, windows: Words, length: int, factors: Words) -> None:
    """Do the same for strings of one length, whose lanes are slices: no row is looked up."""
    span = length * (len(words) - 1) + 1
    terms = np.empty(len(words), dtype=np.uint64)
    for lane, factor in enumerate(factors):
        begin = _LANE * lane
        slices = windows[begin : begin + span : length]
        if length - begin < _LANE:
            slices = slices & _MASKS[length - begin]
        np.multiply(slices, factor, out=terms)
        words += terms


def _factors(count: int) -> Words:
    return HASH.mix(np.arange(count, dtype=np.uint64)) | np.uint64(1)
