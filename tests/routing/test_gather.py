from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.vocab.gather import MANY_ROWS, take_rows

ROWS = 3 * MANY_ROWS
NUMBERS = np.arange(ROWS)
ORDER = np.random.default_rng(0).permutation(ROWS)[: 2 * MANY_ROWS]

COLUMNS = {
    "integers": pa.array(NUMBERS),
    "small integers": pa.array(NUMBERS % 100, pa.int8()),
    "floats with NaN": pa.array(np.where(NUMBERS % 7, NUMBERS / 3, np.nan)),
    "half floats": pa.array((NUMBERS % 100).astype(np.float16)),
    "with nulls": pa.array([None if n % 5 == 0 else n for n in range(ROWS)], pa.int64()),
    "bools": pa.array(NUMBERS % 3 == 0),
    "times": pa.array(NUMBERS, pa.timestamp("us", "UTC")),
    "dates": pa.array([datetime.date(2013, 1, 1 + n % 28) for n in range(ROWS)]),
    "decimals": pa.array([decimal.Decimal(n) / 100 for n in range(ROWS)], pa.decimal128(20, 2)),
    "wide decimals": pa.array([decimal.Decimal(n) for n in range(ROWS)], pa.decimal256(50, 0)),
    "strings of one length": pa.array([f"N{n:05d}" for n in range(ROWS)]),
    "strings": pa.array([f"N{n}" for n in range(ROWS)]),
    "strings of one mean length": pa.array(["ab" if n % 2 else "abcd" for n in range(ROWS - 1)] + ["abc"]),
    "empty strings": pa.array([""] * ROWS),
    "large binaries of one length": pa.array([n.to_bytes(4, "big") for n in range(ROWS)], pa.large_binary()),
    "binaries of fixed size": pa.array([n.to_bytes(4, "big") for n in range(ROWS)], pa.binary(4)),
    "binaries of no size": pa.array([b""] * ROWS, pa.binary(0)),
    "dictionary": pa.array([f"{n % 10}" for n in range(ROWS)]).dictionary_encode(),
    "lists": pa.array([[n] * (n % 3) for n in range(ROWS)]),
    "lists of fixed size": pa.array([[n, n] for n in range(ROWS)], pa.list_(pa.int64(), 2)),
    "structs": pa.array([{"a": n} for n in range(ROWS)]),
    "nulls": pa.nulls(ROWS),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("start", [0, 13])
def test_take_rows_of_any_type_equals_arrow_take(name, start):
    rows = pa.record_batch({"column": COLUMNS[name]}).slice(start, ROWS - 20)
    order = ORDER[rows.num_rows > ORDER]
    taken = take_rows(rows, order)
    taken.validate(full=True)
    wanted = rows.take(pa.array(order))
    assert taken.schema == wanted.schema
    if name == "floats with NaN":
        assert np.array_equal(taken["column"], wanted["column"], equal_nan=True)
    else:
        assert taken.equals(wanted)


def test_take_rows_with_number_out_of_range_raises():
    rows = pa.record_batch({"column": NUMBERS})
    with pytest.raises(IndexError):
        take_rows(rows, np.full(MANY_ROWS, ROWS))


def test_take_rows_without_columns_keeps_schema():
    rows = pa.record_batch({"column": NUMBERS}).select([])
    assert take_rows(rows, ORDER).schema == rows.schema


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.integers(0, 12), st.integers(0, 2**32 - 1), st.sampled_from([MANY_ROWS - 1, MANY_ROWS]))
def test_take_rows_of_sliced_binaries_equals_arrow_take(start, width, seed, count):
    rng = np.random.default_rng(seed)
    texts = pa.array([rng.bytes(width) for _ in range(200)], pa.binary())
    rows = pa.record_batch({"text": texts}).slice(start)
    order = rng.integers(0, rows.num_rows, count)
    assert take_rows(rows, order).equals(rows.take(pa.array(order)))
