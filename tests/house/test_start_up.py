"""What a process imports: no library that takes long to import before it is used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import dask_elastic as de

HEAVY = {"bokeh", "fsspec", "highspy", "matplotlib", "pandas", "pymetis", "rich", "scipy"}

SCHEDULER = "dask_elastic.runtime.scheduler.coordinator, dask_elastic.dashboard.display, dask_elastic.control.loop"


def loaded(code: str, base: str = "distributed") -> set[str]:
    """Return the modules that a fresh interpreter has imported after running code, beyond those of a base."""
    code = f"import sys, {base}\nbefore = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return set(done.stdout.split())


def imported(code: str, base: str = "distributed") -> set[str]:
    """Return the libraries of these modules."""
    return {name.partition(".")[0] for name in loaded(code, base)}


@pytest.mark.parametrize(
    "modules",
    [
        "dask_elastic",
        "dask_elastic_plugins.install, dask_elastic_plugins.worker, dask_elastic_plugins.scheduler",
        "dask_elastic.runtime.worker.node",
        "dask_elastic.cli.main",
        "dask_elastic.testing",
        SCHEDULER,
    ],
)
def test_import_loads_no_heavy_library(modules):
    assert imported(f"import {modules}") & HEAVY == set()


def test_workers_import_what_few_jobs_need_when_it_is_used():
    unused = ("dask_elastic.executor.joins", "dask_elastic.executor.windows.", "dask_elastic.checkpoint.restore")
    found = {name for name in loaded("import dask_elastic.runtime.worker.node") if name.startswith(unused)}
    assert found == {"dask_elastic.executor.windows.event_times"}


def test_submit_and_first_rows_load_no_heavy_library():
    code = """
import pyarrow as pa
import dask_elastic as de
from dask_elastic.runtime.client.submission.described_job import checked_job
from dask_elastic.testing.run import run

numbers = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(16))])
rows = pa.Table.from_batches([pa.RecordBatch.from_arrays([numbers], ["k"])])
topology = de.Topology("first")
keyed = topology.source("rows", de.sources.Arrow(rows)).key_by("k")
counted = keyed.compute({"n": de.aggregate.Count()}, name="counted")
counted.sink(de.sinks.Call(print), name="out")
checked_job(topology, None, None, False, {})
assert run(topology).outputs["counted"].to_pydict() == {"k": [0], "n": [2]}
windowed = de.Topology("windowed")
times = pa.Array.from_buffers(pa.timestamp("us"), 2, [None, pa.py_buffer(bytes(16))])
timed = pa.Table.from_batches([pa.RecordBatch.from_arrays([numbers, times], ["k", "at"])])
keyed = windowed.source("rows", de.sources.Arrow(timed, event_time="at")).key_by("k")
counted = keyed.window("1s").compute({"n": de.aggregate.Count()}, name="counted")
counted.sink(de.sinks.Call(print), name="out")
assert run(windowed).outputs["counted"].column("n").to_pylist() == [2]

def items():
    yield {"k": [1, 2, 1], "word": ["a", None, "c"]}

def seen(state, word):
    state["n"], state["word"] = (state["n"] or 0) + 1, word
    return {"n": state["n"], "word": word, "half": state["n"] / 2, "is_first": state["n"] == 1}

@de.per_row
def per_row(row, state):
    return seen(state, row["word"])

@de.per_key
def per_key(key, rows, state):
    return [seen(state, word) for word in rows["word"].to_pylist()]

own = de.Topology("own")
keyed = own.source("rows", de.sources.Iterable(items)).key_by("k")
for logic in (per_row, per_key):
    name = logic.function.__name__
    computed = keyed.compute(logic, state={"n": pa.int64(), "word": pa.string()}, name=name)
    computed.sink(de.sinks.Call(print), name=f"out_{name}")
results = run(own)
assert results.outputs["per_row"].column("word").to_pylist() == ["a", None, "c"]
assert results.outputs["per_key"].column("half").to_pylist() == [0.5, 0.5, 1.0]
assert results.state["per_row"].num_rows == 2
"""
    assert imported(code) & HEAVY == set()


def test_state_that_moves_and_event_times_load_no_heavy_library():
    code = """
import numpy as np
import pyarrow as pa
from dask_elastic.executor.control_records.source_clock import SourceClock
from dask_elastic.executor.windows.event_times import microseconds
from dask_elastic.executor.windows.row_sides import RowSides
from dask_elastic.state.codec import StateRows, decode, encode
from dask_elastic.state.disk.kept_rows import KeptRows
from dask_elastic.state.disk.unnamed_files import UnnamedFiles
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.topology.windowing import EventWindow, Windowing
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.identity import ExecutorId

words = np.arange(3, dtype=np.uint64)
fields = Field("n", np.dtype("int64"), 0), Field("at", np.dtype("M8[us]"), 0), Field("l", np.dtype("f8"), 0, True)
lists = Ragged.of_lengths(np.ones(3), np.array([1, 0, 2]))
values = [np.arange(3), np.arange(3).view("M8[us]"), lists]
keys = pa.RecordBatch.from_arrays([array_of(np.arange(3))], ["k"])
rows = StateRows(words, words, words.astype(np.int32), keys, fields, values, words == 1)
moved = decode(encode(rows))
assert moved.values[0].tolist() == [0, 1, 2] and moved.deleted.tolist() == [False, True, False]
kept = KeptRows(UnnamedFiles("."), 8, 1)
kept.add(rows, np.array([1, 4, 6]))
assert [slots.tolist() for part in kept.ranges for slots, _ in kept.take(part)] == [[1, 4, 6]]
times = array_of(np.array([5_000_000, 1_000_000]).view("M8[us]"), np.array([False, True]))
batch = pa.RecordBatch.from_arrays([times], ["at"])
clock = SourceClock(ExecutorId("rows", 0), "at")
clock.sent(batch, 0.0)
clock.sent(pa.RecordBatch.from_arrays([array_of(np.array([3_000_000]).view("M8[us]"))], ["at"]), 1.0)
assert clock.late == 1
assert microseconds(times, "at").tolist() == [5_000_000, 0]
assert RowSides(Windowing((EventWindow(0, 30, 10),), ("at",))).latest(batch) == 5_000_000
"""
    assert imported(code) & HEAVY == set()


def test_import_for_spark_loads_no_heavy_library():
    assert imported("import dask_elastic.spark.data_source", base="pyspark.sql.datasource") & HEAVY == set()


def test_import_for_spark_loads_only_modules_that_stage_rows():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, dask_elastic.spark.data_source; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    own = {name for name in done.stdout.split() if name.startswith("dask_elastic.")}
    # Each Python worker imports them anew: with the topology and the driver's modules there were 71.
    assert not {"dask_elastic.topology", "dask_elastic.spark.spark_session", "dask_elastic.spark.epoch_handoff"} & own
    assert len(own) <= 30


def test_handoff_from_a_python_worker_of_spark_loads_no_heavy_library():
    code = """
import pyarrow as pa
from dask_elastic.routing.row_digest import RowDigest
from dask_elastic.runtime.protocol.codec import encode
from dask_elastic.runtime.protocol.handoff_calls import BeginAttempt
from dask_elastic.spark import data_source, staging_connection
from dask_elastic.vocab.epoch import AttemptId

schema = pa.schema({"k": pa.int64(), "s": pa.string()})
offsets = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]))
buffers = [None, pa.py_buffer(bytes(16)), None, offsets, pa.py_buffer(b"ab")]
numbers = pa.Array.from_buffers(pa.int64(), 2, buffers[:2])
words = pa.Array.from_buffers(pa.string(), 2, buffers[2:])
batch = pa.RecordBatch.from_arrays([numbers, words], schema=schema)
digest = RowDigest()
digest.add(batch)
assert digest.rows == 2
encode(BeginAttempt, BeginAttempt(AttemptId("q", 1, 0, "0"), "job", 1, "rows", 0, schema.serialize().to_pybytes()))
batch.serialize()
"""
    assert imported(code, base="pyspark.sql.datasource, pyspark.sql.pandas.types") & HEAVY == set()


def test_exports_are_found_by_dir_and_by_name():
    assert set(de.__all__) <= set(dir(de))
    assert all(hasattr(de, name) for name in de.__all__)
