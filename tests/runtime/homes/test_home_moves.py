"""Homes that move while a job runs, against workers that answer when the test tells them to."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import Version
from dask_elastic.runtime.protocol.home_calls import CopyHome, HomeMoved, MoveHome, PrepareHome
from dask_elastic.runtime.protocol.job_calls import Describe, MoveExecutor, MoveShard, SetCores
from dask_elastic.runtime.protocol.job_description import ExecutorAssignment
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.scheduler import membership
from dask_elastic.vocab.errors import (
    CheckpointError,
    JobEnded,
    MoveRefused,
    NodeLost,
    PlanningError,
)

sys.path.insert(0, str(Path(__file__).parent))
from move_calls import MOVE, kinds, until

sys.path.pop(0)

# a move


def test_new_home_prepares_before_old_home_moves_and_cores_follow(job):
    async def test(coordinator, scheduler, record):
        await coordinator.homes.move_executor(MOVE)
        assert kinds(scheduler) == [
            ("a", CopyHome), ("b", PrepareHome), ("a", MoveHome), ("b", part_calls.Report), ("a", part_calls.Report),
            ("b", part_calls.SetCores),
        ]  # fmt: skip
        [(_, prepared)], [(_, moved)] = scheduler.asked(PrepareHome), scheduler.asked(MoveHome)
        assert (prepared.operator, prepared.executor, prepared.tables["op0"].homes) == ("op0", 0, (0,))
        assert moved.cores == 2
        assert moved.table == prepared.tables["op0"].moved(0, 1)
        assert [call.table for _, call in scheduler.asked(CopyHome)] == [moved.table]
        assert record.homes.node("op0", 0) == 1
        assert record.cores["op0", 0] == {1: 2}
        assert record.homes.moving is None

    job(test)


def test_executor_moves_back_with_a_newer_table(job):
    async def test(coordinator, scheduler, record):
        await coordinator.homes.move_executor(MOVE)
        scheduler.answers["b", MoveHome] = HomeMoved(0, 0, 0.0, {1: 2})
        await coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, "a"))
        there, back = (call.table for _, call in scheduler.asked(MoveHome))
        assert (there.homes, back.homes) == ((1,), (0,))
        assert back.version > there.version + 1
        assert record.homes.node("op0", 0) == 0

    job(test)


def test_move_waits_for_a_worker_that_is_slow_to_join_but_not_for_one_that_hangs(job, fake, monkeypatch):
    monkeypatch.setattr(membership, "PING_SECONDS", 0.0)

    async def test(coordinator, scheduler, record):
        scheduler.add("new")
        scheduler.answers["new", part_calls.Report] = fake.empty_report(complete=False)
        answer = scheduler.held["new", Version] = asyncio.Event()
        move = MoveExecutor("job", "op0", 0, "new")
        coordinator.calls.timeout = 0.1
        with pytest.raises(MoveRefused, match=r"could not join job 'job': no answer within 0\.1 s\. See its log"):
            await coordinator.homes.move_executor(move)
        assert record.homes.moving is None
        coordinator.calls.timeout = 60.0
        moving = asyncio.ensure_future(coordinator.homes.move_executor(move))
        await fake.settle()
        await coordinator.cores.set_cores("job", "op0", {"a": 1, "b": 1}, None)
        assert not moving.done(), "the job goes on meanwhile"
        answer.set()
        await moving
        assert record.nodes[record.homes.node("op0", 0)] == "new"

    job(test)


def test_only_free_cores_follow_to_the_new_home(job, fake):
    async def test(coordinator, scheduler, record):
        await coordinator.set_cores(SetCores("job", "op0", {"a": 2}))
        await coordinator.submit(fake.submission("other", executors=1, cores={"op0": 1}))
        assert coordinator.jobs["other"].cores["op0", 0] == {1: 1}
        await coordinator.homes.move_executor(MOVE)
        assert record.cores["op0", 0] == {0: 1, 1: 1}

    job(test)


def test_cores_that_cannot_follow_do_not_undo_the_move(job, caplog):
    async def test(coordinator, scheduler, record):
        scheduler.answers["b", part_calls.SetCores] = NodeLost("no way there")
        await coordinator.homes.move_executor(MOVE)
        assert record.homes.node("op0", 0) == 1
        assert record.cores["op0", 0] == {0: 2}
        assert "op0[0] has other cores than before it moved: no way there" in caplog.text

    job(test)


def test_worker_that_has_just_started_joins_for_the_move(job, fake):
    async def test(coordinator, scheduler, record):
        scheduler.add("new")
        scheduler.answers["new", part_calls.Report] = fake.empty_report(complete=False)
        await coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, "new"))
        assert record.nodes == ["a", "b", "new"]
        assert record.homes.node("op0", 0) == 2
        assert record.spec.guests == ()
        assert coordinator.needed_workers() == {"a", "new"}

    job(test)


def test_move_is_among_the_decisions_and_events(job):
    async def test(coordinator, scheduler, record):
        await coordinator.homes.move_executor(MOVE)
        [decision] = coordinator.controller.decisions.log.of("job")
        [change] = decision.homes
        assert (str(change.executor), change.source, change.target) == ("op0[0]", "a", "b")
        assert (change.moved_bytes, change.pause) == (2_000_000.0, 0.012)
        expected = (
            "A user moved it. The home of op0[0] has moved from a to b with 1.9 MiB of state; its rows waited for "
            "12 ms, while the last 97.7 kiB were sent."
        )
        assert decision.reason == expected
        [(_, event)] = scheduler.events
        assert event["homes"] == [
            {
                "executor": "op0[0]", "source": "a", "target": "b", "moved_bytes": 2e6, "pause": 0.012,
                "forecast": None, "paused_bytes": 1e5,
            }
        ]  # fmt: skip

    job(test)


# reads and commands meanwhile


def test_state_is_read_at_the_new_home_once_it_has_arrived(job, fake):
    async def test(coordinator, scheduler, record):
        for address in ("a", "b"):
            scheduler.answers[address, part_calls.State] = (memoryview(address.encode()),)
        gate = scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        reading = asyncio.ensure_future(coordinator.queries.state(job_calls.State("job", "op0")))
        places = asyncio.ensure_future(coordinator.queries.state_places(job_calls.StatePlaces("job", "op0")))
        await fake.settle()
        assert not reading.done()
        gate.set()
        await moving
        assert [bytes(part) for part in await reading] == [b"b"]
        assert (await places).homes == ("b",)

    job(test)


def test_state_is_read_at_the_old_home_while_it_is_copied(job):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", part_calls.State] = (memoryview(b"a"),)
        gate = scheduler.held["a", CopyHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(CopyHome))
        reading = coordinator.queries.state(job_calls.State("job", "op0"))
        assert [bytes(part) for part in await asyncio.wait_for(reading, 5)] == [b"a"]
        places = coordinator.queries.state_places(job_calls.StatePlaces("job", "op0"))
        assert (await asyncio.wait_for(places, 5)).homes == ("a",)
        gate.set()
        await moving

    job(test)


def test_read_that_the_old_home_refuses_during_a_move_is_repeated_at_the_new_one(job):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", part_calls.State] = MoveRefused("not here any more")
        scheduler.answers["b", part_calls.State] = (memoryview(b"b"),)
        late = scheduler.held["a", part_calls.State] = asyncio.Event()
        reading = asyncio.ensure_future(coordinator.queries.state(job_calls.State("job", "op0")))
        await until(lambda: scheduler.asked(part_calls.State))
        await coordinator.homes.move_executor(MOVE)
        late.set()
        assert [bytes(part) for part in await reading] == [b"b"]

    job(test)


@pytest.fixture
def assigned():
    """Return a function that lets two workers answer which executors are at home there while one moves."""

    def answer(scheduler, record):
        one = ExecutorAssignment("op0", 0, 0, (0, 0, 0, 0), {0: 0})

        def at_the_old_home(call):
            # It hands the executor over before it answers that the move has ended.
            return () if scheduler.asked(MoveHome) else (one,)

        def at_the_new_home(call):
            return (replace(one, home=1),) if record.homes.of("op0") == (1,) else ()

        scheduler.answers["a", part_calls.Assignment] = at_the_old_home
        scheduler.answers["b", part_calls.Assignment] = at_the_new_home

    return answer


def test_assignment_lists_an_executor_that_is_on_its_way_once_it_has_arrived(job, fake, assigned):
    async def test(coordinator, scheduler, record):
        assigned(scheduler, record)
        gate = scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        asking = asyncio.ensure_future(coordinator.queries.assignment(job_calls.Assignment("job")))
        await fake.settle()
        assert not asking.done()
        gate.set()
        await moving
        assert [one.home for one in await asking] == [1]

    job(test)


def test_assignment_lists_an_executor_once_that_moves_between_the_answers_of_two_nodes(job, assigned):
    async def test(coordinator, scheduler, record):
        assigned(scheduler, record)
        gate = scheduler.held["b", part_calls.Assignment] = asyncio.Event()
        asking = asyncio.ensure_future(coordinator.queries.assignment(job_calls.Assignment("job")))
        await until(lambda: len(scheduler.asked(part_calls.Assignment)) == 2)
        await coordinator.homes.move_executor(MOVE)
        gate.set()
        assert [one.home for one in await asking] == [1]

    job(test)


def test_cores_change_after_the_move_and_shards_are_refused_during_it(job):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        changing = asyncio.ensure_future(coordinator.set_cores(SetCores("job", "op0", 1)))
        with pytest.raises(MoveRefused, match=r"the home of op0\[0\] is moving"):
            await coordinator.cores.move_shard(MoveShard("job", "op0", 0, 1, 0))
        assert scheduler.asked(part_calls.SetCores) == []
        gate.set()
        await moving
        await changing
        assert [address for address, _ in scheduler.asked(part_calls.SetCores)] == ["b", "b"]
        assert record.cores["op0", 0] == {1: 1}

    job(test)


def test_shards_move_while_the_state_of_their_home_is_copied(job):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["a", CopyHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(CopyHome))
        await coordinator.cores.move_shard(MoveShard("job", "op0", 0, 1, 0))
        assert [address for address, _ in scheduler.asked(part_calls.MoveShard)] == ["a"]
        gate.set()
        await moving

    job(test)


def test_measures_are_those_of_the_new_home(job, fake):
    async def test(coordinator, scheduler, record):
        old = fake.report([fake.measure("op0", 0, node=0, rows=5)])
        await coordinator.health.report(fake.report_call(record, 0, old))
        scheduler.answers["a", part_calls.Report] = old
        scheduler.answers["b", part_calls.Report] = fake.report(
            [fake.measure("op0", 0, node=1, rows=7, state_bytes=700)]
        )
        await coordinator.homes.move_executor(MOVE)
        [measure] = (await coordinator.describe(Describe("job"))).executors
        assert (measure.node, measure.rows) == (1, 7)
        [job_snapshot] = coordinator.controller.snapshot_builder.view(time.time()).snapshot().jobs
        assert [(one.home, one.state_bytes) for one in job_snapshot.executors] == [(1, 700)]

    job(test)


def test_job_does_not_finish_while_an_executor_is_between_its_homes(job, fake):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        for node in (0, 1):
            await coordinator.health.report(fake.report_call(record, node, fake.empty_report()))
        await fake.settle()
        assert not record.finishing
        gate.set()
        await moving
        stale = fake.report_call(record, 1, fake.empty_report())
        await coordinator.health.report(fake.report_call(record, 0, fake.empty_report()))
        await coordinator.health.report(stale)
        await until(lambda: not record.finishing)
        assert record.status is Status.RUNNING
        scheduler.answers.clear()
        for node in (0, 1):
            await coordinator.health.report(fake.report_call(record, node, fake.empty_report()))
        await until(lambda: record.status is Status.FINISHED)

    job(test)


# checkpoints


async def begin_checkpoint(coordinator, record):
    """Have a checkpoint begin; returns what waits for its end."""
    taken = asyncio.ensure_future(coordinator.checkpoints.take(record))
    await until(lambda: record.checkpoints.progress is not None)
    return taken


def end_checkpoint(record):
    """End the checkpoint in progress; workers have not acknowledged it."""
    record.checkpoints.settle(dump_error(CheckpointError("the disk is full")))


def test_move_waits_for_the_checkpoint_in_progress_and_the_next_one_for_the_move(job, fake, tmp_path):
    async def test(coordinator, scheduler, record):
        taken = await begin_checkpoint(coordinator, record)
        gate = scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await fake.settle()
        assert [scheduler.asked(kind) for kind in (CopyHome, part_calls.AbandonCheckpoint)] == [[], []]
        assert not any(lock.locked() for lock in record.changing.values()), "cores can change meanwhile"
        with pytest.raises(MoveRefused, match="one home of a job moves at a time"):
            await coordinator.homes.move_executor(MOVE)
        end_checkpoint(record)
        with pytest.raises(CheckpointError, match="the disk is full"):
            await taken
        await until(lambda: scheduler.asked(MoveHome))
        begun = len(scheduler.asked(part_calls.BeginCheckpoint))
        record.checkpoints.requested.set()
        await fake.settle()
        assert len(scheduler.asked(part_calls.BeginCheckpoint)) == begun
        gate.set()
        await moving
        await until(lambda: len(scheduler.asked(part_calls.BeginCheckpoint)) > begun)
        assert [one.error for one in record.checkpoints.descriptions] == ["the disk is full"]

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_checkpoints_go_on_while_state_is_copied_and_the_move_waits_for_them(job, fake, tmp_path):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["a", CopyHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(CopyHome))
        taken = await begin_checkpoint(coordinator, record)
        gate.set()
        await fake.settle()
        assert (scheduler.asked(PrepareHome), record.checkpoints.progress is not None) == ([], True)
        end_checkpoint(record)
        await moving
        with pytest.raises(CheckpointError, match="the disk is full"):
            await taken

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


@pytest.mark.parametrize("copied", [False, True])
def test_job_finishes_while_a_move_waits_for_a_checkpoint(job, fake, tmp_path, copied):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["a", CopyHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE)) if copied else None
        await until(lambda: scheduler.asked(CopyHome) or not copied)
        taken = await begin_checkpoint(coordinator, record)
        moving = moving or asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        gate.set()
        await fake.settle()
        scheduler.answers.clear()
        for node in (0, 1):
            await coordinator.health.report(fake.report_call(record, node, fake.empty_report()))
        await until(lambda: record.status is Status.FINISHED)
        with pytest.raises(JobEnded, match="has finished while an executor moved"):
            await moving
        assert scheduler.asked(MoveHome) == []
        taken.cancel()

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("how", ["stop", "restart"])
def test_job_that_ends_or_restarts_while_a_move_waits_for_a_checkpoint_ends_the_wait(job, fake, tmp_path, how, copied):
    async def test(coordinator, scheduler, record):
        gate = asyncio.Event()
        if copied:
            scheduler.held["a", CopyHome] = gate
            moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
            await until(lambda: scheduler.asked(CopyHome))
        taken = await begin_checkpoint(coordinator, record)
        if not copied:
            moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        gate.set()
        await fake.settle()
        # Storage that does not answer holds the checkpoint up, whatever becomes of the job.
        await record.checkpoints.publishing.acquire()
        if how == "stop":
            ending = asyncio.ensure_future(coordinator.stop(job_calls.Stop("job")))
            error, text = JobEnded, "has stopped while an executor moved"
        else:
            record.halt()
            error, text = PlanningError, "was restarted while an executor moved: look where it is, then try again"
        with pytest.raises(error, match=text):
            await asyncio.wait_for(moving, 60)
        assert (scheduler.asked(MoveHome), record.homes.moving) == ([], None)
        record.checkpoints.publishing.release()
        taken.cancel()
        if how == "stop":
            await ending

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_leases_are_granted_to_the_new_home_from_the_preparation_on(job, fake, tmp_path):
    async def test(coordinator, scheduler, record):
        report = fake.report_call(record, 1, fake.empty_report(complete=False))
        assert (await coordinator.health.report(report)).lease == 0.0
        gate = scheduler.held["b", PrepareHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(PrepareHome))
        assert (await coordinator.health.report(report)).lease > 0.0
        gate.set()
        await moving
        assert (await coordinator.health.report(report)).lease > 0.0

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_loss_of_either_home_during_the_move_restarts_a_job_with_checkpoints(job, tmp_path, lost):
    async def test(coordinator, scheduler, record):
        generation = record.spec.generation
        scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        del scheduler.workers[lost]
        coordinator.node_lost(lost)
        with pytest.raises(PlanningError, match="was restarted while an executor moved"):
            await moving
        await until(lambda: record.spec.generation == generation + 1 and record.status is Status.RUNNING)
        assert lost not in record.nodes
        assert record.homes.moving is None

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_move_that_ends_after_a_restart_changes_nothing_in_the_next_generation(job, tmp_path):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["b", part_calls.Report] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(part_calls.Report))
        del scheduler.workers["a"]
        coordinator.node_lost("a")
        await until(lambda: record.nodes == ["b"] and record.status is Status.RUNNING)
        cores = {key: dict(by_node) for key, by_node in record.cores.items()}
        gate.set()
        await moving
        assert record.cores == cores
        assert record.reports == {}
        assert scheduler.asked(part_calls.SetCores) == []
        assert record.homes.of("op0") == (0,)
        assert record.spec.guests == ()

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_restart_begins_with_the_homes_of_then(job, tmp_path):
    async def test(coordinator, scheduler, record):
        await coordinator.homes.move_executor(MOVE)
        generation = record.spec.generation
        failure = NodeLost("a part was lost")
        assert await coordinator.restarts.restart(record, failure) is None
        assert record.spec.generation == generation + 1
        assert record.nodes == ["a", "b", "c"]
        assert record.spec.homes["op0"] == record.homes.of("op0") == (1,)
        del scheduler.workers["b"]
        assert await coordinator.restarts.restart(record, failure) is None
        assert "b" not in record.nodes

    job(test, {"a": 4, "b": 2, "c": 2}, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_move_of_a_job_that_stops_with_a_savepoint_is_refused(job, tmp_path):
    async def test(coordinator, scheduler, record):
        record.checkpoints.stopping = True
        with pytest.raises(MoveRefused, match="is being stopped with a savepoint"):
            await coordinator.homes.move_executor(MOVE)
        assert scheduler.asked(PrepareHome) == []

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)
