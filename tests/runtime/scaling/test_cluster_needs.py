"""What the scheduler answers a cluster that grows and shrinks with its jobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dask_elastic.planning.initial import PlacementRequest, place
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.cluster_calls import GROWS, Keep, NeedOfCluster
from dask_elastic.runtime.protocol.job_status import JobEvent
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import NoWorkers
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

ASK = NeedOfCluster(4, 5.0)


@pytest.fixture
def workers(fake):
    """Two workers, without tasks of Dask."""
    made = fake.Scheduler({"a": 2, "b": 2})
    made.adaptive_target = lambda seconds: 0
    for state in made.workers.values():
        state.processing, state.name = {}, state.address.upper()
    return made


def test_need_without_jobs_is_none_and_all_idle_workers_may_leave(workers):
    async def run():
        coordinator = Coordinator(workers)
        need = await coordinator.cluster.need(ASK)
        assert (need.slots, need.jobs, need.per_worker) == (0.0, 0, 2)
        assert need.workers == (("a", "A"), ("b", "B"))
        workers.workers["a"].processing = {"task": 1}
        assert (await coordinator.cluster.need(ASK)).workers == (("b", "B"),)

    asyncio.run(run())


def test_worker_that_leaves_comes_first_and_one_with_homes_last(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        homes = {address for address in "ab" if coordinator.running[0].needs(address)}
        need = await coordinator.cluster.need(ASK)
        assert need.jobs == 1
        assert need.workers[-1][0] in homes
        coordinator.workers.retiring.add(need.workers[-1][0])
        later = await coordinator.cluster.need(ASK)
        assert later.workers[0] == need.workers[-1]
        assert (need.retired, later.retired) == ((), (need.workers[-1],))
        await coordinator.cluster.keep(Keep(("a", "b", "gone")))
        assert coordinator.workers.retiring == set()
        await coordinator.close()

    asyncio.run(run())


def test_workers_that_cost_a_restart_come_late_and_those_that_jobs_cannot_leave_last(fake, tmp_path):
    async def run():
        three = fake.Scheduler({"a": 2, "b": 2, "c": 2})
        three.adaptive_target = lambda seconds: 0
        for state in three.workers.values():
            state.processing, state.name = {}, state.address
        coordinator = Coordinator(three)
        coordinator.workers.retiring.update("bc")
        await coordinator.submit(fake.submission("stuck", executors=1))
        coordinator.workers.retiring.symmetric_difference_update("ab")
        await coordinator.submit(fake.submission("durable", executors=1, checkpoint=str(tmp_path)))
        coordinator.workers.retiring.clear()
        need = await coordinator.cluster.need(ASK)
        assert [address for address, _ in need.workers] == ["c", "b", "a"]
        assert need.restarting == ("b",)
        await coordinator.close()

    asyncio.run(run())


def test_jobs_do_not_count_as_tasks_of_dask(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        workers.adaptive_target = lambda seconds: len(coordinator.used_workers()) + 7
        assert coordinator.used_workers()
        assert (await coordinator.cluster.need(ASK)).for_tasks == 7
        assert coordinator.used_workers()
        await coordinator.close()

    asyncio.run(run())


def test_job_waits_for_the_first_worker_of_a_cluster_that_grows(fake):
    async def run():
        empty = fake.Scheduler({})
        empty.adaptive_target = lambda seconds: 0
        coordinator = Coordinator(empty)
        with pytest.raises(NoWorkers):
            await coordinator.submit(fake.submission())
        await coordinator.cluster.need(ASK)
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        while (await coordinator.cluster.need(ASK)).jobs == 0:
            await asyncio.sleep(0)
        assert not submitted.done()
        empty.add("a", 2)
        empty.workers["a"].processing, empty.workers["a"].name = {}, "A"
        # The first worker must not be closed as one that no job needs, however long the start takes.
        while not submitted.done():
            assert (await coordinator.cluster.need(ASK)).jobs == 1
            await asyncio.sleep(0)
        assert (await submitted).name == "job"
        assert (await coordinator.cluster.need(ASK)).jobs == 1
        await coordinator.close()

    asyncio.run(run())


def test_cluster_may_announce_its_growth_before_the_first_job(fake):
    empty = fake.Scheduler({})
    assert not Coordinator(empty).workers.growth.expected
    empty.task_metadata[GROWS] = {"workers": 4}
    growth = Coordinator(empty).workers.growth
    assert (growth.expected, growth.workers) == (True, 4)


def test_job_that_is_given_up_waits_no_longer(fake):
    async def run():
        empty = fake.Scheduler({})
        empty.adaptive_target = lambda seconds: 0
        coordinator = Coordinator(empty)
        await coordinator.cluster.need(ASK)
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        while not coordinator.workers.growth.starting:
            await asyncio.sleep(0)
        submitted.cancel()
        await asyncio.wait([submitted])
        assert (await coordinator.cluster.need(ASK)).jobs == 0
        assert await coordinator.list_jobs(job_calls.ListJobs()) == ()

    asyncio.run(run())


def test_default_number_of_executors_is_that_of_the_workers_to_come():
    request = PlacementRequest("counted", None, True)
    assert len(place([request], [2], nodes=4).homes["counted"]) == 4
    assert place([request], [2], nodes=4).oversubscribed
    assert len(place([request], [2, 2], nodes=1).homes["counted"]) == 2
    assert place([PlacementRequest("counted", 3, True)], [2], nodes=9).homes["counted"] == (0, 0, 0)


def test_job_that_restarts_needs_what_it_needed_before(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission(executors=1))
        coordinator.controller.stop()
        record, busy = coordinator.running[0], ExecutorSnapshot(ExecutorId("op0", 0), 0, {0: 1}, 35.0, 100.0)
        nodes, idle = (NodeSnapshot("a", "a", 2),), replace(busy, arrival_rate=0.0, service_rate=None)
        for event, executor, slots in (
            (None, busy, 0.5), (JobEvent.RESTART, idle, 0.5), (JobEvent.STARTED, idle, 0.0),
        ):  # fmt: skip
            if event is not None:
                record.change(event)
            job = JobSnapshot(record.name, 1, (executor,))
            await coordinator.controller._remember(Snapshot(1.0, nodes, (job,)), 0, Plan((), (), {}))
            assert (await coordinator.cluster.need(ASK)).slots == slots
        await coordinator.close()

    asyncio.run(run())


def test_job_that_starts_needs_nothing_of_what_the_last_one_needed(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission(executors=2, cores={"op0": 2}))
        while not coordinator.controller.slots_needed:
            await asyncio.sleep(0.001)
        await coordinator.stop(job_calls.Stop("job"))
        coordinator.controller.look_soon()
        await coordinator.controller._task
        starts = workers.held["a", part_calls.StartExecutors] = asyncio.Event()
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission("small", executors=1)))
        while workers.asked(part_calls.StartExecutors)[-1][1].job != "small":
            await asyncio.sleep(0)
        assert (await coordinator.cluster.need(ASK)).slots == 0.0
        starts.set()
        await submitted
        await coordinator.close()

    asyncio.run(run())
