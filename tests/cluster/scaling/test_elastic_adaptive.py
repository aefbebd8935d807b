"""A cluster starts workers for a job, and closes them when the job no longer needs them, without losing a row."""

from __future__ import annotations

import gc
import sys
import threading
import time

import dask
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.vocab.errors import ElasticError

KEYS = 32
SLEPT = 0.004
SETTINGS = {
    "elastic.control-period": "200ms",
    "elastic.control-release-after": "1s",
    "elastic.control-cooldown": "500ms",
}


@de.per_key
def count_slowly(key, rows, state):
    time.sleep(SLEPT * rows.num_rows)
    state["rows"] = state.get("rows", 0) + rows.num_rows


class Load:
    """Sends rows to a job until it is stopped, at a rate that can be changed.

    Attributes
    ----------
    rows : int
        Rows of a tenth of a second.
    sent : int
        Rows so far.
    """

    def __init__(self, job):
        self.job, self.rows, self.sent = job, 1, 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stopped.set()
        self._thread.join()

    def _run(self):
        while not self._stopped.wait(0.1):
            # The number may change while they are sent.
            rows = self.rows
            self.job.send(pa.table({"key": [(self.sent + row) % KEYS for row in range(rows)]}))
            self.sent += rows


@pytest.fixture
def growing():
    """Return a client of a cluster without workers that may start three, and the cluster."""
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=0, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        cluster.adapt(Adaptive=de.ElasticAdaptive, maximum=3, cooldown="1s", interval="200ms", wait_count=1)
        yield client, cluster


def rows_counted(job, operator):
    return sum(job.state(operator).to_arrow()["rows"].to_pylist())


def test_cluster_grows_from_nothing_and_shrinks_with_the_load(growing, wait_until):
    client, cluster = growing
    topology = de.Topology("grows")
    rows = topology.source("rows", de.sources.Push(pa.schema({"key": pa.int64()})))
    rows.key_by("key").compute(count_slowly, state={"rows": pa.int64()}, name="slow")
    job = de.submit(topology, client)
    wait_until(lambda: len(job.metrics()) == 3, "an executor for each worker that there may be")
    with Load(job) as load:
        # Sixty rows of 4 ms in a tenth of a second: 2.4 cores of those that sleep.
        load.rows = 60
        wait_until(lambda: len(cluster.plan) == 3, "workers start")
        wait_until(lambda: job.metrics()["cores"].sum() > 3, "the job uses them")
        load.rows = 1
        wait_until(lambda: len(cluster.plan) == 1, "workers leave")
    # Read from the running job: workers of an ended one may leave at any time.
    wait_until(lambda: rows_counted(job, "slow") == load.sent, "all rows are counted")
    job.drain()
    job.wait(timeout=200, progress=False)
    wait_until(lambda: not cluster.plan, "no job needs a worker")


def test_cluster_shrinks_by_a_worker_with_a_source_and_a_sink(wait_until, tmp_path):
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        topology = de.Topology("shrinks")
        rows = topology.source("rows", de.sources.Push(pa.schema({"key": pa.int64()})))
        counted = rows.key_by("key").compute({"rows": de.aggregate.Count()}, name="counted", executors=2)
        counted.sink(de.sinks.Parquet(tmp_path / "out"), name="out")
        job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints", checkpoint_interval="300ms")
        assert len(set(job.assignment()["home"])) == 2
        with Load(job) as load:
            cluster.adapt(
                Adaptive=de.ElasticAdaptive, minimum=1, maximum=2, cooldown="500ms", interval="200ms", wait_count=1
            )
            wait_until(lambda: len(client.nthreads()) == 1, "a worker has left")
            sent = load.sent
            wait_until(lambda: load.sent > sent, "rows are sent after that")
        assert job.status == "running"
        job.drain()
        job.wait(timeout=200, progress=False)
        assert rows_counted(job, "counted") == load.sent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimum": 4, "maximum": 2}, "minimum=4 is above maximum=2"),
        ({"minimum": -1, "maximum": 2}, "minimum=-1: give a number, 0 or more"),
        ({"maximum": "2"}, "maximum='2': give a number, 1 or more"),
        ({"slots": 0}, "slots=0: give a number, 1 or more"),
        ({"cooldown": "soon"}, "cooldown is 'soon', whose unit of time is unknown"),
        ({"drain": "soon"}, "drain is 'soon'"),
    ],
)
def test_adaptive_that_is_refused_raises_its_reason_only(options, message, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with pytest.raises(ElasticError, match=message):
        de.ElasticAdaptive(None, **options)
    gc.collect()
    assert not unraisable
