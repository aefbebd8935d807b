"""The client's view of a job: metrics, assignment, state while it runs, and its repr."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.runtime.client.job_view import one_line
from dask_elastic.runtime.client.progress import Progress
from dask_elastic.vocab.errors import StateError

RUN = {"timeout": 100, "progress": False}
ROWS = pa.table({"k": np.arange(1_000) % 10, "word": [f"word-{n % 7}" for n in range(1_000)]})
METRICS = {
    "throughput", "customer_rows", "sojourn", "bytes_in", "bytes_out", "bound",
    "operator", "executor", "node", "cores", "arrival_rate", "service_rate", "queue", "latency_p50", "latency_p99",
    "on_time", "corrected", "late", "outside", "untimed", "open_windows",
    "state_bytes", "state_on_disk", "rows", "moves", "moves_across", "pending_bytes", "recovered", "refused",
    "recovery_p50", "recovery_p99", "event_time", "busy", "backpressured",
}  # fmt: skip


@pytest.fixture
def job(client):
    """A job that counts rows by number, by word and by both, until its input is ended."""
    topology = de.Topology("seen")
    rows = topology.source("rows", de.sources.Push(ROWS.schema))
    for name, keys in {"by_k": ["k"], "by_word": ["word"], "by_both": ["k", "word"]}.items():
        rows.key_by(*keys).compute({"n": de.aggregate.Count()}, name=name, executors=1)
    rows.sink(de.sinks.Collect(), name="out")
    return de.submit(topology, client, cores={"by_k": 1, "by_word": 1, "by_both": 1}, report_interval="50ms")


def processed(job, rows):
    """Whether every operator has processed so many rows."""
    done = job.metrics()["rows"]
    return len(done) == 3 and (done == rows).all()


def test_metrics_have_a_row_for_each_executor(client, job, wait_until):
    assert set(job.metrics().columns) == METRICS
    sent = 0

    def arriving():
        nonlocal sent
        job.send(ROWS)
        sent += ROWS.num_rows
        metrics = job.metrics()
        return len(metrics) == 3 and (metrics["arrival_rate"] > 0).all()

    # The rate is that of the last second.
    wait_until(arriving, "rows arrive at all executors")
    wait_until(lambda: processed(job, sent), "all rows are processed")
    metrics = job.metrics()
    assert set(METRICS) <= set(metrics.columns)
    assert metrics["operator"].tolist() == ["by_both", "by_k", "by_word"]
    assert metrics["executor"].tolist() == [0, 0, 0]
    assert metrics["cores"].tolist() == [1, 1, 1]
    assert set(metrics["node"]) <= set(client.nthreads())
    assert (metrics["queue"] == 0).all()
    assert (metrics["service_rate"] > 0).all()
    assert (metrics["state_bytes"] > 0).all()
    assert (metrics["latency_p50"] > 0).all()
    assert (metrics["latency_p99"] >= metrics["latency_p50"]).all()
    assert (metrics[["moves", "moves_across"]] == 0).all(axis=None)


def test_assignment_has_task_and_node_of_each_shard(client, job, wait_until):
    places = job.assignment()
    assert places["operator"].tolist() == ["by_both", "by_k", "by_word"]
    assert places["remote"].tolist() == [False] * 3
    assert (places["home"] == places["node"]).all()
    assert places["shards"].map(len).tolist() == [256] * 3
    away = next(a for a in client.nthreads() if a != places["home"][1])
    job.set_cores("by_k", {places["home"][1]: 1, away: 1})
    mine = tasks(job)
    assert mine["remote"].tolist() == [False, True]
    assert mine["node"].tolist() == [places["home"][1], away]
    assert mine["shards"].map(len).tolist() == [256, 0]
    job.move_shard("by_k", 7, int(mine["task"].iloc[1]))
    wait_until(lambda: tasks(job)["shards"].iloc[1] == [7], "the shard arrives")
    assert len(tasks(job)["shards"].iloc[0]) == 255


def tasks(job):
    """The tasks of by_k."""
    places = job.assignment()
    return places[places["operator"] == "by_k"]


def test_set_cores_accepts_a_number_of_cores(job, wait_until):
    job.set_cores("by_k", 3)
    places = job.assignment()
    assert (places["operator"] == "by_k").sum() == 3
    job.set_cores("by_k", 1, executor=0)
    wait_until(lambda: (job.assignment()["operator"] == "by_k").sum() == 1, "two tasks are drained")
    job.send(ROWS)
    job.end_of_input()
    job.wait(**RUN)
    assert job.state("by_k").get(3)["n"] == 100


def test_state_lookup_accepts_keys_of_any_shape(job):
    job.send(ROWS)
    job.send(pa.table({"k": pa.array([None], pa.int64()), "word": pa.array([None], pa.string())}))
    job.end_of_input()
    job.wait(**RUN)
    assert job.state("by_k").get(3) == {"k": 3, "n": 100}
    assert job.state("by_k").get(np.int64(3)) == {"k": 3, "n": 100}
    assert job.state("by_k").get(None) == {"k": None, "n": 1}
    assert job.state("by_k").get(99) is None
    assert job.state("by_word").get("word-1") == {"word": "word-1", "n": 143}
    assert job.state("by_word").get("word-7") is None
    assert job.state("by_both").get((3, "word-3"))["n"] == 15
    assert job.state("by_both").get((None, None))["n"] == 1
    assert job.state("by_both").get((3, None)) is None
    with pytest.raises(StateError, match=r"the key value 18446744073709551616 has more than 64 bits"):
        job.state("by_k").get(2**64)
    for other in (2.5, 2**63):
        with pytest.raises(StateError, match=r"key column 'k' of 'by_k' is int64, which .* is not"):
            job.state("by_k").get(other)
    assert job.state("by_k").to_arrow().column_names == ["k", "n"]


def test_state_shows_its_first_rows(client, job, wait_until):
    assert repr(job.state("by_k")) == "State of 'by_k' in job 'seen': 0 keys"
    assert "0 keys</strong></div>" in job.state("by_k")._repr_html_()
    job.send(ROWS)
    job.end_of_input()
    job.wait(**RUN)
    by_k = repr(job.state("by_k")).splitlines()
    assert by_k[0] == "State of 'by_k' in job 'seen': 10 keys"
    assert by_k[1].split() == ["k", "n"]
    assert sorted(line.split() for line in by_k[2:]) == [[str(k), "100"] for k in range(10)]
    assert repr(job.state("by_both")).startswith("State of 'by_both' in job 'seen': 70 keys, the first 10\n")
    assert len(repr(job.state("by_both")).splitlines()) == 12
    shown = job.state("by_both")._repr_html_()
    assert "70 keys, the first 10</strong>" in shown
    assert shown.count("<tr") == 11


def test_state_read_from_running_job_only_grows(client, job, wait_until):
    home = job.assignment().set_index("operator")["home"]["by_k"]
    away = next(a for a in client.nthreads() if a != home)
    job.set_cores("by_k", {home: 1, away: 1})
    remote = int(tasks(job)["task"].iloc[1])
    for shard in range(0, 256, 2):
        job.move_shard("by_k", shard, remote)
    wait_until(lambda: len(tasks(job)["shards"].iloc[1]) == 128, "the remote task has half of the shards")
    seen = {}
    for _ in range(20):
        job.send(ROWS)
        now = dict(zip(*job.state("by_k").to_arrow().to_pydict().values(), strict=True))
        assert all(now.get(key, 0) >= count for key, count in seen.items())
        seen = now
    job.end_of_input()
    job.wait(**RUN)
    assert job.state("by_k").to_pandas()["n"].tolist() == [2_000] * 10


def test_state_read_includes_all_processed_rows(client, job, wait_until):
    home = job.assignment().set_index("operator")["home"]["by_k"]
    away = next(a for a in client.nthreads() if a != home)
    job.set_cores("by_k", {away: 1})
    job.send(ROWS)
    wait_until(lambda: processed(job, 1_000), "all rows are processed, remote ones too")
    assert job.state("by_k").to_pandas()["n"].sum() == 1_000
    assert job.state("by_k").get(5)["n"] == 100


def test_job_repr_describes_the_job(job, wait_until):
    job.send(ROWS)
    wait_until(lambda: processed(job, 1_000), "all rows are processed")
    text = repr(job)
    assert text.startswith("<Job seen: running")
    assert "1,000 rows" in text
    assert "rows/s" in text
    assert "by_k 1 core " in text
    assert "by_word[0]: 1 core, queue 0, state" in text
    table = job._repr_html_()
    assert table.count("<tr>") == 4
    assert "seen: running" in table
    assert "by_both[0]" in table
    job.stop()
    assert "<Job seen: stopped" in repr(job)


def test_throughput_counts_a_row_of_several_operators_once(client, wait_until):
    topology = de.Topology("several")
    rows = topology.source("rows", de.sources.Arrow(pa.table({"k": np.arange(1_000_000) % 10}), rate=2_000))
    for number in range(4):
        rows.key_by("k").compute({"n": de.aggregate.Count()}, name=f"counted-{number}")
    job = de.submit(topology, client, report_interval="100ms")
    wait_until(lambda: job._describe().rows_read > 4_000, "the source has read for two seconds")

    def steady():
        found = job._describe()
        return 1_000 < found.source_rate < 4_000 and found

    # After a pause of its process, the source catches up at a higher rate.
    read = wait_until(steady, "the source's rate is that of its rows")
    assert f" {read.source_rate:,.0f} rows/s " in one_line(read)
    wait_until(lambda: job._describe().control.measured, "the control loop measures the latency")
    job.stop()
    assert job._describe().source_rate == 0


def test_live_line_is_shown_in_terminals_only(job, capsys):
    job.send(ROWS)
    job.end_of_input()
    job.wait(timeout=100)
    assert capsys.readouterr().err == ""
    job.wait(timeout=100, progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("\rseen: finished")
    assert printed.err.endswith("\n")


def test_live_line_is_truncated_to_terminal_width(job, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    with Progress(shown=True, stream=stream) as line:
        line.show(job._describe())
    assert len(stream.getvalue().strip("\r\n")) == 29


def test_live_line_overwrites_longer_previous_line(job, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    described = job._describe()
    stream = Terminal()
    with Progress(stream=stream) as line:
        line.show(replace(described, name="a-long-name-of-a-job"))
        line.show(described)
        line.say("below")
    first, second, rest = stream.getvalue()[1:].replace("\r", "\n").split("\n", 2)
    assert len(second) >= len(first) > len(second.rstrip())
    assert rest == "below\n"


def test_job_cannot_be_sent_and_its_name_can(client, job):
    with pytest.raises(TypeError, match=rf"job '{job.name}' is bound to its client.*send its name.*dask_elastic\.job"):
        pickle.dumps(job)
    found = client.submit(lambda name: de.job(name).status, job.name, pure=False)
    assert found.result(timeout=100) == job.status
    assert copy.copy(job).status == job.status


def test_job_is_found_by_name_and_listed(client, job):
    assert [found.name for found in de.jobs(client)] == ["seen"]
    assert de.job("seen", client).status == "running"
    assert de.job("seen").name == "seen"
    assert job.error is None


def test_submit_without_client_uses_current_client(client):
    topology = de.Topology("default")
    topology.source("rows", de.sources.Arrow(ROWS)).sink(de.sinks.Collect(), name="out")
    job = de.submit(topology)
    job.wait(**RUN)
    assert job.client is client
    assert job.collect("out").num_rows == 1_000
    assert job.metrics().empty
    assert job.assignment().empty
    assert "default: finished" in job._repr_html_()


def test_metrics_count_open_windows_per_key(client, wait_until):
    def at(seconds, key):
        return pa.table({"at": pa.array([seconds * 1_000_000], pa.timestamp("us")), "key": [key]})

    topology = de.Topology("open")
    rows = topology.source("rows", de.sources.Push(at(0, "a").schema, event_time="at"))
    rows.key_by("key").window(de.windows.tumbling("10s")).compute({"seen": de.aggregate.Count()}, name="seen")
    job = de.submit(topology, client)

    def counted():
        metrics = job.metrics()
        return metrics["open_windows"].sum(), metrics["on_time"].sum()

    job.send(pa.concat_tables([at(1, "a"), at(2, "b"), at(3, "a")]))
    wait_until(lambda: counted() == (2, 3), "an open window of each key")
    job.send(at(25, "a"))
    wait_until(lambda: counted() == (1, 4), "the windows that the watermark has passed are closed")
    assert job.explain("seen").sections["windows of seen"].startswith("seen: 10s of at")
    assert job.explain().sections.keys() == {"windows of seen", "component seen"}
    assert job.explain("seen").sections["component seen"].startswith("rigid, stateful (Figure 5.1); may migrate by")
    job.stop()
