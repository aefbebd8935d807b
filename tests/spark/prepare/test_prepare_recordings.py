from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_elastic.spark import prepare
from dask_elastic.spark.failure import SparkFailed
from dask_elastic.vocab.errors import SchemaMismatch, SourceError


def faulty(frame: pd.DataFrame, faults: list[tuple[str, object]]) -> pd.DataFrame:
    """Put one fault each into consecutive rows, and copy some rows."""
    frame = frame.convert_dtypes()
    for row, (column, value) in enumerate(faults, start=10):
        frame.loc[frame.index[row], column] = value
    return pd.concat([frame, frame.iloc[100:103]], ignore_index=True)


FAULTS = {
    "edits": [("ts", None), ("page", None), ("channel", None), ("user_id", None), ("delta", 123_456_789)],
    "exchange_orders": [("ts", None), ("order_id", None), ("price", 0.0), ("price", None), ("volume_e8", -1)],
    "retail_orders": [("ts", None), ("stock_id", None), ("quantity", 0), ("unit_price", None)],
    "texts": [("arrival_ts", None), ("event_ts", None), ("text", None), ("text", " \t "), ("text", " A  bc\tD ")],
}


def conditions(recording: str, frame: pd.DataFrame) -> dict[str, pd.Series]:
    copy = frame.duplicated()
    if recording == "edits":
        return {
            "no time": frame["ts"].isna(),
            "no page": frame["channel"].isna() | frame["page"].isna(),
            "no user": frame["user_id"].isna(),
            "sizes that do not add up": frame["delta"] != frame["added"] - frame["deleted"],
            "exact copy": copy,
        }
    if recording == "exchange_orders":
        return {
            "no time": frame["ts"].isna(),
            "no order id": frame["order_id"].isna(),
            "no price above 0": ~(frame["price"].fillna(0) > 0),
            "negative volume": frame["volume_e8"] < 0,
            "exact copy": copy,
        }
    if recording == "retail_orders":
        sign = np.where(frame["side"] == "return", -1, 1)
        return {
            "no time": frame["ts"].isna(),
            "no stock id": frame["stock_id"].isna(),
            "no customer": frame["customer_id"].isna(),
            "no price above 0": ~(frame["unit_price"].fillna(0) > 0),
            "quantity against its side": frame["quantity"] * sign < 1,
            "exact copy": copy,
        }
    return {
        "no time": frame["arrival_ts"].isna() | frame["event_ts"].isna(),
        "no text": frame["text"].fillna("").str.strip() == "",
        "written after it arrived": frame["event_ts"] > frame["arrival_ts"],
        "exact copy": copy,
    }


def expected_rows(recording: str, frame: pd.DataFrame) -> pd.DataFrame:
    if recording == "texts":
        words = frame["text"].fillna("").str.lower().str.split()
        return frame.rename(columns={"event_ts": "event_time"}).assign(words=words)
    return frame.rename(columns={"ts": "event_time"})


def as_text(value: object) -> str:
    """Return a value as text that does not depend on the pandas type of its column."""
    if isinstance(value, list | np.ndarray):
        return " ".join(value)
    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return f"{value:.17g}"
    return value.isoformat() if isinstance(value, pd.Timestamp) else str(value)


def as_tuples(frame: pd.DataFrame, columns: list[str]) -> list[tuple[str, ...]]:
    return sorted(zip(*([as_text(value) for value in frame[name].astype(object)] for name in columns), strict=True))


@pytest.mark.parametrize("name", list(FAULTS))
def test_cleaned_recording_equals_that_of_pandas(spark, sample, tmp_path, name, store):
    frame = faulty(sample(name), FAULTS[name])
    path = store(frame, name, tmp_path / "rows.parquet")
    prepared = getattr(prepare, name)(prepare.read(spark, path, name))
    reason = pd.Series(None, index=frame.index, dtype=object)
    for why, condition in reversed(conditions(name, frame).items()):
        reason[condition.fillna(False).astype(bool)] = why
    expected = expected_rows(name, frame)[reason.isna()]
    found = prepared.rows.toArrow().to_pandas()
    assert set(found.columns) == set(expected.columns)
    assert as_tuples(found, list(expected.columns)) == as_tuples(expected, list(expected.columns))
    assert found[prepared.order[0]].is_monotonic_increasing
    counts = prepared.counts()
    tally = reason.value_counts()
    assert counts.dropped == {why: tally.get(why, 0) for why in conditions(name, frame)}
    assert all(counts.dropped.values()), "each reason occurs"
    assert (counts.read, counts.kept) == (len(frame), len(expected))
    assert str(counts).splitlines()[-1].endswith("rows kept")


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("name", list(prepare.RECORDINGS))
def test_csv_and_json_give_the_same_rows(spark, sample, tmp_path, name, format, columns_of):
    columns = columns_of(name)
    frame = sample(name).iloc[:500][list(columns)].convert_dtypes()
    path = tmp_path / f"rows.{format}"
    if format == "csv":
        frame.to_csv(path, index=False)
    else:
        rows = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
        path.write_text("\n".join(json.dumps(row, default=lambda moment: moment.isoformat()) for row in rows))
    read = prepare.read(spark, str(path), name)
    assert {field.name: field.dataType.simpleString() for field in read.schema} == {**columns, "_unreadable": "string"}
    found = read.toArrow().to_pandas()
    assert found["_unreadable"].isna().all()
    assert as_tuples(found, list(columns)) == as_tuples(frame, list(columns))


GOOD = {
    "ts": "2015-09-12T01:00:00", "channel": "#en", "namespace": "Main", "page": "A", "user_id": 1,
    "is_anonymous": False, "is_robot": False, "is_new": True, "is_minor": False, "country": None, "delta": 1,
    "added": 1, "deleted": 0, "comment": "c",
}  # fmt: skip


def test_unreadable_lines_are_counted_whatever_columns_are_selected(spark, tmp_path):
    lines = [
        json.dumps(GOOD),
        "{ this is no JSON",
        # Only reading uses this column.
        json.dumps({**GOOD, "is_minor": "perhaps"}),
        json.dumps({**GOOD, "ts": "yesterday"}),
    ]
    (tmp_path / "edits.json").write_text("\n".join(lines))
    names = list(GOOD)
    rows = [",".join("" if GOOD[name] is None else str(GOOD[name]) for name in names)]
    rows += ["one,two", rows[0].replace("True", "perhaps"), rows[0].replace("2015-09-12T01:00:00", "yesterday")]
    (tmp_path / "edits.csv").write_text("\n".join([",".join(names), *rows]))
    for path in ("edits.json", "edits.csv"):
        prepared = prepare.edits(prepare.read(spark, str(tmp_path / path), "edits"))
        counts = prepared.counts()
        assert (counts.read, counts.dropped["unreadable line"], counts.kept) == (4, 3, 1), path
        assert prepared.rows.select("page").count() == len(prepared.rows.collect()) == 1
        assert "_unreadable" not in prepared.rows.columns


def test_file_with_other_columns_is_refused(spark, tmp_path):
    (tmp_path / "texts.csv").write_text("arrival_ts,event_ts,author,is_merge,text\n,,1,true,a\n")
    with pytest.raises(Exception, match=r"(?i)header|author"):
        prepare.texts(prepare.read(spark, str(tmp_path / "texts.csv"), "texts")).counts()
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "texts.parquet")
    with pytest.raises(SchemaMismatch, match=r"texts: columns \['arrival_ts', 'event_ts', 'author_id'\] are missing"):
        prepare.texts(prepare.read(spark, str(tmp_path / "texts.parquet"), "texts"))


def test_unknown_format_recording_and_path_are_named(spark, tmp_path):
    with pytest.raises(SourceError, match=r"the format of 'rows.xml' is unknown, format is None: .*csv, json, parquet"):
        prepare.read(spark, "rows.xml", "edits")
    with pytest.raises(SourceError, match="there is no recording 'poems': give one of flights"):
        prepare.read(spark, "rows.csv", "poems")
    with pytest.raises(SparkFailed, match=r"reading .*nowhere.csv: .*PATH_NOT_FOUND"):
        prepare.read(spark, str(tmp_path / "nowhere.csv"), "edits")
