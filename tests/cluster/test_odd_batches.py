"""Batches of another schema, empty ones, very large ones, and unusual values in them."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from counting_jobs import RUN, counting_rows, mapped
from distributed import Client

import dask_elastic as de
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab import errors


def test_batch_of_wrong_schema_error_names_the_difference(client):
    def changes():
        yield {"k": [1, 2], "v": [1, 2]}
        yield {"k": [1, 2], "v": ["1", "2"]}

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Iterable(changes))
    rows.key_by("k").compute({"n": de.aggregate.Count("v")}, name="counted")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match="column 'v': string instead of int64") as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SchemaMismatch)


def test_map_that_changes_its_schema_error_names_the_difference(client, numbers):
    def fickle(batch):
        return [batch, batch.set_column(0, "k", batch["k"].cast(pa.int32()))]

    job = de.submit(mapped(fickle, numbers), client)
    with pytest.raises(errors.JobFailed, match=r"rows of 'tidy' .*column 'k': int32 instead of int64") as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SchemaMismatch)


def test_null_nan_and_negative_zero_are_valid_keys(client):
    values = [None, math.nan, -0.0, 0.0, 1.5, math.nan, None, 0.0]
    other_nan = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]
    table = pa.table({"k": pa.array([*values, other_nan, *[1.5] * 92], pa.float64(), from_pandas=False)})
    job = de.submit(counting_rows(table, batch_rows=3), client)
    job.wait(**RUN)
    state = job.state("counted")
    assert len(state.to_arrow()) == 4
    assert state.get(None)["n"] == 2
    assert state.get(math.nan)["n"] == 3
    assert state.get(-0.0)["n"] == 3
    assert state.get(0.0)["n"] == 3
    assert state.get(1.5)["n"] == 93
    assert state.get(2.5) is None


def test_empty_batches_and_empty_sources_are_processed(client):
    schema = pa.schema({"k": pa.int64()})
    empty = pa.RecordBatch.from_pylist([], schema)

    def gaps():
        yield empty
        yield {"k": [1]}
        yield empty
        yield {"k": [1]}

    topology = de.Topology("gaps")
    rows = topology.source("rows", de.sources.Iterable(gaps, schema=schema))
    nothing = topology.source("nothing", de.sources.Arrow(pa.Table.from_batches([], schema)))
    none_left = rows.filter(pc.field("k") > 5)
    none_left.key_by("k").compute({"n": de.aggregate.Count()}, name="none").sink(de.sinks.Collect(), name="out")
    rows.union(nothing).key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    job.wait(**RUN)
    assert job.state("counted").get(1)["n"] == 2
    assert job.state("none").to_arrow().num_rows == 0
    assert job.state("none").get(1) is None
    assert job.collect("out").num_rows == 0


def test_batch_of_a_million_rows_is_sliced(client):
    rows = 1_000_000
    batch = pa.record_batch({"k": np.arange(rows) % 1_000, "v": np.arange(rows)})

    def one():
        yield batch

    seen_most = de.aggregate.Max(lambda b: pa.array(np.full(b.num_rows, b.num_rows)), columns=["v"])
    topology = de.Topology("million")
    source = topology.source("rows", de.sources.Iterable(one, batch_rows=rows))
    source.key_by("k").compute({"n": de.aggregate.Count(), "most": seen_most}, name="counted")
    job = de.submit(topology, client)
    job.wait(**RUN)
    state = job.state("counted").to_pandas()
    assert state["n"].tolist() == [1_000] * 1_000
    assert state["most"].max() <= 65_536


def test_overflowing_sum_fails_job(client):
    table = pa.table({"k": [1, 1], "v": [2**62, 2**62]})
    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(table))
    rows.key_by("k").compute({"sum": de.aggregate.Sum("v")}, name="summed")
    with pytest.raises(errors.JobFailed) as e:
        de.submit(topology, client).wait(**RUN)
    assert isinstance(e.value.__cause__, errors.NumericOverflow)
    assert "operator 'summed': Sum('v'): a sum exceeds the range of the 64-bit integers" in str(e.value)


@pytest.mark.parametrize("direct", [None, False], ids=["worker", "scheduler"])
def test_sent_row_above_a_quarter_of_worker_memory_is_refused_alone(cluster, client, monkeypatch, direct):
    monkeypatch.setattr(Workers, "memory", lambda self, address: 4 * 2**20)
    schema = pa.schema({"k": pa.int64(), "text": pa.string()})
    topology = de.Topology("large")
    rows = topology.source("rows", de.sources.Push(schema))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted", executors=1)

    def row(nbytes):
        return pa.table({"k": [1], "text": ["x" * nbytes]}, schema)

    with Client(cluster, set_as_default=False, direct_to_workers=direct) as sending:
        job = de.submit(topology, sending)
        small, large = row(2**19), row(2**20)
        message = r"source 'rows' of job 'large': 1 row has 1\.00 MiB, and the worker takes 1\.00 MiB at once"
        for _ in range(2):
            job.send(small)
            with pytest.raises(errors.BatchTooLarge, match=message):
                job.send(large)
        job.end_of_input()
        job.wait(**RUN)
        assert job.state("counted").get(1)["n"] == 2
