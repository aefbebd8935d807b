"""Workers are killed, suspended, partitioned, poisoned or out of memory: results stay exact or jobs fail clearly."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import dask
import numpy as np
import psutil
import pyarrow as pa
import pytest
from distributed import Client
from distributed.core import Status

import dask_elastic as de
import dask_elastic_plugins.install
from dask_elastic.vocab import errors

sys.path.insert(0, str(Path(__file__).parent))
from oracle import Pump, assert_equal, followed, numbered_rows
from proxy import Network, install

RUN = {"timeout": 100, "progress": False}
QUICK = {"elastic.control-period": "200ms", "distributed.deploy.lost-worker-timeout": "1 hour"}
"""A worker that is killed twice may be about to come back when Dask looks whether it has come back the first time."""


def nodes_of(job):
    """Addresses of the job's nodes of this moment."""
    return {address for address in job._describe().nodes if address}


def give(job, operator, cores, wait_until):
    """Give an operator cores as soon as it can have them, and wait until each of its tasks owns a shard."""

    def given():
        try:
            job.set_cores(operator, cores)
        except (errors.PlanningError, errors.NodeLost):
            return False  # a worker is about to join
        return True

    wait_until(given, f"{operator} has its cores")

    def spread():
        tasks = job.assignment()
        return set(tasks["node"]) == set(cores) and tasks["shards"].map(len).min() > 0

    wait_until(spread, "every task has a shard")


def guests_of(job, client, home, count, wait_until):
    """So many workers of the job besides its home, once it has them."""

    def found():
        there = set(client.nthreads())
        guests = sorted((nodes_of(job) & there) - {home})
        return guests if len(guests) >= count else None

    return wait_until(found, f"{count} workers besides the home have joined")[:count]


def recovered(job, count):
    """Whether the job has had so many losses, and has done again what was lost.

    A worker that dies while it replays rows of another is taken for a victim of these rows.
    """
    losses = job.recoveries()
    return len(losses) >= count and bool(losses["ended"].notna().all())


class Killer:
    """Kills workers of a job, and keeps when it killed the one at each place of the job."""

    def __init__(self, job):
        self.job = job
        self.moments = {}

    @property
    def count(self):
        return sum(map(len, self.moments.values()))

    def kill(self, pids):
        """Kill processes, given by the addresses of their workers, at once."""
        nodes = self.job._describe().nodes
        for address in pids:
            self.moments.setdefault(nodes.index(address), []).append(time.time())
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)

    def seconds_to_first(self, losses):
        """Return the seconds from each loss with rows to replay to the first replayed row."""
        replayed = losses[losses["rows"] > 0]
        return [
            first - max(moment for moment in self.moments[node] if moment < first)
            for node, first in zip(replayed["node"], replayed["first"], strict=True)
        ]


def test_results_are_exact_after_workers_are_killed(small_cluster, wait_until):
    with (
        dask.config.set({**QUICK, "elastic.heartbeat-timeout": "100s"}),
        Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client,
    ):
        job = de.submit(followed("killed", service=20e-6), client, latency_target=None, flush_interval="500ms")
        home = job.assignment()["home"][0]
        pump = Pump(job, numbered_rows(2_000_000), pause=0.05)
        pump.start()
        killer = Killer(job)
        for at_once in (False, True, False):
            guests = guests_of(job, client, home, 2, wait_until)
            give(job, "followed", {home: 1, **dict.fromkeys(guests, 1)}, wait_until)
            pids = client.run(os.getpid, workers=guests)
            sent = pump.sent
            wait_until(lambda: pump.sent > sent + 1_500, "rows flow")  # noqa: B023
            for victims in [pids] if at_once else [{guest: pids[guest]} for guest in guests]:
                killer.kill(victims)
                wait_until(lambda: recovered(job, killer.count), "the rows of lost workers are processed again")
            wait_until(lambda: not nodes_of(job) & set(guests), "the scheduler has removed the lost workers")  # noqa: B023
        rows = pump.stop()
        job.end_of_input()
        job.wait(**RUN)
        assert_equal(job, rows)
        losses = job.recoveries()
        assert len(losses) == 6
        measured = job.metrics().iloc[0]
        assert measured["recovered"] == 6
        # The broken channel shows the loss, long before heartbeats are missed.
        assert 0 < measured["recovery_p50"] <= measured["recovery_p99"] <= 60
        assert losses["rows"].sum() > 0
        assert max(killer.seconds_to_first(losses)) <= 60


def test_batch_that_kills_workers_fails_job_before_all_workers_die(small_cluster, wait_until):
    with (
        dask.config.set(QUICK),
        Client(small_cluster(n_workers=4, threads_per_worker=1), set_as_default=False) as client,
    ):
        job = de.submit(followed("poisoned", poison=7), client, latency_target=None)
        home = job.assignment()["home"][0]
        guests = guests_of(job, client, home, 2, wait_until)
        give(job, "followed", dict.fromkeys(guests, 1), wait_until)
        pids = client.run(os.getpid)
        job.send(numbered_rows(5_000))
        with pytest.raises(errors.JobFailed) as raised:
            job.wait(**RUN)
        assert isinstance(raised.value.__cause__, errors.PoisonBatch)
        assert raised.value.__cause__.operator == "followed"
        # User code ends its process at a key; the rows that were processed with it are named by theirs.
        assert re.match(r"\d+ rows? with the keys? \d+.*, from \w+\[0\]$", raised.value.__cause__.batch)

        def survivors():
            return sum(map(psutil.pid_exists, pids.values()))

        wait_until(lambda: survivors() <= 2, "two workers have died of the poison batch")
        job.forget()
        # No worker has rows left to process.
        assert survivors() == 2


def test_suspended_and_partitioned_workers_are_removed_and_rejoin(small_cluster, wait_until):
    timeout = 6.0
    with (
        dask.config.set({**QUICK, "elastic.heartbeat-timeout": timeout}),
        Client(small_cluster(n_workers=4, threads_per_worker=1), set_as_default=False) as client,
    ):
        network = Network()
        install(client, network)
        job = de.submit(followed("stopped", service=20e-6), client, latency_target=None, flush_interval="500ms")
        home = job.assignment()["home"][0]
        stopped, cut_off, _ = guests = guests_of(job, client, home, 3, wait_until)
        pump = Pump(job, numbered_rows(2_000_000), pause=0.05)
        pump.start()
        give(job, "followed", {home: 1, stopped: 1, cut_off: 1}, wait_until)
        nodes = job._describe().nodes
        pid = client.run(os.getpid, workers=[stopped])[stopped]

        def lost(address):
            losses = job.recoveries()
            mine = losses[losses["node"] == nodes.index(address)]
            return mine["lost"].min() if len(mine) and mine["first"].notna()[mine["rows"] > 0].all() else None

        os.kill(pid, signal.SIGSTOP)
        stopped_at = time.time()
        try:
            assert wait_until(lambda: lost(stopped), "the suspended worker is removed") - stopped_at <= 60
            network.cut(home, cut_off)
            cut_at = time.time()
            assert wait_until(lambda: lost(cut_off), "the partitioned worker is removed") - cut_at <= 60
            assert set(job.assignment()["node"]) <= {home, guests[2]}
            network.heal(home, cut_off)
            give(job, "followed", {home: 1, cut_off: 1}, wait_until)
            wait_until(lambda: time.time() - stopped_at > 3 * timeout, "the worker has been stopped for long")
        finally:
            os.kill(pid, signal.SIGCONT)
        give(job, "followed", {home: 1, cut_off: 1, stopped: 1}, wait_until)
        sent = pump.sent
        wait_until(lambda: pump.sent > sent + 1_500, "rows flow")
        rows = pump.stop()
        job.end_of_input()
        job.wait(**RUN)
        assert_equal(job, rows)
        network.close()


def test_closing_worker_answers_calls_until_closed(small_cluster):
    async def leave(dask_worker):
        """End what runs here as the worker would, and ask it once more."""
        asked = [name for name in dask_worker.handlers if name.startswith("elastic_")]
        running, dask_worker._status = dask_worker.status, Status.closing
        await dask_worker.plugin_remove("dask-elastic-worker")
        dask_worker._status = running
        return [await dask_worker.handlers[name](job="any", generation=1) for name in asked]

    with Client(small_cluster(processes=False), set_as_default=False) as client:
        dask_elastic_plugins.install.install(client)
        [answers] = client.run(leave).values()
        assert set(answers) == {None}
        assert len(answers) > 10


def test_state_above_memory_limit_fails_job_and_spares_worker(small_cluster):
    def keys():
        start = 0
        while True:
            k = np.arange(start, start + 20_000)
            yield pa.table({"k": k, "v": k})
            start += 20_000

    options = {"n_workers": 1, "threads_per_worker": 2, "memory_limit": "400MB"}
    with Client(small_cluster(**options), set_as_default=False) as client:
        pids = client.run(os.getpid)
        topology = de.Topology("growing")
        aggregates = {f"a{n}": de.aggregate.Sum("v") for n in range(4)}
        rows = topology.source("rows", de.sources.Iterable(keys, rate=400_000))
        rows.key_by("k").compute(aggregates, name="growing", executors=1)
        job = de.submit(topology, client, latency_target=None)
        with pytest.raises(errors.JobFailed) as raised:
            job.wait(**RUN)
        assert isinstance(raised.value.__cause__, errors.StateMemoryExceeded)
        assert "of 381 MiB" in str(raised.value.__cause__)
        assert client.run(os.getpid) == pids
        read = job._describe().rows_read
        assert read - job.metrics()["rows"].sum() < 2_000_000


def test_cluster_with_memory_limit_looks_at_its_memory_as_often_as_that_of_a_user(small_cluster):
    def seconds(dask_worker):
        return dask_worker.memory_manager.memory_monitor_interval

    with Client(small_cluster(memory_limit="400MB"), set_as_default=False) as client:
        assert {*client.run(seconds).values(), *client.run(seconds, nanny=True).values()} == {0.1}


def test_hot_key_with_nine_tenths_of_rows_gets_its_own_task(client, wait_until):
    job = de.submit(
        followed("hot", service=100e-6, shards=32), client, latency_target=None, balance_interval="100ms",
        channel_window="1MiB",
    )  # fmt: skip
    workers = list(client.nthreads())

    def memory():
        return max(client.run(lambda: psutil.Process().memory_info().rss).values())

    before = memory()
    pump = Pump(job, numbered_rows(800_000, keys=500, hot=0.9), rows=1_000, pause=0.05)
    pump.start()
    give(job, "followed", dict.fromkeys(workers, 1), wait_until)

    def relieved():
        fewest, *others = sorted(job.assignment()["shards"].map(len))
        return fewest <= 5 and min(others) >= 10

    wait_until(relieved, "the hot key's task has few other keys, and the others share the rest")
    wait_until(lambda: job.metrics()["rows"].sum() >= 20_000, "rows of the hot key are processed")
    rows = pump.stop()
    job.end_of_input()
    job.wait(**RUN)
    assert_equal(job, rows)
    assert memory() - before < 200 * 2**20
