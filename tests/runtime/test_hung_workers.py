"""Workers that hang: calls to them end, jobs start without them, and errors name them."""

from __future__ import annotations

import asyncio

import dask
import pytest

from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import Version
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import NodeLost, NoWorkers, SubmitError, VersionMismatch

TIMEOUT = 0.1


@pytest.fixture(autouse=True)
def quick():
    with dask.config.set({"elastic.heartbeat-interval": TIMEOUT / 2, "elastic.heartbeat-timeout": TIMEOUT}):
        yield


@pytest.fixture
def workers(fake):
    return fake.Scheduler({"a": 2, "b": 2})


def hang(workers, address, *kinds):
    """Have a worker answer neither pings nor these calls."""
    for kind in (Version, *kinds):
        workers.held[address, kind] = asyncio.Event()


async def within(work, seconds=20.0):
    return await asyncio.wait_for(work, seconds)


def test_job_starts_without_worker_that_hangs_and_names_it(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        hang(workers, "b", part_calls.Prepare)
        described = await within(coordinator.submit(fake.submission()))
        await fake.settle()
        coordinator.controller.stop()
        assert (described.status, described.nodes, described.silent) == (Status.RUNNING, ("a",), ("b",))
        del workers.held["b", Version], workers.held["b", part_calls.Prepare]
        await within(coordinator.membership.join_new())
        described = await coordinator.describe(job_calls.Describe("job"))
        assert (described.nodes, described.silent) == (("a", "b"), ())

    asyncio.run(run())


def test_submit_names_workers_if_none_answers(fake, workers):
    async def run():
        hang(workers, "a")
        hang(workers, "b")
        with pytest.raises(NoWorkers, match="no worker answers, neither a nor b"):
            await within(Coordinator(workers).submit(fake.submission()))

    asyncio.run(run())


def test_worker_of_another_version_is_refused_beside_one_that_hangs(fake, workers):
    async def run():
        workers.answers["a", Version] = "0.0.1"
        hang(workers, "b")
        with pytest.raises(VersionMismatch) as raised:
            await within(Coordinator(workers).submit(fake.submission()))
        assert "a: 0.0.1" in str(raised.value)
        assert "b:" not in str(raised.value)

    asyncio.run(run())


def test_worker_that_hangs_while_job_starts_fails_submit(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        workers.held["b", part_calls.Prepare] = asyncio.Event()
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        await fake.settle()
        hang(workers, "b", part_calls.Forget)
        with pytest.raises(NodeLost, match="worker b does not answer 'elastic_prepare': it hangs"):
            await within(submitted)
        assert coordinator.jobs == {}

    asyncio.run(run())


@pytest.mark.parametrize("ended", [False, True])
def test_state_at_worker_that_hangs_is_an_error_that_names_it(fake, workers, ended):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission(executors=2))
        if ended:
            await coordinator.stop(job_calls.Stop("job"))
        workers.answers["a", part_calls.State] = ()
        hang(workers, "b", part_calls.State)
        with pytest.raises(NodeLost, match="worker b does not answer 'elastic_state': it hangs"):
            await within(coordinator.queries.state(job_calls.State("job", "op0", None)))

    asyncio.run(run())


def test_job_with_worker_that_hangs_is_stopped_and_forgotten(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        hang(workers, "b", part_calls.End, part_calls.Forget)
        await within(coordinator.stop(job_calls.Stop("job")))
        assert (await coordinator.describe(job_calls.Describe("job"))).status is Status.STOPPED
        await within(coordinator.forget(job_calls.Forget("job")))
        assert coordinator.jobs == {}

    asyncio.run(run())


def test_slow_call_has_no_limit_while_worker_answers_pings(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission(executors=1))
        gate = workers.held["a", part_calls.State] = asyncio.Event()
        workers.answers["a", part_calls.State] = ()
        asked = len(workers.asked(Version))
        reading = asyncio.ensure_future(coordinator.queries.state(job_calls.State("job", "op0", None)))
        while len(workers.asked(Version)) < asked + 3:
            assert not reading.done()
            await asyncio.sleep(TIMEOUT / 10)
        gate.set()
        assert await within(reading) == ()

    asyncio.run(run())


def test_wrong_timeout_of_heartbeats_is_raised_by_submit(fake, workers):
    with dask.config.set({"elastic.heartbeat-timeout": "soon"}):
        coordinator = Coordinator(workers)
    with pytest.raises(SubmitError, match="heartbeat-timeout"):
        asyncio.run(coordinator.submit(fake.submission()))


# the scheduler's heartbeats


async def ended(coordinator):
    return await within(coordinator.wait(job_calls.Wait("job", 20.0)))


def test_job_fails_when_its_only_worker_hangs(fake):
    async def run():
        workers = fake.Scheduler({"a": 2})
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        hang(workers, "a", part_calls.End)
        described = await ended(coordinator)
        assert described.status is Status.FAILED
        error = load_error(described.error)
        assert isinstance(error, NodeLost)
        assert "worker a of job 'job' does not answer. It was home" in str(error)
        await coordinator.close()

    asyncio.run(run())


def test_job_goes_on_without_guest_that_hangs(fake):
    async def run():
        workers = fake.Scheduler({"a": 2})
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        workers.add("guest")
        while (await coordinator.describe(job_calls.Describe("job"))).nodes != ("a", "guest"):
            await asyncio.sleep(TIMEOUT / 10)
        hang(workers, "guest", part_calls.Prepare, part_calls.Forget)
        async with asyncio.timeout(20):
            while (await coordinator.describe(job_calls.Describe("job"))).nodes != ("a", ""):
                await asyncio.sleep(TIMEOUT / 10)
        described = await coordinator.describe(job_calls.Describe("job"))
        assert described.status is Status.RUNNING
        await coordinator.close()

    asyncio.run(run())


def test_worker_is_pinged_only_while_its_reports_are_missing(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        record = coordinator.jobs["job"]
        for node in (0, 1):
            await coordinator.health.report(fake.report_call(record, node, fake.empty_report(complete=False)))
        at, last = (record.reports[node].at for node in (0, 1))
        assert coordinator.heartbeats.silent(at + 1.0) == set()
        assert coordinator.heartbeats.silent(last + 2.0) == {"a", "b"}
        # Otherwise, workers that hang when the clock is set back would be noticed as much later.
        assert coordinator.heartbeats.silent(at - 3_600.0) == {"a", "b"}
        record.receive(0, record.reports[0].report, idle=True)
        assert coordinator.heartbeats.silent(record.reports[0].at + 2.0) == {"b"}
        await coordinator.stop(job_calls.Stop("job"))
        assert coordinator.heartbeats.silent(last + 9.0) == set()
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize("durable", [False, True])
def test_state_of_an_ended_job_whose_worker_has_left_says_where_to_read_it(fake, workers, tmp_path, durable):
    async def run():
        coordinator = Coordinator(workers)
        options = {"checkpoint": str(tmp_path), "checkpoint_interval": 3600.0} if durable else {}
        await coordinator.submit(fake.submission(executors=2, **options))
        await coordinator.stop(job_calls.Stop("job"))
        del workers.workers["a"]
        hint = rf"read_state\('{tmp_path}', 'op0'\)" if durable else "to a sink"
        with pytest.raises(NodeLost, match=f"worker a has left the cluster, .*Job 'job' has ended: .*{hint}"):
            await coordinator.queries.state(job_calls.State("job", "op0"))

    asyncio.run(run())


def test_error_of_one_look_at_heartbeats_does_not_end_the_watch(fake, workers, monkeypatch, caplog):
    async def run():
        coordinator = Coordinator(workers)
        await within(coordinator.submit(fake.submission()))
        coordinator.controller.stop()
        looked, silent = [], coordinator.heartbeats.silent

        def fails_once(now):
            looked.append(now)
            if len(looked) == 1:
                raise RuntimeError("a report is missing")
            return silent(now)

        monkeypatch.setattr(coordinator.heartbeats, "silent", fails_once)
        hang(workers, "a")
        record = coordinator.jobs["job"]
        await within(record.ended())
        assert isinstance(load_error(record.error), NodeLost)
        coordinator.abandon()

    asyncio.run(run())
    assert "the watch over heartbeats" in caplog.messages
