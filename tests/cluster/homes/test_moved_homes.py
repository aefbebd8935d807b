"""Homes of executors move between workers while rows arrive: state, order, event time, credit and outputs are exact."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from counting_jobs import RUN
from distributed import Client
from numbered_jobs import Rows, credit_in_use, event_times, numbered_topology

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "durability"))
from followed_jobs import ROWS, Sender, assert_each_row_once, counted, expected, followed_pushes, newest
from oracle import STATE, following

del sys.path[:2]

KILLS = int(os.environ.get("HOME_KILLS", "2"))
"""How often a home is killed during a move, or after it; `make faults` kills more often."""
EXECUTORS = [("first", 0), ("second", 0), ("first", 1)]


def home(job, operator, index):
    """The worker of an executor."""
    found = job.assignment()
    return found[(found["operator"] == operator) & (found["executor"] == index)]["home"].iloc[0]


def test_executors_move_to_and_fro_while_rows_arrive(client, wait_until):
    topology = numbered_topology("moved", 2, 1, shards=8)
    options = {"flush_interval": "50ms", "watermark_interval": "10ms"}
    job = de.submit(topology, client, cores={"first": 1, "second": 1}, **options)
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
    wait_until(lambda: (event_times(job, "second") >= reached).all(), "event time passes the moved executors")
    job.end_of_input()
    job.wait(**RUN)
    rows.assert_followed()
    out = job.collect("out").to_pandas()
    assert (out.groupby("k")["seq"].diff().dropna() == 1).all()
    wait_until(lambda: set(credit_in_use(client, job.name)) == {(0, 0)}, "all credit has come back")


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
    out = tmp_path / "out"
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        options = {"checkpoint_interval": "300ms", "restart_attempts": 100}
        job = de.submit(followed_pushes(out), client, checkpoint=tmp_path / "checkpoints", **options)
        with Sender(job) as sender, ThreadPoolExecutor(1) as pool:
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
        job.end_of_input()
        job.wait(**RUN)
        rows = pa.concat_tables(sender.sent)
        assert counted(job) == expected(rows)
        assert_each_row_once(out, rows)
