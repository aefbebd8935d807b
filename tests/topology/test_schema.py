from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.topology.schema import check_schema, describe_difference, plain_schema
from dask_elastic.vocab.errors import SchemaMismatch

EXPECTED = pa.schema({"delay": pa.int64(), "plane": pa.string()})


def batch(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_that_fit_pass_untouched():
    rows = batch(delay=[1], plane=["N1"])
    assert check_schema(EXPECTED, rows, "here") is rows


@given(st.permutations(["a", "b", "c", "d"]))
def test_columns_in_any_order_are_put_right(order):
    expected = pa.schema({name: pa.int64() for name in "abcd"})
    rows = check_schema(expected, batch(**{name: [ord(name)] for name in order}), "here")
    assert rows.schema == expected
    assert rows.to_pylist() == [{name: ord(name) for name in "abcd"}]


def test_metadata_and_nullability_do_not_count():
    strict = pa.schema(
        [
            pa.field("delay", pa.int64(), nullable=False, metadata={"unit": "min"}),
            pa.field("stops", pa.list_(pa.field("item", pa.struct([pa.field("at", pa.int8(), nullable=False)])))),
            pa.field("tags", pa.map_(pa.string(), pa.int64())),
            pa.field("pair", pa.list_(pa.field("item", pa.int8(), nullable=False), 2)),
            pa.field("long", pa.large_list(pa.field("item", pa.int8(), nullable=False))),
        ],
        metadata={"made": "by hand"},
    )
    values = [{"delay": 1, "stops": [{"at": 2}], "tags": [("x", 3)], "pair": [1, 2], "long": [4]}]
    rows = pa.RecordBatch.from_pylist(values, schema=strict)
    plain = plain_schema(strict)
    assert describe_difference(plain, strict) == describe_difference(strict, plain) == ""
    got = check_schema(plain, rows, "here")
    assert got.schema.equals(plain, check_metadata=True)
    assert got.to_pylist() == rows.to_pylist()
    assert check_schema(strict, got, "here").schema.equals(plain, check_metadata=True)


def test_a_column_of_nulls_fits_every_type():
    rows = check_schema(EXPECTED, batch(delay=pa.nulls(2), plane=["N1", None]), "here")
    assert rows.schema == EXPECTED
    assert rows["delay"].null_count == 2


@pytest.mark.parametrize(
    ("actual", "told"),
    [
        ({"delay": pa.int32(), "plane": pa.string()}, "column 'delay': int32 instead of int64"),
        ({"plane": pa.string()}, "missing: 'delay'"),
        ({"delay": pa.int64(), "plane": pa.string(), "x": pa.int8()}, "unexpected: 'x'"),
        ({"plane": pa.string(), "delay": pa.int64()}, "order differs: 'plane', 'delay' instead of 'delay', 'plane'"),
        ({"delay": pa.int64(), "plane": pa.string()}, ""),
    ],
)
def test_differences_are_told_in_words(actual, told):
    assert describe_difference(EXPECTED, pa.schema(actual)) == told


def test_a_column_that_is_there_twice_is_told():
    twice = pa.schema([("delay", pa.int64()), ("delay", pa.int64()), ("plane", pa.string())])
    assert describe_difference(EXPECTED, twice) == "column 'delay' 2 times"
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2]), pa.array(["a"])], schema=twice)
    with pytest.raises(SchemaMismatch, match="'delay' 2 times"):
        check_schema(EXPECTED, rows, "here")


def test_the_error_says_where_and_what_to_send():
    with pytest.raises(SchemaMismatch) as caught:
        check_schema(EXPECTED, batch(delay=pa.array([1], pa.int32()), when=["x"]), "source 'flights'")
    assert str(caught.value) == (
        "source 'flights': column 'delay': int32 instead of int64; missing: 'plane'; unexpected: 'when'. "
        "Send rows with the columns delay: int64, plane: string."
    )
