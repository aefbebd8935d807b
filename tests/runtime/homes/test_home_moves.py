"""Homes that move while a job runs, against workers that answer when the test tells them to."""

from __future__ import annotations

import asyncio
import time

import pytest

from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.home_calls import CancelHome, HomeMoved, MoveHome, PrepareHome
from dask_elastic.runtime.protocol.job_calls import Describe, MoveExecutor, MoveShard, SetCores, Stop
from dask_elastic.runtime.protocol.job_spec import STATIC
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import load_error
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import (
    JobEnded,
    MoveRefused,
    NodeLost,
    PlanningError,
    ProtocolError,
    UnknownJob,
    UnknownOperator,
)

MOVED = HomeMoved(nbytes=2_000_000, pause=0.012, cores={0: 2})
MOVE = MoveExecutor("job", "op0", 0, "b")


@pytest.fixture
def job(fake):
    """Return a function that runs a test with a coordinator that has a job with one executor, at home on worker a."""

    def run(test, threads=None, **given):
        async def with_job():
            scheduler = fake.Scheduler(threads or {"a": 2, "b": 2})
            for address in scheduler.workers:
                scheduler.answers[address, part_calls.Report] = fake.empty_report(complete=False)
                scheduler.answers[address, MoveHome] = MOVED
            coordinator = Coordinator(scheduler)
            await coordinator.submit(fake.submission(**{"executors": 1, **given}))
            coordinator.controller.stop()
            scheduler.calls.clear()
            await asyncio.wait_for(test(coordinator, scheduler, coordinator.jobs["job"]), 100)
            await coordinator.close()

        asyncio.run(with_job())

    return run


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def kinds(scheduler):
    return [(address, type(call)) for address, call in scheduler.calls]


# a move


def test_new_home_prepares_before_old_home_moves_and_cores_follow(job):
    async def test(coordinator, scheduler, record):
        await coordinator.homes.move_executor(MOVE)
        assert kinds(scheduler) == [
            ("b", PrepareHome), ("a", MoveHome), ("b", part_calls.Report), ("a", part_calls.Report),
            ("b", part_calls.SetCores),
        ]  # fmt: skip
        [(_, prepared)], [(_, moved)] = scheduler.asked(PrepareHome), scheduler.asked(MoveHome)
        assert (prepared.operator, prepared.executor, prepared.tables["op0"].homes) == ("op0", 0, (0,))
        assert moved.table == prepared.tables["op0"].moved(0, 1)
        assert record.homes.node("op0", 0) == 1
        assert record.cores["op0", 0] == {1: 2}
        assert record.homes.moving is None

    job(test)


def test_executor_moves_back_with_a_newer_table(job):
    async def test(coordinator, scheduler, record):
        await coordinator.homes.move_executor(MOVE)
        scheduler.answers["b", MoveHome] = HomeMoved(0, 0.0, {1: 2})
        await coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, "a"))
        there, back = (call.table for _, call in scheduler.asked(MoveHome))
        assert (there.homes, back.homes) == ((1,), (0,))
        assert back.version > there.version + 1
        assert record.homes.node("op0", 0) == 0

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
        assert "the cores of op0[0] stay where they are: no way there" in caplog.text

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
        [decision] = coordinator.controller.log.of("job")
        [change] = decision.homes
        assert (str(change.executor), change.source, change.target) == ("op0[0]", "a", "b")
        assert (change.moved_bytes, change.pause) == (2_000_000.0, 0.012)
        expected = (
            "A user moved it. The home of op0[0] has moved from a to b with 2 MB of state; its rows waited for 12 ms."
        )
        assert decision.reason == expected
        [(_, event)] = scheduler.events
        assert event["homes"] == [
            {"executor": "op0[0]", "source": "a", "target": "b", "moved_bytes": 2e6, "pause": 0.012, "forecast": None}
        ]

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


# bad input


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (MoveExecutor("job", "op0", 0, "c"), MoveRefused, "there is no worker 'c': choose from a, b"),
        (MoveExecutor("job", "op0", 0, "a"), MoveRefused, r"op0\[0\] of job 'job' is at home on worker a already"),
        (MoveExecutor("job", "op0", 1, "b"), UnknownOperator, "has the executors 0 to 0, not 1"),
        (MoveExecutor("job", "op0", -1, "b"), UnknownOperator, "has the executors 0 to 0, not -1"),
        (MoveExecutor("job", "rows", 0, "b"), UnknownOperator, r"no stateful operator 'rows': choose from \['op0'\]"),
        (MoveExecutor("job", "out", 0, "b"), UnknownOperator, r"no stateful operator 'out': choose from \['op0'\]"),
        (MoveExecutor("none", "op0", 0, "b"), UnknownJob, "no job 'none'"),
    ],
)
def test_move_that_makes_no_sense_is_refused_by_name_and_changes_nothing(job, call, error, match):
    async def test(coordinator, scheduler, record):
        with pytest.raises(error, match=match):
            await coordinator.homes.move_executor(call)
        assert scheduler.calls == []
        assert record.homes.moving is None
        assert record.homes.of("op0") == (0,)

    job(test)


@pytest.mark.parametrize(
    ("status", "match"),
    [("retiring", "worker b is to leave"), ("paused", "worker b is paused"), ("closing", "worker b is closing")],
)
def test_worker_that_leaves_or_is_paused_becomes_no_home(job, status, match):
    async def test(coordinator, scheduler, record):
        if status == "retiring":
            coordinator.workers.retiring.add("b")
        else:
            scheduler.workers["b"].status.name = status
        with pytest.raises(MoveRefused, match=match):
            await coordinator.homes.move_executor(MOVE)
        assert scheduler.calls == []

    job(test)


def test_executors_of_static_ended_and_finishing_jobs_do_not_move(job):
    async def test(coordinator, scheduler, record):
        record.finishing = True
        with pytest.raises(MoveRefused, match="is finishing"):
            await coordinator.homes.move_executor(MOVE)
        record.finishing = False
        await coordinator.stop(Stop("job"))
        with pytest.raises(JobEnded, match="has stopped"):
            await coordinator.homes.move_executor(MOVE)
        assert scheduler.asked(PrepareHome) == []

    job(test)

    async def static(coordinator, scheduler, record):
        with pytest.raises(PlanningError, match="has the paradigm 'static': its executors do not move"):
            await coordinator.homes.move_executor(MOVE)

    job(static, paradigm=STATIC)


def test_second_move_of_a_job_is_refused(job):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        with pytest.raises(MoveRefused, match=r"the home of op0\[0\] is moving: one home of a job moves at a time"):
            await coordinator.homes.move_executor(MoveExecutor("job", "op1", 0, "a"))
        gate.set()
        await moving

    job(test, operators=2)


# moves that fail


def test_executor_that_has_finished_stays(job):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", MoveHome] = MoveRefused("its inputs have ended")
        with pytest.raises(MoveRefused, match=r"op0\[0\] of job 'job' stays on a: its inputs have ended"):
            await coordinator.homes.move_executor(MOVE)
        assert [address for address, _ in scheduler.asked(CancelHome)] == ["b"]
        assert record.homes.of("op0") == (0,)
        assert record.live
        assert coordinator.needed_workers() == {"a"}
        [(_, refused)] = scheduler.asked(MoveHome)
        scheduler.answers["a", MoveHome] = MOVED
        await coordinator.homes.move_executor(MOVE)
        # The nodes may have switched to the table, and back with the next version.
        assert scheduler.asked(MoveHome)[-1][1].table.version >= refused.table.version + 2

    job(test)


def test_move_to_a_worker_that_cannot_prepare_is_refused(job):
    async def test(coordinator, scheduler, record):
        scheduler.answers["b", PrepareHome] = NodeLost("no connection to a")
        with pytest.raises(MoveRefused, match=r"worker b cannot be the home of op0\[0\]: no connection to a"):
            await coordinator.homes.move_executor(MOVE)
        assert scheduler.asked(MoveHome) == []
        assert record.homes.moving is None

    job(test)


def test_loss_of_the_new_home_before_the_old_one_is_called_cancels_the_move(job):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["b", PrepareHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(PrepareHome))
        del scheduler.workers["b"]
        coordinator.node_lost("b")
        gate.set()
        with pytest.raises(NodeLost, match=r"worker b was lost before op0\[0\] moved there"):
            await moving
        assert scheduler.asked(MoveHome) == []
        assert record.live
        await until(lambda: record.nodes == ["a", ""])

    job(test)


def test_worker_in_the_place_of_a_lost_one_does_not_become_the_home(job):
    async def test(coordinator, scheduler, record):
        async with record.changing["op0", 0]:
            moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
            await until(lambda: record.homes.moving is not None)
            record.leave("b")
            scheduler.add("c", 2)
            record.spec = record.spec.with_guest("c")
            assert record.nodes == ["a", "c"]
        with pytest.raises(NodeLost, match="worker b was lost before"):
            await moving
        assert scheduler.asked(PrepareHome) == []
        assert record.homes.of("op0") == (0,)

    job(test)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_loss_of_either_home_during_the_move_fails_a_job_without_checkpoints(job, lost):
    async def test(coordinator, scheduler, record):
        scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        assert coordinator.needed_workers() == {"a", "b"}
        del scheduler.workers[lost]
        coordinator.node_lost(lost)
        with pytest.raises(JobEnded, match="has failed while an executor moved"):
            await moving
        assert record.status is Status.FAILED
        assert f"worker {lost} of job 'job' has left the cluster" in str(load_error(record.error))
        assert record.homes.moving is None

    job(test)


def test_unknown_failure_of_a_move_fails_a_job_without_checkpoints(job):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", MoveHome] = ProtocolError("a fence came back twice")
        with pytest.raises(Exception, match="another process"):
            await coordinator.homes.move_executor(MOVE)
        assert record.status is Status.FAILED
        error = str(load_error(record.error))
        assert error == "the home of op0[0] of job 'job' could not be moved: a fence came back twice"

    job(test)


def test_loss_after_the_move_is_that_of_the_new_home(job):
    async def test(coordinator, scheduler, record):
        await coordinator.homes.move_executor(MOVE)
        # The source and the sink stay on a.
        assert coordinator.needed_workers() == {"a", "b"}
        del scheduler.workers["b"]
        coordinator.node_lost("b")
        assert record.status is Status.FAILED

    job(test)


# checkpoints


def test_checkpoint_in_progress_is_given_up_and_taken_again_after_the_move(job, fake, tmp_path):
    async def test(coordinator, scheduler, record):
        record.checkpoints.requested.set()
        await until(lambda: record.checkpoints.progress is not None)
        first = record.checkpoints.progress.number
        taking = asyncio.ensure_future(coordinator.checkpoints.take_now(job_calls.TakeCheckpoint("job")))
        gate = scheduler.held["a", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        abandoned = {address for address, call in scheduler.asked(part_calls.AbandonCheckpoint)}
        assert abandoned == {"a", "b"}
        order = [type(call) for _, call in scheduler.calls]
        assert order.index(PrepareHome) > max(i for i, kind in enumerate(order) if kind is part_calls.AbandonCheckpoint)
        assert r"the home of op0[0] was to move" in record.checkpoints.descriptions[-1].error
        begun = len(scheduler.asked(part_calls.BeginCheckpoint))
        record.checkpoints.requested.set()
        await fake.settle()
        assert len(scheduler.asked(part_calls.BeginCheckpoint)) == begun
        gate.set()
        await moving
        await until(lambda: len(scheduler.asked(part_calls.BeginCheckpoint)) > begun)
        assert record.checkpoints.progress.number > first
        assert not taking.done()
        taking.cancel()

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_leases_are_granted_to_the_new_home_from_the_preparation_on(job, fake, tmp_path):
    async def test(coordinator, scheduler, record):
        report = fake.report_call(record, 1, fake.empty_report(complete=False))
        assert await coordinator.health.report(report) == 0.0
        gate = scheduler.held["b", PrepareHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(PrepareHome))
        assert await coordinator.health.report(report) > 0.0
        gate.set()
        await moving
        assert await coordinator.health.report(report) > 0.0

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
