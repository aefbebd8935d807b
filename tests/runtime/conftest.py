"""A fake scheduler: workers answer when and what the test tells them to, jobs measure what the test gives."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dask_elastic._version import __version__
from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.meters import LatencyHistogram
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol import group_calls, home_calls, part_calls
from dask_elastic.runtime.protocol.calls import Call, Version, answer_codec, read_call
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.protocol.job_spec import ComponentSummary
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.protocol.reports import PartReport, Report
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.worker.report import part_report
from dask_elastic.runtime.worker.user_calls import UserCalls
from dask_elastic.vocab.identity import ExecutorId

CALLS = {
    kind.operation: kind
    for kind in (*vars(part_calls).values(), *vars(home_calls).values(), *vars(group_calls).values())
    if isinstance(kind, type) and issubclass(kind, Call) and kind is not Call
}


class FakeScheduler:
    """Workers by address, with their threads, and the calls that they got.

    Attributes
    ----------
    calls : list of (str, Call)
        Address and call, in order.
    answers : dict
        By address and call class: the answer, an error, or a function of the call.
    held : dict of asyncio.Event
        By address and call class: the worker answers once the event is set.
    """

    def __init__(self, nthreads):
        self.workers = {}
        self.calls = []
        self.answers = {}
        self.held = {}
        self.events = []
        self.task_metadata = {}
        for address, threads in nthreads.items():
            self.add(address, threads)

    def add(self, address, threads=2, status="running"):
        status = SimpleNamespace(name=status)
        host = address.partition(":")[0]
        self.workers[address] = SimpleNamespace(
            address=address, host=host, nthreads=threads, status=status, memory_limit=2**30
        )

    def rpc(self, address):
        return _Rpc(self, address)

    def log_event(self, topic, message):
        self.events.append((topic, message))

    def asked(self, kind):
        """Return (address, call) of every call of a class so far."""
        return [(address, call) for address, call in self.calls if isinstance(call, kind)]

    async def answer(self, address, operation, message):
        call = read_call(CALLS.get(operation, Version), message)
        kind = type(call)
        self.calls.append((address, call))
        if (address, kind) in self.held:
            await self.held[address, kind].wait()
        default = {Version: __version__, part_calls.Report: empty_report(), part_calls.AwaitTaskEnds: ()}.get(kind)
        answer = self.answers.get((address, kind), () if kind in (part_calls.Forget, part_calls.End) else default)
        answer = answer(call) if callable(answer) else answer
        if isinstance(answer, Exception):
            return {"error": dump_error(answer)}
        encode = answer_codec(kind).encode
        return {"answer": answer if encode is None else encode(answer)}


class _Rpc:
    def __init__(self, scheduler, address):
        self.scheduler, self.address = scheduler, address

    def __getattr__(self, operation):
        return lambda **message: self.scheduler.answer(self.address, operation, message)


def empty_report(complete=True, **values):
    """Return a report without executors."""
    return PartReport(complete, **values)


def report_call(record, node, report, incarnation=0, generation=None):
    """Return the call with which a node reports about its part of a job."""
    return Report(record.name, generation or record.spec.generation, node, report, incarnation)


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


def report_of(measures, complete=False, edges=None, sources=(), sinks=()):
    """Return the report of a worker with these executors."""
    letters = SimpleNamespace(counts={})
    job_part = SimpleNamespace(
        complete=complete, error=None, sources=dict(sources), homes={}, sinks=dict(sinks), dead_letters=letters,
        measures=lambda: measures, messages_refused=0, members=SimpleNamespace(lost=set()), suspects_cleared=0,
        threads=SimpleNamespace(user_calls=UserCalls()), spec=SimpleNamespace(options=job_options({}), node=0),
        edge_rates=lambda: edges or {}, exchange=SimpleNamespace(backpressured=lambda executor: 0.25),
    )  # fmt: skip
    return part_report(job_part)


def summaries(executors=None, operators=1):
    """Return a source, stateful operators one behind the other, and a sink."""
    names = [f"op{number}" for number in range(operators)]
    parts = [
        ("rows", "source", (), 1),
        *((n, "compute", (b,), executors) for b, n in zip(["rows", *names[:-1]], names, strict=True)),
        ("out", "sink", (names[-1],), None),
    ]
    return tuple(
        ComponentSummary(name, kind, inputs, (name,), instances, shards=4) for name, kind, inputs, instances in parts
    )


def submission(name="job", executors=None, operators=1, cores=None, **options):
    """Return the call with which a client submits a job."""
    return Submit(
        name=name,
        version=__version__,
        summaries=summaries(executors, operators),
        options=replace(job_options({}), **options),
        cores=cores or {},
        components=b"components",
    )


async def settle():
    """Run all tasks of the event loop that are not waiting."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def fake():
    """The pieces of a fake cluster."""
    return SimpleNamespace(
        Scheduler=FakeScheduler, measure=measure, report=report_of, empty_report=empty_report, report_call=report_call,
        submission=submission, settle=settle,
    )  # fmt: skip


@pytest.fixture
def on(fake):
    """Return a function that runs a test with a coordinator on fake workers."""

    def run(threads, test):
        async def with_coordinator():
            scheduler = fake.Scheduler(threads)
            coordinator = Coordinator(scheduler)
            await test(coordinator, scheduler)
            await coordinator.close()

        asyncio.run(with_coordinator())

    return run
