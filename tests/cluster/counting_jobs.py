"""Jobs that count rows by the column k; most cluster tests run one of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import dask_elastic as de

RUN = {"timeout": 100, "progress": False}
NUMBERS = pa.table({"k": np.arange(2_000) % 10, "v": np.arange(2_000)})
SCHEMA = NUMBERS.schema


def counting(source, name="count", **compute):
    """A topology that counts rows by the column k."""
    topology = de.Topology(name)
    rows = topology.source("rows", source)
    counted = rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted", **compute)
    counted.sink(de.sinks.Collect(), name="out")
    return topology


def counting_rows(table, batch_rows=1_000, **compute):
    """A topology that counts the rows of a table by the column k and has no sink."""
    topology = de.Topology("count")
    rows = topology.source("rows", de.sources.Arrow(table, batch_rows=batch_rows))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted", **compute)
    return topology


def mapped(function, table, batch_rows=100):
    """A topology that maps rows before it counts them by the column k."""
    topology = de.Topology("mapped")
    rows = topology.source("rows", de.sources.Arrow(table, batch_rows=batch_rows))
    rows.map(function, name="tidy").key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    return topology


def held(client, name="held", **options):
    """A job that runs until its input is ended."""
    return de.submit(counting(de.sources.Push(SCHEMA)), client, name=name, **options)


def assert_runs(client, name="next"):
    """Assert that the cluster runs a job with the right result."""
    job = de.submit(counting(de.sources.Arrow(NUMBERS, batch_rows=100)), client, name=name)
    job.wait(**RUN)
    assert job.state("counted").to_pandas()["n"].tolist() == [200] * 10
