"""Texts by which users recognise rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dask_elastic.vocab.columns.row_sample import LONGEST_KEY, LOOKED_AT, row_sample


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ([3, 3, 3], "3 rows with the key 3"),
        ([None, 2], "2 rows with the keys None, 2"),
        ([*range(7)], "7 rows with the keys 0, 1, 2, 3, 4 and others"),
        ([1] * LOOKED_AT + [2], f"{LOOKED_AT + 1} rows with the key 1 in the first {LOOKED_AT}"),
        (["x" * 1_000], f"1 row with the key '{'x' * (LONGEST_KEY - 1)}..."),
    ],
)
def test_sample_names_some_keys(keys, shown):
    assert row_sample(pa.record_batch({"k": keys}), ["k"]) == shown


def test_sample_of_rows_without_keys_that_can_be_shown_is_their_number():
    rows = pa.record_batch({"day": pa.array([2**30], pa.int32()).cast(pa.date32())})
    assert row_sample(rows, ["day"]) == "1 row"
    assert row_sample(rows, ["other"]) == "1 row"
    assert row_sample(rows, []) == "1 row"
