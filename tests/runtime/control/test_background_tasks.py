"""Errors of tasks that no caller awaits: they are logged with their job, and fail it where it could not go on."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.background_tasks import BackgroundTasks
from dask_elastic.runtime.protocol.job_calls import Stop
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import load_error


def messages(caplog):
    """Return the logged errors, after tasks whose errors no code has retrieved were collected."""
    gc.collect()
    return [(record.name, record.getMessage(), record.exc_info is not None) for record in caplog.records]


def test_error_of_a_task_is_logged_and_cancelled_ones_are_not(caplog):
    async def fails():
        raise OSError("disk full")

    async def run():
        tasks = BackgroundTasks(logging.getLogger("here"))
        tasks.keep(asyncio.ensure_future(fails()), "job 'job': its end")
        tasks.keep(asyncio.ensure_future(asyncio.sleep(60)), "job 'job': a wait")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(tasks) == 1
        tasks.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(tasks) == 0

    asyncio.run(run())
    assert messages(caplog) == [("here", "job 'job': its end failed", True)]
    assert "disk full" in caplog.text


def test_error_of_the_end_of_a_failed_job_is_logged_with_its_name(on, fake, caplog, monkeypatch):
    async def test(coordinator, scheduler):
        async def fails(record):
            raise RuntimeError("the end fails")

        await coordinator.submit(fake.submission())
        monkeypatch.setattr(coordinator.ends, "end", fails)
        coordinator.health.fail(coordinator.jobs["job"], b"")
        await fake.settle()
        monkeypatch.undo()

    on({"a": 2}, test)
    assert messages(caplog) == [("dask_elastic.scheduler", "job 'job': the end of its parts failed", True)]


def test_job_fails_when_no_more_checkpoints_can_be_taken(on, fake, caplog, monkeypatch, tmp_path):
    async def test(coordinator, scheduler):
        async def fails(record):
            raise RuntimeError("no such method")

        monkeypatch.setattr(coordinator.checkpoints, "run", fails)
        await coordinator.submit(fake.submission(checkpoint=tmp_path.as_uri()))
        await fake.settle()
        record = coordinator.jobs["job"]
        assert record.status is Status.FAILED
        assert str(load_error(record.error)) == "no such method"

    on({"a": 2}, test)
    assert ("dask_elastic.scheduler", "job 'job' takes no more checkpoints", True) in messages(caplog)
    assert not [name for name, _, _ in messages(caplog) if name == "asyncio"]


@pytest.mark.parametrize("stopped", [False, True])
def test_job_fails_when_a_lost_worker_cannot_be_removed_from_it(on, fake, caplog, monkeypatch, stopped):
    async def test(coordinator, scheduler):
        async def fails(record, address):
            if stopped:
                await coordinator.stop(Stop("job"))
            raise RuntimeError("no such node")

        await coordinator.submit(fake.submission(executors=1))
        scheduler.add("guest")
        await coordinator.membership.join_new()
        monkeypatch.setattr(coordinator.membership, "expel", fails)
        del scheduler.workers["guest"]
        coordinator.node_lost("guest")
        await fake.settle()
        record = coordinator.jobs["job"]
        assert record.status is (Status.STOPPED if stopped else Status.FAILED)
        assert ("a", part_calls.End) in [(address, type(call)) for address, call in scheduler.calls]

    on({"a": 2}, test)
    assert ("dask_elastic.scheduler", "job 'job' cannot go on without guest", True) in messages(caplog)
    assert not [name for name, _, _ in messages(caplog) if name == "asyncio"]
