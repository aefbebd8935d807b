"""How a node learns that another has died, and who is told before anybody gets its rows."""

from __future__ import annotations

import asyncio
import select
import socket
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.protocol.job_spec import VACANT
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.transport import channels
from dask_elastic.runtime.transport.channels import has_died
from dask_elastic.runtime.worker.node_failures import NodeFailures
from dask_elastic.vocab.errors import NodeLost, PoisonBatch


async def knock(answer):
    """Ask whether a server has died that answers so; returns what is found."""
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
def test_a_process_that_takes_a_connection_and_never_answers_has_died_once_it_closes_it(answer, died, monkeypatch):
    monkeypatch.setattr(channels, "KNOCK_SECONDS", 0.05)
    assert asyncio.run(knock(answer)) is died


def test_a_process_that_ends_before_it_takes_a_connection_has_died():
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
    """A node with one job; takes down in which order things happen."""

    address = "here"

    def __init__(self):
        self.happened = []
        home = SimpleNamespace(executor=SimpleNamespace(task_nodes=lambda: {0, 1, 2}))
        self.job_part = SimpleNamespace(
            job="job", ended=False, members=SimpleNamespace(lost=set()), suspects_reported=0, homes={"one": home},
            processing_on=self._processing_on,
            spec=SimpleNamespace(job="job", generation=1, incarnation=0, node=0, nodes=("here", "b", "c")),
            node_lost=lambda *given: self._happens("lost", given[0], given[2]),
            change_members=lambda *given: self._happens("members", *given),
            fail=lambda error: self._happens("failed", error),
        )  # fmt: skip
        self.job_parts = {"job": self.job_part}
        self.worker = SimpleNamespace(scheduler=SimpleNamespace(elastic_suspects=self._told))
        self.channels = SimpleNamespace(give_up=lambda address, why: self._happens("given up", address))

    def _happens(self, *what):
        self.happened.append(what)

    def _processing_on(self, address):
        return [("op", 4)] if address == "b" else []

    async def _told(self, job, number, batches, **run):
        self._happens("told", job, number, batches)

    def spawn(self, work):
        return asyncio.ensure_future(work)

    def report_soon(self):
        self._happens("report")


@pytest.fixture
def runtime(monkeypatch):
    """A node; `dead` says who has died."""
    made = Runtime()
    made.dead = set()

    async def died(address):
        return address in made.dead

    monkeypatch.setattr("dask_elastic.runtime.worker.node_failures.has_died", died)
    return made


def go_on(runtime, *commands):
    """Carry commands out, one after the other, and wait until everything has happened."""

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


def test_the_scheduler_knows_what_a_dead_node_had_at_hand_before_anybody_gets_it(runtime):
    runtime.dead = {"b", "c"}
    happened = go_on(runtime, lambda losses: losses.note("b", NodeLost("gone")))
    assert happened == [("given up", "c"), ("told", "job", 1, [("op", 4)]), ("lost", "b", True), ("report",)]
    assert runtime.job_part.suspects_reported == 1


def test_of_a_node_that_hangs_nobody_is_told(runtime):
    assert go_on(runtime, lambda losses: losses.note("b", NodeLost("gone"))) == [("lost", "b", False), ("report",)]
    assert runtime.job_part.suspects_reported == 0


def test_news_that_a_dead_node_is_out_may_come_first(runtime):
    runtime.dead = {"b"}
    happened = go_on(runtime, lambda losses: losses.members(runtime.job_part, 1, ("here", VACANT, "c"), ()))
    news = ("members", 1, ("here", VACANT, "c"), (), {"b"})
    assert happened == [("told", "job", 1, [("op", 4)]), news]


def test_what_is_known_of_a_loss_comes_before_the_news_of_it(runtime):
    runtime.dead = {"b"}
    news = ("members", 1, ("here", VACANT, "c"), (), {"b"})
    happened = go_on(
        runtime,
        lambda losses: losses.note("b", NodeLost("gone")),
        lambda losses: losses.members(runtime.job_part, 1, ("here", VACANT, "c"), ()),
    )
    assert [what[0] for what in happened if what[0] in ("lost", "members")] == ["lost", "members"]
    assert happened[-1] == news


def test_of_nodes_that_die_one_after_the_other_the_scheduler_is_told_in_that_order(runtime):
    """Else what is known of the second would be taken for absolved with the first, or the other way round."""

    async def told(job, number, batches, **run):
        runtime.happened.append(("telling", number))
        # The first takes longer than the second would.
        for _ in range(10 if number == 1 else 1):
            await asyncio.sleep(0)
        runtime.happened.append(("told", number))

    runtime.dead = {"b", "c"}
    runtime.job_part.processing_on = lambda address: [("op", 4)]
    runtime.worker.scheduler.elastic_suspects = told
    happened = go_on(
        runtime,
        lambda losses: losses.note("b", NodeLost("gone")),
        lambda losses: losses.note("c", NodeLost("gone")),
    )
    kinds = [what[0] for what in happened if what[0] in ("telling", "told", "lost")]
    assert kinds == ["telling", "told", "lost"] * 2
    assert runtime.job_part.suspects_reported == 2


def test_a_job_that_cannot_do_without_a_node_of_which_news_came_fails(runtime):
    """Whoever brought the news would take the error for that of a node that cannot be told."""
    poison = PoisonBatch("op", 4)

    def change_members(*_):
        raise poison

    runtime.dead = {"b"}
    runtime.job_part.change_members = change_members
    happened = go_on(runtime, lambda losses: losses.members(runtime.job_part, 1, ("here", VACANT, "c"), ()))
    assert happened[-1] == ("failed", poison)


def test_whatever_goes_wrong_with_a_loss_is_the_error_of_the_job(runtime):
    wrong = KeyError("job")

    async def told(**_):
        raise wrong

    runtime.dead = {"b"}
    runtime.worker.scheduler.elastic_suspects = told
    happened = go_on(runtime, lambda losses: losses.note("b", NodeLost("gone")))
    assert happened[-2:] == [("failed", wrong), ("report",)]


def test_a_home_that_dies_of_what_it_was_about_to_do_is_told_from_one_that_came_through_it(fake):
    """What a home has said to have come through counts, not how long ago it was."""

    async def error_of(absolved):
        scheduler = fake.Scheduler({"a": 2, "b": 2})
        coordinator = Coordinator(scheduler)
        await coordinator.submit("job", **fake.message())
        record = coordinator.jobs["job"]
        for number in (3, 4):
            await coordinator.suspects("job", record.spec.generation, 0, number, [("op0", 17 + number)])
        await coordinator.report("job", record.spec.generation, 0, {**fake.empty_report(False), "absolved": absolved})
        coordinator.node_lost("a")
        error = load_error(record.error)
        await coordinator.close()
        return error

    error = asyncio.run(error_of(absolved=3))
    assert isinstance(error, PoisonBatch)
    assert (error.operator, error.batch) == ("op0", 21)
    assert isinstance(asyncio.run(error_of(absolved=4)), NodeLost)


def test_suspicions_of_an_earlier_run_are_refused_and_counted(fake):
    async def test():
        coordinator = Coordinator(fake.Scheduler({"a": 2}))
        await coordinator.submit("job", **fake.message())
        record = coordinator.jobs["job"]
        generation = record.spec.generation
        for stale in ((generation - 1, 0, 0), (generation, 1, 0), (generation, 0, 7)):
            await coordinator.suspects("job", *stale[:2], 1, [("op0", 1)], stale[2])
        assert (record.suspects, record.refused) == ({}, 3)
        await coordinator.close()

    asyncio.run(test())
