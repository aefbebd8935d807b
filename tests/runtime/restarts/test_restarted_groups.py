"""Restarts of jobs whose key groups move, on fewer and on more workers: the number of executors follows the slots."""

from __future__ import annotations

import asyncio

from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import NodeLost

LOST = NodeLost("worker a hangs")


def run_job(fake, folder, test, executors=None, threads=None):
    """Run a test with the record of a job of one operator, on two workers of two slots."""

    async def with_job():
        scheduler = fake.Scheduler(threads or {"a": 2, "b": 2})
        coordinator = Coordinator(scheduler)
        options = {"paradigm": RESOURCE, "checkpoint": str(folder), "checkpoint_interval": 3600.0}
        call = fake.submission(executors=executors, **options)
        await coordinator.submit(call)
        coordinator.controller.stop()
        await asyncio.wait_for(test(coordinator, scheduler, coordinator.jobs["job"]), 100)
        await coordinator.close()

    asyncio.run(with_job())


def shape(record):
    """The number of executors, and of workers that are their homes; each group belongs to one of the executors."""
    homes = record.spec.homes["op0"]
    owners = record.groups.table("op0").owners
    assert set(owners.tolist()) == set(range(len(homes)))
    assert record.cores == {("op0", index): {home: 1} for index, home in enumerate(homes)}
    return len(homes), len(set(homes))


def test_number_of_executors_follows_the_slots_that_are_left_and_that_are_added(fake, tmp_path):
    async def test(coordinator, scheduler, record):
        assert shape(record) == (4, 2)
        assert await coordinator.restarts.restart(record, LOST, ["a"]) is None
        assert (shape(record), record.oversubscribed) == ((2, 1), False)
        prepared = [call.spec for _, call in scheduler.asked(part_calls.Prepare)][-1]
        assert {len(prepared.groups["op0"])} == {4}
        assert await coordinator.restarts.restart(record, LOST) is None
        assert shape(record) == (4, 2)

    run_job(fake, tmp_path, test)


def test_number_that_a_user_has_set_is_kept(fake, tmp_path):
    async def test(coordinator, scheduler, record):
        assert await coordinator.restarts.restart(record, LOST, ["a"]) is None
        assert (shape(record), record.oversubscribed) == ((4, 1), True)

    run_job(fake, tmp_path, test, executors=4)


def test_slots_that_another_job_shares_are_not_given_up(fake, tmp_path):
    async def test(coordinator, scheduler, record):
        await coordinator.submit(fake.submission("other", executors=2, cores={"op0": 2}))
        coordinator.controller.stop()
        assert await coordinator.restarts.restart(record, LOST, ["a"]) is None
        assert shape(record) == (2, 1)
        assert record.oversubscribed

    run_job(fake, tmp_path, test)


def test_executors_that_stay_on_their_workers_are_those_with_a_slot(fake, tmp_path):
    async def test(coordinator, scheduler, record):
        before = record.instances_by_address()
        coordinator.workers.retiring.add("b")
        assert await coordinator.restarts.restart(record, LOST, planned=True) is None
        after = record.instances_by_address()
        assert (shape(record), record.nodes) == ((2, 1), ["a"])
        assert all(after[key] == before[key] for key in after if before[key] == "a")

    run_job(fake, tmp_path, test)


def test_read_that_waits_for_another_one_while_the_job_restarts_waits_for_its_next_groups(fake, tmp_path):
    async def test(coordinator, scheduler, record):
        scheduler.answers["b", part_calls.Assignment] = ()
        scheduler.answers["a", part_calls.Assignment] = ()
        answered = scheduler.held["a", part_calls.Assignment] = asyncio.Event()
        reads = [asyncio.ensure_future(coordinator.queries.assignment(job_calls.Assignment("job"))) for _ in "12"]
        await fake.settle()
        assert await coordinator.restarts.restart(record, LOST, ["a"]) is None
        asked = len(scheduler.asked(part_calls.Assignment))
        async with record.groups.still:
            # Groups of the next generation move.
            answered.set()
            await fake.settle()
            assert reads[0].done()
            assert len(scheduler.asked(part_calls.Assignment)) == asked
        assert await asyncio.gather(*reads) == [(), ()]
        assert scheduler.asked(part_calls.Assignment)[-1][1].generation == record.spec.generation

    run_job(fake, tmp_path, test)
