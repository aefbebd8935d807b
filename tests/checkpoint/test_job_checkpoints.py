"""Where a job stands with its checkpoints, as the scheduler keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.takeover import requested
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol import codec
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.scheduler import checkpoint_folders
from dask_elastic.runtime.scheduler.checkpoints import first_of
from dask_elastic.runtime.scheduler.job_checkpoints import KEPT_DESCRIPTIONS, JobCheckpoints
from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus


@pytest.fixture
def checkpoints():
    return JobCheckpoints("/checkpoints", FileRef("topology/1", 10, "ab"))


def test_status_has_newest_complete_checkpoint_and_its_age(checkpoints):
    assert checkpoints.status(1.0) == CheckpointStatus("/checkpoints", 0, None, None, None, 0, 0)
    taken = CheckpointDescription(1, 100.0, 0.5, 2048, 0.01)
    checkpoints.completed(taken)
    status = CheckpointStatus("/checkpoints", 1, 3.0, taken, None, 0, 0)
    assert checkpoints.status(103.0) == status
    assert checkpoints.status(103.0, ended=True) == replace(status, ended=True)


def test_status_keeps_newest_complete_checkpoint_when_many_are_given_up_after_it(checkpoints):
    taken = CheckpointDescription(1, 100.0, 0.5)
    checkpoints.completed(taken)
    for number in range(2, KEPT_DESCRIPTIONS + 4):
        checkpoints.completed(CheckpointDescription(number, 100.0 + number, 0.5, error="full"))
    status = checkpoints.status(300.0)
    assert (status.number, status.complete, status.age) == (1, taken, 200.0)
    assert (status.given_up.number, status.given_up_count) == (KEPT_DESCRIPTIONS + 3, KEPT_DESCRIPTIONS + 2)
    assert status.failing
    checkpoints.completed(CheckpointDescription(KEPT_DESCRIPTIONS + 4, 290.0, 0.5))
    assert not checkpoints.status(300.0).failing


def test_restarts_leave_out_the_resumption(checkpoints):
    checkpoints.resumed, checkpoints.restarts = True, 3
    assert checkpoints.status(0.0).restarts == 2


def test_status_survives_the_wire(checkpoints):
    checkpoints.completed(CheckpointDescription(1, 100.0, 0.5, 2048, 0.01))
    checkpoints.completed(CheckpointDescription(2, 101.0, 0.5, error="full"))
    status = checkpoints.status(103.0)
    assert codec.decode(CheckpointStatus, codec.encode(CheckpointStatus, status)) == status


def test_start_awaits_the_leases_of_a_scheduler_that_reserves_at_the_same_time(tmp_path, monkeypatch):
    real = checkpoint_folders.reserve_generation

    def second(catalog, above, owner):
        requested(real(catalog))
        return real(catalog, above, owner=owner)

    call = Submit("delays", "1", (), job_options({}), {}, b"")
    assert not checkpoint_folders.open_checkpoints(str(tmp_path / "one"), call, above=0).awaits_leases
    monkeypatch.setattr(checkpoint_folders, "reserve_generation", second)
    opened = checkpoint_folders.open_checkpoints(str(tmp_path / "two"), call, above=0)
    assert (opened.generation, opened.awaits_leases) == (2, True)


@pytest.mark.parametrize("steps", range(12))
def test_wait_for_the_first_of_several_is_cancelled_at_any_of_its_steps(steps):
    async def test():
        never, rounds = asyncio.Event(), []

        async def waits():
            while len(rounds) < 50:
                rounds.append(len(rounds))
                await first_of(never.wait(), never.wait(), timeout=0.0)

        task = asyncio.ensure_future(waits())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(rounds) < 50

    asyncio.run(test())


def test_error_of_a_coroutine_that_is_waited_for_is_raised():
    async def fails():
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(first_of(fails(), timeout=100))
