"""Detection of dead nodes, and the report to the scheduler before their rows are replayed."""

from __future__ import annotations

import asyncio
import select
import socket
import weakref
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.job_spec import VACANT, JobSpec
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.runtime.protocol.reports import SuspectBatch, Suspects
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.transport import ended_process
from dask_elastic.runtime.transport.ended_process import has_died
from dask_elastic.runtime.worker.handlers import Handlers
from dask_elastic.runtime.worker.newest_generations import NewestGenerations
from dask_elastic.runtime.worker.node_failures import NodeFailures
from dask_elastic.vocab.errors import NodeLost, PoisonBatch, UnknownJob


async def knock(answer):
    """Return whether a server that answers in this way counts as dead."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        return await has_died(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def greets(reader, writer):
    writer.write(b"hello")
    await writer.drain()
    await reader.read()
    writer.close()


async def closes(reader, writer):
    writer.close()


async def hangs(reader, writer):
    await reader.read()
    writer.close()


@pytest.mark.parametrize(("answer", "died"), [(greets, False), (closes, True), (hangs, False)])
def test_closed_unanswered_connection_means_process_has_died(answer, died, monkeypatch):
    monkeypatch.setattr(ended_process, "KNOCK_SECONDS", 0.05)
    assert asyncio.run(knock(answer)) is died


def test_refused_connection_means_process_has_died():
    async def test():
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        asking = asyncio.ensure_future(has_died(address))
        await asyncio.get_running_loop().run_in_executor(None, select.select, [listener], [], [])
        assert not asking.done()
        listener.close()
        assert await asking
        assert await has_died(address)

    asyncio.run(test())


class Runtime:
    """A node with one job; records the order of events."""

    address = "here"

    def __init__(self):
        self.happened = []
        home = SimpleNamespace(executor=SimpleNamespace(task_nodes=lambda: {0, 1, 2}))
        self.job_part = SimpleNamespace(
            job="job", ended=False, members=SimpleNamespace(lost=set()), suspects_reported=0, homes={"one": home},
            processing_on=self._processing_on,
            spec=JobSpec("job", 1, ("here", "b", "c"), 0, (), {}, {}, options=None),
            node_lost=lambda *given: self._happens("lost", given[0], given[2]),
            change_members=lambda *given: self._happens("members", *given),
            fail=lambda error: self._happens("failed", error),
        )  # fmt: skip
        self.job_parts = {"job": self.job_part}
        self.channels = SimpleNamespace(give_up=lambda address, why: self._happens("given up", address))

    def _happens(self, *what):
        self.happened.append(what)

    def _processing_on(self, address):
        return [("op", "4 rows")] if address == "b" else []

    async def call_scheduler(self, call):
        assert isinstance(call, Suspects)
        self._happens("reported", call.job, call.number, [*call.batches])

    def spawn(self, work, what):
        return asyncio.ensure_future(work)

    def report_soon(self):
        self._happens("report")


@pytest.fixture
def runtime(monkeypatch):
    """A node; `dead` has the addresses of dead nodes."""
    made = Runtime()
    made.dead = set()

    async def died(address):
        return address in made.dead

    monkeypatch.setattr("dask_elastic.runtime.worker.node_failures.has_died", died)
    return made


def go_on(runtime, *commands):
    """Run commands one after the other, wait for all failovers, and return the events."""

    async def run():
        losses = NodeFailures(runtime)
        for command in commands:
            found = command(losses)
            if asyncio.iscoroutine(found):
                await found
        while losses._under_way:
            await asyncio.wait(set(losses._under_way))
        losses.close()

    asyncio.run(run())
    return runtime.happened


def test_suspect_batches_of_dead_node_are_reported_before_failover(runtime):
    runtime.dead = {"b", "c"}
    happened = go_on(runtime, lambda losses: losses.note("b", NodeLost("gone")))
    assert happened == [("given up", "c"), ("reported", "job", 1, [("op", "4 rows")]), ("lost", "b", True), ("report",)]
    assert runtime.job_part.suspects_reported == 1


def test_hanging_node_yields_no_suspect_batches(runtime):
    assert go_on(runtime, lambda losses: losses.note("b", NodeLost("gone"))) == [("lost", "b", False), ("report",)]
    assert runtime.job_part.suspects_reported == 0


def test_suspects_are_reported_when_removal_is_announced_first(runtime):
    runtime.dead = {"b"}
    happened = go_on(runtime, lambda losses: losses.members(runtime.job_part, 1, ("here", VACANT, "c"), ()))
    news = ("members", 1, ("here", VACANT, "c"), (), {"b"})
    assert happened == [("reported", "job", 1, [("op", "4 rows")]), news]


def test_running_failover_finishes_before_announced_removal(runtime):
    runtime.dead = {"b"}
    news = ("members", 1, ("here", VACANT, "c"), (), {"b"})
    happened = go_on(
        runtime,
        lambda losses: losses.note("b", NodeLost("gone")),
        lambda losses: losses.members(runtime.job_part, 1, ("here", VACANT, "c"), ()),
    )
    assert [what[0] for what in happened if what[0] in ("lost", "members")] == ["lost", "members"]
    assert happened[-1] == news


def test_suspects_of_several_dead_nodes_are_reported_in_order(runtime):
    """Otherwise the batches of one report would count as processed with those of the other."""

    async def report_suspects(call):
        runtime.happened.append(("reporting", call.number))
        # The first takes longer than the second would.
        for _ in range(10 if call.number == 1 else 1):
            await asyncio.sleep(0)
        runtime.happened.append(("reported", call.number))

    runtime.dead = {"b", "c"}
    runtime.job_part.processing_on = lambda address: [("op", "4 rows")]
    runtime.call_scheduler = report_suspects
    happened = go_on(
        runtime,
        lambda losses: losses.note("b", NodeLost("gone")),
        lambda losses: losses.note("c", NodeLost("gone")),
    )
    kinds = [what[0] for what in happened if what[0] in ("reporting", "reported", "lost")]
    assert kinds == ["reporting", "reported", "lost"] * 2
    assert runtime.job_part.suspects_reported == 2


def test_job_that_needs_removed_node_fails(runtime):
    """The scheduler would take an error of the call for that of an unreachable node."""
    poison = PoisonBatch("op", "4 rows")

    def change_members(*_):
        raise poison

    runtime.dead = {"b"}
    runtime.job_part.change_members = change_members
    happened = go_on(runtime, lambda losses: losses.members(runtime.job_part, 1, ("here", VACANT, "c"), ()))
    assert happened[-1] == ("failed", poison)


def test_error_during_failover_fails_job(runtime):
    wrong = KeyError("job")

    async def report_suspects(call):
        raise wrong

    runtime.dead = {"b"}
    runtime.call_scheduler = report_suspects
    happened = go_on(runtime, lambda losses: losses.note("b", NodeLost("gone")))
    assert happened[-2:] == [("failed", wrong), ("report",)]


def test_dead_home_is_blamed_on_poison_batch_only_with_unprocessed_suspects(fake):
    """The numbers of reported and processed suspects count, not the time between them."""

    async def error_of(absolved):
        scheduler = fake.Scheduler({"a": 2, "b": 2})
        coordinator = Coordinator(scheduler)
        await coordinator.submit(fake.submission())
        record = coordinator.jobs["job"]
        for number in (3, 4):
            batches = (SuspectBatch("op0", f"{17 + number} rows"),)
            await coordinator.health.suspects(Suspects(*record.generation_id, 0, number, batches))
        await coordinator.health.report(fake.report_call(record, 0, fake.empty_report(False, absolved=absolved)))
        coordinator.node_lost("a")
        error = load_error(record.error)
        await coordinator.close()
        return error

    error = asyncio.run(error_of(absolved=3))
    assert isinstance(error, PoisonBatch)
    assert (error.operator, error.batch) == ("op0", "21 rows")
    assert isinstance(asyncio.run(error_of(absolved=4)), NodeLost)


def test_suspects_of_earlier_generation_are_refused_and_counted(fake):
    async def test():
        coordinator = Coordinator(fake.Scheduler({"a": 2}))
        await coordinator.submit(fake.submission())
        record = coordinator.jobs["job"]
        generation = record.spec.generation
        for stale in ((generation - 1, 0, 0), (generation, 1, 0), (generation, 0, 7)):
            batches = (SuspectBatch("op0", "1 row"),)
            await coordinator.health.suspects(Suspects("job", *stale[:2], 1, batches, incarnation=stale[2]))
        assert (record.suspects, record.refused) == ({}, 3)
        await coordinator.close()

    asyncio.run(test())


def test_node_refuses_to_build_generations_that_have_ended():
    newest = NewestGenerations()
    newest.begin("job", 2)
    newest.begin("job", 4)
    with pytest.raises(UnknownJob, match="generation 2 of job 'job' has ended"):
        newest.check("job", 2)
    newest.check("job", 4)
    newest.forget("job", 4)
    with pytest.raises(UnknownJob, match="generation 4"):
        newest.begin("job", 4)
    newest.begin("job", 5)
    newest.begin("other", 1)


def test_node_refuses_to_build_incarnations_that_were_dismissed():
    newest = NewestGenerations(most=1)
    newest.begin("job", 2)
    newest.dismiss("job", 2, 3)
    newest.dismiss("job", 2, 1)
    newest.dismiss("job", 1, 9)
    for incarnation in (0, 3):
        with pytest.raises(UnknownJob, match="generation 2 of job 'job' goes on without this worker"):
            newest.check("job", 2, incarnation)
    newest.check("job", 2, 4)
    newest.check("job", 3, 0)
    newest.begin("other", 1)
    assert newest._dismissed == {}


def test_part_that_is_forgotten_while_it_is_built_is_refused():
    refused = []
    node = SimpleNamespace(refuse=lambda *arguments: refused.append(arguments), job_parts={})
    assert asyncio.run(Handlers(node).forget(part_calls.Forget("job", 2, 3))) == ()
    assert refused == [("job", 2, 3)]


def test_node_remembers_generations_of_the_newest_jobs_only():
    newest = NewestGenerations(most=2)
    for job in ("first", "second", "third"):
        newest.begin(job, 1)
        newest.forget(job, 1)
    for job in ("second", "third"):
        with pytest.raises(UnknownJob, match=f"generation 1 of job '{job}' has ended"):
            newest.check(job, 1)
    newest.check("first", 1)
    newest.begin("second", 2)
    newest.begin("fourth", 1)
    with pytest.raises(UnknownJob, match="generation 1 of job 'second' has ended"):
        newest.check("second", 1)


def test_node_keeps_the_lock_of_a_job_only_while_it_is_used():
    async def test():
        newest = NewestGenerations()
        async with newest.lock("job"):
            lock = weakref.ref(newest.lock("job"))
            assert lock() is newest.lock("job")
            assert newest.lock("other") is not lock()
        assert lock() is None

    asyncio.run(test())
