from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.routing.hashing import check_columns, hash_columns
from dask_elastic.routing.scalar_hashing import FEW_KEYS, LONGEST, SCALAR
from dask_elastic.routing.string_hashing import CHECK, HASH, string_words

INTEGERS = [
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
]
TEXTS = st.text("aé", max_size=12) | st.integers(0, LONGEST + 9).map(lambda length: ("0123456789" * 8)[:length])
STRINGS = [
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), st.binary(max_size=LONGEST + 9)),
    (pa.large_binary(), st.binary(max_size=12)),
]


@st.composite
def columns(draw: Any) -> pa.Array:
    """Draw a few values, some of them null, in a slice of a longer column."""
    kind, values = draw(st.sampled_from(INTEGERS + STRINGS))
    listed = draw(st.lists(st.none() | values, min_size=2, max_size=FEW_KEYS + 2))
    return pa.array(listed, kind).slice(draw(st.integers(0, 2)), FEW_KEYS)


def both_words(rows: pa.RecordBatch, names: list[str]) -> tuple[list[int], list[int]]:
    check = check_columns(rows, names)
    checks = [0] * rows.num_rows if check is None else check.tolist()
    return hash_columns(rows, names).tolist(), checks


@settings(deadline=None)
@given(columns(), st.booleans())
def test_few_keys_hash_as_in_a_large_batch(column: pa.Array, pair: bool) -> None:
    many = pa.concat_arrays([column, pa.array([None] * (FEW_KEYS + 1), column.type)])
    names = ["key", "other"] if pair else ["key"]
    few_rows, many_rows = (pa.record_batch(dict.fromkeys(names, array)) for array in (column, many))
    found, expected = both_words(few_rows, names), both_words(many_rows, names)
    assert found == (expected[0][: len(column)], expected[1][: len(column)])


@pytest.mark.parametrize("family", [HASH, CHECK])
@given(st.lists(st.binary(max_size=LONGEST), min_size=1, max_size=5))
def test_scalar_word_of_string_equals_vectorised_word(family: Any, texts: list[bytes]) -> None:
    offsets = np.cumsum([0, *map(len, texts)])
    words = string_words(np.frombuffer(b"".join(texts), np.uint8), offsets, family)
    scalar = SCALAR[family]
    assert [scalar.word(text) for text in texts] == words.tolist()
    assert scalar.hashes(words.tolist()).tolist() == family.mix(words).tolist() == scalar.hashes(texts).tolist()


def test_few_strings_that_are_no_text_are_hashed_as_bytes() -> None:
    raw = pa.array([b"\xff\xfe", b"longer than a lane \xff", None])
    assert both_words(pa.record_batch({"key": raw.view(pa.string())}), ["key"]) == both_words(
        pa.record_batch({"key": raw}), ["key"]
    )


def test_hashes_of_few_keys_can_be_written() -> None:
    rows = pa.record_batch({"key": ["a long enough key", "b"]})
    for words in (hash_columns(rows, ["key"]), check_columns(rows, ["key"])):
        assert words is not None
        assert words.flags.writeable
        assert words.dtype == np.uint64
