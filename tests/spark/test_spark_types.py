"""Spark's types in a job: values are kept, and mismatches are refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.spark import SparkFailed, handoff, into, register
from dask_elastic.spark.failure import spark_errors
from dask_elastic.vocab.errors import TopologyError

DDL = (
    "number bigint, tiny tinyint, price decimal(38,18), at timestamp, local timestamp_ntz, day date, flag boolean, "
    "raw binary, word string, real float, tags array<string>, place struct<name: string, seen: timestamp>, "
    "counts map<string, bigint>, span interval day to second"
)
SEEN = dt.datetime(2013, 3, 10, 2, 30, tzinfo=ZoneInfo("UTC"))
FULL = {
    "number": -(2**63),
    "tiny": -128,
    "price": Decimal("12345678901234567890.123456789012345678"),
    "at": dt.datetime(2013, 11, 3, 1, 30, 0, 123456, tzinfo=ZoneInfo("UTC")),
    "local": dt.datetime(2013, 11, 3, 1, 30, 0, 654321),
    "day": dt.date(1582, 10, 15),
    "flag": True,
    "raw": b"\x00\xff",
    "word": "Zürich \u4e2d",
    "real": 0.5,
    "tags": ["a", None, ""],
    "place": {"name": "EWR", "seen": SEEN},
    "counts": {"a": 1, "b": None},
    "span": dt.timedelta(days=-1, microseconds=1),
}
ROWS = [FULL, dict.fromkeys(FULL)]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_of_every_type_are_kept(spark, client, zone):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame([tuple(row.values()) for row in ROWS], DDL)
        topology = de.Topology("types")
        topology.source("rows", de.sources.Spark(frame.schema)).sink(de.sinks.Collect(), name="kept")
        job = de.submit(topology, client)
        handoff(frame, 0, job, query="types", end=True)
        job.wait(100, progress=False)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    got = sorted(job.collect("kept").to_pylist(), key=lambda row: row["number"] is None)
    got[0]["counts"] = dict(got[0]["counts"])
    assert got == ROWS


def test_reordered_columns_are_accepted_and_changed_ones_refused(spark, client):
    frame = spark.range(10).selectExpr("id as k", "cast(id as string) as word")
    topology = de.Topology("columns")
    rows = topology.source("rows", de.sources.Spark(pa.schema({"k": pa.int64(), "word": pa.string()})))
    rows.sink(de.sinks.Collect(), name="kept")
    job = de.submit(topology, client)
    handoff(frame.select("word", "k"), 0, job, query="columns")
    wrong = "column 'k': int32 instead of int64; missing: 'word'; unexpected: 'words'"
    with pytest.raises(SparkFailed, match=wrong):
        handoff(frame.selectExpr("cast(k as int) as k", "word as words"), 1, job, query="columns")
    job.end_of_input()
    job.wait(100, progress=False)
    assert job.collect("kept").sort_by("k").to_pydict() == {"k": [*range(10)], "word": [str(n) for n in range(10)]}


def test_invalid_writer_options_are_refused(spark, client):
    register(spark)
    frame = spark.range(3)
    topology = de.Topology("refusals")
    topology.source("rows", de.sources.Spark(frame.schema)).sink(de.sinks.Collect(), name="kept")
    options = into(de.submit(topology, client))
    for change, message in [
        ({"job": "refusal"}, "no job 'refusal': the cluster knows"),
        ({"source": "row"}, r"has no source 'row' that takes epochs: choose from \['rows'\]"),
        ({"epoch": "x"}, "option epoch is 'x'"),
        ({"sourc": "rows"}, "has no option 'sourc'"),
    ]:
        with pytest.raises(SparkFailed, match=message), spark_errors("writing"):
            frame.write.format("dask_elastic").options(**{**options, **change}).mode("append").save()
    with pytest.raises(SparkFailed, match="only appends rows"), spark_errors("writing"):
        frame.write.format("dask_elastic").options(**options).mode("overwrite").save()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": {"a": "int"}}, "pyarrow Schema or Spark's StructType"),
        ({"schema": pa.schema([])}, "at least one column"),
        ({"schema": pa.schema([("a", pa.int8()), ("a", pa.int8())])}, "occurs twice"),
        ({"epochs": 0}, "epochs is 0"),
        ({"staging": "much"}, "staging is 'much'"),
        ({"staging": 0}, "a size above 0"),
    ],
)
def test_invalid_spark_source_options_are_refused(options, message):
    with pytest.raises(TopologyError, match=message):
        de.sources.Spark(**{"schema": pa.schema({"a": pa.int8()}), **options})
