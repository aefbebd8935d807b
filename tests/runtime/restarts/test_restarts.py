"""Restarts against workers that answer when the test tells them to: leases, missing parts, damaged checkpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import pytest

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import may_run
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import dump_error, error_text, load_error
from dask_elastic.runtime.protocol.reports import SuspectBatch, Suspects
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.errors import CheckpointCorrupt, NodeLost, PoisonBatch, UnknownJob
from dask_elastic_plugins.scheduler import ElasticSchedulerPlugin

A, B, C = (f"tcp://192.0.2.{number}:8000" for number in (1, 2, 3))
"""Addresses of another machine: only their leases tell whether processes there have ended."""

LEASE = 0.4
LOST = NodeLost("worker a hangs")
FIRST = 2
"""The generation of a job that has just started; the next one is higher by one."""


@pytest.fixture
def workers(fake):
    return fake.Scheduler({A: 2, B: 2})


async def started(fake, workers, folder, **options):
    """Return a coordinator with one job that takes checkpoints, and the job's record."""
    coordinator = Coordinator(workers)
    await coordinator.submit(
        fake.submission(executors=2, checkpoint=str(folder), checkpoint_interval=3600.0, **options)
    )
    return coordinator, coordinator.jobs["job"]


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def prepared(workers, generation):
    return [address for address, call in workers.asked(part_calls.Prepare) if call.spec.generation == generation]


def test_job_restarts_only_after_the_lease_of_a_worker_that_hangs(fake, workers, tmp_path):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        report = fake.report_call(record, 0, fake.empty_report(complete=False))
        began, granted = time.time(), time.monotonic()
        for node in (0, 1):
            record.leases.grant(node, granted, LEASE)
        restarting = asyncio.ensure_future(coordinator.restarts.restart(record, LOST, [A]))
        await until(lambda: workers.asked(part_calls.Forget))
        assert (await coordinator.health.report(report)).lease == 0.0
        await until(lambda: record.spec.generation == FIRST + 1)
        assert time.monotonic() > granted + LEASE
        assert await restarting is None
        assert prepared(workers, FIRST + 1) == [B]
        [listed] = await coordinator.queries.restarts(job_calls.Restarts("job"))
        assert (listed.reason, listed.workers, listed.checkpoint, listed.planned) == (str(LOST), (A,), 0, False)
        assert began + LEASE <= listed.began + listed.seconds < time.time() + 1

    asyncio.run(run())


def test_job_restarts_at_once_if_all_workers_confirm_the_end(fake, workers, tmp_path):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        for node in (0, 1):
            record.leases.grant(node, time.monotonic(), 3600.0)
        async with asyncio.timeout(20):
            assert await coordinator.restarts.restart(record, LOST) is None
        assert record.spec.generation == FIRST + 1

    asyncio.run(run())


def test_rows_are_blamed_for_the_death_of_two_workers_only_if_it_happens_again_after_a_restart(fake, workers, tmp_path):
    """Two workers may also die together of another cause."""

    async def die(coordinator, record, address):
        suspects = (SuspectBatch("op0", "5 rows"),)
        await coordinator.health.suspects(Suspects(*record.generation_id, 0, 1, suspects, record.spec.incarnation))
        coordinator.node_lost(address)

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        await die(coordinator, record, A)
        await until(lambda: record.spec.generation == FIRST + 1)
        await until(lambda: record.status is Status.RUNNING)
        await die(coordinator, record, record.spec.nodes[0])
        with pytest.raises(PoisonBatch):
            raise load_error(record.error)

    asyncio.run(run())


@pytest.mark.parametrize("attempts", [0, 1])
def test_guests_that_die_of_the_same_rows_restart_a_job_once(fake, workers, tmp_path, attempts, caplog):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        record.checkpoints.attempts = attempts
        failure = fake.empty_report(complete=False, error=dump_error(PoisonBatch("op0", "5 rows")))
        await coordinator.health.report(fake.report_call(record, 0, failure))
        if attempts:
            assert record.status is Status.FAILED
        else:
            await until(lambda: record.spec.generation == FIRST + 1)
        logged = [text for _, level, text in caplog.record_tuples if level >= logging.ERROR]
        assert len(logged) == attempts
        assert all(text.startswith("job 'job' failed: ") and "op0" in text for text in logged)

    asyncio.run(run())


def test_reports_of_a_job_with_checkpoints_renew_its_leases(fake, workers, tmp_path):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        reports = [fake.report_call(record, node, fake.empty_report(complete=False)) for node in (0, 1)]
        assert (await coordinator.health.report(reports[0])).lease > 0.0
        assert [*record.leases.held(time.monotonic())] == [0]
        stale = fake.report_call(record, 1, fake.empty_report(complete=False), generation=7)
        assert (await coordinator.health.report(stale)).lease == 0.0
        await coordinator.stop(job_calls.Stop("job"))
        assert (await coordinator.health.report(reports[1])).lease == 0.0
        assert not may_run(CheckpointFolder(tmp_path))

    asyncio.run(run())


def test_next_run_waits_while_parts_of_the_last_one_may_emit(fake, workers, tmp_path, monkeypatch):
    monkeypatch.setattr("dask_elastic.runtime.scheduler.job_starts.lease_seconds", lambda record, timeout: LEASE)

    async def run():
        await started(fake, workers, tmp_path)
        # Its scheduler is lost.
        again = fake.Scheduler({C: 2})
        began = time.monotonic()
        await started(fake, again, tmp_path)
        assert time.monotonic() > began + LEASE
        assert prepared(again, FIRST + 1) == [C]

    asyncio.run(run())


def test_worker_without_its_part_of_the_job_counts_as_lost(fake, workers, tmp_path):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        workers.answers[A, part_calls.BeginCheckpoint] = UnknownJob("worker a hosts no job 'job'")
        record.checkpoints.requested.set()
        await until(lambda: record.spec.generation == FIRST + 1 and record.status is Status.RUNNING)
        assert "worker a of job 'job' hosts no part of it any more" not in error_text(record.error or b"")
        assert prepared(workers, FIRST + 1) == [B]
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


def test_worker_that_answers_without_its_part_is_found_without_checkpoints_in_between(fake, workers, tmp_path):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        record.generation_began -= 3600.0
        workers.answers[A, part_calls.Report] = UnknownJob("worker a hosts no job 'job'")
        await until(lambda: record.spec.generation == FIRST + 1)
        coordinator.heartbeats.stop()
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


@pytest.mark.parametrize("removed", [False, True])
def test_only_worker_hosts_the_next_generation_when_its_process_was_replaced_at_its_address(fake, tmp_path, removed):
    async def run():
        workers = fake.Scheduler({A: 2})
        coordinator, record = await started(fake, workers, tmp_path, restart_attempts=1)
        if removed:
            # The next process registers before the job has restarted.
            state = workers.workers.pop(A)
            coordinator.node_lost(A)
            workers.workers[A] = state
        else:
            workers.answers[A, part_calls.BeginCheckpoint] = UnknownJob("worker a hosts no job 'job'")
            record.checkpoints.requested.set()
        await until(lambda: record.spec.generation == FIRST + 1 and record.status is Status.RUNNING)
        assert record.checkpoints.attempts == 1
        assert prepared(workers, FIRST + 1) == [A]
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


def test_damaged_checkpoint_fails_the_restart_and_names_the_one_before(fake, workers, tmp_path):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        catalog = Catalog(CheckpointFolder(tmp_path))
        for number in (6, 7):
            catalog.publish(Manifest("job", number, FIRST, 0.0, 0.5, record.checkpoints.topology))
        record.checkpoints.newest = 7
        workers.answers[B, part_calls.Prepare] = CheckpointCorrupt("state/7/op0-0.arrows", "40 bytes", "no such file")
        error = await coordinator.restarts.restart(record, LOST, [A])
        assert f"checkpoint 7 is damaged: checkpoint file {'state/7/op0-0.arrows'} is damaged" in str(error)
        assert f"dask_elastic.resume({str(tmp_path)!r}, client, number=6): sinks show the rows" in str(error)
        assert len(prepared(workers, FIRST + 1)) == 1

    asyncio.run(run())


def test_restart_waits_for_a_worker_if_none_is_left(fake, workers, tmp_path):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        workers.workers.clear()
        restarting = asyncio.ensure_future(coordinator.restarts.restart(record, LOST))
        await until(lambda: record.checkpoints.attempts == 1)
        await asyncio.sleep(0)
        workers.add(C)
        assert await restarting is None
        assert (prepared(workers, FIRST + 1), record.checkpoints.attempts) == ([C], 1)

    asyncio.run(run())


def test_job_waits_for_no_worker_and_does_not_restart_when_its_scheduler_closes(fake, workers, tmp_path):
    """The process goes on, where another cluster may continue the job."""

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        plugin = ElasticSchedulerPlugin()
        plugin.coordinator = coordinator
        # Dask closes the workers first, or what is left of them afterwards.
        workers.workers.clear()
        plugin.remove_worker(workers, A, stimulus_id="close")
        await until(lambda: record.checkpoints.restarts == 1)
        await plugin.before_close()
        await fake.settle()
        plugin.remove_worker(workers, B, stimulus_id="close")
        workers.add(C)
        await fake.settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert record.spec.generation == FIRST

    asyncio.run(run())


def test_job_stays_known_while_another_of_its_name_starts(fake, workers, tmp_path):
    async def run():
        coordinator, _ = await started(fake, workers, tmp_path / "first")
        await coordinator.stop(job_calls.Stop("job"))
        seen = []
        kinds = (part_calls.Forget, part_calls.Prepare)
        before = {kind: len(workers.asked(kind)) for kind in kinds}
        for kind in kinds:
            workers.held[A, kind] = asyncio.Event()
        submitted = asyncio.ensure_future(
            coordinator.submit(fake.submission(executors=2, checkpoint=str(tmp_path / "second")))
        )
        while not submitted.done():
            seen.append((await coordinator.describe(job_calls.Describe("job"))).status)
            for kind in kinds:
                if len(workers.asked(kind)) >= before[kind] + 2:
                    workers.held[A, kind].set()
            await asyncio.sleep(0.001)
        assert (await submitted).status is Status.RUNNING
        assert {Status.STOPPED, Status.STARTING} <= {*seen}
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


async def submitting(fake, workers, folder, held):
    """Return a coordinator, the submission that waits for a worker's answer to a call, and the job's record."""
    coordinator = Coordinator(workers)
    options = {"checkpoint": str(folder), "checkpoint_interval": 3600.0}
    submitted = asyncio.ensure_future(coordinator.submit(fake.submission(executors=2, **options)))
    await until(lambda: workers.asked(held))
    await fake.settle()
    return coordinator, submitted, coordinator.jobs["job"]


def test_drain_during_a_start_does_not_restart_the_job(fake, workers, tmp_path):
    async def run():
        gate = workers.held[B, part_calls.Prepare] = asyncio.Event()
        workers.answers[B, part_calls.Drain] = lambda call: None if gate.is_set() else UnknownJob("no job 'job'")
        coordinator, submitted, _ = await submitting(fake, workers, tmp_path, part_calls.Prepare)
        await coordinator.drain(job_calls.Drain("job"))
        await fake.settle()
        gate.set()
        assert (await submitted).status is Status.DRAINING
        assert [call.generation for _, call in workers.asked(part_calls.StartSources)] == [FIRST, FIRST]
        assert [call.generation for _, call in workers.asked(part_calls.Drain)] == [FIRST, FIRST]
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


def test_job_that_loses_a_worker_during_its_first_start_fails_with_the_loss(fake, workers, tmp_path):
    async def run():
        gate = workers.held[B, part_calls.StartExecutors] = asyncio.Event()
        coordinator, submitted, record = await submitting(fake, workers, tmp_path, part_calls.StartExecutors)
        coordinator.health.hung(B)
        await fake.settle()
        assert record.status is Status.FAILED
        gate.set()
        described = await submitted
        error = load_error(described.error)
        assert isinstance(error, NodeLost)
        assert str(error).startswith(f"worker {B} of job 'job' does not answer. The job had not started yet")
        assert record.spec.generation == FIRST

    asyncio.run(run())


@pytest.mark.parametrize("restarted", [True, False], ids=["runs again", "restarts still"])
def test_job_that_restarts_while_its_sources_start_outlives_the_first_start(
    fake, workers, tmp_path, caplog, monkeypatch, restarted
):
    async def run():
        gate = workers.held[A, part_calls.StartSources] = asyncio.Event()
        workers.answers[A, part_calls.StartSources] = LOST
        coordinator, submitted, record = await submitting(fake, workers, tmp_path, part_calls.StartSources)
        watched = []
        monkeypatch.setattr(coordinator.checkpoints, "run", _noted(watched))
        again = asyncio.Event()
        workers.held[B, part_calls.Prepare] = again
        coordinator.health.hung(A)
        await until(lambda: prepared(workers, FIRST + 1))
        if restarted:
            again.set()
            await until(lambda: record.status is Status.RUNNING)
        gate.set()
        assert (await submitted).status is (Status.RUNNING if restarted else Status.RESTARTING)
        again.set()
        await until(lambda: record.status is Status.RUNNING)
        await fake.settle()
        assert (record.spec.generation, record.error) == (FIRST + 1, None)
        assert watched == [FIRST + 1]
        assert [c.generation for address, c in workers.asked(part_calls.Forget) if address == B] == [FIRST]
        assert "has restarted while its sources started: worker a hangs" in caplog.text
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


def test_job_restarts_if_its_loss_is_noticed_after_the_call_that_starts_its_sources_has_failed(
    fake, workers, tmp_path, monkeypatch
):
    async def run():
        reply, broke = WorkerCalls._reply, asyncio.Event()

        async def breaks(calls, address, call):
            if isinstance(call, part_calls.StartSources) and address == A and call.generation == FIRST:
                await broke.wait()
                raise ConnectionResetError("the connection broke")
            return await reply(calls, address, call)

        monkeypatch.setattr(WorkerCalls, "_reply", breaks)
        coordinator, submitted, record = await submitting(fake, workers, tmp_path, part_calls.StartSources)
        await until(lambda: record.status is Status.RUNNING)
        broke.set()
        await fake.settle()
        assert not submitted.done()
        coordinator.health.hung(A)
        await submitted
        await until(lambda: record.status is Status.RUNNING)
        assert (record.spec.generation, record.error) == (FIRST + 1, None)
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


def _noted(watched):
    """Return a function in place of `Checkpoints.run` that notes the generation."""

    async def run(record):
        watched.append(record.spec.generation)

    return run


def test_job_restarts_when_a_worker_no_longer_hosts_it_as_its_sources_start(fake, workers, tmp_path):
    async def run():
        first = UnknownJob("worker a hosts no job 'job'")
        workers.answers[A, part_calls.StartSources] = lambda call: first if call.generation == FIRST else None
        coordinator, record = await started(fake, workers, tmp_path)
        await until(lambda: record.status is Status.RUNNING)
        assert record.spec.generation == FIRST + 1
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


def test_restart_leaves_out_a_worker_that_is_to_leave_since_they_were_chosen(fake, workers, tmp_path, monkeypatch):
    async def run():
        coordinator, record = await started(fake, workers, tmp_path)
        plan_again = coordinator.starts._planned_again

        async def retired_meanwhile(call, nodes, instances):
            coordinator.workers.retiring.add(B)
            return await plan_again(call, nodes, instances)

        monkeypatch.setattr(coordinator.starts, "_planned_again", retired_meanwhile)
        assert await coordinator.restarts.restart(record, LOST) is None
        assert record.nodes == [A]
        assert prepared(workers, FIRST + 1) == [A]

    asyncio.run(run())


def test_end_of_input_reaches_the_next_generation_of_a_job_that_restarts(fake, workers, tmp_path):
    async def run():
        call = fake.submission(executors=2, checkpoint=str(tmp_path), checkpoint_interval=3600.0)
        pushed = tuple(replace(one, pushed=one.name == "rows") for one in call.summaries)
        coordinator = Coordinator(workers)
        await coordinator.submit(replace(call, summaries=pushed))
        record = coordinator.jobs["job"]

        def ended(call):
            return UnknownJob("job 'job' has ended") if call.generation == FIRST else None

        for address in (A, B):
            workers.answers[address, part_calls.CloseSource] = ended
        closing = asyncio.ensure_future(coordinator.pushed.close_source(job_calls.CloseSource("job", "rows", 0)))
        await until(lambda: workers.asked(part_calls.CloseSource))
        assert await coordinator.restarts.restart(record, LOST) is None
        await asyncio.wait_for(closing, 20)
        assert [call.generation for _, call in workers.asked(part_calls.CloseSource)] == [FIRST, FIRST + 1]
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


def test_end_of_input_waits_while_the_next_generation_starts(fake, workers, tmp_path):
    async def run():
        call = fake.submission(executors=2, checkpoint=str(tmp_path), checkpoint_interval=3600.0)
        pushed = tuple(replace(one, pushed=one.name == "rows") for one in call.summaries)
        coordinator = Coordinator(workers)
        await coordinator.submit(replace(call, summaries=pushed))
        record = coordinator.jobs["job"]
        started = workers.held[A, part_calls.Prepare] = asyncio.Event()
        restarting = asyncio.ensure_future(coordinator.restarts.restart(record, LOST))
        await until(lambda: record.spec.generation == FIRST + 1)
        closing = asyncio.ensure_future(coordinator.pushed.close_source(job_calls.CloseSource("job", "rows", 0)))
        await fake.settle()
        assert workers.asked(part_calls.CloseSource) == []
        started.set()
        assert await restarting is None
        await asyncio.wait_for(closing, 20)
        assert [call.generation for _, call in workers.asked(part_calls.CloseSource)] == [FIRST + 1]
        await coordinator.stop(job_calls.Stop("job"))

    asyncio.run(run())


def test_questions_about_a_job_that_restarts_wait_for_its_next_generation(fake, workers, tmp_path):
    """Also those that find the loss of a worker before the scheduler does."""

    async def run():
        coordinator, record = await started(fake, workers, tmp_path)

        workers.answers[A, part_calls.Moves] = ()
        del workers.workers[B]
        before = asyncio.ensure_future(coordinator.queries.moves(job_calls.Moves("job")))
        await until(lambda: workers.asked(part_calls.Moves))
        await fake.settle()
        assert not before.done()
        ready = workers.held[A, part_calls.Prepare] = asyncio.Event()
        restarting = asyncio.ensure_future(coordinator.restarts.restart(record, LOST, [B]))
        await until(lambda: record.spec.generation == FIRST + 1)
        meanwhile = asyncio.ensure_future(coordinator.queries.moves(job_calls.Moves("job")))
        await fake.settle()
        assert not before.done()
        assert not meanwhile.done()
        ready.set()
        assert await restarting is None
        async with asyncio.timeout(20):
            assert await before == await meanwhile == ()
        assert [call.generation for _, call in workers.asked(part_calls.Moves)] == [FIRST, FIRST + 1, FIRST + 1]
        await coordinator.stop(job_calls.Stop("job"))
        del workers.workers[A]
        with pytest.raises(NodeLost, match="has left the cluster"):
            await coordinator.queries.moves(job_calls.Moves("job"))

    asyncio.run(run())
