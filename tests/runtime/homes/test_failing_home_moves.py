"""Moves of homes that are refused or fail, against workers that answer when the test tells them to."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from dask_elastic.runtime.protocol.home_calls import CancelHome, CopyHome, MoveHome, PrepareHome
from dask_elastic.runtime.protocol.job_calls import MoveExecutor, Stop
from dask_elastic.runtime.protocol.job_spec import STATIC
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import dump_error, load_error
from dask_elastic.runtime.scheduler import worker_calls
from dask_elastic.vocab.errors import (
    JobEnded,
    MoveRefused,
    NodeLost,
    PlanningError,
    ProtocolError,
    UnknownJob,
    UnknownOperator,
    UserCodeError,
)

sys.path.insert(0, str(Path(__file__).parent))
from move_calls import MOVE, MOVED, until

sys.path.pop(0)

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
        [(_, refused)] = scheduler.asked(MoveHome)
        cancelled = [(address, call.version) for address, call in scheduler.asked(CancelHome)]
        assert cancelled == [("a", refused.table.version), ("b", refused.table.version)]
        assert record.homes.of("op0") == (0,)
        assert record.live
        assert coordinator.needed_workers() == {"a"}
        scheduler.answers["a", MoveHome] = MOVED
        await coordinator.homes.move_executor(MOVE)
        # The nodes may have switched to the table, and back with the next version.
        assert scheduler.asked(MoveHome)[-1][1].table.version >= refused.table.version + 2

    job(test)


def test_state_that_cannot_be_copied_leaves_the_executor_where_it_is(job):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", CopyHome] = MoveRefused("worker b has no memory left")
        with pytest.raises(MoveRefused, match=r"op0\[0\] of job 'job' stays on a: worker b has no memory left"):
            await coordinator.homes.move_executor(MOVE)
        assert [address for address, _ in scheduler.asked(CancelHome)] == ["a", "b"]
        assert scheduler.asked(PrepareHome) == []
        assert record.live
        assert record.homes.moving is None

    job(test)


def test_loss_of_the_new_home_while_state_is_copied_cancels_the_move(job):
    async def test(coordinator, scheduler, record):
        gate = scheduler.held["a", CopyHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(CopyHome))
        assert coordinator.needed_workers() == {"a"}
        del scheduler.workers["b"]
        coordinator.node_lost("b")
        await until(lambda: record.nodes == ["a", ""])
        gate.set()
        with pytest.raises((NodeLost, MoveRefused)):
            await moving
        assert scheduler.asked(MoveHome) == []
        assert record.live

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
        with pytest.raises(Exception, match="a fence came back twice"):
            await coordinator.homes.move_executor(MOVE)
        assert record.status is Status.FAILED
        error = str(load_error(record.error))
        assert error == "the home of op0[0] of job 'job' could not be moved: a fence came back twice"

    job(test)


@pytest.mark.parametrize("durable", [False, True])
def test_error_of_user_code_during_the_move_is_that_of_the_job(job, fake, tmp_path, durable):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", MoveHome] = JobEnded("job 'job' ended while op0[0] moved")
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await until(lambda: scheduler.asked(MoveHome))
        await fake.settle()
        assert record.status is Status.RUNNING, "the report that says why is under way"
        error = dump_error(UserCodeError("op0", "ZeroDivisionError: division by zero", 3, 1))
        report = fake.empty_report(complete=False, error=error)
        await coordinator.health.report(fake.report_call(record, 0, report))
        with pytest.raises(JobEnded, match="has failed while an executor moved"):
            await moving
        assert (record.status, record.error) == (Status.FAILED, error)

    job(test, **({"checkpoint": str(tmp_path), "checkpoint_interval": 3600.0} if durable else {}))


def test_part_that_has_ended_and_does_not_report_why_fails_the_job(job, monkeypatch):
    monkeypatch.setattr(worker_calls, "REPORT_SECONDS", 0.01)

    async def test(coordinator, scheduler, record):
        scheduler.answers["a", MoveHome] = JobEnded("job 'job' ended while op0[0] moved")
        with pytest.raises(Exception, match=r"ended while op0\[0\] moved"):
            await coordinator.homes.move_executor(MOVE)
        assert "could not be moved: job 'job' ended while op0[0] moved" in str(load_error(record.error))

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


# waits for a checkpoint


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("ticks", range(6))
def test_wait_for_a_checkpoint_that_is_cancelled_at_any_moment_holds_none_up(job, fake, tmp_path, held, ticks):
    async def test(coordinator, scheduler, record):
        exclusive = record.checkpoints.exclusive
        if held:
            await exclusive.acquire()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        if held:
            await fake.settle()
            exclusive.release()
        for _ in range(ticks):
            await asyncio.sleep(0)
        moving.cancel()
        await asyncio.wait([moving])
        await fake.settle()
        assert not exclusive.locked()
        assert record.homes.moving is None

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


@pytest.mark.parametrize(
    ("replaced", "error", "match"),
    [(False, MoveRefused, "there is no worker 'b'"), (True, NodeLost, "worker b was lost before")],
)
def test_no_state_is_copied_to_a_worker_that_was_lost_during_a_checkpoint(job, fake, tmp_path, replaced, error, match):
    async def test(coordinator, scheduler, record):
        await record.checkpoints.exclusive.acquire()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MOVE))
        await fake.settle()
        lost = scheduler.workers.pop("b")
        coordinator.node_lost("b")
        await fake.settle()
        if replaced:
            scheduler.add("c")
            await coordinator.membership.join_new()
            assert record.nodes == ["a", "c"]
            scheduler.workers["b"] = lost
        record.checkpoints.exclusive.release()
        with pytest.raises(error, match=match):
            await moving
        assert scheduler.asked(CopyHome) == []

    job(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)
