"""Arrow arrays of Python objects that do not import pandas equal those of pyarrow."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_elastic.vocab import listed_arrays
from dask_elastic.vocab.listed_arrays import batch_of_dicts, check_truncation, listed_array, table_of_columns

OBJECTS = (
    st.none(), st.integers(-(2**65), 2**65), st.integers(-200, 300), st.floats(), st.booleans(),
    st.text(st.characters(exclude_categories=())), st.binary(), st.sampled_from([np.int64(3), 2.0, -0.0]),
)  # fmt: skip
LISTS = st.lists(st.sampled_from(OBJECTS), min_size=1, max_size=2).flatmap(lambda kinds: st.lists(st.one_of(*kinds)))
TYPES = (
    None, pa.int64(), pa.int8(), pa.uint8(), pa.uint64(), pa.float64(), pa.float32(), pa.bool_(), pa.string(),
    pa.large_string(), pa.binary(), pa.large_binary(), pa.timestamp("us"), pa.list_(pa.int64()),
)  # fmt: skip


WHOLE = dict.fromkeys(("window", "container_window"), 10**9)
if "element_size_limit" in (pa.Array.to_string.__doc__ or ""):
    # Older versions of pyarrow print long values in full.
    WHOLE["element_size_limit"] = 10**9


@pytest.fixture(autouse=True, scope="module")
def without_pandas():
    """Let the module believe that pandas is not imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listed_arrays, "sys", SimpleNamespace(modules={}))
        yield


def outcome(act):
    """Return the type and the values that a call returns, or the type of its error."""
    try:
        made = act()
    except Exception as error:
        return type(error)
    made.validate(full=True)
    # Python's own times do not reach as far as those of Arrow.
    return (
        str(made.type),
        made.null_count,
        made.to_string(**WHOLE),
    )


@given(LISTS, st.sampled_from(TYPES))
@example([1], pa.struct([]))
@example([-62_135_596_800_000_001], pa.timestamp("us"))
def test_array_of_objects_equals_that_of_pyarrow(values, type_):
    expected = outcome(lambda: pa.array(values, type_))
    if type_ is not None and pa.types.is_integer(type_) and isinstance(expected, tuple):
        # pyarrow truncates.
        expected = pa.ArrowInvalid if any(isinstance(value, float) and value % 1 for value in values) else expected
    assert outcome(lambda: listed_array(values, type_)) == expected


@pytest.mark.parametrize("value", [1.5, np.float32(-0.5), np.float64(2.5), Decimal("7.1")])
def test_number_with_a_fraction_is_no_integer(value):
    with pytest.raises(pa.ArrowInvalid, match=r"has a fraction, and would be truncated as int32"):
        listed_array([1, None, value], pa.int32())
    assert listed_array([1, type(value)(2), None], pa.int32()).to_pylist() == [1, 2, None]


def test_object_array_is_converted_as_a_list():
    values = np.array(["ä", None, "b"], object)
    assert listed_array(values, pa.large_string()).equals(pa.array(values, pa.large_string()))


@pytest.mark.parametrize("schema", [None, pa.schema({"a": pa.int32(), "b": pa.string()})])
def test_rows_without_a_value_are_null(schema):
    rows = [{"a": 1, "b": "x"}, {"a": 2}, {"b": None, "a": 3}]
    assert batch_of_dicts(rows, schema).equals(pa.RecordBatch.from_pylist(rows, schema))


def test_table_of_columns_equals_that_of_pyarrow():
    columns = {
        "list": [1, None, 3],
        "strided": np.arange(6)[::2],
        "days": np.array(["2024-01-01", "NaT", "2024-01-03"], "M8[D]"),
        "range": range(3),
        "arrow": pa.array(["a", "b", "c"]),
        "chunked": pa.chunked_array([[1], [2, 3]]),
    }
    assert table_of_columns(columns).equals(pa.Table.from_pydict(columns))


@pytest.mark.parametrize("values", [np.arange(3, dtype=">i4"), np.ones((3, 2)), np.float64(1)])
def test_array_that_is_no_column_fails_as_in_pyarrow(values):
    columns = {"a": values}
    with pytest.raises(Exception, match=r"\w") as expected:
        pa.Table.from_pydict(columns)
    with pytest.raises(type(expected.value)):
        table_of_columns(columns)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(pa.ArrowInvalid):
        table_of_columns({"a": [1, 2], "b": [1]})


def test_columns_keep_their_values_when_the_array_changes():
    numbers = np.arange(3)
    table = table_of_columns({"a": numbers})
    numbers[0] = 9
    assert table.to_pydict() == {"a": [0, 1, 2]}


HALF = dt.datetime(2020, 1, 1, 12, 0, 0, 500_000)
TRUNCATED = [
    (HALF, pa.timestamp("s")),
    (dt.datetime(2020, 1, 1, microsecond=5), pa.timestamp("ms")),
    (pd.Timestamp(1_000_000_005), pa.timestamp("us")),
    (dt.timedelta(seconds=1.5), pa.duration("s")),
    (pd.Timedelta(123), pa.duration("us")),
    (dt.time(1, 2, 3, 4), pa.time32("ms")),
    ([1, 2.5], pa.list_(pa.int64())),
    (np.array([1.5]), pa.list_(pa.int64())),
    ([[HALF]], pa.list_(pa.list_(pa.timestamp("s")))),
    ({"a": 1, "b": 2.5}, pa.struct({"a": pa.int64(), "b": pa.int32()})),
    ({"a": 2.5}, pa.map_(pa.string(), pa.int64())),
    ([(dt.time(1, microsecond=1), 1)], pa.map_(pa.time32("s"), pa.int64())),
]


@pytest.mark.parametrize(("value", "type_"), TRUNCATED, ids=str)
def test_what_a_type_cannot_hold_is_refused_and_not_truncated(value, type_):
    with pytest.raises(pa.ArrowInvalid, match="would be truncated"):
        listed_array([None, value], type_)


@pytest.mark.parametrize(
    ("value", "type_", "kept"),
    [
        (HALF, pa.timestamp("ms"), HALF),
        (HALF.replace(microsecond=0), pa.timestamp("s"), HALF.replace(microsecond=0)),
        (dt.datetime(1960, 1, 1), pa.timestamp("s"), dt.datetime(1960, 1, 1)),
        (HALF, pa.date32(), dt.date(2020, 1, 1)),
        (pd.Timestamp(5_000), pa.timestamp("us"), dt.datetime(1970, 1, 1, microsecond=5)),
        (np.timedelta64(-5, "s"), pa.duration("s"), dt.timedelta(seconds=-5)),
        (dt.time(1, 2, 3), pa.time32("s"), dt.time(1, 2, 3)),
        (5, pa.timestamp("s"), dt.datetime(1970, 1, 1, second=5)),
        ([1.0, None], pa.list_(pa.int64()), [1, None]),
        (np.array([3.0]), pa.list_(pa.int8()), [3]),
        ({"a": 2}, pa.map_(pa.string(), pa.int64()), [("a", 2)]),
        ({"a": None}, pa.struct({"a": pa.int64()}), {"a": None}),
    ],
    ids=str,
)
def test_what_a_type_holds_is_kept(value, type_, kept):
    assert listed_array([None, value], type_).to_pylist() == [None, kept]


@pytest.mark.parametrize("missing", [None, pd.NA, pd.NaT, float("nan")], ids=str)
def test_missing_values_of_pandas_are_no_truncation(missing):
    values = [missing, np.float32(2.0), dt.timedelta(seconds=1), pd.Timestamp(5_000_000_000), pd.Timedelta("1s")]
    for type_ in (pa.int64(), pa.duration("s"), pa.timestamp("s"), pa.time32("s")):
        check_truncation(values, type_)
        check_truncation([missing, values], pa.list_(type_))
        check_truncation([missing, {"a": missing}], pa.struct({"a": pa.list_(type_)}))


@pytest.mark.parametrize("values", [[-0.5], [Decimal("-0.5")], [pd.NA, np.float32(1.5)]], ids=str)
def test_truncation_towards_zero_is_found(values):
    with pytest.raises(pa.ArrowInvalid, match="has a fraction"):
        check_truncation(values, pa.int64())


@pytest.mark.parametrize("order", [1, -1])
def test_times_with_a_zone_and_without_have_no_common_type(order):
    times = [dt.datetime(2024, 6, 1), None, dt.datetime(2024, 6, 1, tzinfo=dt.UTC)][::order]
    with pytest.raises(pa.ArrowInvalid, match="is for times with"):
        listed_array(times)
    assert listed_array(times[1:]).null_count == 1
