from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from dask_elastic.planning.intervals.node_trace import arrivals, node_trace
from dask_elastic.spark import prepare
from dask_elastic.spark.prepare import PreparationError


@pytest.fixture(scope="module")
def edits(spark, sample):
    frame = sample("edits")[["ts", "channel", "page"]].rename(columns={"ts": "event_time"})
    frame.loc[frame.index[:7], "channel"] = None
    schema = "event_time timestamp_ntz, channel string, page string"
    rows = [(time.to_pydatetime(), None if pd.isna(channel) else channel, page) for time, channel, page in frame.values]
    return spark.createDataFrame(rows, schema).cache(), frame


@pytest.mark.parametrize("interval", ["1h", "90s", 0.25])
def test_rates_equal_those_of_planning(edits, interval):
    spark_rows, frame = edits
    times = frame["event_time"].to_numpy().astype("datetime64[us]")
    step = np.timedelta64(
        round(pd.Timedelta(interval, "s" if isinstance(interval, float) else None).total_seconds() * 1e6), "us"
    )
    found = prepare.rates(spark_rows, interval)
    start, counts = arrivals(times, step)
    assert found.start == start
    np.testing.assert_array_equal(found.rows, counts)
    assert found.rows.sum() == len(frame)
    assert found.times[-1] <= times.max() < found.times[-1] + step
    np.testing.assert_allclose(found.per_second, counts / (step / np.timedelta64(1, "s")))


def test_nodes_equal_those_of_planning(edits):
    spark_rows, frame = edits
    hour = np.timedelta64(1, "h")
    found = prepare.rates(spark_rows, hour).nodes(least=8, most=16, peak=0.9)
    expected = node_trace(frame["event_time"].to_numpy(), hour, 8, 16, 0.9)
    assert found.start == expected.start
    np.testing.assert_array_equal(found.nodes, expected.nodes)
    assert len(set(found.nodes.tolist())) > 1


def test_nodes_at_returns_fewest_nodes_for_the_rate(edits):
    found = prepare.rates(edits[0], "10m")
    nodes = found.nodes_at(rows_per_second=0.05).nodes
    assert (nodes * 0.05 >= found.per_second).all()
    assert ((nodes == 1) | ((nodes - 1) * 0.05 < found.per_second)).all()
    with pytest.raises(PreparationError, match="rows_per_second is 0"):
        found.nodes_at(0)


def test_histograms_equal_those_of_pandas(edits):
    spark_rows, frame = edits
    found = prepare.key_histograms(spark_rows, "channel", "1h")
    grouped = frame.groupby([frame["event_time"].dt.floor("h"), "channel"], dropna=False).size()
    expected = {(time, None if pd.isna(key) else key): rows for (time, key), rows in grouped.items()}
    columns = [found[name].to_pylist() for name in ("interval", "key", "rows")]
    assert {(pd.Timestamp(time), key): rows for time, key, rows in zip(*columns, strict=True)} == expected
    assert len(found) == len(expected)
    assert columns[0] == sorted(columns[0])
    first = [rows for time, rows in zip(columns[0], columns[2], strict=True) if time == columns[0][0]]
    assert first == sorted(first, reverse=True)


def test_rates_include_empty_intervals_and_times_before_1970(spark):
    rows = spark.sql(
        """
        select * from values (timestamp_ntz '1969-12-31 23:30:00'), (timestamp_ntz '1970-01-01 02:00:00') as rows(at)
        """
    )
    found = prepare.rates(rows, "1h", time="at")
    assert (found.start, found.rows.tolist()) == (np.datetime64("1969-12-31T23"), [1, 0, 0, 1])


def test_timestamps_with_a_zone_count_in_utc(spark):
    rows = spark.sql("select timestamp '2013-01-01 10:30:00+05:00' as at")
    assert prepare.rates(rows, "1h", time="at").start == np.datetime64("2013-01-01T05")


def test_rates_refuse_invalid_input(spark, edits):
    empty = edits[0].where("false")
    with pytest.raises(PreparationError, match="there are no rows"):
        prepare.rates(empty, "1h")
    for interval in ("0s", "10 fortnights", np.timedelta64(1, "M"), "-1h"):
        with pytest.raises(PreparationError, match=re.escape(f"interval is {interval!r}: give a length of")):
            prepare.rates(edits[0], interval)
    missing = spark.sql("select cast(null as timestamp_ntz) as event_time, 'a' as channel")
    with pytest.raises(PreparationError, match="'event_time' has rows without a timestamp"):
        prepare.rates(missing, "1h")
    with pytest.raises(PreparationError, match="needs a batch, not a stream"):
        prepare.rates(spark.readStream.format("rate").load(), "1h", time="timestamp")
