"""The thread that brings a small batch to an idle task or sink runs it, on a cluster of threads in this process."""

from __future__ import annotations

import functools
import math
import threading

import pyarrow as pa
import pytest
from distributed import Client

import dask_elastic as de
from dask_elastic.runtime.worker import sink_thread
from dask_elastic.runtime.worker.homes import executor_factory

BATCHES = 60
SCHEMA = pa.schema({"key": pa.int64()})


@pytest.fixture
def always_short(monkeypatch):
    """Let every batch count as short, however slow this machine is now."""
    limits = functools.partial(executor_factory.ExecutorLimits, inline_time=math.inf, hurried_time=math.inf)
    monkeypatch.setattr(executor_factory, "ExecutorLimits", limits)
    monkeypatch.setattr(sink_thread, "INLINE_SECONDS", math.inf)


@pytest.mark.usefixtures("always_short")
def test_one_thread_runs_small_batches_from_source_to_sink(small_cluster, wait_until, tmp_path):
    def note(batch, state):
        return batch.append_column("thread", pa.array([threading.current_thread().name]))

    def write(rows):
        # The function runs as a copy, so what it notes goes through files.
        with (tmp_path / "threads").open("a") as file:
            file.write(f"{rows['thread'][0]} {threading.current_thread().name}\n")

    def threads():
        path = tmp_path / "threads"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    topology = de.Topology("thin")
    pushed = topology.source("rows", de.sources.Push(SCHEMA))
    noted = pushed.key_by("key").compute(note, state={"n": pa.int64()}, name="noted", executors=1)
    noted.sink(de.sinks.Call(write), name="written")
    with Client(small_cluster(n_workers=1, processes=False), set_as_default=False) as client:
        job = de.submit(topology, client, latency_target=None)
        for number in range(BATCHES):
            job.send(pa.record_batch({"key": [number]}, schema=SCHEMA))
            wait_until(lambda sent=number + 1: len(threads()) == sent, "the row has arrived")
        job.end_of_input()
        job.wait(100)
    # The first batches are measured by the threads of the task and the sink. The source's thread brings the others, or
    # that of the client's connection.
    for used, own in zip(zip(*threads(), strict=True), ("noted", "written"), strict=True):
        inline = [thread for thread in used if own not in thread]
        assert len(inline) >= BATCHES // 2, used
        assert own in used[0]
