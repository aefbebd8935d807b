"""A scheduler that is only pretended: workers answer when and what the test says, jobs measure what it says."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dask_elastic._version import __version__
from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.meters import LatencyHistogram
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.worker.report import part_report
from dask_elastic.vocab.identity import ExecutorId


class FakeScheduler:
    """Knows workers by address, as many threads each as said, and what was asked of them."""

    def __init__(self, nthreads):
        self.workers = {}
        self.calls = []
        self.answers = {}
        self.held = {}
        self.events = []
        for address, threads in nthreads.items():
            self.add(address, threads)

    def add(self, address, threads=2, status="running"):
        status = SimpleNamespace(name=status)
        host = address.partition(":")[0]
        self.workers[address] = SimpleNamespace(address=address, host=host, nthreads=threads, status=status)

    def rpc(self, address):
        return _Rpc(self, address)

    def log_event(self, topic, message):
        self.events.append((topic, message))

    def asked(self, operation):
        """Return (address, arguments) of every call of an operation so far."""
        return [(address, arguments) for address, name, arguments in self.calls if name == operation]

    async def ask(self, address, operation, arguments):
        self.calls.append((address, operation, arguments))
        if (address, operation) in self.held:
            await self.held[address, operation].wait()
        default = {"version": __version__, "task_nodes": [], "report": empty_report()}.get(operation)
        answer = self.answers.get((address, operation), default)
        answer = answer(**arguments) if callable(answer) else answer
        return {"error": dump_error(answer)} if isinstance(answer, Exception) else {"answer": answer}


class _Rpc:
    def __init__(self, scheduler, address):
        self.scheduler, self.address = scheduler, address

    def __getattr__(self, name):
        return lambda **arguments: self.scheduler.ask(self.address, name.removeprefix("elastic_"), arguments)


def empty_report(complete=True):
    return {"complete": complete, "error": None, "executors": [], "details": [], "sources": [], "staged": [],
            "sinks": [], "dead_letters": {}, "refused": 0, "lost": [], "absolved": 0, "event_times": []}  # fmt: skip


def measure(operator, index, node=0, shards=4, latency=0.01, **values):
    """Return a measure with sensible values where none are given."""
    histogram = LatencyHistogram()
    histogram.record(latency, 100)
    given = {
        "cores": {node: 1}, "arrival_rate": 1_000.0, "throughput": 1_000.0, "service_rate": 2_000.0,
        "customer_rows": 10.0, "bytes_in": 8_000.0, "bytes_out": 4_000.0, "queue_rows": 3, "sojourn": latency / 2,
        "latency": histogram, "latency_now": histogram, "latency_mean": latency, "latency_rows": 100.0,
        "state_bytes": 400, "shard_load": np.full(shards, 0.125), "shard_bytes": np.full(shards, 100), "rows": 9,
        "moves": 2, "moves_across": 1, **values,
    }  # fmt: skip
    return ExecutorMeasure(executor=ExecutorId(operator, index), node=node, **given)


def report_of(measures, complete=False):
    """Return what a worker with these executors reports."""
    letters = SimpleNamespace(counts={})
    job_part = SimpleNamespace(
        complete=complete, error=None, sources={}, homes={}, sinks={}, dead_letters=letters, measures=lambda: measures,
        messages_refused=0, members=SimpleNamespace(lost=set()), suspects_cleared=0,
    )  # fmt: skip
    return part_report(job_part)


def summaries(executors=None, operators=1):
    """Return a source, stateful operators one behind the other, and a sink."""
    names = [f"op{number}" for number in range(operators)]
    parts = [
        ("rows", "source", (), 1),
        *((n, "compute", (b,), executors) for b, n in zip(["rows", *names[:-1]], names, strict=True)),
    ]
    parts.append(("out", "sink", (names[-1],), None))
    return [
        {"name": name, "kind": kind, "inputs": inputs, "operators": (name,), "instances": instances, "shards": 4,
         "pushed": False}
        for name, kind, inputs, instances in parts
    ]  # fmt: skip


def message(executors=None, operators=1, cores=None, **options):
    """Return what a client submits."""
    return {
        "version": __version__,
        "summaries": summaries(executors, operators),
        "options": asdict(replace(job_options({}), **options)),
        "cores": cores or {},
        "components": b"components",
    }


async def settle():
    """Let everything that can go on go on."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def fake():
    """Return the pieces of a pretended cluster."""
    return SimpleNamespace(
        Scheduler=FakeScheduler, measure=measure, report=report_of, empty_report=empty_report, message=message,
        settle=settle,
    )  # fmt: skip
