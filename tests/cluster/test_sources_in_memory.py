"""A source whose rows are in memory has one thread: it joins, waits, ends, and tells that it is idle, as others do."""

from __future__ import annotations

import os
import threading
import time

import pandas as pd
import pyarrow as pa
from counting_jobs import RUN, counting
from distributed import Client

import dask_elastic as de

TIMED = pa.schema({"k": pa.int64(), "at": pa.timestamp("s", tz="UTC")})


def threads_of_source(job):
    """Names of the threads of this process that run the source of a job."""
    names = [thread.name for thread in threading.enumerate()]
    return sorted(name for name in names if name.startswith(f"elastic-{job.name}-rows"))


def slow_source():
    """A source whose second row is due after an hour."""
    table = pa.table({"k": [1, 2], "at": [100, 200]}, schema=TIMED)
    return de.sources.Arrow(table, event_time="at", rate=1 / 3600, batch_rows=1)


def test_source_in_memory_has_one_thread_and_others_have_two(small_cluster, wait_until):
    with Client(small_cluster(processes=False), set_as_default=False) as client:
        job = de.submit(counting(slow_source(), name="memory"), client)
        wait_until(lambda: threads_of_source(job) == ["elastic-memory-rows[0]"], "the source runs")
        job.stop()
        other = de.submit(counting(de.sources.Push(TIMED), name="pushed"), client)
        wait_until(lambda: len(threads_of_source(other)) == 2, "the source runs")
        other.stop()


def test_source_that_waits_for_its_next_row_becomes_idle_and_can_be_drained(client, wait_until, slowness):
    topology = de.Topology("waiting")
    slow = topology.source("rows", slow_source())
    pushed = topology.source("pushed", de.sources.Push(TIMED, event_time="at"))
    slow.union(pushed).key_by("k").compute({"n": de.aggregate.Count()}, name="counted", executors=1)
    job = de.submit(topology, client, idle_timeout="50ms", watermark_interval="10ms", report_interval="50ms")
    job.send(pa.table({"k": [3], "at": [300]}, schema=TIMED), "pushed")

    def event_times():
        times = job.event_times()
        return {at.timestamp() for at in times.loc[times["operator"] == "counted", "event_time"] if not pd.isna(at)}

    wait_until(lambda: event_times() == {300.0}, "the slow source is idle")
    began = time.monotonic()
    job.drain(timeout=100)
    assert time.monotonic() - began < 100 * slowness()
    assert job.metrics()["rows"].sum() == 2


def test_waiting_batches_of_a_source_in_memory_are_joined(client, tmp_path):
    table = pa.table({"k": list(range(10)) * 2_000})
    sizes = tmp_path / "sizes"

    def note(batch):
        with sizes.open("a") as file:
            file.write(f"{os.getpid()} {batch.num_rows}\n")
        return batch

    topology = de.Topology("small")
    rows = topology.source("rows", de.sources.Arrow(table, batch_rows=10)).map(note)
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    job.wait(**RUN)
    assert job.state("counted").to_pandas()["n"].tolist() == [2_000] * 10
    noted = [int(line.split()[1]) for line in sizes.read_text().splitlines()]
    assert sum(noted) == len(table)
    assert len(noted) < len(table) // 10 // 4
