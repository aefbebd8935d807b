"""Moves of key groups that planners decide on, carried out on workers that answer what the test tells them to."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dask_elastic.control.placement.group_decision import GroupDecision
from dask_elastic.control.placement.group_strategies import GroupsMoving
from dask_elastic.runtime.protocol import group_calls, part_calls
from dask_elastic.runtime.protocol.group_calls import GroupsMoved
from dask_elastic.runtime.protocol.job_calls import Forget
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import CheckpointError
from dask_elastic.vocab.plan import StrategyCost
from dask_elastic.vocab.snapshot import NodeSnapshot, Snapshot

SNAPSHOT = Snapshot(5.0, tuple(NodeSnapshot(address, address, 4) for address in "ab"), ())


def decision(job, *moves, reason="for balance."):
    expected = (GroupsMoving(1_000.0, 100.0, 0.125),) * len(moves)
    costs = tuple(StrategyCost(one, 2.0, 100.0, 0.1, 0.0) for one in ("progressive", "synchronised")) if moves else ()
    return GroupDecision(job, 0, "op0", moves, reason, 0.5, 0.1, "progressive", expected, costs)


class Planning:
    """Decides what a test says, and notes in which thread it learns of moves."""

    def __init__(self, made):
        self.made = made
        self.learnt = []

    def observe(self, snapshot):
        pass

    def moved(self, job, move):
        self.learnt.append((threading.current_thread(), job[0], move))

    def decide(self, owners, strategies):
        return self.made


@pytest.fixture
def planned(fake):
    """Return a function that runs a test with jobs of two executors whose groups a planner places."""

    def run(test, *jobs, **given):
        async def with_jobs():
            scheduler = fake.Scheduler({"a": 8, "b": 8})
            for address in scheduler.workers:
                scheduler.answers[address, part_calls.Report] = fake.empty_report(complete=False)
                scheduler.answers[address, group_calls.CopyGroups] = None
                scheduler.answers[address, group_calls.HoldGroups] = None
                scheduler.answers[address, group_calls.SwitchGroups] = GroupsMoved(100, 0.25, 100)
            coordinator = Coordinator(scheduler)
            options = {"executors": 2, "paradigm": RESOURCE, "migration": "progressive", "placement": "flux", **given}
            for job in jobs:
                await coordinator.submit(fake.submission(name=job, **options))
            coordinator.controller.stop()
            coordinator.group_planning.stop()
            try:
                with ThreadPoolExecutor(1) as pool:
                    await asyncio.wait_for(test(coordinator, scheduler, pool), 20)
            finally:
                await coordinator.close()

        asyncio.run(with_jobs())

    return run


async def period(coordinator, pool, *decisions):
    """Run a period with these decisions."""
    coordinator.controller.snapshot_log.add(SNAPSHOT)
    driver = coordinator.group_planning
    driver._seen = None
    made = tuple(replace(one, generation=coordinator.jobs[one.job].spec.generation) for one in decisions)
    driver._planning = Planning(made)
    await driver.period(pool)
    return driver._planning.learnt


def test_planned_move_waits_for_the_checkpoint_in_progress(planned, fake, tmp_path):
    async def test(coordinator, scheduler, pool):
        record = coordinator.jobs["job"]
        taken = asyncio.ensure_future(coordinator.checkpoints.take(record))
        while record.checkpoints.progress is None:
            await asyncio.sleep(0.001)
        await period(coordinator, pool, decision("job", {0: 1}))
        await fake.settle()
        assert (record.checkpoints.progress is not None, scheduler.asked(group_calls.CopyGroups)) == (True, [])
        record.checkpoints.settle(dump_error(CheckpointError("the disk is full")))
        with pytest.raises(CheckpointError, match="the disk is full"):
            await taken
        while record.groups.table("op0").owners[0] != 1:
            await asyncio.sleep(0.001)

    planned(test, "job", checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_jobs_whose_groups_move_for_long_do_not_hold_up_the_plans_of_others(planned, fake):
    async def test(coordinator, scheduler, pool):
        driver, held = coordinator.group_planning, asyncio.Event()
        scheduler.held["a", group_calls.SwitchGroups] = held
        await period(coordinator, pool, decision("slow", {0: 1}, {1: 1}))
        while not scheduler.asked(group_calls.SwitchGroups):
            await asyncio.sleep(0.001)
        del scheduler.held["a", group_calls.SwitchGroups]
        await period(coordinator, pool, decision("slow", {3: 0}), decision("other", {0: 1}))
        await asyncio.gather(driver._moving["other"])
        assert coordinator.jobs["other"].groups.table("op0").owners[0] == 1
        held.set()
        await asyncio.gather(driver._moving["slow"])
        await fake.settle()
        assert coordinator.jobs["slow"].groups.table("op0").owners[:4].tolist() == [1, 1, 1, 1]
        assert driver._moving == {}

    planned(test, "slow", "other")


def test_planning_learns_of_moves_in_its_own_thread_with_the_next_period(planned):
    async def test(coordinator, scheduler, pool):
        assert await period(coordinator, pool, decision("job", {0: 1})) == []
        await asyncio.gather(*coordinator.group_planning._moving.values())
        thread = pool.submit(threading.current_thread).result()
        [(where, job, move)] = await period(coordinator, pool)
        assert (where, job) == (thread, "job")
        taken = move.operator, move.groups, move.moved_bytes, move.paused_bytes, move.pause, move.drain
        assert taken == ("op0", 1, 200, 200, 0.25, 0.125)
        assert await period(coordinator, pool) == []
        [snapshot] = [one.snapshot() for one in [coordinator.controller.snapshot_builder.view(time.time())]]
        assert snapshot.jobs[0].group_moves == (move,)
        assert snapshot.jobs[0].strategies == {"op0": "progressive"}
        assert move.settled > snapshot.now

    planned(test, "job")


def test_reason_is_kept_once_while_a_job_runs_and_forgotten_with_it(planned):
    async def test(coordinator, scheduler, pool):
        driver = coordinator.group_planning
        for _ in range(2):
            await period(coordinator, pool, decision("job", reason="groups stay."))
            await asyncio.gather(*driver._moving.values())
        reasons = [one.reason for one in coordinator.controller.decisions.log.of("job")]
        assert reasons == ["'op0': Placement 'flux': groups stay."]
        coordinator.jobs["job"].spec = coordinator.jobs["job"].spec.with_guest("c")
        await period(coordinator, pool)
        assert len(driver._told) == 1
        await coordinator.forget(Forget("job"))
        await period(coordinator, pool)
        assert driver._told == {}

    planned(test, "job")
