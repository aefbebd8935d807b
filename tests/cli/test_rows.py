from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import csv, feather

from dask_elastic.cli.rows import output, row_table, write
from dask_elastic.cli.terminal.console import plain_text

MIXED = pa.table(
    {
        "key": ["a\x1b[31m\n[bold]", None],
        "tags": pa.array([[1, 2], None]),
        "shares": pa.array([[("x", 0.5)], []], pa.map_(pa.string(), pa.float64())),
        "seen": pa.array([datetime.datetime(2024, 1, 2, 3, 4), None], pa.timestamp("ms")),
        "raw": pa.array([b"\x01\xff", None]),
        "price": pa.array([Decimal("1.50"), None]),
        "mean": pa.array([float("nan"), 2.5]),
    }
)


def test_row_is_one_line_without_control_characters():
    head, first, second = plain_text(row_table(MIXED)).splitlines()
    assert head.split() == MIXED.column_names
    assert "\x1b" not in first
    assert first.startswith(r"a\x1b[31m\n[bold]  [1, 2]  ")
    assert "2024-01-02T03:04:00" in first
    assert "01ff" in first
    assert second.split() == ["–", "–", "[]", "–", "–", "–", "2.5"]


def test_json_has_no_values_that_json_lacks(capsys):
    output(MIXED, None, None, as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert first["tags"] == [1, 2]
    assert first["seen"] == "2024-01-02T03:04:00"
    assert (first["raw"], first["mean"], second["mean"]) == ("01ff", None, 2.5)


def test_csv_has_nested_values_as_json(tmp_path):
    write(MIXED.drop_columns(["raw", "seen"]), tmp_path / "rows.csv")
    first, second = csv.read_csv(
        tmp_path / "rows.csv",
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types={"tags": pa.string()}),
    ).to_pylist()
    assert first["key"] == "a\x1b[31m\n[bold]"
    assert json.loads(first["tags"]) == [1, 2]
    assert json.loads(first["shares"]) == [["x", 0.5]]
    assert second["tags"] in ("", None)


@pytest.mark.parametrize("ending", ["arrow", "ARROW"])
def test_arrow_file_keeps_all_types(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    write(MIXED, path)
    found = feather.read_table(path)
    assert found.schema == MIXED.schema
    assert found["key"].to_pylist() == MIXED["key"].to_pylist()


def test_limit_is_that_of_the_file_too(tmp_path, capsys):
    path = tmp_path / "rows.arrow"
    output(MIXED, 1, path, as_json=False)
    assert feather.read_table(path).num_rows == 1
    assert capsys.readouterr().out == f"Wrote 1 row to {path}.\n"
