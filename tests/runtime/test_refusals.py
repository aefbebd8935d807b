"""Submits that are refused change nothing: neither the ended job of their name nor the one with their folder."""

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


@pytest.mark.parametrize("status", ["starting", "running", "ended"])
def test_folder_of_checkpoints_is_refused_until_the_job_with_it_has_ended(fake, workers, tmp_path, status):
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)

    async def run():
        coordinator = Coordinator(workers)
        gate = asyncio.Event()
        if status == "starting":
            workers.held["a", part_calls.Prepare] = gate
        one = asyncio.ensure_future(coordinator.submit(fake.submission("one", checkpoint=str(folder))))
        if status == "starting":
            while not workers.asked(part_calls.Prepare):
                await asyncio.sleep(0)
        else:
            await one
        if status == "ended":
            await coordinator.stop(job_calls.Stop("one"))
        two = coordinator.submit(fake.submission("two", checkpoint=f"{link}/"))
        if status == "ended":
            assert (await two).status is Status.RUNNING
        else:
            with pytest.raises(SubmitError, match="job 'one' is running with this folder: stop it first"):
                await two
            # Another name would not help a job that resumes from this folder under its own.
            with pytest.raises(SubmitError, match="job 'one' is running with this folder: stop it first"):
                await coordinator.submit(fake.submission("one", checkpoint=str(folder)))
            assert [*coordinator.jobs] == ["one"]
        gate.set()
        await one
        other = fake.submission("other", checkpoint=str(tmp_path / "other"))
        assert (await coordinator.submit(other)).status is Status.RUNNING
        await coordinator.close()

    asyncio.run(run())


def test_one_of_two_simultaneous_submits_with_a_folder_is_refused(fake, workers, tmp_path):
    async def run():
        coordinator = Coordinator(workers)
        both = (coordinator.submit(fake.submission(name, checkpoint=str(tmp_path))) for name in ("one", "two"))
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(outcome) is SubmitError for outcome in outcomes) == [False, True]
        [running] = coordinator.jobs.values()
        await coordinator.stop(job_calls.Stop(running.name))
        assert (await coordinator.submit(fake.submission("three", checkpoint=str(tmp_path)))).status is Status.RUNNING
        await coordinator.close()

    asyncio.run(run())
