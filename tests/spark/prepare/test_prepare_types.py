from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from dask_elastic.spark import prepare

UTC = datetime.UTC
COLUMNS = """
    tiny tinyint, small smallint, whole int, big bigint, single float, double double, flag boolean, text string,
    bytes binary, exact decimal(38, 10), day date, moment timestamp, local timestamp_ntz,
    list array<struct<a: int, b: string>>, map map<string, decimal(10, 2)>
"""
NAMES = [
    "tiny", "small", "whole", "big", "single", "double", "flag", "text", "bytes", "exact", "day", "moment", "local",
    "list", "map",
]  # fmt: skip
TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
    pa.binary(), pa.decimal128(38, 10), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
    pa.list_(pa.struct({"a": pa.int32(), "b": pa.string()})), pa.map_(pa.string(), pa.decimal128(10, 2)),
]  # fmt: skip
ROWS = [
    {
        "tiny": -(2**7), "small": 2**15 - 1, "whole": -(2**31), "big": 2**63 - 1, "single": 0.1015625, "double": 0.1,
        "flag": True, "text": "\u00e4\u4e2d\U0001f600\n\"", "bytes": b"\x00\xff",
        "exact": Decimal("1234567890123456789012345678.0123456789"), "day": datetime.date(1582, 10, 15),
        "moment": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "local": datetime.datetime(2013, 3, 10, 2, 30), "list": [{"a": 1, "b": None}, None, {"a": None, "b": ""}],
        "map": [("x", Decimal("0.01")), ("y", None)],
    },
    dict.fromkeys(NAMES),
]  # fmt: skip


@pytest.fixture(scope="module")
def columns(spark):
    return StructType.fromDDL(COLUMNS)


def table() -> pa.Table:
    return pa.Table.from_pylist(ROWS, schema=pa.schema(list(zip(NAMES, TYPES, strict=True))))


def plain(kind: pa.DataType) -> str:
    """Return a type as text, without the names and nullability of list and map entries."""
    if pa.types.is_list(kind):
        return f"list<{plain(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{plain(kind.key_type)}, {plain(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {plain(field.type)}' for field in kind)}>"
    return str(kind)


def as_json(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, Decimal) else value.isoformat()


def check(found: pa.Table) -> None:
    expected = table()
    assert [plain(field.type) for field in found.schema] == [plain(field.type) for field in expected.schema]
    # Spark does not guarantee the order of the two rows; one of them is all null.
    rows = sorted(found.to_pylist(), key=lambda row: row["tiny"] is None)
    assert rows == expected.to_pylist()


def test_parquet_keeps_all_values(spark, columns, tmp_path):
    pq.write_table(table(), tmp_path / "rows.parquet")
    read = prepare.read(spark, str(tmp_path / "rows.parquet"), columns)
    assert read.schema.simpleString() == columns.simpleString()
    check(read.toArrow())


def test_json_keeps_all_values(spark, columns, tmp_path):
    lines = [json.dumps({**row, "map": row["map"] and dict(row["map"])}, default=as_json) for row in ROWS]
    (tmp_path / "rows.json").write_text("\n".join(lines))
    read = prepare.read(spark, str(tmp_path / "rows.json"), columns)
    prepared = prepare.judge(read, {}, order=["tiny"])
    assert prepared.counts() == prepare.Counts(2, {"unreadable line": 0})
    check(prepared.rows.toArrow())


def test_number_out_of_range_makes_the_line_unreadable(spark, columns, tmp_path):
    (tmp_path / "rows.json").write_text('{"tiny": 1}\n{"small": 32768}\n{"big": 9223372036854775808}\n')
    prepared = prepare.judge(prepare.read(spark, str(tmp_path / "rows.json"), columns), {}, order=["tiny"])
    assert prepared.counts() == prepare.Counts(3, {"unreadable line": 2})
    assert [row.tiny for row in prepared.rows.collect()] == [1]
