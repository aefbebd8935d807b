"""Spark reads the state of an operator from a checkpoint, without a job."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.checkpoint import state_file
from dask_elastic.spark import register
from dask_elastic.spark.state_reader import StateReader, StateTarget, _for_spark
from dask_elastic.vocab.errors import HandoffError


def test_spark_reads_the_state_of_a_checkpoint_in_parts(spark, client, tmp_path, monkeypatch):
    topology = de.Topology("saved")
    rows = pa.table({"k": [f"k{i % 7}" for i in range(700)], "v": pa.array([i % 10 for i in range(700)], pa.uint64())})
    aggregates = {"rows": de.aggregate.Count(), "sum": de.aggregate.Sum("v"), "top": de.aggregate.TopK("v", 2)}
    keyed = topology.source("rows", de.sources.Arrow(rows)).key_by("k")
    counted = keyed.compute(aggregates, name="per_key", executors=2, shards=4)
    # A sink takes a last checkpoint.
    counted.sink(de.sinks.Parquet(tmp_path / "out"), name="out")
    job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="1h")
    job.wait(100, progress=False)
    register(spark)
    reader = spark.read.format("dask_elastic").option("operator", "per_key")
    frame = reader.option("number", "1").option("parts", "3").load(str(tmp_path / "checkpoints"))
    found = {row["k"]: (row["rows"], row["sum"], list(row["top"])) for row in frame.collect()}
    state = de.read_state(tmp_path / "checkpoints", "per_key").to_pylist()
    assert found == {row["k"]: (row["rows"], row["sum"], [int(each) for each in row["top"]]) for row in state}
    assert len(found) == 7
    assert frame.rdd.getNumPartitions() == 3
    # By default there is a task for each executor, which reads its files once, however small its portions are.
    monkeypatch.setattr("dask_elastic.checkpoint.saved_state.PART_BYTES", 1)
    paths = []
    read = state_file.read
    monkeypatch.setattr(state_file, "read", lambda folder, ref: (paths.append(ref.path), read(folder, ref))[1])
    reader = StateReader(StateTarget(str(tmp_path / "checkpoints"), "per_key"))
    batches = [list(reader.read(partition)) for partition in reader.partitions()]
    assert len(batches) == 2
    assert max(map(len, batches)) > 1
    assert sorted(k for task in batches for batch in task for k in batch.column("k").to_pylist()) == sorted(found)
    assert len(paths) == len(set(paths)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/x"}, r'add \.option\("operator", name\)'),
        ({"operator": "a"}, r"add \.load\(folder of checkpoints\)"),
        ({"operator": "a", "path": "/x", "parts": "0"}, "option parts is '0'; give a whole number above 0"),
        ({"operator": "a", "path": "/x", "job": "b"}, "it has no option 'job'"),
    ],
)
def test_invalid_options_of_a_reader_are_refused(options, message):
    with pytest.raises(HandoffError, match=message):
        StateTarget.from_options(options)


def test_types_that_spark_lacks_become_the_nearest_ones():
    kinds = [
        pa.large_string(),
        pa.uint64(),
        pa.list_(pa.uint8()),
        pa.map_(pa.large_string(), pa.timestamp("ns", "UTC")),
    ]
    kinds += [pa.struct({"a": pa.duration("ms")}), pa.float16(), pa.large_binary(), pa.int32()]
    found = _for_spark(pa.schema([(str(number), kind) for number, kind in enumerate(kinds)])).types
    assert found == [
        pa.string(),
        pa.decimal128(20, 0),
        pa.list_(pa.int16()),
        pa.map_(pa.string(), pa.timestamp("us", "UTC")),
        pa.struct({"a": pa.duration("us")}),
        pa.float32(),
        pa.binary(),
        pa.int32(),
    ]
