from __future__ import annotations

import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.routing import string_hashing
from dask_elastic.routing.hashing import check_columns, hash_columns
from dask_elastic.routing.string_hashing import CHECK, HASH, string_words
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def hashes(array: pa.Array) -> list[int]:
    return list(map(int, hash_columns(batch(key=array), ["key"])))


def checks(array: pa.Array) -> list[int]:
    check = check_columns(batch(key=array), ["key"])
    return [0] * len(array) if check is None else check.tolist()


def identities(array: pa.Array) -> list[tuple[int, ...]]:
    """Hash and check of each key, as the only key column and together with another one."""
    pair = batch(key=array, other=pa.array(np.arange(len(array))))
    both = ["key", "other"]
    beside = check_columns(pair, both)
    assert beside is not None
    return list(zip(hashes(array), checks(array), hash_columns(pair, both).tolist(), beside.tolist(), strict=True))


def alike(*arrays: pa.Array) -> None:
    first, *others = (identities(array) for array in arrays)
    for other, array in zip(others, arrays[1:], strict=True):
        assert other == first, array.type


# --- stability -------------------------------------------------------------------------------------------------------

GOLDEN: dict[str, tuple[pa.Array, list[int], list[int]]] = {
    "integer": (
        pa.array([0, 1, -1, 2**62]),
        [16294208416658607535, 10451216379200822465, 16490336266968443936, 47939714376772075],
        [0, 0, 0, 0],
    ),
    "bool": (pa.array([False, True]), [16294208416658607535, 10451216379200822465], [0, 0]),
    "float": (
        pa.array([0.0, 1.5, float("nan"), float("inf")]),
        [16294208416658607535, 15481881892811333770, 14351126860892846918, 2638638862653029785],
        [0, 0, 0, 0],
    ),
    "date": (pa.array([19000], pa.date32()), [338872683169284128], [0]),
    "timestamp": (pa.array([1_700_000_000], pa.timestamp("s")), [673942876139735264], [0]),
    "decimal": (
        pa.array([Decimal("12.50"), Decimal("-3.00")], pa.decimal128(10, 2)),
        [15060792495525035328, 6529259895752881591],
        [2098622746861548810, 15399416672996528903],
    ),
    "string": (
        pa.array(["", "N10156", "12345678", "a string of some length", "x" * 100]),
        [16294208416658607535, 7742806511505006385, 1547645964471500898, 580311329701386013, 11455914076741246333],
        [0, 0, 7938706017918125033, 18189338238026324529, 17601822436431272174],
    ),
    "null": (pa.array([None], pa.int64()), [7809847782465536322], [1]),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_values_never_change(name: str) -> None:
    array, expected_hashes, expected_checks = GOLDEN[name]
    assert hashes(array) == expected_hashes
    assert checks(array) == expected_checks


def test_golden_values_of_several_columns_never_change() -> None:
    rows = batch(plane=pa.array(["N10156", None]), year=pa.array([2013, 2014]))
    assert hash_columns(rows, ["plane", "year"]).tolist() == [3161920076505123063, 13568395181171471776]
    check = check_columns(rows, ["plane", "year"])
    assert check is not None
    assert check.tolist() == [17783077974692245228, 8569209337806462207]


def test_integer_hashes_equal_reference_splitmix64() -> None:
    # The reference implementation with seed 0 outputs the hashes of multiples of its increment.
    increment = 0x9E3779B97F4A7C15
    values = pa.array([0, increment, 2 * increment % 2**64], pa.uint64())
    assert hashes(values) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_hashes_in_another_process_are_equal() -> None:
    code = (
        "import pyarrow as pa; from dask_elastic.routing.hashing import hash_columns;"
        "print(hash_columns(pa.record_batch({'a': ['x', 'a longer text'], 'b': [1, 2]}), ['a', 'b']).tolist())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer.strip() == str(
        hash_columns(pa.record_batch({"a": ["x", "a longer text"], "b": [1, 2]}), ["a", "b"]).tolist()
    )


# --- encodings of equal values ---------------------------------------------------------------------------------------


def encodings(array: pa.Array) -> list[pa.Array]:
    """Return the same values in other encodings: dictionaries, with unused entries too, run ends, and slices."""
    values = array.dictionary_encode()
    padding = array.take(pa.array([len(array) - 1, 0, 0]))
    shifted = pa.concat_arrays([padding, array, padding])
    lengths = pa.array(range(1, len(array) + 1), pa.int32())
    return [
        array,
        values,
        pa.DictionaryArray.from_arrays(values.indices.cast(pa.uint8()), values.dictionary),
        pa.RunEndEncodedArray.from_arrays(lengths, array),
        shifted.slice(3, len(array)),
        shifted.dictionary_encode().slice(3, len(array)),
    ]


VALUES = [
    pa.array([1, -5, None, 2**40, 0]),
    pa.array([True, False, None, True]),
    pa.array([1.5, -0.0, None, float("nan")]),
    pa.array(["a", "", None, "seven77", "eight888", "a longer string than these", "x" * 1000]),
    pa.array([b"ab", b"\0", None, b"\xff" * 9], pa.binary()),
    pa.array([b"abc", None, b"xyz"], pa.binary(3)),
    pa.array([b"sixteen bytes ok", None, b"sixteen more, ok"], pa.binary(16)),
    pa.array([Decimal("1.10"), None, Decimal("-99999999.99")], pa.decimal128(20, 2)),
    pa.array([0, None, -(10**15)], pa.timestamp("us")),
    pa.array([0, None, 20000], pa.date32()),
    pa.array([5, None, 7], pa.time32("s")),
    pa.array([5, None, 7], pa.duration("ms")),
]


@pytest.mark.parametrize("array", VALUES, ids=lambda array: str(array.type))
def test_encodings_of_equal_values_hash_alike(array: pa.Array) -> None:
    alike(*encodings(array))
    assert len(set(hashes(array))) == len(set(map(str, array.to_pylist())))


def test_null_dictionary_entry_hashes_as_null() -> None:
    plain = pa.array(["a", None, None, "b"])
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2]), pa.array(["a", None, "b"]))
    alike(plain, coded)


def test_empty_dictionaries_hash_as_nulls() -> None:
    empty = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.array([], pa.string()))
    alike(pa.array([None, None], pa.string()), empty)


def test_slice_hashes_its_rows_instead_of_the_whole_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    words = pa.array([f"a string number {number}" for number in range(1000)]).dictionary_encode()
    expected = hashes(words)[500:520]
    lengths = []
    original = string_words

    def counting(data: Any, offsets: Any, family: Any) -> Any:
        lengths.append(len(offsets) - 1)
        return original(data, offsets, family)

    monkeypatch.setattr("dask_elastic.routing.hashing.string_words", counting)
    assert hashes(words.slice(500, 20)) == expected
    assert lengths == [20]


def test_integers_of_any_width_hash_alike() -> None:
    signed = [pa.array([0, 1, 127, -128, None], kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())]
    alike(*signed)
    kinds = (pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int16())
    alike(*(pa.array([0, 1, 200, None], kind) for kind in kinds))


def test_strings_and_binaries_of_any_kind_hash_alike() -> None:
    texts = ["", "a", "seven77", "eight888", "nine99999", None, "süß und lang genug", "z" * 64, "z" * 65, "y" * 300]
    plain = pa.array(texts)
    kinds = (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    encoded = [None if text is None else text.encode() for text in texts]
    others = [pa.array(encoded if "binary" in str(kind) else texts, kind) for kind in kinds]
    alike(plain, *others, others[1].slice(0), pa.DictionaryArray.from_arrays(pa.array(range(10)), others[1]))
    alike(plain.slice(4, 3), *(other.slice(4, 3) for other in others))
    entry = pa.DictionaryArray.from_arrays(pa.array(range(10)), others[1])
    alike(plain.slice(2, 2), entry.slice(2, 2))


@pytest.mark.parametrize("width", [1, 3, 7, 8, 9, 16, 17, 64, 65, 200])
def test_binaries_of_fixed_size_hash_as_variable_size(width: int) -> None:
    values = [bytes([number]) * (width - 1) + b"x" for number in range(5)]
    fixed = pa.array(values, pa.binary(width))
    alike(fixed, pa.array(values, pa.binary()))
    alike(fixed.slice(1, 3), pa.array(values, pa.binary()).slice(1, 3))


def test_timestamps_of_any_unit_and_zone_hash_alike() -> None:
    seconds = [0, 1, -1, 1_700_000_000, None]
    arrays = []
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        values = [None if second is None else second * factor for second in seconds]
        arrays += [pa.array(values, pa.timestamp(unit, zone)) for zone in (None, "UTC", "Europe/Berlin")]
    alike(*arrays)


def test_times_and_durations_of_any_unit_hash_alike() -> None:
    alike(
        pa.array([5, None], pa.time32("s")),
        pa.array([5_000, None], pa.time32("ms")),
        pa.array([5_000_000, None], pa.time64("us")),
        pa.array([5_000_000_000, None], pa.time64("ns")),
    )
    alike(
        *(
            pa.array([-5 * 10**power, None], pa.duration(unit))
            for unit, power in zip(("s", "ms", "us", "ns"), (0, 3, 6, 9), strict=True)
        )
    )


def test_times_beyond_nanosecond_range_have_distinct_identities() -> None:
    # Modulo 2**64 these times are equal in nanoseconds.
    far = pa.array([3, 3 + 2**55, 3 - 2**55, 3 + 2**56, None], pa.timestamp("s"))
    assert len(set(zip(hashes(far), checks(far), strict=True))) == 5
    assert len({key[3] for key in identities(far)}) == 5
    assert checks(far)[0] == 0
    assert 1 not in checks(far)[:-1]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.sampled_from([("s", 10**3, "ms"), ("ms", 10**3, "us")])
)
def test_times_keep_their_identity_in_a_finer_unit(values: list[int], units: tuple[str, int, str]) -> None:
    unit, factor, finer = units
    kept = [value for value in values if abs(value * factor) < 2**63] or [1]
    alike(pa.array(kept, pa.timestamp(unit)), pa.array([value * factor for value in kept], pa.timestamp(finer)))
    array = pa.array(values, pa.timestamp(unit))
    assert len(set(zip(hashes(array), checks(array), strict=True))) == len(set(values))


def test_dates_of_both_widths_hash_alike() -> None:
    alike(
        pa.array([0, 1, -1, 20000, None], pa.date32()), pa.array([0, 1, -1, 20000, None], pa.date32()).cast(pa.date64())
    )


def test_floats_of_any_width_hash_alike_and_zeros_and_nans_are_one_key() -> None:
    values = [0.0, -0.0, 1.5, -2.25, float("inf"), float("nan"), None]
    arrays = [
        pa.array(np.array([0 if value is None else value for value in values], dtype), kind, mask=np.arange(7) == 6)
        for dtype, kind in ((np.float16, pa.float16()), (np.float32, pa.float32()), (np.float64, pa.float64()))
    ]
    alike(*arrays)
    zero, minus_zero, *others = hashes(arrays[-1])
    assert zero == minus_zero
    assert len({zero, *others}) == 6


@pytest.mark.filterwarnings("error")
def test_nan_bit_patterns_hash_alike() -> None:
    bits = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF8DEADBEEF0000]
    numbers = np.array(bits, dtype=np.uint64).view(np.float64)
    assert len(set(hashes(pa.array(numbers)))) == 1
    narrow = np.array([0x7FC00000, 0x7F800001, 0xFFC00001], dtype=np.uint32).view(np.float32)
    assert set(hashes(pa.array(narrow))) == set(hashes(pa.array(numbers)))


DECIMALS = [kind for kind in ("decimal32", "decimal64", "decimal128", "decimal256") if hasattr(pa, kind)]


def test_decimals_of_any_precision_and_scale_hash_alike() -> None:
    values = [Decimal("12.5"), Decimal("-3"), Decimal("0"), None, Decimal("1000.25")]
    arrays = [pa.array(values, getattr(pa, kind)(9, scale)) for kind in DECIMALS for scale in (2, 4)]
    alike(*arrays, pa.array(values, pa.decimal128(38, 20)), pa.array(values, pa.decimal256(76, 40)))


def test_decimals_of_negative_scale_hash_alike() -> None:
    alike(
        pa.array([Decimal("1200"), Decimal("-500")], pa.decimal128(5, 0)),
        pa.array([Decimal("1200"), Decimal("-500")], pa.decimal128(5, -2)),
    )


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=20))
def test_distinct_decimals_have_distinct_identities(values: list[int]) -> None:
    array = pa.array([Decimal(value) for value in values], pa.decimal128(38, 0))
    assert len(set(zip(hashes(array), checks(array), strict=True))) == len(set(values))
    alike(array, array.cast(pa.decimal256(76, 0)))


def test_decimals_with_equal_hash_have_distinct_checks() -> None:
    primes = {*HASH.primes, *CHECK.primes}
    for prime in primes:
        assert prime < 2**32
        assert all(pow(witness, prime - 1, prime) == 1 for witness in (2, 3, 5, 7, 11, 13))
    assert np.prod([*map(int, primes)], dtype=object) > 2 * 10**38
    first, second = HASH.primes
    # These share a hash, so their checks must differ.
    array = pa.array([Decimal(1), Decimal(1 + first * second)], pa.decimal128(38, 0))
    one, other = hashes(array)
    assert one == other
    assert len(set(checks(array))) == 2


# --- nulls, checks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("array", VALUES, ids=lambda array: str(array.type))
def test_null_hashes_differently_from_all_values(array: pa.Array) -> None:
    keys = list(zip(hashes(array), checks(array), strict=True))
    null = array.to_pylist().index(None)
    assert keys[null] == (int(HASH.null), 1)
    assert keys.count(keys[null]) == 1


def test_values_under_nulls_do_not_change_hashes() -> None:
    validity = pa.py_buffer(bytes([0b101]))
    values = pa.py_buffer(np.array([1, 99, 2], dtype=np.int64).tobytes())
    alike(pa.array([1, None, 2]), pa.Array.from_buffers(pa.int64(), 3, [validity, values]))
    offsets = pa.py_buffer(np.array([0, 1, 21, 22], dtype=np.int32).tobytes())
    texts = pa.Array.from_buffers(pa.string(), 3, [validity, offsets, pa.py_buffer(b"a" + b"garbage" * 3 + b"b")[:22]])
    alike(pa.array(["a", None, texts[2].as_py()]), texts)
    indices = pa.Array.from_buffers(pa.int64(), 3, [validity, values])
    coded = pa.DictionaryArray.from_arrays(indices, pa.array(["x", "y", "z"]), safe=False)
    alike(pa.array(["y", None, "z"]), coded)


def test_null_and_integer_of_equal_hash_have_distinct_checks() -> None:
    value = int(unmix(int(HASH.null)))
    array = pa.array([value, None], pa.uint64())
    assert len(set(hashes(array))) == 1
    assert checks(array) == [0, 1]
    assert len({key[3] for key in identities(array)}) == 2


def unmix(hashed: int) -> int:
    def unshift(word: int, shift: int) -> int:
        result = word
        for _ in range(64 // shift):
            result = word ^ (result >> shift)
        return result

    word = hashed
    shifts, multipliers = [int(shift) for shift in HASH.shifts], [int(factor) for factor in HASH.multipliers]
    word = unshift(word, shifts[2])
    word = unshift(word * pow(multipliers[1], -1, 2**64) % 2**64, shifts[1])
    word = unshift(word * pow(multipliers[0], -1, 2**64) % 2**64, shifts[0])
    return (word - int(HASH.offset)) % 2**64


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_integer_hash_is_a_bijection(values: list[int]) -> None:
    assert [unmix(hashed) for hashed in hashes(pa.array(values, pa.uint64()))] == values


@pytest.mark.parametrize(
    "array",
    [
        *(pa.array([1, 2]), pa.array([True]), pa.array([0.5]), pa.array([1], pa.date32()), pa.array([1], pa.date64())),
        *(pa.array([1], pa.time32("s")), pa.array([1], pa.timestamp("ms")), pa.array([1], pa.duration("s"))),
        *(pa.array(["short77", ""]), pa.array(["short"]).dictionary_encode(), pa.array([], pa.string())),
        pa.array([b"1234567"], pa.binary(7)),
    ],
    ids=lambda array: str(array.type),
)
def test_check_is_none_if_hash_identifies_all_keys(array: pa.Array) -> None:
    assert check_columns(batch(key=array), ["key"]) is None


def test_check_of_key_does_not_depend_on_its_batch() -> None:
    texts = pa.array(["short", "a string that is long", "", None, "12345678"])
    together = checks(texts)
    alone = [checks(texts.slice(row, 1))[0] for row in range(len(texts))]
    assert together == alone
    assert together[0] == together[2] == 0
    assert together[3] == 1
    assert min(together[1], together[4]) > 1


@given(st.lists(st.binary(max_size=7), min_size=1))
def test_distinct_short_strings_have_distinct_hashes(values: list[bytes]) -> None:
    array = pa.array(values, pa.binary())
    assert len(set(hashes(array))) == len(set(values))


# --- strings ---------------------------------------------------------------------------------------------------------


def folded(value: bytes, family: string_hashing.Family) -> int:
    """Compute the word of one string with plain integers."""
    first = int.from_bytes(value[:8].ljust(8, b"\0"), "little")
    word = first + (len(value) << 56)
    if len(value) > 8:
        word += len(value) * int(family.lane)
    for lane in range(1, -(-len(value) // 8)):
        at = min(8 * lane, len(value) - 8)
        key = int(family.mix(np.array([(lane + int(family.lane)) % 2**64], dtype=np.uint64))[0])
        term = (struct.unpack_from("<Q", value, at)[0] ^ key) * int(family.lane) % 2**64
        term ^= term >> 32
        word += term * (key | 1)
    return word % 2**64


@pytest.mark.parametrize("family", [HASH, CHECK], ids=["hash", "check"])
@given(values=st.lists(st.one_of(st.binary(max_size=12), st.binary(max_size=300)), min_size=1, max_size=30))
def test_strings_fold_as_specified(family: string_hashing.Family, values: list[bytes]) -> None:
    offsets = np.cumsum([3, *map(len, values)])
    data = np.frombuffer(b"abc" + b"".join(values) + b"xyz", dtype=np.uint8)
    assert string_words(data, offsets, family).tolist() == [folded(value, family) for value in values]


def test_hashes_do_not_depend_on_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    values = [random.bytes(int(length)) for length in random.integers(0, 400, 100)]
    values[40] = random.bytes(20_000)
    array, numbers = pa.array(values), pa.array(random.integers(0, 10, 100))
    rows = batch(text=array, number=numbers)
    expected = hash_columns(rows, ["text", "number"]).tolist(), checks(array)
    for block in (1, 7, 64):
        monkeypatch.setattr(string_hashing, "BLOCK", block)
        assert (hash_columns(rows, ["text", "number"]).tolist(), checks(array)) == expected


def test_huge_string_among_short_ones_needs_no_pass_per_lane() -> None:
    huge = "x" * 4_000_000
    found = hashes(pa.array(["a", huge, "b", huge + "x"]))
    assert len(set(found)) == 4
    assert found[1] == hashes(pa.array([huge]))[0]


def test_any_changed_byte_changes_the_hash() -> None:
    base = bytes(range(97, 97 + 26)) * 8
    for length in (5, 8, 9, 16, 23, 64, 65, 71, 200):
        values = [base[:length]]
        for position in range(length):
            changed = bytearray(base[:length])
            changed[position] ^= 1
            values.append(bytes(changed))
        values += [base[: length + 1], base[: length - 1], base[:length] + b"\0"]
        array = pa.array(values, pa.binary())
        assert len(set(hashes(array))) == len(set(values))
        lengthy = [check for check in checks(array) if check]
        assert len(set(lengthy)) == len([value for value in set(values) if len(value) > 7]), length


def test_swapped_lanes_hash_differently() -> None:
    parts = [b"eightchr", b"anotherx", b"thirdone", b"........"]
    values = [b"".join(parts[i] for i in order) for order in np.ndindex(4, 4, 4)]
    array = pa.array(values, pa.binary())
    assert len(set(hashes(array))) == len(set(checks(array))) == 64


# --- several columns, slices -----------------------------------------------------------------------------------------


def test_hash_depends_on_the_boundary_between_columns() -> None:
    rows = batch(left=pa.array(["ab", "a", "abc", ""]), right=pa.array(["c", "bc", "", "abc"]))
    for function in (hash_columns, check_columns):
        found = function(rows, ["left", "right"])
        assert found is not None
        assert len(set(found.tolist())) == 4


def test_hash_depends_on_the_order_of_columns() -> None:
    rows = batch(left=pa.array([1, 2]), right=pa.array([2, 1]))
    one, other = hash_columns(rows, ["left", "right"]), hash_columns(rows, ["right", "left"])
    assert one[0] != one[1]
    assert one.tolist() == other[::-1].tolist()


def test_equal_columns_do_not_cancel_out() -> None:
    rows = batch(left=pa.array(range(1000)), right=pa.array(range(1000)))
    assert len(set(hash_columns(rows, ["left", "right"]).tolist())) == 1000
    assert len(set(hash_columns(rows, ["left", "left"]).tolist())) == 1000


def test_nulls_in_several_columns_have_distinct_identities() -> None:
    rows = batch(left=pa.array([None, None, 1, 1], pa.int64()), right=pa.array([None, "a", None, "a"]))
    check = check_columns(rows, ["left", "right"])
    assert check is not None
    assert len(set(zip(hash_columns(rows, ["left", "right"]).tolist(), check.tolist(), strict=True))) == 4


MIXED = batch(
    number=pa.array([row * 37 % 11 - 5 if row % 7 else None for row in range(50)]),
    flag=pa.array([row % 3 == 0 if row % 5 else None for row in range(50)]),
    text=pa.array(["word" * (row % 9) if row % 6 else None for row in range(50)]),
    code=pa.array([f"code {row % 4}" if row % 8 else None for row in range(50)]).dictionary_encode(),
    price=pa.array([Decimal(row) / 4 if row % 9 else None for row in range(50)], pa.decimal128(9, 2)),
    when=pa.array([row * 10**6 for row in range(50)], pa.timestamp("ms")),
    token=pa.array([b"%09d" % row if row % 4 else None for row in range(50)], pa.binary(9)),
)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(MIXED.schema.names), min_size=1, max_size=4, unique=True),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_slice_hashes_equal_those_of_the_whole_batch(columns: list[str], start: int, length: int) -> None:
    part = MIXED.slice(start, length)
    stop = start + part.num_rows
    assert hash_columns(part, columns).tolist() == hash_columns(MIXED, columns)[start:stop].tolist()
    whole, check = check_columns(MIXED, columns), check_columns(part, columns)
    expected = [0] * part.num_rows if whole is None else whole[start:stop].tolist()
    assert ([0] * part.num_rows if check is None else check.tolist()) == expected


def test_hashing_does_not_modify_its_input() -> None:
    numbers = np.arange(5)
    array = pa.array(numbers)
    hash_columns(batch(key=array, other=array), ["key", "other"])
    assert numbers.tolist() == array.to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("array", VALUES, ids=lambda array: str(array.type))
def test_empty_batches_have_empty_hashes(array: pa.Array) -> None:
    for empty in (array.slice(1, 0), pa.array([], array.type), pa.array([], array.type).dictionary_encode()):
        found = hash_columns(batch(key=empty, other=empty), ["key", "other"])
        assert found.dtype == np.uint64
        assert len(found) == 0
        assert hashes(empty) == checks(empty) == []


# --- distribution ----------------------------------------------------------------------------------------------------

POPULATIONS = {
    "sequential": pa.array(range(65536)),
    "multiples": pa.array(np.arange(65536) * 2**32),
    "halves": pa.array(np.arange(65536) / 2),
    "seconds": pa.array(np.arange(65536), pa.timestamp("s")),
    "cents": pa.array(np.arange(65536)).cast(pa.decimal128(30, 0)),
    "short": pa.array([f"N{number}" for number in range(65536)]),
    "padded": pa.array([f"customer-{number:08d}" for number in range(65536)]),
    "long": pa.array([f"https://example.org/{number:x}/index.html?session={number}" for number in range(65536)]),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_hashes_spread_evenly(name: str) -> None:
    found = hash_columns(batch(key=POPULATIONS[name]), ["key"])
    even(found)
    pair = batch(key=POPULATIONS[name], other=pa.array(np.zeros(65536, np.int64)))
    for function in (hash_columns, check_columns):
        combined = function(pair, ["other", "key"])
        assert combined is not None
        even(combined)


def even(found: np.ndarray) -> None:
    assert len(np.unique(found)) == len(found)
    for bits in (found % 256, found >> 56, found >> 28 & 255):
        expected = len(found) / 256
        statistic = ((np.bincount(bits.astype(np.intp), minlength=256) - expected) ** 2 / expected).sum()
        # 255 degrees of freedom; a deviation of more than six standard deviations is not chance.
        assert abs(statistic - 255) < 6 * np.sqrt(2 * 255)


def test_each_bit_of_key_changes_half_of_the_hash_bits() -> None:
    keys = np.random.default_rng(2).integers(0, 2**63, 2000)
    for bit in range(63):
        for family in (HASH, CHECK):
            words = keys.astype(np.uint64)
            changed = np.bitwise_count(family.mix(words) ^ family.mix(words ^ np.uint64(1 << bit)))
            assert 31 < changed.mean() < 33


def correlation_of_bits(left: np.ndarray, right: np.ndarray) -> float:
    signs = [
        np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).astype(np.float32) * 2 - 1 for words in (left, right)
    ]
    return float(np.abs(signs[0].T @ signs[1] / len(left)).max())


def test_hash_and_check_are_not_correlated() -> None:
    long = batch(key=POPULATIONS["padded"], number=POPULATIONS["sequential"], other=POPULATIONS["multiples"])
    for columns in (["key"], ["key", "number"], ["number", "other"]):
        check = check_columns(long, columns)
        assert check is not None
        assert correlation_of_bits(hash_columns(long, columns), check) < 0.03


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.month_day_nano_interval(),
        pa.dictionary(pa.int32(), pa.list_(pa.int64())),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [0, 2])
def test_key_column_of_unsupported_type_raises(kind: pa.DataType, count: int) -> None:
    rows = batch(good=pa.array([1] * count, pa.int64()), bad=pa.nulls(count, kind))
    for function in (hash_columns, check_columns):
        with pytest.raises(TopologyError, match=r"'bad' has type .*(list|struct|map|interval).*key by"):
            function(rows, ["good", "bad"])


def test_missing_key_column_raises_with_present_columns() -> None:
    with pytest.raises(SchemaMismatch, match=r"no key column 'plane'; its columns are 'number', 'text'"):
        hash_columns(batch(number=pa.array([1]), text=pa.array(["a"])), ["plane"])


def test_duplicate_key_column_raises() -> None:
    rows = pa.record_batch([pa.array([1]), pa.array([2])], names=["key", "key"])
    with pytest.raises(SchemaMismatch, match="'key' occurs 2 times in the batch"):
        hash_columns(rows, ["key"])


def test_key_without_columns_raises() -> None:
    with pytest.raises(TopologyError, match="at least one column"):
        hash_columns(batch(key=pa.array([1])), [])
    with pytest.raises(TopologyError, match=r"\['key'\]"):
        hash_columns(batch(key=pa.array([1])), "key")


def test_extension_types_hash_as_their_storage() -> None:
    storage = pa.array([b"sixteen bytes ok", None], pa.binary(16))
    if hasattr(pa, "uuid"):
        alike(storage, pa.ExtensionArray.from_storage(pa.uuid(), storage))
    alike(storage, pa.ExtensionArray.from_storage(Token(), storage))


class Token(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.binary(16), "tests.token")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Token:
        return cls()
