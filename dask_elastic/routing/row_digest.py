"""A digest of rows that depends neither on their order nor on their division into batches."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_elastic.routing.hashing import column_words
from dask_elastic.routing.string_hashing import HASH, Words
from dask_elastic.vocab.arrow_arrays import numpy_of

Bytes = NDArray[np.uint8]
Places = NDArray[np.signedinteger]

MODULUS = 2**64

_LANE = 8
_HALF = np.uint64(32)
_BITS = np.uint64(8)
_NO_ROWS = np.zeros(0, dtype=np.uint64)
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_LANE + 1)], dtype=np.uint64)
_LENGTH = np.uint64(0xA24BAED4963EE407)
_ITEM = np.uint64(0xD1342543DE82EF95)
# Strings are processed in classes by their number of whole lanes; class boundaries: 0, 1, 2, ..., 16, 24, 32, 48, ...
_CLASSES = [*range(16), *sorted(part << doubling for doubling in range(3, 60) for part in (2, 3))]


class RowDigest:
    """The sum of the hashes of rows, modulo 2**64.

    Two deliveries of the same rows have equal digests, whatever their partitions and order. Rows that differ in any
    column or in their multiplicity have different digests, except with probability 2**-64.

    Attributes
    ----------
    rows : int
        The number of rows added.
    value : int
        The digest, 0 <= value < 2**64; 0 without rows.

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
        """Add rows with columns of any type, nested types included.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            The rows. The order of the columns matters, their names do not.
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
        One hash per row; equal rows have equal hashes.

    Notes
    -----
    The hash is the mixed sum of the row's values, each multiplied by an odd number that depends on its column. A column
    thus costs four passes of NumPy, and a string of some hundred bytes hardly more: its lanes of eight bytes are summed
    by one matrix product. The hash resists chance, not an attacker: collisions can be constructed.
    """
    return _combined(rows.columns, rows.num_rows, _LENGTH)


def _combined(columns: Sequence[pa.Array], count: int, start: np.uint64) -> Words:
    """Hash the rows of several columns; the order of the columns matters."""
    totals = np.full(count, start, dtype=np.uint64)
    for column, factor in zip(columns, _factors(len(columns)), strict=True):
        totals += _folded(_words(column)) * factor
    return HASH.mix(totals)


def _folded(words: Words) -> Words:
    """Combine the upper half of each word into its lower half.

    A difference in high bits only keeps few bits when it is multiplied. Without this step, two changed signs, or two
    changed letters at the ends of lanes, would often leave the sum unchanged.
    """
    folded = words >> _HALF
    folded ^= words
    return folded


def _words(array: pa.Array) -> Words:
    """Map each value to a word; equal values have equal words."""
    kind = array.type
    if len(array) == 0:
        return _NO_ROWS
    if isinstance(kind, pa.BaseExtensionType):
        return _words(array.storage)
    if pa.types.is_dictionary(kind):
        return _words(array.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _with_nulls(array, _string_words(array, "<i4"))
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _with_nulls(array, _string_words(array, "<i8"))
    if pa.types.is_struct(kind):
        return _with_nulls(array, _combined(array.flatten(), len(array), _ITEM))
    if pa.types.is_map(kind):
        # A map's entries are unordered.
        return _with_nulls(array, _list_hashes(array, ordered=False))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _with_nulls(array, _list_hashes(array, ordered=True))
    return column_words(array)


def _with_nulls(array: pa.Array, words: Words) -> Words:
    if array.null_count:
        words[numpy_of(array.is_null())] = HASH.null
    return words


def _list_hashes(array: Any, ordered: bool) -> Words:
    """Sum the hashes of each list's items; if the list is ordered, an item's hash depends on its position."""
    offsets = numpy_of(array.offsets).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(array.type):
        entries = [array.keys.slice(begin, end - begin), array.items.slice(begin, end - begin)]
        items = pa.StructArray.from_arrays(entries, names=["key", "value"])
    else:
        items = array.values.slice(begin, end - begin)
    lengths = np.diff(offsets)
    hashes = HASH.mix(_words(items))
    if ordered:
        place = np.arange(end - begin, dtype=np.int64) - np.repeat(offsets[:-1] - begin, lengths)
        hashes = HASH.mix(hashes + place.astype(np.uint64) * _ITEM)
    sums = np.zeros(len(hashes) + 1, dtype=np.uint64)
    np.cumsum(hashes, out=sums[1:])
    within = offsets - begin
    return HASH.mix(sums[within[1:]] - sums[within[:-1]] + lengths.astype(np.uint64) * _LENGTH)


def _string_words(array: pa.Array, offset_type: str) -> Words:
    """Fold each string into one word: the sum of its lanes of eight bytes, each times an odd number of its position.

    Key hashes use a stronger folding, which costs more for long strings; a digest need not resist constructed rows.
    """
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, offset_type, len(array) + 1, array.offset * np.dtype(offset_type).itemsize)
    begins, lengths = offsets[:-1], np.diff(offsets)
    words: Words = lengths.astype(np.uint64)
    words *= _LENGTH
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest == 0:
        return words
    strings = _Strings(np.frombuffer(data_buffer, np.uint8), begins, lengths)
    if shortest == longest >= _LANE:
        words += strings.equal_sums()
        return words
    for lanes, after in itertools.pairwise(_CLASSES):
        if shortest < after * _LANE and lanes * _LANE <= longest:
            rows = np.flatnonzero((lengths >= lanes * _LANE) & (lengths < after * _LANE))
            words[rows] += strings.sums(rows, lanes, after)
    return words


class _Strings(NamedTuple):
    """Contiguous strings.

    Parameters
    ----------
    data : numpy.ndarray of uint8
        The bytes of all strings.
    begins, lengths : numpy.ndarray of int32 or int64
        The position and length of each string.
    """

    data: Bytes
    begins: Places
    lengths: Places

    def equal_sums(self) -> Words:
        """Sum the lanes of each string; all strings have the same length, of at least one lane."""
        begin, length = int(self.begins[0]), int(self.lengths[0])
        span = length * (len(self.lengths) - 1) + 1
        index = bisect.bisect_right(_CLASSES, length // _LANE)
        lanes, after = _CLASSES[index - 1 : index + 1]
        end = begin + length - (after - lanes) * _LANE
        return self._sums(slice(begin, begin + span, length), slice(end, end + span, length), lanes, after)

    def sums(self, rows: Places, lanes: int, after: int) -> Words:
        """Sum the lanes of the given strings, which have at least `lanes` and fewer than `after` whole lanes."""
        if lanes == 0:
            return self._short_words(rows)
        begins = self.begins[rows]
        return self._sums(begins, begins + self.lengths[rows] - (after - lanes) * _LANE, lanes, after)

    def _sums(self, begins: Places | slice, ends: Places | slice, lanes: int, after: int) -> Words:
        """Sum the first and the last lanes; they overlap, so that no byte beyond a string is read."""
        factors = _factors(after)
        sums = self._lanes(begins, lanes) @ factors[:lanes]
        sums += self._lanes(ends, after - lanes) @ factors[lanes:]
        return sums

    def _lanes(self, places: Places | slice, count: int) -> Words:
        """Return `count` lanes from each position on, one row per position."""
        width = count * _LANE
        # A window begins at every byte, so that one indexing fetches the lanes of all positions.
        windows = np.ndarray((len(self.data) - width + 1,), dtype=f"V{width}", buffer=self.data.data, strides=(1,))
        return _folded(np.ascontiguousarray(windows[places]).view("<u8").reshape(-1, count))

    def _short_words(self, rows: Places) -> Words:
        """Return each string's bytes as one word; the strings are shorter than a lane."""
        begins, data = self.begins[rows], self.data
        if len(data) < _LANE:
            data = np.concatenate([data, np.zeros(_LANE, dtype=np.uint8)])
        windows = np.ndarray((len(data) - _LANE + 1,), dtype="<u8", buffer=data.data, strides=(1,))
        # Near the end of the data the window begins before its string.
        places = np.minimum(begins, len(windows) - 1)
        words: Words = windows[places] >> ((begins - places).astype(np.uint64) * _BITS)
        return words & _MASKS[self.lengths[rows]]


@functools.lru_cache(maxsize=64)
def _factors(count: int) -> Words:
    return HASH.mix(np.arange(count, dtype=np.uint64)) | np.uint64(1)
