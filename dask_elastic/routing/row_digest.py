"""A digest of many rows that does not depend on their order, nor on how they are cut into batches."""

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
# Strings that have from one to the next so many whole lanes are worked on together: 0, 1, 2, ..., 16, 24, 32, 48, ...
_CLASSES = [*range(16), *sorted(part << doubling for doubling in range(3, 60) for part in (2, 3))]


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

    Notes
    -----
    The values of a row are added up, each times an odd number of its column, and the sum is mixed. So a column costs
    four passes of NumPy, and a text of some hundred bytes hardly more: its lanes of eight bytes are one product of
    matrices. Whoever chooses values with care finds two rows of one hash; chance does not.
    """
    return _combined(rows.columns, rows.num_rows, _LENGTH)


def _combined(columns: Sequence[pa.Array], count: int, start: np.uint64) -> Words:
    """Hash the rows that columns make; the order of the columns counts."""
    totals = np.full(count, start, dtype=np.uint64)
    for column, factor in zip(columns, _factors(len(columns)), strict=True):
        totals += _folded(_words(column)) * factor
    return HASH.mix(totals)


def _folded(words: Words) -> Words:
    """Bring the upper half of words into the lower one, too.

    Of what is multiplied by a power of two, a product keeps few bits: without this, two signs that change, or two
    letters at the ends of lanes, would often leave a sum as it is.
    """
    folded = words >> _HALF
    folded ^= words
    return folded


def _words(array: pa.Array) -> Words:
    """Turn each value into a word; equal values have equal ones."""
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
        # The entries of a map have no order.
        return _with_nulls(array, _list_hashes(array, ordered=False))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _with_nulls(array, _list_hashes(array, ordered=True))
    return column_words(array)


def _with_nulls(array: pa.Array, words: Words) -> Words:
    if array.null_count:
        words[array.is_null().to_numpy(zero_copy_only=False)] = HASH.null
    return words


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
    hashes = HASH.mix(_words(items))
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
    """Strings that lie one behind the other.

    Parameters
    ----------
    data : numpy.ndarray of uint8
        Their bytes.
    begins, lengths : numpy.ndarray of int32 or int64
        Where each of them is.
    """

    data: Bytes
    begins: Places
    lengths: Places

    def equal_sums(self) -> Words:
        """Add up the lanes of each string; all have one length, of a lane or more."""
        begin, length = int(self.begins[0]), int(self.lengths[0])
        span = length * (len(self.lengths) - 1) + 1
        index = bisect.bisect_right(_CLASSES, length // _LANE)
        lanes, after = _CLASSES[index - 1 : index + 1]
        end = begin + length - (after - lanes) * _LANE
        return self._sums(slice(begin, begin + span, length), slice(end, end + span, length), lanes, after)

    def sums(self, rows: Places, lanes: int, after: int) -> Words:
        """Add up the lanes of those strings that have at least `lanes` and less than `after` whole ones."""
        if lanes == 0:
            return self._short_words(rows)
        begins = self.begins[rows]
        return self._sums(begins, begins + self.lengths[rows] - (after - lanes) * _LANE, lanes, after)

    def _sums(self, begins: Places | slice, ends: Places | slice, lanes: int, after: int) -> Words:
        """Add up the first lanes and the last ones, which overlap: so nothing beyond a string is read."""
        factors = _factors(after)
        sums = self._lanes(begins, lanes) @ factors[:lanes]
        sums += self._lanes(ends, after - lanes) @ factors[lanes:]
        return sums

    def _lanes(self, places: Places | slice, count: int) -> Words:
        """Return so many lanes from each place on, a row each."""
        width = count * _LANE
        # A window begins at every byte, so that what lies at any place is fetched at once.
        windows = np.ndarray((len(self.data) - width + 1,), dtype=f"V{width}", buffer=self.data.data, strides=(1,))
        return _folded(np.ascontiguousarray(windows[places]).view("<u8").reshape(-1, count))

    def _short_words(self, rows: Places) -> Words:
        """Return the bytes of strings that are shorter than a lane."""
        begins, data = self.begins[rows], self.data
        if len(data) < _LANE:
            data = np.concatenate([data, np.zeros(_LANE, dtype=np.uint8)])
        windows = np.ndarray((len(data) - _LANE + 1,), dtype="<u8", buffer=data.data, strides=(1,))
        # Close to the end of the data, a lane begins before its string.
        places = np.minimum(begins, len(windows) - 1)
        words: Words = windows[places] >> ((begins - places).astype(np.uint64) * _BITS)
        return words & _MASKS[self.lengths[rows]]


@functools.lru_cache(maxsize=64)
def _factors(count: int) -> Words:
    return HASH.mix(np.arange(count, dtype=np.uint64)) | np.uint64(1)
