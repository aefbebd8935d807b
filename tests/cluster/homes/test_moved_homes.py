"""Homes of executors move between workers while rows arrive: state, order, event time, credit and outputs are exact."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from counting_jobs import RUN
from distributed import Client

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "durability"))
from followed_jobs import ROWS, assert_each_row_once, counted, expected, newest
from oracle import STATE, following

del sys.path[:2]

KEYS = 97
KILLS = int(os.environ.get("HOME_KILLS", "2"))
"""How often a home is killed during a move, or after it; `make faults` kills more often."""
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "seq": pa.int64(), "at": pa.timestamp("us", tz="UTC")})
EXECUTORS = [("first", 0), ("second", 0), ("first", 1)]


def topology():
    """Two operators, one behind the other, which both follow the order of the rows of each key."""
    made = de.Topology("moved")
    rows = made.source("rows", de.sources.Push(SCHEMA, event_time="at"))
    first = rows.key_by("k").compute(following(), name="first", state=STATE, executors=2, shards=8)
    again = first.map(lambda batch: batch.append_column("v", batch["seq"]), name="again")
    second = again.key_by("k").compute(following(), name="second", state=STATE, executors=1, shards=8)
    second.sink(de.sinks.Collect(), name="out")
    return made


class Rows:
    """Sends rows of a job until it is told to stop; each key's rows are numbered."""

    def __init__(self, job):
        self.job = job
        self.stops = False
        self.sent = np.zeros(KEYS, np.int64)
        self.newest = 0
        self._random = np.random.default_rng(3)

    def run(self):
        """Send."""
        while not self.stops:
            self.send()

    def send(self, rows=500):
        """Send some rows."""
        k = self._random.integers(0, KEYS, rows)
        seq = pd.Series(k).groupby(k).cumcount().to_numpy() + self.sent[k]
        at = self.newest + np.arange(1, rows + 1)
        table = pa.table({"k": k, "v": self._random.integers(-9, 9, rows), "seq": seq, "at": at})
        self.job.send(table.cast(pa.schema({**{f.name: f.type for f in SCHEMA}, "at": pa.int64()})).cast(SCHEMA))
        self.sent += np.bincount(k, minlength=KEYS)
        self.newest = int(at[-1])


def home(job, operator, index):
    """The worker of an executor."""
    found = job.assignment()
    return found[(found["operator"] == operator) & (found["executor"] == index)]["home"].iloc[0]


def event_time(job, operator):
    """The event time of an operator with one executor."""
    times = job.event_times()
    return times[times["operator"] == operator]["event_time"].iloc[0]


def credit_in_use(client, name):
    """Bytes that the instances of a job count as not processed by their receivers."""

    def used(dask_worker):
        exchange = dask_worker.plugins["dask-elastic-worker"].runtime.job_parts[name].exchange
        gates = [gate for targets in list(exchange._gates.values()) for gate in list(targets.values())]
        return [(gate.used, gate.batches) for gate in gates if not gate._left]

    return [gate for gates in client.run(used).values() for gate in gates]


def test_executors_move_to_and_fro_while_rows_arrive(client, wait_until):
    job = de.submit(
        topology(), client, cores={"first": 1, "second": 1}, flush_interval="50ms", watermark_interval="10ms"
    )
    workers = sorted(client.nthreads())
    rows = Rows(job)
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(rows.run)
        try:
            seen = 0
            for turn in range(2):
                for operator, index in EXECUTORS:
                    before = home(job, operator, index)
                    after = workers[(workers.index(before) + 1 + turn % 2) % len(workers)]
                    sent = int(rows.sent[5])
                    job.move_executor(operator, index, after)
                    assert home(job, operator, index) == after
                    if operator == "second" and sent:
                        found = wait_until(lambda: job.state("second").get(5), "the key has state at its new home")
                        assert found["n"] >= seen
                        seen = found["n"]
                    wait_until(lambda: sending.done() or rows.sent[5] > sent, "rows are sent")  # noqa: B023
        finally:
            rows.stops = True
        sending.result()
    rows.send()
    reached = pd.Timestamp(rows.newest - 1, unit="us")
    wait_until(lambda: event_time(job, "second") >= reached, "event time passes the moved executors")
    job.end_of_input()
    job.wait(**RUN)
    for operator in ("first", "second"):
        state = job.state(operator).to_pandas().sort_values("k")
        assert state["n"].tolist() == rows.sent.tolist()
        assert state["last"].tolist() == (rows.sent - 1).tolist()
        assert state["faults"].sum() == 0
    out = job.collect("out").to_pandas()
    assert out.groupby("k").size().tolist() == rows.sent.tolist()
    assert (out.groupby("k")["seq"].diff().dropna() == 1).all()
    assert job.metrics()["rows"].sum() == 2 * rows.sent.sum()
    wait_until(lambda: set(credit_in_use(client, job.name)) == {(0, 0)}, "all credit has come back")


def durable(folder):
    """A topology that follows the order of rows that are sent, and writes each."""
    made = de.Topology("durable")
    rows = made.source("rows", de.sources.Push(ROWS.schema))
    followed = rows.key_by("k").compute(following(), name="followed", state=STATE, executors=2, shards=16)
    followed.sink(de.sinks.Parquet(folder), name="out")
    return made


def test_checkpoint_after_a_move_continues_the_files_of_those_before(client, wait_until, tmp_path):
    made = de.Topology("continued")
    rows = made.source("rows", de.sources.Push(ROWS.schema))
    rows.key_by("k").compute(following(), name="followed", state=STATE, executors=1, shards=16)
    job = de.submit(made, client, checkpoint=tmp_path, checkpoint_interval="1h")
    keys = 4_000
    everything = {name: np.zeros(keys, np.int64) for name in ROWS.schema.names} | {"k": np.arange(keys)}
    job.send(pa.table(everything, ROWS.schema), wait=True)
    wait_until(lambda: len(job.state("followed").to_pandas()) == keys, "all keys have state")
    first = job.checkpoint()
    job.move_executor("followed", 0, next_worker(client, home(job, "followed", 0)))
    job.send(pa.table({name: column[:1] for name, column in everything.items()}, ROWS.schema), wait=True)
    wait_until(lambda: job.state("followed").get(0)["n"] == 2, "the row is processed at the new home")
    second = job.checkpoint()
    nbytes = job.checkpoints().set_index("number")["nbytes"]
    assert nbytes[second] < nbytes[first] / 10
    job.stop()


def next_worker(client, address):
    """The worker behind another one in the order of their addresses."""
    workers = sorted(client.nthreads())
    return workers[(workers.index(address) + 1) % len(workers)]


def test_homes_that_are_killed_during_a_move_or_after_it_lose_no_row(small_cluster, wait_until, tmp_path):
    random = np.random.default_rng(KILLS)
    out, sent, stops = tmp_path / "out", [], threading.Event()
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        options = {"checkpoint_interval": "300ms", "restart_attempts": 100}
        job = de.submit(durable(out), client, checkpoint=tmp_path / "checkpoints", **options)

        def send():
            while not stops.is_set():
                sent.append(ROWS.slice(len(sent) * 20 % ROWS.num_rows, 20))
                job.send(sent[-1], wait=True)

        with ThreadPoolExecutor(2) as pool:
            sending = pool.submit(send)
            try:
                for kill in range(KILLS):
                    wait_until(lambda: len(client.nthreads()) == 3, "all workers run")
                    number = newest(job)
                    wait_until(lambda: newest(job) > number, "a checkpoint is complete")  # noqa: B023
                    before = home(job, "followed", kill % 2)
                    after = next_worker(client, before)
                    victim = before if kill % 3 == 2 else after
                    process = client.run(os.getpid)[victim]
                    moving = pool.submit(job.move_executor, "followed", kill % 2, after)
                    if kill % 3 == 0:
                        moving.result()
                        number = newest(job)
                        wait_until(lambda: newest(job) > number, "a checkpoint at the new home is complete")  # noqa: B023
                    with contextlib.suppress(TimeoutError):
                        moving.exception(timeout=random.uniform(0.0, 0.3))
                    os.kill(process, signal.SIGKILL)
                    moving.exception()
                    wait_until(lambda: victim not in client.nthreads(), "the scheduler sees the loss")  # noqa: B023
            finally:
                stops.set()
            sending.result()
        job.end_of_input()
        job.wait(**RUN)
        rows = pa.concat_tables(sent)
        assert counted(job) == expected(rows)
        assert_each_row_once(out, rows)
