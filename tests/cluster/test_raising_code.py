"""Users' code that raises fails the job, or its rows become dead letters; code that does not return is reported."""

from __future__ import annotations

import builtins
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from distributed import Client

import dask_elastic as de
from dask_elastic.runtime.transport.lease_gate import LeaseGate
from dask_elastic.runtime.worker import idle_watch
from dask_elastic.vocab import errors

# Workers import this file too, for what they are asked to run.
sys.path.insert(0, str(Path(__file__).parent))
from counting_jobs import RUN, SCHEMA, mapped


def test_raising_function_fails_job_and_is_named(client, numbers):
    def raises(batch):
        if pc.max(batch["v"]).as_py() >= 550:
            raise ValueError("no such plane")
        return batch

    job = de.submit(mapped(raises, numbers), client)
    with pytest.raises(
        errors.JobFailed, match=r"job 'mapped' failed: operator 'tidy', batch \d: ValueError: no such"
    ) as e:
        job.wait(**RUN)
    cause = e.value.__cause__
    assert isinstance(cause, errors.UserCodeError)
    assert cause.operator == "tidy"
    assert cause.cause == "ValueError: no such plane"
    assert "in raises" in cause.trace
    assert job.status == "failed"
    assert isinstance(job.error, errors.UserCodeError)
    assert job.metrics()["rows"].sum() <= 500


def test_raising_aggregate_fails_job_and_is_named(client, numbers):
    def raises(batch):
        if batch.num_rows:
            raise KeyError("fare")
        return batch["v"]

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers, batch_rows=100))
    rows.key_by("k").compute({"sum": de.aggregate.Sum(raises, columns=["v"])}, name="summed")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed) as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.UserCodeError)
    assert e.value.__cause__.operator == "summed"


def test_unpicklable_error_reaches_client_as_text(client, numbers):
    class Stubborn(Exception):
        def __init__(self):
            super().__init__("stubborn")
            self.guard = threading.Lock()

    def opens():
        raise Stubborn
        yield

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Iterable(opens))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match="stubborn"):
        job.wait(**RUN)


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_function_that_exits_its_thread_fails_job(client, numbers, raised):
    def leaves(batch):
        raise raised

    job = de.submit(mapped(leaves, numbers), client)
    with pytest.raises(errors.JobFailed, match=f"(?s){raised.__name__}.*in leaves"):
        job.wait(**RUN)


def test_rows_of_unlike_streams_are_not_collected_as_one_table(client, numbers):
    topology = de.Topology("unlike")
    whole, part = (topology.source(f"{len(names)}", de.sources.Arrow(numbers.select(names))) for names in ("kv", "v"))
    whole.union(part).sink(de.sinks.Collect(), name="out")
    job = de.submit(topology, client)
    job.wait(**RUN)
    with pytest.raises(errors.SchemaMismatch, match=r"rows of sink 'out'.* differ in their columns: .*v: int64"):
        job.collect("out")


@pytest.mark.parametrize("stateful", [False, True])
def test_raising_rows_become_dead_letters_and_others_are_processed(client, numbers, stateful):
    bad = {7, 8, 123, 500, 999}

    def picky(batch):
        for value in batch["v"].to_pylist():
            if value in bad:
                raise ValueError(f"cannot digest {value}")
        return batch["v"] if stateful else batch

    topology = de.Topology("picky")
    rows = topology.source("rows", de.sources.Arrow(numbers, batch_rows=100))
    if stateful:
        rows.key_by("k").compute(
            {"n": de.aggregate.Count(), "sum": de.aggregate.Sum(picky, columns=["v"])}, name="counted"
        )
    else:
        rows = rows.map(picky, name="tidy")
        rows.key_by("k").compute({"n": de.aggregate.Count(), "sum": de.aggregate.Sum("v")}, name="counted")
    job = de.submit(topology, client, on_error="skip")
    job.wait(**RUN)
    operator = "counted" if stateful else "tidy"
    assert job.dead_letters() == {operator: 5}
    letters = job.dead_letters(operator).to_pandas().sort_values("v")
    assert letters["v"].tolist() == sorted(bad)
    assert letters["__error"].tolist() == [f"ValueError: cannot digest {value}" for value in sorted(bad)]
    frame = numbers.to_pandas()
    wanted = frame[~frame["v"].isin(bad)].groupby("k")["v"].agg(["count", "sum"])
    state = job.state("counted").to_pandas().set_index("k").sort_index()
    assert state["n"].tolist() == wanted["count"].tolist()
    assert state["sum"].tolist() == wanted["sum"].tolist()
    assert "5 dead letters" in repr(job)


def test_dead_letters_start_empty_and_include_remote_tasks(client, numbers, wait_until):
    def picky(batch):
        if 0 in (batch["v"].to_numpy() % 100):
            raise ValueError("round")
        return batch["v"]

    topology = de.Topology("remote-letters")
    rows = topology.source("rows", de.sources.Push(numbers.schema))
    rows.key_by("k").compute({"sum": de.aggregate.Sum(picky, columns=["v"])}, name="summed", executors=1)
    job = de.submit(topology, client, on_error="skip", cores={"summed": 1})
    assert job.dead_letters() == {}
    assert job.dead_letters("summed").num_rows == 0
    home = job.assignment()["home"][0]
    away = next(address for address in client.nthreads() if address != home)
    job.set_cores("summed", {away: 1})
    wait_until(lambda: job.assignment()["remote"].all(), "the executor is on a remote core only")
    job.send(numbers)
    job.end_of_input()
    job.wait(**RUN)
    assert job.dead_letters() == {"summed": 10}
    assert job.dead_letters("summed")["v"].to_pylist() == sorted(range(0, 1_000, 100))
    assert job.state("summed").get(0)["sum"] == sum(v for v in range(0, 1_000, 10) if v % 100)


def test_raising_source_fails_job_and_is_named(client):
    def breaks():
        yield {"k": [1]}
        raise ConnectionError("the feed is down")

    topology = de.Topology("t")
    rows = topology.source("feed", de.sources.Iterable(breaks))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match=r"source 'feed'.*ConnectionError: the feed is down") as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SourceError)


def test_raising_sink_fails_job_and_is_named(client, numbers):
    def full(batch):
        raise OSError("no space left")

    topology = de.Topology("t")
    rows = topology.source("rows", de.sources.Arrow(numbers))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted").sink(de.sinks.Call(full), name="out")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match=r"sink 'out'.*OSError: no space left") as e:
        job.wait(**RUN)
    assert isinstance(e.value.__cause__, errors.SinkError)
    assert 'in full\n    raise OSError("no space left")' in str(e.value)


def test_sink_that_fails_to_open_fails_job(client, numbers, tmp_path):
    (tmp_path / "old.parquet").write_bytes(b"")
    topology = de.Topology("t")
    topology.source("rows", de.sources.Arrow(numbers)).sink(de.sinks.Parquet(tmp_path), name="out")
    job = de.submit(topology, client)
    with pytest.raises(errors.JobFailed, match=r"old\.parquet"):
        job.wait(**RUN)


ROW = pa.table({"key": [1]})


def make_gate():
    """Make an event on a worker, which code of a job there waits for."""
    builtins.stall_gate = threading.Event()


def open_gate():
    """Let the code go on."""
    builtins.stall_gate.set()


def wait_at_gate(*_):
    """Be the code that does not return."""
    builtins.stall_gate.wait(60)


def at_gate(stalled):
    """Return the calls that wait at the gate; on a busy machine, others may take long as well."""
    return [call for call in stalled.to_dict("records") if call["frame"].endswith("in wait_at_gate")]


def job_with_gate(stage, client):
    """Submit a job of which one stage waits at the gate, and return it."""

    def read():
        yield ROW
        if stage == "read":
            wait_at_gate()

    def mapped(rows):
        if stage == "mapped":
            wait_at_gate()
        return rows

    def keyed(key, rows, state):
        if stage == "keyed":
            wait_at_gate()
        return rows

    topology = de.Topology("stalled")
    rows = topology.source("read", de.sources.Iterable(read, schema=ROW.schema)).map(mapped, name="mapped")
    done = rows.key_by("key").compute(de.per_key(output=ROW.schema)(keyed), name="keyed", executors=1)
    done.sink(de.sinks.Call(wait_at_gate if stage == "written" else len), name="written")
    return de.submit(topology, client, stall_after="200ms", report_interval="50ms", latency_target=None)


@pytest.mark.parametrize("stage", ["read", "mapped", "keyed", "written"])
def test_code_that_does_not_return_is_reported_until_it_returns(stage, client, wait_until):
    client.run(make_gate)
    client.log_event("dask_elastic", "a test begins")
    seen = len(client.get_events("dask_elastic"))
    began = time.time()
    job = job_with_gate(stage, client)
    try:
        (found,) = wait_until(lambda: at_gate(job.stalled()), "the call is listed")
        assert found["operator"] == stage
        assert found["activity"] == {"read": "read", "written": "write"}.get(stage, "process")
        assert found["worker"] in client.scheduler_info()["workers"]
        assert began - 1 < found["since"].timestamp() < time.time()
        assert __file__ in found["frame"]
        wait_until(lambda: f"{stage} stalled since" in str(job), "it is in the job's text")
    finally:
        client.run(open_gate)
    job.wait(**RUN)
    assert job.stalled().empty
    events = [event for _, event in client.get_events("dask_elastic")[seen:] if event.get("job") == "stalled"]
    (stalled,) = [event for event in events if event["event"] == "stalled" and event["frame"] == found["frame"]]
    assert (stalled["operator"], stalled["worker"]) == (stage, found["worker"])


class SlowEnd:
    """Holds the thread that ends a part of a job until the worker has made another report."""

    def __init__(self, node, patch):
        self.node = node
        self.made = threading.Event()
        self.held = 0
        self._report, self._end = node.reports.report, LeaseGate.end
        patch.setattr(node.reports, "report", self.report)
        patch.setattr(LeaseGate, "end", lambda gate: self.end(gate))

    async def report(self, part):
        """Report, and let the thread go on if this report was begun while it waited."""
        began = self.held
        await self._report(part)
        if began:
            self.made.set()

    def end(self, gate):
        """Wait, in the thread of the job that ends it."""
        self._end(gate)
        if threading.current_thread().name.startswith("elastic-fails"):
            self.held += 1
            self.node.wake()
            assert self.made.wait(100)


@pytest.mark.parametrize("idle_after", [0.3, idle_watch.IDLE_AFTER], ids=["idle", "busy"])
def test_error_is_reported_if_a_report_is_made_while_the_job_ends(
    small_cluster, monkeypatch, wait_until, tmp_path, idle_after
):
    down = tmp_path / "down"

    def feed():
        while not down.exists():
            time.sleep(0.01)
        raise ConnectionError("the feed is down")
        yield

    monkeypatch.setattr(idle_watch, "IDLE_AFTER", idle_after)
    topology = de.Topology("fails")
    topology.source("feed", de.sources.Iterable(feed, schema=SCHEMA)).sink(de.sinks.Collect())
    cluster = small_cluster(n_workers=1, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = de.submit(topology, client, latency_target=None)
        node = cluster.workers[0].plugins["dask-elastic-worker"].runtime
        part = node.job_parts[job.name]
        wait_until(lambda: part.last_report._sent is not None, "the worker has reported")
        if idle_after < 1:
            wait_until(lambda: part.idle_watch.idle, "the job is idle")
        slow = SlowEnd(node, monkeypatch)
        down.touch()
        with pytest.raises(errors.JobFailed, match="the feed is down"):
            job.wait(**RUN)
        assert slow.held
