from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.topology.casting import cast_rows
from dask_elastic.vocab.errors import SchemaMismatch

NOON = datetime.datetime(2026, 3, 1, 12)
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def cast(column, kind):
    rows = cast_rows(pa.schema({"x": kind}), pa.record_batch({"x": column}), "rows")
    assert rows.schema == pa.schema({"x": kind})
    return rows["x"].to_pylist()


def test_rows_of_the_schema_are_returned_themselves():
    rows = pa.record_batch({"x": [1]})
    assert cast_rows(pa.schema({"x": pa.int64()}), rows, "rows") is rows


@given(st.lists(st.integers(0, 127) | st.none()), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_integers_that_fit_are_cast(values, found, wanted):
    assert cast(pa.array(values, found), wanted) == values


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["a"], pa.string_view()), pa.string()),
        (pa.array(["a", "a"]).dictionary_encode(), pa.large_string()),
        (pa.array([b"ab"], pa.binary(2)), pa.large_binary()),
        (pa.array([1, 2**31]), pa.float64()),
        (pa.array([7]), pa.decimal128(21, 2)),
        (pa.array([NOON], pa.timestamp("s")), pa.timestamp("ns")),
        (pa.array([NOON.date()], pa.date64()), pa.date32()),
        (pa.array([[1], None], pa.large_list(pa.int8())), pa.list_(pa.int64())),
        (pa.array([{"a": 1, "b": ["x"]}]), pa.struct({"a": pa.int16(), "b": pa.list_(pa.large_string())})),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), pa.map_(pa.large_string(), pa.int64())),
        (pa.nulls(2), pa.string()),
    ],
)
def test_values_are_kept(column, kind):
    assert cast(column, kind) == column.to_pylist()


def test_zones_of_timestamps_are_changed_and_instants_kept():
    utc = pa.array([NOON], pa.timestamp("us", "UTC"))
    assert cast(utc, pa.timestamp("us", "Asia/Tokyo")) == utc.to_pylist()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["5"]), pa.int64()),
        (pa.array([5]), pa.string()),
        (pa.array([3]), pa.bool_()),
        (pa.array([True]), pa.int64()),
        (pa.array([NOON]), pa.date32()),
        (pa.array([NOON]), pa.timestamp("us", "UTC")),
        (pa.array([5]), pa.timestamp("us")),
        (pa.array([b"a"]), pa.string()),
        (pa.array([[1]]), pa.list_(pa.string())),
        (pa.array([{"a": 1}]), pa.struct({"b": pa.int64()})),
    ],
)
def test_other_kinds_are_refused(column, kind):
    with pytest.raises(SchemaMismatch, match=r"rows: column 'x': .* instead of .* Convert them to the columns x: "):
        cast(column, kind)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([300]), pa.uint8()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([float("nan")]), pa.int64()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([2**60 + 1]), pa.float64()),
        (pa.array([decimal.Decimal("1.25")]), pa.decimal128(4, 1)),
        (pa.array([NOON.replace(microsecond=1)]), pa.timestamp("s")),
        (pa.array([[300]]), pa.list_(pa.int8())),
    ],
)
def test_values_that_do_not_fit_are_refused(column, kind):
    with pytest.raises(SchemaMismatch, match=r"rows: column 'x' is .* and must be .*, but a value does not fit: "):
        cast(column, kind)


def test_infinities_fit_smaller_floats():
    assert cast(pa.array([float("inf"), None]), pa.float32()) == [float("inf"), None]


def test_only_columns_that_differ_are_named():
    schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
    rows = pa.record_batch({"c": [1], "a": pa.array([1], pa.int8())})
    with pytest.raises(SchemaMismatch, match=r"^rows: missing: 'b'; unexpected: 'c'\. Convert"):
        cast_rows(schema, rows, "rows")
    twice = pa.RecordBatch.from_arrays([pa.array([1])] * 3, ["a", "a", "b"])
    with pytest.raises(SchemaMismatch, match="column 'a' 2 times"):
        cast_rows(schema, twice, "rows")
