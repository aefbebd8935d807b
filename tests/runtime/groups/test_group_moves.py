"""Moves of key groups as the scheduler coordinates them, against workers that answer when the test tells them to."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dask_elastic.runtime.protocol import group_calls, part_calls
from dask_elastic.runtime.protocol.group_calls import GroupsMoved, MoveGroups
from dask_elastic.runtime.protocol.job_calls import Stop
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import dump_error, load_error
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import CheckpointError, JobEnded, MoveRefused, ProtocolError

ANSWERS = {
    group_calls.CopyGroups: None,
    group_calls.HoldGroups: None,
    group_calls.SwitchGroups: GroupsMoved(100, 0.25, 100),
    group_calls.GiveGroups: GroupsMoved(100, 0.5, 100),
    group_calls.ResumeGroups: GroupsMoved(0, 0.75, 0),
    group_calls.ForgetGroups: None,
}
MOVE = MoveGroups("job", "op0", (0, 1), 1, None)


@pytest.fixture
def job(fake):
    """Return a function that runs a test with a coordinator that has a job with two executors of key groups."""

    def run(test, **given):
        async def with_job():
            scheduler = fake.Scheduler({"a": 2, "b": 2})
            for address in scheduler.workers:
                scheduler.answers[address, part_calls.Report] = fake.empty_report(complete=False)
                for kind, answer in ANSWERS.items():
                    scheduler.answers[address, kind] = answer
            coordinator = Coordinator(scheduler)
            await coordinator.submit(
                fake.submission(**{"executors": 2, "paradigm": RESOURCE, "migration": "progressive", **given})
            )
            coordinator.controller.stop()
            scheduler.calls.clear()
            await asyncio.wait_for(test(coordinator, scheduler, coordinator.jobs["job"]), 100)
            await coordinator.close()

        asyncio.run(with_job())

    return run


def asked(scheduler):
    """The kinds of calls about groups, each once, in order."""
    kinds = [type(call).__name__ for _, call in scheduler.calls if isinstance(call, group_calls.GroupCall)]
    return [kind for at, kind in enumerate(kinds) if kind not in kinds[:at]]


@pytest.mark.parametrize(
    ("strategy", "calls", "pause"),
    [
        ("progressive", ["CopyGroups", "HoldGroups", "SwitchGroups"], 0.25),
        ("synchronised", ["HoldGroups", "SwitchGroups", "GiveGroups", "ResumeGroups"], 0.75),
    ],
)
def test_all_nodes_are_asked_in_the_order_of_the_protocol(job, strategy, calls, pause):
    async def test(coordinator, scheduler, record):
        moved = await coordinator.groups.move_groups(replace(MOVE, strategy=strategy))
        assert asked(scheduler) == calls
        assert {address for address, call in scheduler.calls if isinstance(call, group_calls.GroupCall)} == {"a", "b"}
        assert (moved.groups, moved.pause) == (2, pause)
        assert record.groups.table("op0").owners[[0, 1]].tolist() == [1, 1]
        [noted] = coordinator.controller.decisions.log.of("job")
        assert (noted.others, noted.moved_bytes) == (("2 key groups of 'op0' moved",), moved.nbytes)
        assert f"({strategy}) with {moved.nbytes} bytes of state" in noted.reason
        assert record.groups.moving is None
        [taken] = coordinator.controller.snapshot_builder.view(0.0).snapshot().jobs
        assert [one.groups.tolist() for one in taken.executors] == [[], [0, 1, 2, 3]]

    job(test)


def test_move_by_hand_is_progressive_where_plans_choose_their_strategy(job):
    async def test(coordinator, scheduler, record):
        await coordinator.groups.move_groups(MOVE)
        assert asked(scheduler) == ["CopyGroups", "HoldGroups", "SwitchGroups"]
        with pytest.raises(MoveRefused, match="no strategy 'auto' for key groups: choose 'progressive' or"):
            await coordinator.groups.move_groups(replace(MOVE, executor=0, strategy="auto"))

    job(test, migration="auto")


def test_refusal_of_one_executor_cancels_the_move_and_uses_a_version(job):
    async def test(coordinator, scheduler, record):
        before = record.groups.table("op0")
        scheduler.answers["b", group_calls.HoldGroups] = MoveRefused("op0[1] has got its last row")
        with pytest.raises(MoveRefused, match=r"stay where they are: op0\[1\] has got its last row"):
            await coordinator.groups.move_groups(MOVE)
        assert asked(scheduler) == ["CopyGroups", "HoldGroups", "ForgetGroups"]
        assert record.groups.table("op0") is before
        scheduler.answers["b", group_calls.HoldGroups] = None
        scheduler.calls.clear()
        await coordinator.groups.move_groups(MOVE)
        assert {call.version for _, call in scheduler.calls if isinstance(call, group_calls.GroupCall)} == {2}

    job(test)


def test_state_that_cannot_be_copied_cancels_the_move(job):
    async def test(coordinator, scheduler, record):
        before = record.groups.table("op0")
        scheduler.answers["a", group_calls.CopyGroups] = MoveRefused("no memory for the copy")
        with pytest.raises(MoveRefused, match="stay where they are: no memory for the copy"):
            await coordinator.groups.move_groups(MOVE)
        assert asked(scheduler) == ["CopyGroups", "ForgetGroups"]
        assert (record.groups.table("op0"), record.status) == (before, Status.RUNNING)

    job(test)


def test_error_after_the_switch_ends_the_generation(job):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", group_calls.SwitchGroups] = ProtocolError("lost its way")
        with pytest.raises(Exception):  # noqa: B017, PT011  relayed from the worker
            await coordinator.groups.move_groups(MOVE)
        await record.ended(100)
        assert record.status is Status.FAILED
        assert record.groups.moving is None

    job(test)


@pytest.mark.parametrize("kind", [group_calls.CopyGroups, group_calls.SwitchGroups])
def test_error_of_user_code_during_the_move_is_that_of_the_job(job, fake, kind):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", kind] = JobEnded("job 'job' has ended on this worker")
        moving = asyncio.ensure_future(coordinator.groups.move_groups(MOVE))
        while not scheduler.asked(kind):
            await asyncio.sleep(0)
        await fake.settle()
        assert record.status is Status.RUNNING, "the report that says why is under way"
        report = fake.empty_report(complete=False, error=dump_error(ValueError("no such key")))
        await coordinator.health.report(fake.report_call(record, 0, report))
        with pytest.raises(JobEnded, match="has failed while key groups moved"):
            await moving
        assert str(load_error(record.error)) == "no such key"

    job(test)


def test_second_move_is_refused_and_reads_of_state_wait_until_groups_are_still(job):
    async def test(coordinator, scheduler, record):
        held = scheduler.held["a", group_calls.SwitchGroups] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.groups.move_groups(MOVE))
        while asked(scheduler)[-1:] != ["SwitchGroups"]:
            await asyncio.sleep(0)
        with pytest.raises(MoveRefused, match="progressive move of 2 groups of 'op0' to version 1 is in progress"):
            await coordinator.groups.move_groups(replace(MOVE, groups=(2,)))
        assert record.groups.still.locked()
        held.set()
        await moving
        assert not record.groups.still.locked()

    job(test)


def test_worker_that_joins_during_a_move_takes_no_part(job):
    async def test(coordinator, scheduler, record):
        held = scheduler.held["a", group_calls.HoldGroups] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.groups.move_groups(MOVE))
        while asked(scheduler)[-1:] != ["HoldGroups"]:
            await asyncio.sleep(0)
        record.spec = record.spec.with_guest("c")
        held.set()
        await moving
        assert {address for address, call in scheduler.calls if isinstance(call, group_calls.GroupCall)} == {"a", "b"}

    job(test)


def test_job_that_ends_during_a_move_ends_the_wait(job):
    async def test(coordinator, scheduler, record):
        scheduler.held["a", group_calls.SwitchGroups] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.groups.move_groups(MOVE))
        while asked(scheduler)[-1:] != ["SwitchGroups"]:
            await asyncio.sleep(0)
        await coordinator.stop(Stop("job"))
        with pytest.raises(JobEnded, match="while key groups moved"):
            await moving
        with pytest.raises(JobEnded, match="do not move any more"):
            await coordinator.groups.move_groups(MOVE)

    job(test)


def test_move_waits_for_the_checkpoint_in_progress_while_state_can_be_read(job, fake, tmp_path):
    async def test(coordinator, scheduler, record):
        taken = asyncio.ensure_future(coordinator.checkpoints.take(record))
        while record.checkpoints.progress is None:
            await asyncio.sleep(0)
        moving = asyncio.ensure_future(coordinator.groups.move_groups(MOVE))
        await fake.settle()
        assert asked(scheduler) == []
        assert not record.groups.still.locked()
        record.checkpoints.settle(dump_error(CheckpointError("the disk is full")))
        with pytest.raises(CheckpointError, match="the disk is full"):
            await taken
        assert (await moving).groups == 2
        assert [one.error for one in record.checkpoints.descriptions] == ["the disk is full"]

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_checkpoint_begins_between_moves_that_follow_each_other(job, fake, tmp_path):
    async def test(coordinator, scheduler, record):
        held = scheduler.held["a", group_calls.SwitchGroups] = asyncio.Event()
        first = asyncio.ensure_future(coordinator.groups.move_groups(MOVE))
        while asked(scheduler)[-1:] != ["SwitchGroups"]:
            await asyncio.sleep(0)
        taken = asyncio.ensure_future(coordinator.checkpoints.take(record))
        await fake.settle()
        assert record.checkpoints.progress is None
        held.set()
        await first
        scheduler.calls.clear()
        second = asyncio.ensure_future(coordinator.groups.move_groups(replace(MOVE, executor=0)))
        await fake.settle()
        assert (record.checkpoints.progress is not None, asked(scheduler)) == (True, [])
        record.checkpoints.settle(dump_error(CheckpointError("the disk is full")))
        assert (await second).groups == 2
        with pytest.raises(CheckpointError, match="the disk is full"):
            await taken

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_job_that_ends_while_a_move_waits_for_a_checkpoint_ends_the_wait(job, tmp_path):
    async def test(coordinator, scheduler, record):
        taken = asyncio.ensure_future(coordinator.checkpoints.take(record))
        while record.checkpoints.progress is None:
            await asyncio.sleep(0)
        moving = asyncio.ensure_future(coordinator.groups.move_groups(MOVE))
        await asyncio.sleep(0)
        await coordinator.stop(Stop("job"))
        with pytest.raises(JobEnded, match="has stopped"):
            await moving
        with pytest.raises(JobEnded):
            await taken
        assert asked(scheduler) == []

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)
