"""An ended job stays as it is until a submit of its name is accepted."""

from __future__ import annotations

import asyncio

import pytest

from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import Version
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import SubmitError


@pytest.fixture
def workers(fake):
    return fake.Scheduler({"a": 2, "b": 2})


async def with_ended(fake, workers):
    """Return a coordinator with an ended job and one that runs."""
    coordinator = Coordinator(workers)
    await coordinator.submit(fake.submission("ended"))
    await coordinator.stop(job_calls.Stop("ended"))
    await coordinator.submit(fake.submission("other"))
    return coordinator


def frees(workers, generation=1):
    """Return the workers that were called to drop a generation."""
    return {address for address, call in workers.asked(part_calls.Forget) if call.generation == generation}


def refuse_code(workers, address):
    workers.answers[address, part_calls.CheckCode] = SubmitError("a module is missing")


@pytest.mark.parametrize("cause", ["cores", "code"])
def test_ended_job_keeps_state_and_place_if_submit_of_its_name_is_refused(fake, workers, cause):
    async def run():
        coordinator = await with_ended(fake, workers)
        ended = coordinator.jobs["ended"]
        if cause == "code":
            refuse_code(workers, "b")
        with pytest.raises((SubmitError, Relayed)):
            await coordinator.submit(fake.submission("ended", cores={"op0": 99 if cause == "cores" else 1}))
        assert coordinator.jobs["ended"] is ended
        assert [*coordinator.jobs] == ["ended", "other"]
        assert frees(workers) == set()
        workers.answers.clear()
        assert (await coordinator.submit(fake.submission("ended"))).status is Status.RUNNING
        assert [*coordinator.jobs] == ["other", "ended"]
        assert frees(workers) == {"a", "b"}

    asyncio.run(run())


@pytest.mark.parametrize("refused", [False, True])
def test_second_submit_of_a_name_is_refused_while_the_first_is_under_way(fake, workers, refused):
    async def run():
        coordinator = await with_ended(fake, workers)
        ended = coordinator.jobs["ended"]
        gate = workers.held["a", part_calls.CheckCode] = asyncio.Event()
        first = asyncio.ensure_future(coordinator.submit(fake.submission("ended")))
        await fake.settle()
        with pytest.raises(SubmitError, match="a job 'ended' is running already"):
            await coordinator.submit(fake.submission("ended"))
        if refused:
            refuse_code(workers, "a")
        gate.set()
        await asyncio.wait([first])
        assert (first.exception() is not None) == refused
        assert (coordinator.jobs["ended"] is ended) == refused

    asyncio.run(run())


def test_ended_job_forgotten_before_a_submit_of_its_name_is_refused_is_unknown(fake, workers):
    async def run():
        coordinator = await with_ended(fake, workers)
        gate = workers.held["a", Version] = asyncio.Event()
        refused = asyncio.ensure_future(coordinator.submit(fake.submission("ended", cores={"op0": 99})))
        await fake.settle()
        await coordinator.forget(job_calls.Forget("ended"))
        gate.set()
        with pytest.raises(SubmitError, match="more cores than the cluster has slots"):
            await refused
        assert [*coordinator.jobs] == ["other"]

    asyncio.run(run())
