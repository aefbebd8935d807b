"""The control loop moves cores with the load, between jobs, to joining workers, and away from leaving ones."""

from __future__ import annotations

import time

import dask.config
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.vocab import errors

RUN = {"timeout": 100, "progress": False}
QUICK = {
    "elastic.control-period": "200ms",
    "elastic.control-cooldown": "500ms",
    "elastic.control-release-after": "1s",
    "elastic.report-interval": "100ms",
    "elastic.latency-target": "50ms",
}
SERVICE = 0.002
"""Seconds that a core needs for a row: 500 rows/s."""

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Let the control loop look five times a second."""
    with dask.config.set(QUICK):
        yield


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes of four threads, whose control loop is quick."""
    with LocalCluster(n_workers=2, threads_per_worker=4, dashboard_address=":0") as made:
        yield made


def paced(table, rate, size=10):
    """Return a function that yields a few rows at a time: so many a second, or as many as a function says by then."""

    def read():
        began, due = time.monotonic(), 0.0
        for start in range(0, len(table), size):
            # Who was held up does not catch up.
            due = max(due, time.monotonic() - began) + size / (rate() if callable(rate) else rate)
            time.sleep(max(0.0, began + due - time.monotonic()))
            yield table.slice(start, size)

    return read


def summing(source, name, **compute):
    """A topology that counts and sums by the column k, with an effort."""

    def slowly(batch):
        time.sleep(SERVICE * batch.num_rows)
        return batch["v"]

    topology = de.Topology(name)
    rows = topology.source("rows", source)
    logic = {"n": de.aggregate.Count(), "sum": de.aggregate.Sum(slowly, columns=["v"]), "last": de.aggregate.Max("v")}
    rows.key_by("k").compute(logic, name="summed", **{"executors": 1, "shards": 64, **compute})
    return topology


def numbers(rows, keys=200):
    """Return rows with keys at random."""
    return pa.table({"k": np.random.default_rng(3).integers(0, keys, rows), "v": np.arange(rows)})


def assert_same(job, table):
    """The state is what one process makes of the rows that were read."""
    read = job._describe().rows_read
    wanted = table.slice(0, read).to_pandas().groupby("k")["v"].agg(n="size", sum="sum", last="max")
    state = job.state("summed").to_pandas().set_index("k").sort_index()
    assert state.to_dict() == wanted.to_dict()


def let_loose(job):
    """Give an executor that began with a core to the control loop."""
    job.set_cores("summed", "auto")
    return job


def cores(job):
    return int(job.metrics()["cores"].sum())


def processed(job):
    return int(job.metrics()["rows"].sum())


def test_cores_follow_load_and_state_stays_exact(client, data_path, wait_until, tmp_path):
    path = data_path("retail_orders/orders.parquet")
    orders = pq.read_table(path, columns=["stock_id", "quantity"]).slice(0, 30_000)
    keys = orders["stock_id"].cast(pa.string()).combine_chunks().dictionary_encode().indices
    rows = pa.table({"k": keys.cast(pa.int64()), "v": orders["quantity"].cast(pa.int64())})
    # Enough rows for minutes of the peak, and a low load before and after it: other programs may keep the cores busy.
    rows = pa.concat_tables([rows] * 10).combine_chunks()
    peak = tmp_path / "peak"
    source = de.sources.Iterable(paced(rows, lambda: 1_000 if peak.exists() else 100))
    job = let_loose(de.submit(summing(source, "load"), client, cores={"summed": 1}, latency_target="100ms"))
    wait_until(lambda: processed(job) > 100, "rows flow")
    peak.touch()
    wait_until(lambda: cores(job) >= 3, "the rising load gets cores")
    peak.unlink()
    wait_until(lambda: cores(job) <= 2, "the falling load gives them back")
    wait_until(lambda: job.decisions()["observed"].notna().any(), "the latency after a decision is measured")
    job.drain(timeout=100)
    assert_same(job, rows)
    metrics, decisions = job.metrics(), job.decisions()
    assert metrics["moves"].sum() > 0
    assert {"sojourn", "customer_rows", "throughput", "bytes_in", "bytes_out", "bound"} <= set(metrics)
    assert decisions["applied"].any()
    first = decisions[decisions["applied"]].iloc[0]
    assert first["target"] == 0.1
    assert first["reason"]
    [change] = first["changes"]
    assert change["executor"] == "summed[0]"
    assert sum(change["before"].values()) == 1
    assert sum(change["after"].values()) > 1
    assert set(change["after"]) <= set(client.nthreads())


def test_dry_run_records_decisions_without_applying_them(client, wait_until, tmp_path):
    source = de.sources.Iterable(paced(numbers(60_000), 1_000))
    job = let_loose(de.submit(summing(source, "dry"), client, cores={"summed": 1}, dry_run=True))
    wait_until(lambda: any(job.decisions()["changes"]), "a decision to change cores is recorded")
    wait_until(lambda: len(job.snapshots(last=3)) == 3, "three snapshots are recorded")
    job.drain(timeout=100)
    decisions = job.decisions()
    assert not decisions["applied"].any()
    assert cores(job) == 1
    assert job.metrics()["moves"].sum() == 0
    de.save_snapshots(job.snapshots(), tmp_path / "dry.jsonl")
    recorded = de.load_snapshots(tmp_path / "dry.jsonl")
    assert {snapshot.jobs[0].name for snapshot in recorded} == {"dry"}
    plans = de.replay(recorded, planner="naive")
    assert any(plan.decisions for plan in plans)
    assert len(job.snapshots(last=3)) == 3


def test_idle_job_and_pinned_cores_are_left_unchanged(client, wait_until):
    idle = de.submit(summing(de.sources.Push(SCHEMA), "idle"), client, cores={"summed": 1})
    let_loose(idle)
    source = de.sources.Iterable(paced(numbers(60_000), 900))
    pinned = de.submit(summing(source, "pinned"), client, cores={"summed": 1})
    wait_until(lambda: processed(pinned) > 500, "rows flow")
    wait_until(lambda: len(pinned.snapshots()) > 5, "several periods have passed")
    pinned.drain(timeout=100)
    assert cores(pinned) == cores(idle) == 1
    assert not any(idle.decisions()["changes"])
    assert not any(pinned.decisions()["changes"])


def test_two_jobs_on_overloaded_cluster_share_cores_and_are_starved(client, wait_until):
    table = numbers(100)

    def endless():
        while True:
            yield table

    jobs = [
        let_loose(de.submit(summing(de.sources.Iterable(endless), name), client, cores={"summed": count}))
        for name, count in (("first", 7), ("second", 1))
    ]

    def shared():
        counts = [*map(cores, jobs)]
        return min(counts) >= 3 and sum(counts) <= 8

    wait_until(shared, "each job gets its share, and both have at most all cores")
    wait_until(lambda: any(job._describe().control.starved for job in jobs), "the job is reported as starved")
    for job in jobs:
        job.stop()


def test_submit_with_wrong_control_option_names_nearest_value(client):
    topology = summing(de.sources.Push(SCHEMA), "wrong")
    for options, match in (
        ({"latency_targt": "50ms"}, "no option 'latency_targt': did you mean 'latency_target'"),
        ({"latency_target": "soon"}, "latency_target='soon' is not a duration"),
        ({"latency_target": -1}, "latency_target=-1 must be above zero"),
        ({"planner": "elasticuter"}, "planner='elasticuter': .*did you mean 'elasticutor'"),
        ({"paradigm": "statik"}, "paradigm='statik': .*did you mean 'static'"),
        ({"dry_run": "perhaps"}, "dry_run='perhaps': give True or False"),
        ({"paradigm": "static", "cores": {"summed": 2}}, "cores=.*paradigm='static'"),
    ):
        with pytest.raises(errors.SubmitError, match=match):
            de.submit(topology, client, **options)
    assert de.jobs(client) == []


def test_static_job_has_one_executor_per_core_and_refuses_changes(client):
    rows = numbers(2_000)
    source = de.sources.Iterable(paced(rows, 3_000))
    job = de.submit(summing(source, "static", executors=2), client, paradigm="static")
    assert job.assignment()["task"].tolist() == [0] * 8
    assert job.assignment()["node"].nunique() == 2
    for forbidden in (lambda: job.set_cores("summed", 2), lambda: job.move_shard("summed", 0, 0)):
        with pytest.raises(errors.PlanningError, match="has the paradigm 'static'"):
            forbidden()
    job.wait(**RUN)
    assert_same(job, rows)
    assert job.metrics()["moves"].sum() == 0
    assert len(job.decisions()) == 0


# workers that come and go


def arrivals(snapshot):
    """Rows that arrive per second at the only executor."""
    return snapshot.jobs[0].executors[0].arrival_rate


def test_joined_worker_is_used_within_two_periods(small_cluster, wait_until):
    cluster = small_cluster(n_workers=1, threads_per_worker=2, processes=False)
    with Client(cluster, set_as_default=False) as client, dask.config.set({"elastic.control-period": "1s"}):
        rows = numbers(60_000)
        job = de.submit(summing(de.sources.Iterable(paced(rows, 1_500)), "grows"), client)
        wait_until(lambda: processed(job) > 100, "rows flow")
        cluster.scale(2)
        wait_until(lambda: job.assignment()["remote"].any(), "the new worker has a task")
        job.drain(timeout=100)
        assert_same(job, rows)
        _, guest = job._describe().nodes
        # While its process pauses, too few rows arrive for three cores.
        seen = [one.now for one in job.snapshots() if len(one.nodes) == 2 and arrivals(one) > 800]
        decisions = job.decisions()
        took = [guest in change["after"] for [change] in decisions["changes"][decisions["applied"]]]
        used = decisions["time"][decisions["applied"]][took].iloc[0]
        assert sum(moment < used for moment in seen) <= 2


def test_job_continues_when_guest_without_tasks_leaves(small_cluster, wait_until):
    cluster = small_cluster(n_workers=1, threads_per_worker=1, processes=False)
    with Client(cluster, set_as_default=False) as client:
        job = de.submit(summing(de.sources.Push(SCHEMA), "quiet"), client)
        [home] = client.nthreads()
        cluster.scale(2)
        wait_until(lambda: len(job._describe().nodes) == 2, "the new worker has joined")
        guest = next(address for address in job._describe().nodes if address != home)
        rows = numbers(300)
        job.send(rows.slice(0, 150))
        job.set_cores("summed", {home: 1, guest: 1})
        wait_until(lambda: job.assignment()["remote"].any(), "the guest has a task")
        job.set_cores("summed", {home: 1})
        wait_until(lambda: not job.assignment()["remote"].any(), "the guest has no task left")
        client.retire_workers([guest], close_workers=True)
        wait_until(lambda: len(client.nthreads()) == 1, "the guest has left the cluster")
        job.send(rows.slice(150))
        job.end_of_input()
        job.wait(**RUN)
        assert_same(job, rows)
        assert job._describe().nodes == (home, "")


def test_retired_workers_are_drained_before_they_leave(small_cluster, wait_until):
    cluster = small_cluster(n_workers=3, threads_per_worker=1, processes=False)
    with Client(cluster, set_as_default=False) as client:
        rows = numbers(60_000)
        job = de.submit(summing(de.sources.Iterable(paced(rows, 1_000)), "left"), client)
        workers = sorted(client.nthreads())
        home = job.assignment()["home"][0]
        wait_until(lambda: processed(job) > 100, "rows flow")
        job.set_cores("summed", dict.fromkeys(workers, 1))
        wait_until(lambda: job.assignment()["remote"].sum() == 2, "every worker has tasks")
        with pytest.raises(errors.PlanningError, match=r"cannot be drained: it hosts rows\[0\] of job 'left'"):
            de.retire(workers, client)
        assert job.assignment()["remote"].sum() == 2
        leaving = next(address for address in workers if address != home)
        de.retire(leaving, client, timeout="100s", close=True)
        wait_until(lambda: leaving not in client.nthreads(), "the worker has left the cluster")
        assert leaving not in set(job.assignment()["node"])
        assert job.status == "running"
        with pytest.raises(errors.PlanningError, match="there is no worker"):
            de.retire([leaving], client)
        job.drain(timeout=100)
        assert_same(job, rows)
