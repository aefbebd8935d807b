"""The demonstration's flights keep their order on the way through Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dask_elastic.cli.demo.spark_feed import SparkFeed

ROWS = 40
IN_FILE = 10


@pytest.fixture
def flights():
    """Return flights in order; later ones have more text, so that Spark would read their files first."""
    return pa.table(
        {
            "sched_dep": [f"2013-01-01 00:{minute:02}:00" for minute in range(ROWS)],
            "flight": [1] * ROWS,
            "route": ["JFK-LAX"] * ROWS,
            "tailnum": ["N" * (1 + minute) for minute in range(ROWS)],
            "arr_delay": ["1"] * ROWS,
        }
    )


def test_flights_of_files_that_arrive_at_once_keep_their_order(spark, tmp_path, flights, monkeypatch):
    monkeypatch.setattr(SparkFeed, "_run", tmp_path)
    feed = SparkFeed()
    feed._folder.mkdir()
    feed._arrive(flights, IN_FILE, seconds=0.0)

    writer = feed._cleaned(spark).writeStream.format("memory").queryName("arrived")
    writer.trigger(availableNow=True).start().awaitTermination()
    arrived = [row.sched_dep.minute for row in spark.table("arrived").collect()]

    assert arrived == [*range(ROWS)]
