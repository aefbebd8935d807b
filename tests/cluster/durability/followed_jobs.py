"""A job with checkpoints that tracks the order of the rows of each key and writes each row, and what it must yield."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.dataset as ds

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import STATE, following, numbered_rows

sys.path.pop(0)

ROWS = numbered_rows(40_000, keys=100)
RATE = 10_000


def followed(folder, rows=ROWS, rate=RATE, parallel=2, **compute):
    """A topology that tracks the order of the rows of each key, and writes each row."""
    topology = de.Topology("durable")
    source = de.sources.Arrow(rows, rate=rate, parallel=parallel, batch_rows=700)
    out = (
        topology.source("rows", source)
        .key_by("k")
        .compute(following(), name="followed", state=STATE, **{"executors": 2, "shards": 16, **compute})
    )
    out.sink(de.sinks.Parquet(folder), name="out")
    return topology


def expected(rows=ROWS):
    """Count, sum, least and greatest value by key."""
    grouped = rows.group_by("k").aggregate([("v", "count"), ("v", "sum"), ("v", "min"), ("v", "max")])
    return {row["k"]: (row["v_count"], row["v_sum"], row["v_min"], row["v_max"]) for row in grouped.to_pylist()}


def counted(job):
    """The same of a job's state."""
    table = job.state("followed").to_arrow().to_pylist()
    return {row["k"]: (row["n"], row["sum"], row["low"], row["high"]) for row in table}


def written(folder):
    """Key and number of all visible rows, sorted."""
    table = ds.dataset(folder, format="parquet").to_table(columns=["k", "seq"])
    return table.sort_by([("k", "ascending"), ("seq", "ascending")])


def assert_each_row_once(folder, rows=ROWS):
    """Assert that the sink shows each row once."""
    wanted = rows.select(["k", "seq"]).sort_by([("k", "ascending"), ("seq", "ascending")])
    assert written(folder).equals(wanted)


def newest(job):
    """The newest complete checkpoint of a job."""
    taken = job.checkpoints()
    return int(taken[taken["error"].isna()]["number"].max()) if len(taken) else 0
