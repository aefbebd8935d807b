from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.topology import Filter, MapOperator, select_columns
from dask_elastic.vocab.errors import SchemaMismatch

ROWS = pa.RecordBatch.from_pydict({"a": [1, 2, 3], "b": ["x", None, "z"]})


def outputs(function, **options):
    return MapOperator("m", function, **options).apply(ROWS)


def test_map_normalises_return_values():
    table = pa.Table.from_batches([ROWS, ROWS.slice(0, 0), ROWS])
    assert outputs(lambda rows: None) == []
    assert outputs(lambda rows: rows) == [ROWS]
    assert outputs(lambda rows: rows.slice(0, 0)) == []
    assert outputs(lambda rows: table) == [ROWS, ROWS]
    assert outputs(lambda rows: [rows, table, rows.slice(0, 0)]) == [ROWS, ROWS, ROWS]
    assert outputs(lambda rows: (rows.slice(start, 1) for start in range(2))) == [ROWS.slice(0, 1), ROWS.slice(1, 1)]
    assert outputs(lambda rows: []) == []


def test_map_takes_dicts_frames_and_arrow_exports():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}, index=[7, 8])
    for returned in ({"a": [1, 2], "b": ["x", "y"]}, frame, pa.table(frame.to_dict("list")).to_reader()):
        assert [rows.to_pydict() for rows in outputs(lambda rows, each=returned: each)] == [frame.to_dict("list")]
    assert len(outputs(lambda rows: [frame, {"a": [3]}, ROWS])) == 3


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3, "returned an int"),
        ("abc", "returned a str"),
        ({"a": [1], "b": []}, "returned a dict that cannot become rows: .*; return a pyarrow RecordBatch"),
        ([{"a": 1}], "returned a list whose item 0 is a dict that cannot become rows: its column 'a' is 1, a single"),
        ({"a": "xy"}, "returned a dict that cannot become rows: its column 'a' is 'xy', a single value"),
        (pd.Series([1]), r"returned a pandas\.\S*Series"),
        (pa.array([1]), r"returned a pyarrow array of int64 whose item 0 is"),
        ([ROWS, 3], r"returned a list whose item 1 is an int"),
    ],
)
def test_map_refuses_invalid_return_values(returned, message):
    with pytest.raises(TypeError, match=f"map 'm' {message}"):
        outputs(lambda rows: returned)


def test_map_gets_only_its_columns():
    assert outputs(lambda rows: rows, columns=("b",))[0].schema.names == ["b"]
    with pytest.raises(SchemaMismatch, match=r"operator 'm' reads column 'c', which its input lacks.*\['a', 'b'\]"):
        outputs(lambda rows: rows, columns=("a", "c"))


def test_select_keeps_order_and_refuses_ambiguity():
    assert select_columns(ROWS, None, "o") is ROWS
    assert select_columns(ROWS, ("a", "b"), "o") is ROWS
    assert select_columns(ROWS, ("b", "a"), "o").schema.names == ["b", "a"]
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(SchemaMismatch, match="'a', which its input has more than once"):
        select_columns(twice, ("a",), "o")


def test_exceptions_of_user_functions_propagate():
    with pytest.raises(ZeroDivisionError):
        outputs(lambda rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outputs(lambda rows: (1 / 0 for _ in range(1)))
    with pytest.raises(ZeroDivisionError):
        Filter("f", lambda rows: 1 / 0).apply(ROWS)


@pytest.mark.parametrize(
    "predicate",
    [
        lambda rows: pc.greater(rows["a"], 1),
        lambda rows: pa.chunked_array([[False], [True, True]]),
        lambda rows: rows["a"].to_numpy() > 1,
        lambda rows: rows["a"].to_pandas() > 1,
        lambda rows: pd.Series([None, True, True], dtype="boolean"),
        lambda rows: pd.Series([None, True, True], dtype="bool[pyarrow]"),
        lambda rows: pa.array([None, True, True]),
        pc.field("a") > 1,
        (pc.field("a") > 1) | pc.field("b").is_null(),
    ],
)
def test_filter_accepts_masks_of_all_kinds(predicate):
    assert Filter("f", predicate).apply(ROWS) == [ROWS.slice(1)]


def test_filter_that_keeps_all_rows_returns_the_input():
    (kept,) = Filter("f", pc.field("a") > 0).apply(ROWS)
    assert kept is ROWS
    assert Filter("f", pc.field("a") > 9).apply(ROWS) == []
    assert Filter("f", pc.scalar(True)).apply(ROWS) == [ROWS]
    assert Filter("f", lambda rows: pa.nulls(3, pa.bool_())).apply(ROWS) == []
    assert Filter("f", pc.field("a") > 0).apply(ROWS.slice(0, 0)) == []


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (pa.array([1, 0, 1]), TypeError, "returned a pyarrow array of int64"),
        (np.array([1.0, 0, 1]), TypeError, r"returned a NumPy array of float64 with shape \(3,\)"),
        (np.ones((3, 1), bool), TypeError, r"shape \(3, 1\)"),
        ([True, False, True], TypeError, "returned a list"),
        (True, TypeError, "returned a bool"),
        (None, TypeError, "returned None"),
        (ROWS, TypeError, "RecordBatch"),
        (pd.DataFrame({"a": [True]}), TypeError, "DataFrame"),
        (pd.Series([1, 2, 3]), TypeError, "Series"),
        (pa.array([True]), ValueError, "returned 1 booleans for a batch of 3 rows"),
    ],
)
def test_filter_refuses_invalid_masks(returned, error, message):
    with pytest.raises(error, match=f"filter 'f' .*{message}"):
        Filter("f", lambda rows: returned).apply(ROWS)


def test_filter_refuses_expressions_that_are_not_boolean():
    with pytest.raises(TypeError, match="filter 'f' returned a pyarrow array of int64"):
        Filter("f", pc.field("a") + 1).apply(ROWS)


def test_filter_reads_its_columns_and_keeps_the_rest():
    names = []
    kept = Filter("f", lambda rows: names.append(rows.schema.names) or rows["a"].is_valid(), ("a",)).apply(ROWS)
    assert names == [["a"]]
    assert kept == [ROWS]
    pruned = Filter("f", pc.field("a") > 1, keep=("b", "not there")).apply(ROWS)
    assert [batch.to_pydict() for batch in pruned] == [{"b": [None, "z"]}]
    with pytest.raises(SchemaMismatch, match="operator 'f' reads column 'c'"):
        Filter("f", pc.field("c") > 1, ("c",)).apply(ROWS)


@given(st.lists(st.none() | st.integers(-5, 5)), st.integers(-5, 5), st.integers(0, 3))
def test_filter_by_expression_and_by_function_keep_the_same_rows(values, limit, start):
    rows = pa.RecordBatch.from_arrays([pa.array(values, pa.int64()), pa.array(range(len(values)))], ["a", "row"])
    rows = rows.slice(start)
    expected = [row for row in rows.to_pylist() if row["a"] is not None and row["a"] > limit]
    for predicate in (pc.field("a") > limit, lambda rows: pc.greater(rows["a"], limit)):
        kept = Filter("f", predicate).apply(rows)
        assert [row for batch in kept for row in batch.to_pylist()] == expected
