"""Stable hashes of keys, which determine a row's route and identify a key in keyed state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dask_elastic.routing.scalar_hashing import SCALAR, few_checks, few_values
from dask_elastic.routing.string_hashing import CHECK, HASH, Family, Words, combine, string_checks, string_words
from dask_elastic.vocab.arrow_arrays import numpy_of
from dask_elastic.vocab.chosen_rows import ChosenRows
from dask_elastic.vocab.columns.key_types import KINDS, TYPES, Kind, not_a_key
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

_NULL_CHECK = np.uint64(1)
_NAN = np.uint64(0x7FF8000000000000)
_DAY = np.uint64(86_400_000)
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


_CODES = {
    **{example.id: "f" for example in TYPES[Kind.FLOAT]},
    **{example.id: "u" for example in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
}
_DTYPES = {
    example.id: np.dtype(f"<{_CODES.get(example.id, 'i')}{example.bit_width // 8}")
    for kind in (Kind.INTEGER, Kind.FLOAT, Kind.DAYS, Kind.TIME)
    for example in TYPES[kind]
}
_LARGE = {pa.large_string().id, pa.large_binary().id}


def hash_columns(rows: pa.RecordBatch, columns: Sequence[str]) -> Words:
    """Hash the key of each row, identically in every process, on every machine, in every version.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The rows.
    columns : sequence of str
        The key columns; their order matters.

    Returns
    -------
    numpy.ndarray of uint64
        One hash per row.

    Raises
    ------
    SchemaMismatch
        If a key column is missing from the batch or occurs more than once.
    TopologyError
        If no column is named, or a column's type cannot be part of a key.

    See Also
    --------
    check_columns : A second hash, which distinguishes keys that share the first.

    Examples
    --------
    >>> rows = pa.record_batch({"plane": ["N10156", "N102UW", "N10156"], "year": [2013, 2013, 2013]})
    >>> hash_columns(rows, ["plane"]) == hash_columns(rows, ["plane"])[0]
    array([ True, False,  True])

    Notes
    -----
    Equal values hash alike whatever their encoding: integers of any width; strings and binaries, plain, large, as views
    or of fixed size; dictionaries and run-ends; timestamps and durations of any unit and zone; dates and floats of any
    width; decimals of any precision and scale. -0.0 equals 0.0; all NaN are one key and null is another.
    """
    return hash_keys(_key_columns(rows, columns), columns)


def hash_keys(arrays: Sequence[pa.Array], names: Sequence[str]) -> Words:
    """Return `hash_columns` of key columns, which are given with their names."""
    return _hashes([_plain(array, name) for array, name in zip(arrays, names, strict=True)], HASH)


def check_columns(rows: pa.RecordBatch, columns: Sequence[str]) -> Words | None:
    """Hash the key of each row a second time; hash and check together are the key's identity.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        The rows.
    columns : sequence of str
        The key columns; their order matters.

    Returns
    -------
    numpy.ndarray of uint64 or None
        One check per row; None stands for zeros, if `hash_columns` alone identifies every key of the batch.

    Raises
    ------
    SchemaMismatch
        If a key column is missing from the batch or occurs more than once.
    TopologyError
        If no column is named, or a column's type cannot be part of a key.

    Examples
    --------
    >>> rows = pa.record_batch({"number": [7, None], "plane": ["N10156", "N102UW"]})
    >>> check_columns(rows, ["number"]).tolist()
    [0, 1]
    >>> check_columns(rows, ["plane"]) is None
    True

    Notes
    -----
    The hash of a single integer, bool, float, date, time, timestamp or duration, or of a string of up to seven bytes,
    is a bijection of the value: its check is 0, and that of a null is 1. Timestamps and durations beyond the range of
    int64 nanoseconds share a hash with others and have another check. A key's check does not depend on the other
    rows of its batch. Keys of different column types are not distinguished: the unsigned 2**64 - 1 and the signed -1
    share an identity.
    """
    return check_keys(_key_columns(rows, columns), columns)


def check_keys(arrays: Sequence[pa.Array], names: Sequence[str]) -> Words | None:
    """Return `check_columns` of key columns, which are given with their names."""
    plain = [_plain(array, name) for array, name in zip(arrays, names, strict=True)]
    return _single_check(plain[0]) if len(plain) == 1 else _hashes(plain, CHECK)


def checks_of(rows: pa.RecordBatch | ChosenRows, positions: Sequence[int], names: Sequence[str]) -> Words | None:
    """Return `check_columns` of the key columns at some positions."""
    if isinstance(rows, ChosenRows) and len(names) == 1:
        return _check_chosen(rows, positions[0], names[0])
    return check_keys([rows.column(position) for position in positions], names)


def _check_chosen(rows: ChosenRows, position: int, name: str) -> Words | None:
    array = _plain(rows.source.column(position), name)
    kind = KINDS[array.type.id]
    if array.null_count == 0 and kind in (Kind.INTEGER, Kind.BOOL, Kind.FLOAT, Kind.DAYS):
        return None
    if array.null_count == 0 and kind is Kind.BYTES:
        data, offsets = _strings(array)
        begins = offsets.take(rows.numbers)
        return string_checks(data, begins, offsets[1:].take(rows.numbers) - begins)
    return check_keys([rows.column(position)], [name])


def column_words(array: pa.Array) -> Words:
    """Map the values of a column to 64-bit words that differ as the values do; the words are not hashes yet.

    Parameters
    ----------
    array : pyarrow.Array
        Values of a type that `hash_columns` takes.

    Returns
    -------
    numpy.ndarray of uint64
        One word per value, possibly a view of the column's memory. The word of a null is its hash in `hash_columns`.

    Raises
    ------
    TopologyError
        If the type cannot be hashed.

    Examples
    --------
    >>> column_words(pa.array([3, 7])).tolist()
    [3, 7]
    """
    plain = _plain(array, "column")
    if pa.types.is_dictionary(plain.type):
        plain = plain.dictionary_decode()
    words = _words(plain, HASH)
    return _mark_nulls(plain, words.copy() if plain.null_count else words, HASH.null)


def _key_columns(rows: pa.RecordBatch, columns: Sequence[str]) -> list[pa.Array]:
    if isinstance(columns, str):
        raise TopologyError(f"the key columns are the single string {columns!r}. Give a sequence: [{columns!r}].")
    if not columns:
        raise TopologyError("a key needs at least one column. Name the key columns in key_by.")
    return [_column(rows, name) for name in columns]


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    position = rows.schema.get_field_index(name)
    if position >= 0:
        return rows.column(position)
    found = rows.schema.get_all_field_indices(name)
    present = ", ".join(map(repr, rows.schema.names)) or "none"
    if found:
        raise SchemaMismatch(
            f"the key column {name!r} occurs {len(found)} times in the batch with the columns {present}. Rename one."
        )
    raise SchemaMismatch(
        f"the batch has no key column {name!r}; its columns are {present}. Name one of these in key_by,"
        f" or keep {name!r} in the previous operator's output."
    )


def _plain(array: pa.Array, name: str) -> pa.Array:
    """Decode an array, except for a dictionary with fewer entries than rows, which is cheaper to hash encoded."""
    kind = KINDS.get(array.type.id)
    if kind is Kind.DICTIONARY:
        return _plain_dictionary(array, name)
    if kind is Kind.RUNS:
        return _plain(pc.run_end_decode(array), name)
    if kind is Kind.VIEW:
        return _offset_strings(array)
    if kind is not None:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _plain(array.storage, name)
    raise not_a_key(name, array.type)


def _plain_dictionary(array: pa.DictionaryArray, name: str) -> pa.Array:
    values = array.dictionary
    if KINDS.get(values.type.id) is Kind.VIEW:
        values = _offset_strings(values)
    if not 0 < len(values) <= len(array):
        # A slice of a batch keeps the whole dictionary; hashing its rows is cheaper then.
        return _plain(values.take(array.indices), name)
    values = _plain(values, name)
    if values.type == array.type.value_type:
        return array
    return pa.DictionaryArray.from_arrays(array.indices, values, safe=False)


def _offset_strings(array: pa.Array) -> pa.Array:
    target = pa.large_binary() if pa.types.is_binary_view(array.type) else pa.large_string()
    try:
        return array.cast(target)
    except pa.ArrowNotImplementedError:
        # Early versions of PyArrow with view types cannot cast them.
        return pa.array(array.to_pylist(), target)


def _hashes(arrays: Sequence[pa.Array], family: Family) -> Words:
    hashes = _column_hashes(arrays[0], family)
    for array in arrays[1:]:
        hashes = combine(hashes, _column_hashes(array, family))
    return hashes


def _column_hashes(array: pa.Array, family: Family) -> Words:
    if pa.types.is_dictionary(array.type):
        return _spread(array, _column_hashes(array.dictionary, family), family.null)
    if (few := few_values(array)) is not None:
        return SCALAR[family].hashes(few)
    hashes = family.mix(_words(array, family))
    return _mark_nulls(array, hashes, family.null)


def _single_check(array: pa.Array) -> Words | None:
    kind = KINDS[array.type.id]
    if kind is Kind.DICTIONARY:
        of_values = _single_check(array.dictionary)
        if of_values is None and array.indices.null_count == 0:
            return None
        if of_values is None:
            of_values = np.zeros(len(array.dictionary), dtype=np.uint64)
        return _spread(array, of_values, _NULL_CHECK)
    check: Words | None = None
    if kind in (Kind.BYTES, Kind.FIXED):
        check = _string_check(array)
    elif kind is Kind.DECIMAL:
        check = CHECK.mix(_decimal_words(array, CHECK))
    elif kind is Kind.TIME:
        check = _excess(array)
    if check is None and array.null_count == 0:
        return None
    return _mark_nulls(array, np.zeros(len(array), dtype=np.uint64) if check is None else check, _NULL_CHECK)


def _spread(array: pa.DictionaryArray, of_values: Words, null: np.uint64) -> Words:
    indices = array.indices
    if indices.null_count:
        # The index under a null is undefined and may be outside the dictionary.
        return _mark_nulls(indices, of_values.take(_buffer_values(indices.fill_null(0))), null)
    return of_values.take(_buffer_values(indices))


def _mark_nulls(array: pa.Array, hashes: Words, null: np.uint64) -> Words:
    if array.null_count:
        hashes[numpy_of(array.is_null())] = null
    return hashes


def _words(array: pa.Array, family: Family) -> Words:
    """Map values to words that are equal if and only if the values are (except long strings and wide decimals)."""
    kind = KINDS[array.type.id]
    if kind is Kind.INTEGER:
        return _integer_words(_buffer_values(array))
    if kind in (Kind.BYTES, Kind.FIXED):
        return string_words(*_strings(array), family)
    if kind is Kind.FLOAT:
        return _float_words(_buffer_values(array))
    if kind is Kind.TIME:
        return _time_words(array, family)
    if kind is Kind.DAYS:
        return _integer_words(_buffer_values(array)) * _DAY
    if kind is Kind.BOOL:
        return _integer_words(_buffer_values(array.cast(pa.uint8())))
    if kind is Kind.DECIMAL:
        return _decimal_words(array, family)
    return np.zeros(len(array), dtype=np.uint64)


def _integer_words(values: NDArray[Any]) -> Words:
    if values.dtype.kind == "u":
        return values.astype(np.uint64, copy=False)
    return values.astype(np.int64, copy=False).view(np.uint64)


def _float_words(values: NDArray[Any]) -> Words:
    with np.errstate(invalid="ignore"):
        # Adding 0.0 turns -0.0 into 0.0 and changes no other value.
        numbers = values.astype(np.float64, copy=False) + 0.0
        nan = numbers != numbers
    words: Words = numbers.view(np.uint64)
    if nan.any():
        words[nan] = _NAN
    return words


def _time_words(array: pa.Array, family: Family) -> Words:
    unit = _NANOSECONDS[array.type.unit]
    words = _integer_words(_buffer_values(array))
    if unit > 1:
        words = words * np.uint64(unit)
    excess = _excess(array) if family is CHECK else None
    return words if excess is None else words + excess * CHECK.lane


def _excess(array: pa.Array) -> Words | None:
    """Return by how many times 2**64 ns each time exceeds the range of int64 nanoseconds; None if none does.

    The hash uses the time in nanoseconds modulo 2**64; the check includes the excess that the modulus drops.
    """
    unit = _NANOSECONDS[array.type.unit]
    values = _buffer_values(array)
    limit = (2**63 - 1) // unit
    if unit == 1 or values.itemsize < 8 or len(values) == 0 or (values.max() <= limit and values.min() >= -limit):
        return None
    # The upper half of the 128-bit product, from the upper and lower half of the time.
    upper = (values >> 32) * unit + ((values & 0xFFFFFFFF) * unit >> 32) >> 32
    wrapped = values.view(np.uint64) * np.uint64(unit)
    excess: Words = (upper + (wrapped >> np.uint64(63)).view(np.int64)).view(np.uint64)
    # Doubled, so that no excess equals the check of a null, which is odd.
    return excess << np.uint64(1)


def _decimal_words(array: pa.Array, family: Family) -> Words:
    """Return the values modulo two primes, packed in one word, independent of their scale.

    Modulo a prime, division by a power of ten is exact. The four primes of hash and check together distinguish any two
    decimals of up to 38 digits and equal scale.
    """
    width = array.type.bit_width // 32
    if len(array) == 0:
        return np.zeros(0, dtype=np.uint64)
    limbs = np.frombuffer(array.buffers()[1], "<u4", len(array) * width, array.offset * width * 4).reshape(-1, width)
    signed = limbs.view("<i4")
    top = width - 1
    while top > 0 and (signed[:, top] == signed[:, top - 1] >> 31).all():
        top -= 1
    words = np.zeros(len(array), dtype=np.uint64)
    for prime in family.primes:
        modulus = np.uint64(prime)
        residues = (signed[:, top].astype(np.int64) % prime).view(np.uint64)
        for limb in range(top - 1, -1, -1):
            residues = ((residues << np.uint64(32)) | limbs[:, limb]) % modulus
        if array.type.scale:
            residues = residues * np.uint64(pow(10, -array.type.scale, prime)) % modulus
        words = (words << np.uint64(32)) | residues
    return words


def _string_check(array: pa.Array) -> Words | None:
    if (few := few_values(array)) is not None:
        return few_checks(few)
    data, offsets = _strings(array)
    return string_checks(data, offsets[:-1], np.diff(offsets))


def _strings(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.signedinteger]]:
    count, start = len(array), array.offset
    if count == 0:
        return _bytes(None), np.zeros(1, dtype=np.int64)
    if KINDS[array.type.id] is Kind.FIXED:
        return _bytes(array.buffers()[1]), np.arange(start, start + count + 1, dtype=np.int64) * array.type.byte_width
    dtype: np.dtype[np.signedinteger] = np.dtype("<i8" if array.type.id in _LARGE else "<i4")
    _, offsets, data = array.buffers()
    return _bytes(data), np.frombuffer(offsets, dtype, count + 1, start * dtype.itemsize)


def _bytes(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    return np.frombuffer(b"" if buffer is None else buffer, dtype=np.uint8)


def _buffer_values(array: pa.Array) -> NDArray[Any]:
    """Return a view of the values of a fixed-width column; the value under a null is undefined."""
    dtype, count = _DTYPES[array.type.id], len(array)
    begin = array.offset * dtype.itemsize
    return np.frombuffer(array.buffers()[1], dtype, count, begin) if count else np.empty(0, dtype)
