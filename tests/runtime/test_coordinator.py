"""The coordinator against workers that answer when the test says so."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from dask_elastic._version import __version__
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error, load_error
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.worker.handlers import Handlers
from dask_elastic.vocab.errors import SubmitError, UnknownJob

SUBMIT = {
    "version": __version__,
    "summaries": [{"name": "rows", "kind": "source", "inputs": (), "operators": ("rows",), "instances": 1,
                   "shards": 1, "pushed": False}],
    "options": asdict(job_options({})),
    "cores": {},
    "components": b"",
}  # fmt: skip


class Workers:
    """Two workers; an operation that is held is answered once it is let go."""

    def __init__(self):
        self.calls = []
        self.held = {}
        self.answers = {}
        running = SimpleNamespace(name="running")
        self.workers = {a: SimpleNamespace(address=a, status=running, nthreads=2) for a in ("a", "b")}

    def rpc(self, address):
        return _Rpc(self, address)

    async def ask(self, address, operation, arguments):
        self.calls.append((address, operation, arguments.get("generation")))
        if (address, operation) in self.held:
            await self.held[address, operation].wait()
        answer = self.answers.get((address, operation), __version__ if operation == "version" else None)
        return {"error": dump_error(answer)} if isinstance(answer, Exception) else {"answer": answer}


class _Rpc:
    def __init__(self, workers, address):
        self.workers, self.address = workers, address

    def __getattr__(self, name):
        return lambda **arguments: self.workers.ask(self.address, name.removeprefix("elastic_"), arguments)


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_forgetting_an_old_run_leaves_a_new_one_of_the_name_alone():
    async def run():
        workers = Workers()
        coordinator = Coordinator(workers)
        await coordinator.submit("job", **SUBMIT)
        await coordinator.stop("job")
        gate = workers.held["a", "forget"] = asyncio.Event()
        old = asyncio.ensure_future(coordinator.forget("job"))
        await settle()
        del workers.held["a", "forget"]
        await coordinator.submit("job", **SUBMIT)
        gate.set()
        await old
        assert (await coordinator.describe("job"))["status"] == "running"
        assert {generation for _, operation, generation in workers.calls if operation in ("end", "forget")} == {1}

    asyncio.run(run())


def test_a_job_that_is_stopped_while_it_starts_does_not_run():
    async def run():
        workers = Workers()
        coordinator = Coordinator(workers)
        gate = workers.held["b", "prepare"] = asyncio.Event()
        submitted = asyncio.ensure_future(coordinator.submit("job", **SUBMIT))
        await settle()
        await coordinator.stop("job")
        gate.set()
        assert (await submitted)["status"] == "stopped"
        operations = [operation for address, operation, _ in workers.calls if address == "b"]
        assert operations[-1] == "end"

    asyncio.run(run())


def test_a_worker_that_is_slow_to_prepare_forgets_a_job_that_could_not_start():
    async def run():
        workers = Workers()
        coordinator = Coordinator(workers)
        gate = workers.held["b", "prepare"] = asyncio.Event()
        workers.answers["a", "prepare"] = SubmitError("no")
        submitted = asyncio.ensure_future(coordinator.submit("job", **SUBMIT))
        await settle()
        assert "forget" not in [operation for _, operation, _ in workers.calls]
        gate.set()
        with pytest.raises(Relayed):
            await submitted
        assert workers.calls[-1][1] == "forget"
        assert coordinator.jobs == {}

    asyncio.run(run())


def test_the_end_of_an_earlier_run_does_not_end_a_later_one():
    ended = []
    job_part = SimpleNamespace(spec=SimpleNamespace(generation=2), refused=0, end=lambda: ended.append(2))

    async def forget(job):
        ended.append(job)
        return []

    commands = Handlers(SimpleNamespace(job_parts={"job": job_part}, forget=forget))
    for generation in (1, 2):
        asyncio.run(commands.end("job", generation))
        asyncio.run(commands.forget("job", generation))
    assert ended == [2, "job"]


COMMANDS = {
    "members": {"change": 1, "nodes": [], "guests": []},
    "start_executors": {}, "start_sources": {}, "drain": {}, "end": {}, "forget": {}, "report": {},
    "set_cores": {"change": 1, "operator": "op", "executor": 0, "cores": []},
    "move_shard": {"operator": "op", "executor": 0, "shard": 0, "task": 0},
    "moves": {}, "recoveries": {}, "assignment": {}, "task_nodes": {},
    "state": {"operator": "op", "executor": 0},
    "send": {"source": "rows", "instance": 0, "rows": b""}, "close_source": {"source": "rows", "instance": 0},
    "collect": {"operator": "out"}, "dead_letters": {"operator": "op"},
}  # fmt: skip
"""Whatever is said to a job's part on a node, once it is there."""


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_said_to_an_earlier_run_is_refused_and_counted(command):
    """The job has no other part here: whatever it does with the command would raise another error."""
    job_part = SimpleNamespace(spec=SimpleNamespace(generation=2), refused=0)
    worker = SimpleNamespace(address="here")
    commands = Handlers(SimpleNamespace(job_parts={"job": job_part}, worker=worker, in_thread=None))
    answer = asyncio.run(commands.handlers()[f"elastic_{command}"](job="job", generation=1, **COMMANDS[command]))
    assert job_part.refused == 1
    if command in ("end", "forget"):
        assert answer == {"answer": [] if command == "forget" else None}
    else:
        assert isinstance(load_error(answer["error"]), UnknownJob)


def test_every_command_is_tried():
    handlers = Handlers(SimpleNamespace()).handlers()
    assert {f"elastic_{name}" for name in (*COMMANDS, "version", "prepare")} == set(handlers)


def test_a_worker_that_has_joined_anew_does_not_forget_what_it_was_told_to_before():
    forgotten = []

    async def forget(job):
        forgotten.append(job)
        return []

    job_part = SimpleNamespace(spec=SimpleNamespace(generation=2, incarnation=5), refused=0)
    commands = Handlers(SimpleNamespace(job_parts={"job": job_part}, forget=forget))
    asyncio.run(commands.forget("job", 2, incarnation=4))
    assert (forgotten, job_part.refused) == ([], 1)
    asyncio.run(commands.forget("job", 2, incarnation=5))
    assert forgotten == ["job"]
