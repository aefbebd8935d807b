from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.topology.schema import check_schema, describe_difference, plain_schema, stack_rows
from dask_elastic.vocab.errors import SchemaMismatch

EXPECTED = pa.schema({"delay": pa.int64(), "plane": pa.string()})


def batch(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_check_schema_returns_matching_rows_themselves():
    rows = batch(delay=[1], plane=["N1"])
    assert check_schema(EXPECTED, rows, "here") is rows


@given(st.permutations(["a", "b", "c", "d"]))
def test_check_schema_reorders_columns(order):
    expected = pa.schema({name: pa.int64() for name in "abcd"})
    rows = check_schema(expected, batch(**{name: [ord(name)] for name in order}), "here")
    assert rows.schema == expected
    assert rows.to_pylist() == [{name: ord(name) for name in "abcd"}]


def test_check_schema_ignores_metadata_and_nullability():
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


def test_check_schema_accepts_null_columns_for_every_type():
    rows = check_schema(EXPECTED, batch(delay=pa.nulls(2), plane=["N1", None]), "here")
    assert rows.schema == EXPECTED
    assert rows["delay"].null_count == 2


TEXTS = ["N1", None, "N1", "a text of more than twelve bytes", "N1"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS).dictionary_encode(),
        pa.array(TEXTS, pa.string_view()),
        pa.array([None if text is None else text.encode() for text in TEXTS], pa.binary_view()),
        pa.DictionaryArray.from_arrays(pa.array([0, None, 0, 1, 0]), pa.array(["N1", TEXTS[3]], pa.string_view())),
        pc.run_end_encode(pa.array(TEXTS)),
        pa.array([[text] for text in TEXTS], pa.list_(pa.string_view())),
        pa.array([{"plane": text} for text in TEXTS], pa.struct({"plane": pa.string_view()})),
    ],
    ids=lambda column: str(column.type),
)
def test_encoded_columns_become_plain_columns_that_support_take(column):
    rows = pa.RecordBatch.from_arrays([column], ["plane"]).slice(1)
    got = check_schema(plain_schema(rows.schema), rows, "here")
    assert got.schema == plain_schema(rows.schema) == plain_schema(got.schema)
    assert got.to_pylist() == rows.to_pylist()
    assert got.take(pa.array([2, 0])).to_pylist() == [rows.to_pylist()[2], rows.to_pylist()[0]]


@pytest.mark.parametrize(
    ("actual", "description"),
    [
        ({"delay": pa.int32(), "plane": pa.string()}, "column 'delay': int32 instead of int64"),
        ({"plane": pa.string()}, "missing: 'delay'"),
        ({"delay": pa.int64(), "plane": pa.string(), "x": pa.int8()}, "unexpected: 'x'"),
        ({"plane": pa.string(), "delay": pa.int64()}, "order differs: 'plane', 'delay' instead of 'delay', 'plane'"),
        ({"delay": pa.int64(), "plane": pa.string()}, ""),
    ],
)
def test_describe_difference_names_each_difference(actual, description):
    assert describe_difference(EXPECTED, pa.schema(actual)) == description


def test_check_schema_refuses_duplicate_columns():
    twice = pa.schema([("delay", pa.int64()), ("delay", pa.int64()), ("plane", pa.string())])
    assert describe_difference(EXPECTED, twice) == "column 'delay' 2 times"
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2]), pa.array(["a"])], schema=twice)
    with pytest.raises(SchemaMismatch, match="'delay' 2 times"):
        check_schema(EXPECTED, rows, "here")


def test_check_schema_error_names_place_and_expected_columns():
    with pytest.raises(SchemaMismatch) as caught:
        check_schema(EXPECTED, batch(delay=pa.array([1], pa.int32()), when=["x"]), "source 'flights'")
    assert str(caught.value) == (
        "source 'flights': column 'delay': int32 instead of int64; missing: 'plane'; unexpected: 'when'. "
        "Its rows need the columns delay: int64, plane: string."
    )


def test_stacked_rows_have_the_columns_of_the_first_table():
    first, second = pa.table({"k": ["a"], "v": pa.nulls(1)}), pa.table({"v": [2], "k": ["b"]})
    assert stack_rows([first, second], "rows").to_pydict() == {"k": ["a", "b"], "v": [None, 2]}
    assert stack_rows([], "rows").num_columns == 0


@pytest.mark.parametrize("other", [{"k": [1], "v": [2]}, {"k": ["a"]}, {"k": ["a"], "v": [2], "w": [3]}])
def test_rows_of_unlike_columns_are_not_stacked(other):
    with pytest.raises(SchemaMismatch, match="rows differ in their columns: k: string, v: int64; k: "):
        stack_rows([pa.table({"k": ["a"], "v": [2]}), pa.table(other)], "rows")
