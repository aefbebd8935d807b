"""Sources, sinks and shapes of topologies on a real cluster, compared with one process that reads the same rows."""

from __future__ import annotations

import datetime
import threading
import time
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dask_elastic as de

RUN = {"timeout": 100, "progress": False}


def count(stream, *keys, name="counted", **compute):
    """Count the rows of each key, and sum their column v."""
    logic = {"n": de.aggregate.Count(), "sum": de.aggregate.Sum("v")}
    return stream.key_by(*keys).compute(logic, name=name, **compute)


def finished(topology, client, **options):
    """Run a topology to its end."""
    job = de.submit(topology, client, **options)
    job.wait(**RUN)
    return job


def assert_counted(job, frame, *keys, name="counted"):
    """The state is what pandas counts."""
    wanted = frame.groupby(list(keys), dropna=False)["v"].agg(["count", "sum"]).sort_index()
    state = job.state(name).to_pandas().set_index(list(keys)).sort_index()
    assert state.index.tolist() == wanted.index.tolist()
    assert state["n"].tolist() == wanted["count"].tolist()
    assert state["sum"].tolist() == wanted["sum"].tolist()


@pytest.fixture
def frame():
    random = np.random.default_rng(11)
    return pd.DataFrame({"k": random.integers(0, 50, 20_000), "v": np.arange(20_000)})


# sources


def test_parquet_files_are_read_by_two_instances(client, frame, tmp_path):
    for number in range(5):
        part = frame.iloc[number * 4_000 : (number + 1) * 4_000]
        pq.write_table(pa.Table.from_pandas(part, preserve_index=False), tmp_path / f"{number}.parquet")
    topology = de.Topology("files")
    rows = topology.source("rows", de.sources.Parquet(tmp_path, parallel=2))
    count(rows, "k")
    job = finished(topology, client)
    assert_counted(job, frame, "k")
    read = job._describe().sources
    assert len(read) == 2
    assert all(part.rows for part in read)


def test_source_with_rate_keeps_its_rate(client, frame, slowness):
    topology = de.Topology("paced")
    rows = topology.source("rows", de.sources.Arrow(pa.Table.from_pandas(frame), rate=20_000))
    count(rows, "k")
    began = time.monotonic()
    job = finished(topology, client)
    assert 0.85 < time.monotonic() - began < 20 * slowness()
    assert_counted(job, frame, "k")


def test_tiny_batches_of_paced_source_that_are_due_are_joined(client):
    rows = 20_000

    def single():
        for number in range(rows):
            yield pa.record_batch({"n": pa.array([number], pa.int64())})

    def count(batch):
        return pa.record_batch({"n": batch["n"], "batch": pa.array([batch["n"][0].as_py()] * batch.num_rows)})

    topology = de.Topology("tiny")
    topology.source("rows", de.sources.Iterable(single, rate=20_000)).map(count).sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client)
    job.wait(**RUN)
    got = job.collect("out")
    assert got["n"].to_pylist() == list(range(rows))
    assert len(got["batch"].unique()) < rows / 2


def test_sources_have_the_longest_tick_of_their_job(client):
    def ticks(dask_worker, job):
        part = dask_worker.plugins["dask-elastic-worker"].runtime.job_parts[job]
        return [source._pace._longest for source in part.sources.values()]

    for options, seconds in (({}, 0.02), ({"longest_tick": "1ms"}, 0.001)):
        topology = de.Topology("ticking")
        topology.source("rows", de.sources.Arrow(pa.table({"n": [1, 2]}), rate=0.001)).sink(de.sinks.Collect())
        job = de.submit(topology, client, **options)
        found = [longest for one in client.run(ticks, job=job.name).values() for longest in one]
        job.stop()
        assert found == [seconds]


def test_iterable_source_yields_on_two_workers(client, frame):
    def parts(instance, instances):
        for start in range(instance * 1_000, len(frame), instances * 1_000):
            yield frame.iloc[start : start + 1_000]

    topology = de.Topology("iterable")
    count(topology.source("rows", de.sources.Iterable(parts, parallel=2)), "k")
    assert_counted(finished(topology, client), frame, "k")


def test_send_to_full_source_blocks(client, tmp_path, wait_until):
    gate = tmp_path / "gate"

    def wait_for_gate(batch):
        deadline = time.monotonic() + 100
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return batch

    mib = 2**20
    table = pa.table({"k": np.arange(mib // 2) % 7, "v": np.ones(mib // 2, dtype=np.int64)})
    assert table.nbytes == 8 * mib
    topology = de.Topology("full")
    rows = topology.source("rows", de.sources.Push(table.schema)).map(wait_for_gate, name="gate")
    count(rows, "k")
    job = de.submit(topology, client, channel_window="4MiB")
    sent = []

    def send():
        for _ in range(12):
            job.send(table)
            sent.append(table.num_rows)

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: len(sent) >= 4, "the mailbox is filled")
    settled = time.monotonic() + 2.5
    wait_until(lambda: time.monotonic() > settled, "two attempts of the sender have passed")
    assert sender.is_alive()
    assert 4 <= len(sent) <= 7
    gate.touch()
    sender.join(100)
    assert len(sent) == 12
    job.end_of_input()
    job.wait(**RUN)
    assert job.state("counted").to_pandas()["sum"].sum() == 12 * table.num_rows


def test_rows_of_one_sender_keep_their_order(client):
    topology = de.Topology("ordered")
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    topology.source("rows", de.sources.Push(schema)).sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client)
    for number in range(50):
        job.send(pa.record_batch({"v": [2 * number, 2 * number + 1], "k": [1, 1]}))
    job.end_of_input()
    job.wait(**RUN)
    assert job.collect("out")["v"].to_pylist() == list(range(100))


# sinks


def test_parquet_files_hold_the_last_value_of_every_key(client, frame, tmp_path):
    topology = de.Topology("written")
    rows = topology.source("rows", de.sources.Arrow(pa.Table.from_pandas(frame), batch_rows=1_000))
    count(rows, "k", executors=3).sink(de.sinks.Parquet(tmp_path / "out", rows_per_file=10), name="out")
    job = finished(topology, client)
    files = sorted((tmp_path / "out").glob("*.parquet"))
    assert len(files) > 3
    written = pd.concat([pq.read_table(file).to_pandas() for file in files])
    last = written.groupby("k")["n"].max()
    assert last.tolist() == frame.groupby("k").size().tolist()
    assert sum(part.rows for part in job._describe().sinks) == len(written)
    assert not list((tmp_path / "out").glob(".*"))


def test_parquet_files_of_two_runs_have_two_identifiers(client, numbers, tmp_path):
    topology = de.Topology("twice")
    rows = topology.source("rows", de.sources.Arrow(numbers, parallel=2))
    rows.sink(de.sinks.Parquet(tmp_path, mode="append", rows_per_file=100), name="out")
    for _ in range(2):
        finished(topology, client)
    files = [path.name.removeprefix("part-twice-out-").split("-") for path in tmp_path.iterdir()]
    assert len(files) > 10
    assert len({run for run, *_ in files}) == 2
    assert {len(run) for run, *_ in files} == {12}
    assert pq.read_table(tmp_path).num_rows == 2 * len(numbers)


def test_sink_function_gets_every_batch_and_is_closed_once_per_instance(client, frame, tmp_path):
    folder = str(tmp_path)

    def note(batch):
        with open(f"{folder}/{threading.get_ident()}.rows", "a") as file:  # noqa: PTH123
            file.write(f"{batch.num_rows}\n")

    def close():
        with open(f"{folder}/{threading.get_ident()}.closed", "a") as file:  # noqa: PTH123
            file.write("closed\n")

    topology = de.Topology("called")
    rows = topology.source("rows", de.sources.Arrow(pa.Table.from_pandas(frame), batch_rows=1_000, parallel=3))
    rows.sink(de.sinks.Call(note, close=close), name="out")
    finished(topology, client)
    lines = [int(line) for file in tmp_path.glob("*.rows") for line in file.read_text().split()]
    assert sum(lines) == len(frame)
    closed = [line for file in tmp_path.glob("*.closed") for line in file.read_text().split()]
    assert len(closed) == 3


def test_collected_rows_of_running_job_are_readable(client, wait_until):
    topology = de.Topology("collected")
    schema = pa.schema({"k": pa.int64()})
    topology.source("rows", de.sources.Push(schema)).sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client)
    assert job.collect("out").num_rows == 0
    job.send(pa.table({"k": [1, 2, 3]}))
    wait_until(lambda: job.collect("out").num_rows == 3, "the rows arrive")


# shapes


def test_union_with_two_consumers_delivers_every_row_to_both(client, frame):
    half = len(frame) // 2
    topology = de.Topology("shapes")
    first = topology.source("first", de.sources.Arrow(pa.Table.from_pandas(frame.iloc[:half], preserve_index=False)))
    second = topology.source("second", de.sources.Arrow(pa.Table.from_pandas(frame.iloc[half:], preserve_index=False)))
    both = first.union(second)
    count(both, "k", name="all")
    count(both.filter(pc.field("v") < 5_000, name="low"), "k", name="few")
    count(second, "k", name="later")
    both.sink(de.sinks.Collect(), name="out")
    job = finished(topology, client)
    assert_counted(job, frame, "k", name="all")
    assert_counted(job, frame[frame["v"] < 5_000], "k", name="few")
    assert_counted(job, frame.iloc[half:], "k", name="later")
    assert sorted(job.collect("out")["v"].to_pylist()) == frame["v"].tolist()


def test_chained_computes_match_single_process_result(client, frame):
    def to_tens(batch):
        return pa.record_batch({"ten": pc.divide(batch["k"], 10), "v": batch["n"]})

    topology = de.Topology("chain")
    rows = topology.source("rows", de.sources.Arrow(pa.Table.from_pandas(frame), batch_rows=500))
    first = count(rows, "k", name="per_key", executors=2)
    kept = first.filter(pc.field("k") < 30, name="below-30").map(to_tens, name="to-tens")
    kept.key_by("ten").compute({"most": de.aggregate.Max("v")}, name="per_ten", executors=2)
    job = finished(topology, client)
    assert_counted(job, frame, "k", name="per_key")
    sizes = frame.groupby("k").size()
    wanted = sizes[sizes.index < 30].groupby(sizes.index[sizes.index < 30] // 10).max()
    state = job.state("per_ten").to_pandas().sort_values("ten")
    assert state["most"].tolist() == wanted.tolist()


def test_map_returning_several_batches_or_none_is_accepted(client, frame):
    def twice(batch):
        kept = batch.filter(pc.greater_equal(batch["v"], 100))
        return [kept, kept] if kept.num_rows else None

    topology = de.Topology("several")
    rows = topology.source("rows", de.sources.Arrow(pa.Table.from_pandas(frame, preserve_index=False), batch_rows=100))
    count(rows.map(twice, name="twice"), "k")
    assert_counted(finished(topology, client), pd.concat([frame.iloc[100:]] * 2), "k")


# keys

NOON = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.UTC)
KEYS = {
    "int8": pa.array([1, -1, 5, 1], pa.int8()),
    "uint64": pa.array([2**64 - 1, 0, 1, 2**64 - 1], pa.uint64()),
    "float32": pa.array([1.5, -0.0, 0.0, 1.5], pa.float32()),
    "bool": pa.array([True, False, None, True]),
    "string": pa.array(["Zürich", "", None, "Zürich"]),
    "large_string": pa.array(["a" * 100, "b", "ab", "a" * 100], pa.large_string()),
    "binary": pa.array([b"\x00", b"", b"\x00\x00", b"\x00"]),
    "dictionary": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "string_view": pa.array(["a" * 100, "b", None, "a" * 100], pa.string_view()),
    "decimal": pa.array([Decimal("1.10"), Decimal("-1.10"), Decimal("0.00"), Decimal("1.10")], pa.decimal128(9, 2)),
    "timestamp": pa.array([NOON, NOON + datetime.timedelta(1), None, NOON], pa.timestamp("ms", "UTC")),
    "date": pa.array([NOON.date(), datetime.date(1969, 12, 31), None, NOON.date()]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_counted_and_looked_up(client, kind):
    keys = KEYS[kind]
    table = pa.table({"k": pa.concat_arrays([keys] * 50), "v": np.arange(200)})
    topology = de.Topology(kind)
    count(topology.source("rows", de.sources.Arrow(table, batch_rows=7)), "k", executors=2)
    job = finished(topology, client)
    state = job.state("counted")
    wanted = {}
    for key in keys.to_pylist():
        wanted[key] = wanted.get(key, 0) + 50
    made = state.to_arrow()
    assert dict(zip(made["k"].to_pylist(), made["n"].to_pylist(), strict=True)) == wanted
    for key, rows in wanted.items():
        assert state.get(key)["n"] == rows


def test_several_key_columns_form_one_key(client, frame):
    frame["name"] = np.array(["a", "b", None], dtype=object)[frame["v"] % 3]
    topology = de.Topology("multi")
    rows = topology.source("rows", de.sources.Arrow(pa.Table.from_pandas(frame, preserve_index=False), batch_rows=999))
    count(rows, "name", "k", executors=3)
    job = finished(topology, client)
    state = job.state("counted")
    wanted = frame.groupby(["name", "k"], dropna=False)["v"].size()
    assert len(state.to_arrow()) == len(wanted)
    for name in ("a", "b"):
        assert state.get((name, 7))["n"] == wanted[name, 7]
    missing = frame["name"].isna() & (frame["k"] == 7)
    assert state.get((None, 7))["n"] == missing.sum()
    assert state.get(("c", 7)) is None


def test_batches_with_different_dictionaries_form_one_column(client):
    words = [f"word-{number}" for number in range(300)]

    def parts():
        for start in range(0, 300, 10):
            chosen = words[start : start + 10] * 2
            yield pa.record_batch({"k": pa.array(chosen).dictionary_encode(), "v": pa.array(range(20))})

    topology = de.Topology("dictionaries")
    rows = topology.source("rows", de.sources.Iterable(parts))
    count(rows, "k", executors=2)
    rows.sink(de.sinks.Collect(), name="out")
    job = finished(topology, client)
    state = job.state("counted").to_arrow()
    assert sorted(state["k"].to_pylist()) == sorted(words)
    assert state["n"].to_pylist() == [2] * 300
    assert job.collect("out")["k"].to_pylist() == [w for s in range(0, 300, 10) for w in words[s : s + 10] * 2]
