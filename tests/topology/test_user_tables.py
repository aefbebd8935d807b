from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

from dask_elastic.topology.tables import as_table, is_table

TABLE = pa.table({"n": [1, 2], "word": ["a", "b"]})


class Stream:
    """A frame of another library: it exports its rows as a stream."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


class Batch:
    """A batch of another library: it exports its rows as one array."""

    def __init__(self, rows):
        self.rows = rows

    def __arrow_c_array__(self, requested_schema=None):
        return self.rows.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_pydict(),
        Stream(TABLE),
        Batch(TABLE.to_batches()[0]),
        pd.DataFrame(TABLE.to_pydict(), index=[5, 6]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_as_table_converts_tables_of_every_kind(given):
    assert is_table(given)
    assert as_table(given).to_pydict() == TABLE.to_pydict()


@pytest.mark.parametrize("given", [None, 3, "abc", [1, 2], pa.array([1]), pa.chunked_array([[1]])])
def test_as_table_returns_none_for_other_values(given):
    assert not is_table(given)
    assert as_table(given) is None


def test_imported_views_and_encodings_become_plain():
    views = pa.table({"word": pa.array(["a", "b"], pa.string_view()), "code": pa.array(["x", "x"]).dictionary_encode()})
    assert as_table(Stream(views)).schema == pa.schema({"word": pa.large_string(), "code": pa.string()})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": [1], "b": [1, 2]}, "expected length 1 but got length 2"),
        ({"a": {1: 2}}, "a single value"),
        (Stream(pa.chunked_array([[1]])), "non-struct type int64"),
    ],
)
def test_as_table_refuses_columns_that_are_no_table(given, message):
    with pytest.raises(ValueError, match=message):
        as_table(given)


@pytest.mark.parametrize("value", ["hello", b"hello", 3, 0.5, None, {"a": 1}, pd.Timestamp(0)], ids=repr)
def test_single_value_instead_of_a_column_is_refused(value):
    with pytest.raises(ValueError, match=r"its column 'n' is .*, a single value; give a list.* as in \{'n': \[...\]\}"):
        as_table({"word": ["a"], "n": value})
