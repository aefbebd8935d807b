"""What the end of a job waits for: the ends of its parts and what is written for them, and nothing that never comes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import may_run
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import Version
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error
from dask_elastic.runtime.scheduler import job_starts, part_ends, restarts
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.source_commits import SourceCommits
from dask_elastic.runtime.worker import node, part_checkpoints
from dask_elastic.vocab.errors import NodeLost, SinkError

LOST = NodeLost("worker a hangs")


@pytest.fixture
def workers(fake):
    return fake.Scheduler({"a": 2, "b": 2})


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A wait that ends by its timeout alone takes longer than any test."""
    monkeypatch.setattr(part_ends, "PARTS_SECONDS", 3600.0)
    monkeypatch.setattr(part_ends, "NOTED_SECONDS", 3600.0)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def starting(fake, workers, folder):
    """Return a coordinator with a job of which worker b prepares its part, what lets it, and the end of the submit."""
    coordinator = Coordinator(workers)
    gate = workers.held["b", part_calls.Prepare] = asyncio.Event()
    call = fake.submission(executors=2) if folder is None else submission(fake, folder)
    return coordinator, gate, asyncio.ensure_future(coordinator.submit(call))


def submission(fake, folder):
    return fake.submission(executors=2, checkpoint=str(folder), checkpoint_interval=3600.0)


async def stop(coordinator):
    return await coordinator.stop(job_calls.Stop("job"))


async def wait(coordinator):
    return await coordinator.wait(job_calls.Wait("job", 60.0))


async def started(fake, workers, folder):
    """Return a coordinator with one job that takes checkpoints, and the job's record."""
    coordinator = Coordinator(workers)
    await coordinator.submit(submission(fake, folder))
    return coordinator, coordinator.jobs["job"]


def test_wait_for_a_job_that_cannot_start_returns_when_its_parts_are_forgotten(fake, workers, tmp_path):
    async def run():
        coordinator = Coordinator(workers)
        workers.answers["a", part_calls.Prepare] = SinkError("the table does not exist")
        gate = workers.held["b", part_calls.Forget] = asyncio.Event()
        submitted = asyncio.ensure_future(coordinator.submit(submission(fake, tmp_path)))
        await until(lambda: workers.asked(part_calls.Forget))
        waiting = asyncio.ensure_future(coordinator.wait(job_calls.Wait("job", 60.0)))
        await fake.settle()
        assert not waiting.done()
        gate.set()
        with pytest.raises(Relayed):
            await submitted
        assert (await asyncio.wait_for(waiting, 20)).status is Status.FAILED

    asyncio.run(run())


@pytest.mark.parametrize("reports", [True, False])
def test_wait_for_a_job_that_fails_does_not_wait_for_a_worker_that_reports_no_more(
    fake, workers, tmp_path, monkeypatch, reports
):
    monkeypatch.setattr(part_ends, "NOTED_SECONDS", 0.01)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        for number in (0, 1):
            await coordinator.health.report(fake.report_call(record, number, fake.empty_report(complete=False)))
        if not reports:
            record.reports[1] = record.reports[1]._replace(at=record.reports[1].at - 60.0)
        gate = workers.held["b", part_calls.End] = asyncio.Event()
        coordinator.health.fail(record, dump_error(SinkError("the table was dropped")))
        waiting = asyncio.ensure_future(coordinator.wait(job_calls.Wait("job", 60.0)))
        await until(lambda: len(workers.asked(part_calls.End)) == 2)
        await fake.settle()
        if reports:
            assert not waiting.done()
            gate.set()
        assert (await asyncio.wait_for(waiting, 20)).status is Status.FAILED
        gate.set()
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("forgets", [False, True])
def test_stop_of_a_job_that_starts_returns_when_the_parts_that_are_being_prepared_have_ended(
    fake, workers, tmp_path, checkpoints, forgets
):
    async def run():
        coordinator, gate, submitted = starting(fake, workers, tmp_path if checkpoints else None)
        await until(lambda: len(workers.asked(part_calls.Prepare)) == 2)
        stopping = asyncio.ensure_future(coordinator.forget(job_calls.Forget("job")) if forgets else stop(coordinator))
        await until(lambda: coordinator.jobs["job"].ended_at is not None)
        await fake.settle()
        assert not stopping.done()
        gate.set()
        await asyncio.wait_for(stopping, 20)
        kinds = [type(call) for _, call in workers.calls]
        assert part_calls.StartExecutors not in kinds
        assert {part_calls.End, part_calls.Forget}.intersection(kinds[-2:])
        prepared = max(number for number, kind in enumerate(kinds) if kind is part_calls.Prepare)
        assert kinds[prepared + 1 :].count(part_calls.End) >= 2
        assert (await submitted).status is Status.STOPPED

    asyncio.run(run())


def test_stop_of_a_job_that_starts_gives_up_waiting_for_a_worker_that_prepares_its_part(fake, workers, monkeypatch):
    monkeypatch.setattr(part_ends, "PARTS_SECONDS", 0.2)

    async def run():
        coordinator, gate, submitted = starting(fake, workers, None)
        await until(lambda: len(workers.asked(part_calls.Prepare)) == 2)
        await asyncio.wait_for(stop(coordinator), 20)
        assert not submitted.done()
        gate.set()
        assert (await submitted).status is Status.STOPPED

    asyncio.run(run())


def test_scheduler_closes_without_waiting_for_a_worker_that_prepares_its_part(fake, workers):
    async def run():
        coordinator, gate, submitted = starting(fake, workers, None)
        await until(lambda: len(workers.asked(part_calls.Prepare)) == 2)
        await asyncio.wait_for(coordinator.close(), 20)
        gate.set()
        await submitted

    asyncio.run(run())


def test_wait_for_a_job_that_was_stopped_in_its_start_returns_when_its_parts_have_ended(fake, workers, tmp_path):
    async def run():
        coordinator, gate, submitted = starting(fake, workers, tmp_path)
        await until(lambda: len(workers.asked(part_calls.Prepare)) == 2)
        stopping = asyncio.ensure_future(stop(coordinator))
        await until(lambda: coordinator.jobs["job"].checkpoints.end_noted.is_set())
        assert (await coordinator.wait(job_calls.Wait("job", 0.1))).awaited
        gate.set()
        assert not (await asyncio.wait_for(coordinator.wait(job_calls.Wait("job", 60.0)), 20)).awaited
        await stopping
        await submitted
        await coordinator.close()

    asyncio.run(run())


def test_wait_for_a_job_that_has_ended_returns_after_its_timeout_while_a_worker_writes(fake, workers, tmp_path):
    async def run():
        coordinator, _ = await started(fake, workers, tmp_path)
        gate = workers.held["b", part_calls.End] = asyncio.Event()
        stopping = asyncio.ensure_future(coordinator.stop(job_calls.Stop("job")))
        await until(lambda: len(workers.asked(part_calls.End)) == 2)
        for seconds in (0.0, 0.1, 0.0):
            described = await asyncio.wait_for(coordinator.wait(job_calls.Wait("job", seconds)), 20)
            assert described.status is Status.STOPPED
            assert described.awaited
        gate.set()
        described = await asyncio.wait_for(coordinator.wait(job_calls.Wait("job", 60.0)), 20)
        await stopping
        assert not described.awaited
        assert not (await coordinator.wait(job_calls.Wait("job", 0.0))).awaited
        await coordinator.close()

    asyncio.run(run())


def test_wait_without_time_for_a_job_that_has_ended_tells_at_once_that_its_folder_is_settled(fake, workers, tmp_path):
    async def run():
        coordinator, _ = await started(fake, workers, tmp_path)
        await coordinator.stop(job_calls.Stop("job"))
        assert not (await coordinator.wait(job_calls.Wait("job", 0.0))).awaited
        await coordinator.close()

    asyncio.run(run())


def test_waits_for_a_job_whose_storage_hangs_share_the_time_that_they_give_it(fake, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(part_ends, "PARTS_SECONDS", 0.3)
    monkeypatch.setattr(part_ends, "NOTED_SECONDS", 0.1)

    async def run():
        coordinator, _ = await started(fake, workers, tmp_path)
        gate = workers.held["b", part_calls.End] = asyncio.Event()
        stopping = asyncio.ensure_future(coordinator.stop(job_calls.Stop("job")))
        await until(lambda: len(workers.asked(part_calls.End)) == 2)
        async with asyncio.timeout(20):
            while (await coordinator.wait(job_calls.Wait("job", 0.05))).awaited:
                pass
        gate.set()
        await stopping
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize("closes", [False, True], ids=["before", "while it closes"])
def test_scheduler_closes_without_the_answer_of_a_worker_to_the_end_of_a_job_that_has_failed(
    fake, workers, tmp_path, closes
):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        workers.held["b", part_calls.End] = asyncio.Event()
        if closes:
            coordinator.abandon()
        coordinator.health.fail(record, dump_error(SinkError("the table was dropped")))
        await fake.settle()
        await asyncio.wait_for(coordinator.close(), 20)
        assert workers.asked(part_calls.Forget)

    asyncio.run(run())


def test_stop_amid_a_restart_returns_when_the_parts_that_it_ends_have_ended(fake, workers, tmp_path, monkeypatch):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        gate = workers.held["a", part_calls.Forget] = asyncio.Event()
        ended = []

        async def note_end(record):
            ended.append(gate.is_set())
            record.checkpoints.end_noted.set()

        monkeypatch.setattr(coordinator.ends, "note_end", note_end)
        restarting = asyncio.ensure_future(coordinator.restarts.restart(record, LOST))
        await until(lambda: workers.asked(part_calls.Forget))
        stopping = asyncio.ensure_future(coordinator.stop(job_calls.Stop("job")))
        # The worker hosts the part no longer, and is still writing its last files.
        await until(lambda: len(workers.asked(part_calls.End)) == 2)
        await fake.settle()
        gate.set()
        await asyncio.wait_for(stopping, 20)
        assert ended == [True]
        assert await restarting is None

    asyncio.run(run())


@pytest.mark.parametrize("hangs", [False, True])
def test_stop_amid_a_restart_returns_when_the_folder_has_the_next_generation_or_storage_hangs(
    fake, workers, tmp_path, monkeypatch, hangs
):
    reserving, gate, reserve = threading.Event(), threading.Event(), restarts.next_generation

    def slow(*arguments):
        reserving.set()
        gate.wait(100)
        return reserve(*arguments)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        monkeypatch.setattr(restarts, "next_generation", slow)
        if hangs:
            monkeypatch.setattr(part_ends, "PARTS_SECONDS", 0.5)
        restarting = asyncio.ensure_future(coordinator.restarts.restart(record, LOST))
        await until(reserving.is_set)
        stopping = asyncio.ensure_future(coordinator.stop(job_calls.Stop("job")))
        await until(lambda: record.checkpoints.end_noted.is_set())
        await fake.settle()
        if not hangs:
            assert not stopping.done()
            gate.set()
        await asyncio.wait_for(stopping, 20)
        gate.set()
        assert await restarting is None
        # A resume need not wait: nothing of the reserved generation has started.
        assert not may_run(CheckpointFolder(tmp_path))
        assert not may_run(CheckpointFolder(tmp_path), record.checkpoints.reserved)

    asyncio.run(run())


@pytest.mark.parametrize("step", ["next_start", "with_saved_groups"])
def test_stop_amid_a_restart_notes_the_end_of_a_generation_that_is_reserved_and_never_starts(
    fake, workers, tmp_path, monkeypatch, step
):
    reached, gate = threading.Event(), threading.Event()
    module = restarts if step == "next_start" else job_starts
    original = getattr(module, step)

    def slow(*arguments):
        reached.set()
        gate.wait(100)
        return original(*arguments)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        monkeypatch.setattr(module, step, slow)
        restarting = asyncio.ensure_future(coordinator.restarts.restart(record, LOST))
        await until(reached.is_set)
        stopping = asyncio.ensure_future(stop(coordinator))
        await until(lambda: record.checkpoints.end_noted.is_set())
        await fake.settle()
        if step == "next_start":
            assert not stopping.done(), "the restart writes to the folder"
            gate.set()
        await asyncio.wait_for(stopping, 20)
        assert record.checkpoints.reserved > record.spec.generation
        assert not may_run(CheckpointFolder(tmp_path))
        before = sorted(tmp_path.rglob("*"))
        gate.set()
        assert await restarting is None
        assert sorted(tmp_path.rglob("*")) == before

    asyncio.run(run())


@pytest.mark.parametrize("what", ["the next generation", "a manifest", "an epoch"])
def test_stop_names_the_folder_that_may_still_change_when_storage_hangs(
    fake, workers, tmp_path, monkeypatch, caplog, what
):
    monkeypatch.setattr(part_ends, "PARTS_SECONDS", 0.2)
    monkeypatch.setattr(part_ends, "NOTED_SECONDS", 0.1)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        committing = asyncio.Lock()
        commits = SimpleNamespace(committing=committing)
        commits.settled = partial(SourceCommits.settled, commits)
        coordinator.epochs._commits["job", "rows"] = commits
        locks = {"the next generation": record.checkpoints.reserving, "a manifest": record.checkpoints.publishing}
        async with locks.get(what, committing):
            await asyncio.wait_for(stop(coordinator), 20)
        assert f"{tmp_path} may still change" in caplog.text

    asyncio.run(run())


@pytest.mark.parametrize("end", [stop, wait])
@pytest.mark.parametrize("what", ["the end", "old files"])
def test_end_logs_and_describes_what_storage_has_not_written(fake, workers, tmp_path, monkeypatch, caplog, what, end):
    monkeypatch.setattr(part_ends, "NOTED_SECONDS", 0.1)
    monkeypatch.setattr(part_ends, "SETTLED_SECONDS", 0.1)
    gate, note = threading.Event(), part_ends.note_ended

    def slow(*arguments):
        gate.wait(100)
        return note(*arguments)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        if end is wait:
            coordinator.health.fail(record, dump_error(SinkError("the table was dropped")))
        async with record.checkpoints.exclusive if what == "old files" else contextlib.nullcontext():
            described = await asyncio.wait_for(end(coordinator), 20)
            assert (described.settled, described.unanswered, described.awaited) == (False, "its storage", False)
        (warning,) = [one.getMessage() for one in caplog.records if "may still change" in one.getMessage()]
        assert re.fullmatch(
            rf"job 'job': its storage: no answer within \d+\.\d s of its end, and {tmp_path} may still change", warning
        )
        gate.set()
        await until(record.checkpoints.end_noted.is_set)
        # Later calls look again.
        described = await asyncio.wait_for(end(coordinator), 20)
        assert (described.settled, described.unanswered) == (True, "")
        await coordinator.close()

    if what == "the end":
        monkeypatch.setattr(part_ends, "note_ended", slow)
    asyncio.run(run())


def test_end_waits_for_storage_that_is_slow(fake, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(part_ends, "NOTED_SECONDS", 0.01)
    monkeypatch.setattr(part_ends, "SETTLED_SECONDS", 3600.0)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        async with record.checkpoints.exclusive:
            stopping = asyncio.ensure_future(stop(coordinator))
            await until(record.checkpoints.end_noted.is_set)
            await asyncio.wait([stopping], timeout=0.1)
            assert not stopping.done()
        assert (await asyncio.wait_for(stopping, 20)).settled
        await coordinator.close()

    asyncio.run(run())


def test_scheduler_closes_without_waiting_long_for_storage(fake, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(part_ends, "NOTED_SECONDS", 0.01)
    monkeypatch.setattr(part_ends, "SETTLED_SECONDS", 3600.0)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        await stop(coordinator)
        async with record.checkpoints.exclusive:
            await asyncio.wait_for(coordinator.close(), 20)

    asyncio.run(run())


def test_end_tells_that_files_of_a_worker_may_still_appear(fake, workers, tmp_path, caplog):
    async def run():
        coordinator, _ = await started(fake, workers, tmp_path)
        workers.answers["b", part_calls.End] = ("state/1/rows",)
        for end in (stop, wait):
            described = await asyncio.wait_for(end(coordinator), 20)
            assert (described.settled, described.unanswered) == (False, "its storage")
        assert f"{tmp_path} may still change" in caplog.text
        workers.answers["b", part_calls.End] = ()
        assert (await asyncio.wait_for(wait(coordinator), 20)).settled
        await coordinator.close()

    asyncio.run(run())


def test_end_does_not_wait_for_files_of_a_worker_that_has_left(fake, workers, tmp_path):
    async def run():
        coordinator, _ = await started(fake, workers, tmp_path)
        workers.answers["b", part_calls.End] = ("state/1/rows",)
        await asyncio.wait_for(stop(coordinator), 20)
        del workers.workers["b"]
        assert (await asyncio.wait_for(wait(coordinator), 20)).settled
        await coordinator.close()

    asyncio.run(run())


def test_end_names_workers_that_may_still_run(fake, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(part_ends, "PARTS_SECONDS", 0.1)
    monkeypatch.setattr(part_ends, "NOTED_SECONDS", 0.1)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        gate = workers.held["b", part_calls.End] = asyncio.Event()
        coordinator.health.fail(record, dump_error(SinkError("the table was dropped")))
        assert (await asyncio.wait_for(wait(coordinator), 20)).unanswered == "its workers"
        gate.set()
        await coordinator.close()

    asyncio.run(run())


def test_restart_that_a_stop_overtakes_changes_the_folder_no_more(fake, workers, tmp_path):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        gate = workers.held["a", Version] = asyncio.Event()
        versions = len(workers.asked(Version))
        restarting = asyncio.ensure_future(coordinator.restarts.restart(record, LOST))
        await until(lambda: len(workers.asked(Version)) > versions)
        await asyncio.wait_for(coordinator.stop(job_calls.Stop("job")), 20)
        before = sorted(tmp_path.rglob("*"))
        gate.set()
        assert await restarting is None
        assert sorted(tmp_path.rglob("*")) == before

    asyncio.run(run())


def test_restart_gets_the_answers_of_workers_whose_storage_hangs():
    assert max(node.JOIN_SECONDS, part_checkpoints.LAST_SECONDS) < part_ends.ANSWER_SECONDS
    assert part_checkpoints.LAST_SECONDS < part_ends.PARTS_SECONDS
