"""Parts of jobs that have missed the call that ends or drops them end when they report."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.job_calls import Forget, Stop
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error
from dask_elastic.runtime.protocol.reports import Fate, PartReport, ReportAnswer
from dask_elastic.runtime.worker import report_loop
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.report_loop import ENDED_SECONDS, ReportLoop
from dask_elastic.vocab.errors import NodeLost, SinkError


async def submit(coordinator, fake):
    await coordinator.submit(fake.submission())
    coordinator.controller.stop()
    return coordinator.jobs["job"]


async def fate(coordinator, fake, record, node=0, **given):
    call = fake.report_call(record, node, fake.empty_report(complete=False), **given)
    return (await coordinator.health.report(call)).fate


# what the scheduler answers


def test_part_runs_ends_and_is_dropped_with_its_job(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        assert await fate(coordinator, fake, record) is Fate.RUNS
        await coordinator.stop(Stop("job"))
        assert await fate(coordinator, fake, record) is Fate.ENDS
        await coordinator.forget(Forget("job"))
        assert await fate(coordinator, fake, record) is Fate.DROPPED

    on({"a": 2}, test)


def test_part_of_an_earlier_run_is_dropped_once_the_next_one_runs(on, fake):
    async def test(coordinator, scheduler):
        earlier = await submit(coordinator, fake)
        await coordinator.stop(Stop("job"))
        gate = scheduler.held["a", part_calls.CheckCode] = asyncio.Event()
        submitted = asyncio.ensure_future(submit(coordinator, fake))
        await fake.settle()
        # The next run may be refused yet, and this one then stays.
        assert await fate(coordinator, fake, earlier) is Fate.RUNS
        gate.set()
        record = await submitted
        assert await fate(coordinator, fake, earlier) is Fate.DROPPED
        assert await fate(coordinator, fake, record) is Fate.RUNS

    on({"a": 2}, test)


def test_state_of_an_ended_job_stays_while_the_start_of_its_next_run_fails(on, fake):
    async def test(coordinator, scheduler):
        ended = await submit(coordinator, fake)
        await coordinator.stop(Stop("job"))
        scheduler.answers["a", part_calls.CheckCode] = SinkError("no module")
        gate = scheduler.held["a", part_calls.Forget] = asyncio.Event()
        submitted = asyncio.ensure_future(submit(coordinator, fake))
        await fake.settle()
        assert coordinator.jobs["job"].status is Status.FAILED
        assert await fate(coordinator, fake, ended) is Fate.RUNS
        gate.set()
        with pytest.raises(Relayed):
            await submitted
        assert coordinator.jobs["job"] is ended

    on({"a": 2}, test)


def test_part_of_a_worker_that_joins_runs_and_is_dropped_when_it_has_left(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        gate = scheduler.held["a", part_calls.Members] = asyncio.Event()
        joining = asyncio.ensure_future(coordinator.membership.join_new())
        await fake.settle()
        assert await fate(coordinator, fake, record, 1, incarnation=1) is Fate.RUNS
        gate.set()
        await joining
        assert await fate(coordinator, fake, record, 1, incarnation=1) is Fate.RUNS
        scheduler.answers["new", part_calls.Forget] = NodeLost("no way there")
        await coordinator.membership.expel(record, "new")
        assert await fate(coordinator, fake, record, 1, incarnation=1) is Fate.DROPPED

    on({"a": 2}, test)


def test_restart_decides_about_the_parts_of_the_generation_that_it_ends(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        record.halt()
        assert await fate(coordinator, fake, record) is Fate.RUNS
        coordinator.health.fail(record, dump_error(NodeLost("no worker is left")))
        assert await fate(coordinator, fake, record) is Fate.ENDS

    on({"a": 2}, test)


# what a worker does


class FakePart:
    """A part of a job that counts its ends."""

    def __init__(self):
        self.job = "job"
        self.reported_end, self.asked_at = False, 0.0
        self.threads = JobThreads("job", lambda error: None, leased=True)
        self.spec = SimpleNamespace(generation_id=("job", 3), node=0, incarnation=0, options=job_options({}))
        self.idle_watch = SimpleNamespace(note=lambda: None, idle=False)
        self.last_report = SimpleNamespace(changed=lambda report: report, is_due=lambda: True, lost=lambda: None)
        self.is_busy = lambda: False

    @property
    def ended(self):
        return self.threads.ended

    def end(self):
        return self.threads.end()


class FakeNode:
    """A node with one part, whose scheduler answers what the test gives."""

    def __init__(self):
        self.part = FakePart()
        self.job_parts = {"job": self.part}
        self.answer = ReportAnswer()
        self.reports = []
        self.measured = {}
        self.answered = None
        self.seconds = 0.0
        self.loop = ReportLoop(self, clock=lambda: self.seconds)

    async def report_on(self, part):
        if part in self.measured:
            await self.measured[part].wait()
        return PartReport(complete=False)

    async def call_scheduler(self, call):
        self.reports.append(call.report)
        if self.answered is not None:
            await self.answered.wait()
        return self.answer

    async def forget(self, job):
        del self.job_parts[job]

    def spawn(self, work, what):
        return asyncio.ensure_future(work)

    async def report(self, fate=Fate.RUNS):
        self.answer = ReportAnswer(fate=fate)
        await self.loop._report_all()
        await asyncio.sleep(0)


def test_worker_ends_and_drops_what_the_scheduler_has_given_up():
    async def test():
        node = FakeNode()
        await node.report()
        assert not node.part.ended
        await node.report(Fate.ENDS)
        assert node.part.ended
        assert not node.part.reported_end
        await node.report(Fate.ENDS)
        assert node.part.reported_end
        assert "job" in node.job_parts
        await node.report(Fate.DROPPED)
        assert "job" in node.job_parts  # it asks rarely
        assert len(node.reports) == 3
        node.seconds += ENDED_SECONDS
        await node.report(Fate.DROPPED)
        assert node.reports[-1] is None
        assert node.job_parts == {}

    asyncio.run(test())


def test_part_that_is_measured_late_keeps_no_lease_from_being_renewed(monkeypatch):
    """State that moves to disk is measured when it is there."""
    monkeypatch.setattr(report_loop, "LATE_SECONDS", 0.01)

    async def test():
        node = FakeNode()
        other = node.job_parts["other"] = FakePart()
        gate = node.measured[node.part] = asyncio.Event()
        node.answer = ReportAnswer(lease=60.0)
        async with asyncio.timeout(20):
            await node.loop._report_all()
            assert other.threads.lease.is_open
            assert not node.part.threads.lease.is_open
            await node.loop._report_all()
            assert node.part.threads.lease.is_open
            assert node.reports.count(None) == 1
            gate.set()
            while node.loop._reporting:
                await asyncio.sleep(0)
            await node.loop._report_all()
        assert len(node.reports) == 6
        assert node.reports.count(None) == 1

    asyncio.run(test())


def test_scheduler_that_answers_late_gets_no_more_calls_for_that(monkeypatch):
    """It used to get the next report with each answer, and a repetition meanwhile: a slow one became slower."""
    monkeypatch.setattr(report_loop, "LATE_SECONDS", 0.01)

    async def test():
        node = FakeNode()
        node.answered = asyncio.Event()
        async with asyncio.timeout(20):
            for _ in range(2):
                await node.loop._report_all()
                node.seconds += 1.0
            node.answered.set()
            while node.loop._reporting:
                await asyncio.sleep(0)
        assert len(node.reports) == 1
        assert not node.loop._wanted.is_set()

    asyncio.run(test())


def test_what_is_wanted_while_a_part_is_measured_is_reported_afterwards(monkeypatch):
    """The end of a part that its report has missed must not wait for the interval."""
    monkeypatch.setattr(report_loop, "LATE_SECONDS", 0.01)

    async def test():
        node = FakeNode()
        node.part.spec.options = replace(node.part.spec.options, report_interval=1e6)
        gate = node.measured[node.part] = asyncio.Event()
        async with asyncio.timeout(20):
            await node.loop._report_all()
            node.loop.wake()
            running = asyncio.ensure_future(node.loop.run())
            while len(node.reports) < 1:
                await asyncio.sleep(0)
            assert node.reports == [None]
            gate.set()
            while len(node.reports) < 3:
                await asyncio.sleep(0)
        running.cancel()
        assert None not in node.reports[1:]

    asyncio.run(test())


def test_part_that_has_taken_the_place_of_a_dropped_one_stays():
    async def test():
        node = FakeNode()
        node.answer = ReportAnswer(fate=Fate.DROPPED)
        reporting = asyncio.ensure_future(node.loop.report(node.part))
        await asyncio.sleep(0)
        next_one = node.job_parts["job"] = FakePart()
        await reporting
        await asyncio.sleep(0)
        assert node.job_parts == {"job": next_one}

    asyncio.run(test())
