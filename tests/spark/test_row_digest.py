"""The digest of rows ignores their order and their batches, and nothing else."""

from __future__ import annotations

import itertools
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.routing.row_digest import RowDigest, row_hashes

LONG = st.text(max_size=40)
ROW = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | LONG,
        "b": st.none() | st.binary(max_size=40),
        "l": st.none() | st.lists(st.none() | st.integers(0, 3), max_size=4),
        "t": st.none() | st.fixed_dictionaries({"x": st.none() | LONG, "y": st.booleans()}),
        "m": st.none() | st.dictionaries(st.integers(0, 5), st.none() | LONG, max_size=3).map(lambda d: [*d.items()]),
    }
)
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "s": pa.string(),
        "b": pa.large_binary(),
        "l": pa.list_(pa.int32()),
        "t": pa.struct({"x": pa.string(), "y": pa.bool_()}),
        "m": pa.map_(pa.int32(), pa.string()),
    }
)


def digest(rows: list[dict[str, object]], cuts: list[int] | None = None) -> tuple[int, int]:
    made = RowDigest()
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    edges = [0, *sorted(cut % (len(rows) + 1) for cut in cuts or []), len(rows)]
    whole = table.combine_chunks().to_batches()
    for begin, end in itertools.pairwise(edges):
        if end > begin:
            made.add(whole[0].slice(begin, end - begin))
    return made.rows, made.value


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=12), st.randoms(use_true_random=False), st.lists(st.integers(0, 100), max_size=4))
def test_digest_ignores_order_and_batches(rows, random, cuts):
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert digest(rows) == digest(shuffled, cuts)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=8), st.data())
def test_one_changed_value_changes_the_digest(rows, data):
    index = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(SCHEMA.names))
    other = data.draw(ROW)[column]
    changed = [*rows[:index], {**rows[index], column: other}, *rows[index + 1 :]]
    same = _canonical(other) == _canonical(rows[index][column])
    assert (digest(rows) == digest(changed)) is same


def _canonical(value: object) -> object:
    """Entries of a map have no order."""
    return frozenset(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else value


@settings(max_examples=30, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=8))
def test_added_or_removed_row_changes_the_digest(rows):
    assert digest(rows)[1] != digest([*rows, rows[0]])[1]
    assert digest(rows)[1] != digest(rows[1:])[1]


def test_swapped_values_change_the_digest():
    one = pa.record_batch({"a": ["x" * 20, "y" * 20], "b": [1, 2]})
    other = pa.record_batch({"a": ["y" * 20, "x" * 20], "b": [1, 2]})
    assert row_hashes(one).sum() != row_hashes(other).sum()


def test_swapped_parts_of_a_long_text_change_the_digest():
    parts = ["abcdefgh", "ijklmnop", "qrstuvwx", "yz"]
    texts = ["".join(parts[index] for index in order) for order in ([0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 1, 3])]
    assert len(set(row_hashes(pa.record_batch({"a": texts})).tolist())) == 3


@pytest.mark.parametrize("length", [*range(1, 34), 63, 64, 65, 127, 128, 135, 191, 192, 200, 383, 384])
def test_every_byte_of_a_text_changes_the_digest(length):
    text = bytes(range(32, 96)) * 7
    texts = [bytearray(text[:length]) for _ in range(length)]
    for place, each in enumerate(texts):
        each[place] ^= 1
    texts += [bytearray(text[: length - 1]), bytearray(text[: length + 1]), bytearray(text[:length])]
    column = pa.array([each.decode() for each in texts])
    hashes = row_hashes(pa.record_batch({"a": column}))
    assert len(set(hashes.tolist())) == len(texts)
    # Alone, in a batch of one length, and after others, a text has the same hash.
    same = row_hashes(pa.record_batch({"a": column.slice(0, length)}))
    assert same.tolist() == hashes[:length].tolist()
    assert row_hashes(pa.record_batch({"a": [texts[-1].decode()]})).tolist() == hashes[-1:].tolist()


def test_two_changed_signs_change_the_digest():
    numbers = pa.record_batch({"x": [1.5], "y": [2.5]})
    assert row_hashes(numbers) != row_hashes(pa.record_batch({"x": [-1.5], "y": [-2.5]}))
    raw = [np.array(pair).tobytes() for pair in ([1.5, 2.5], [-1.5, -2.5], [-1.5, 2.5])]
    assert len(set(row_hashes(pa.record_batch({"b": raw})).tolist())) == 3


def test_equal_values_of_any_encoding_have_the_same_digest():
    plain = pa.array(["ab", None, "a text of more than a lane", "", "ab"])
    kept = [
        plain,
        plain.cast(pa.large_string()),
        plain.dictionary_encode(),
        plain.dictionary_encode("encode"),
    ]
    assert len({tuple(row_hashes(pa.record_batch({"c": each})).tolist()) for each in kept}) == 1
    zeros = row_hashes(pa.record_batch({"c": [0.0, -0.0]}))
    assert zeros[0] == zeros[1]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal("1.50"), None, Decimal("-7.25")], pa.decimal128(38, 2)),
        pa.array([1, None, 3], pa.timestamp("us", "America/New_York")),
        pa.array([1, None, 3], pa.duration("us")),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array([[1.5, 2.5], None, []], pa.list_(pa.float64())),
        pa.array([[["a"], None], [], None], pa.large_list(pa.list_(pa.string()))),
        pa.array([None, None, None]),
    ],
    ids=lambda column: str(column.type),
)
def test_slice_and_copy_have_the_same_digest(column):
    padded = pa.concat_arrays([column, column, column])
    sliced = padded.slice(len(column), len(column))
    hashes = row_hashes(pa.record_batch({"c": sliced}))
    assert hashes.tolist() == row_hashes(pa.record_batch({"c": column})).tolist()
    assert hashes.dtype == np.uint64


def test_null_differs_from_every_value():
    for kind, value in ((pa.int64(), 0), (pa.string(), ""), (pa.list_(pa.int8()), []), (pa.bool_(), False)):
        some, none = row_hashes(pa.record_batch({"c": pa.array([value, None], kind)}))
        assert some != none
