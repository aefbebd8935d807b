"""The coordinator against workers that answer when the test tells them to."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from dask_elastic._version import __version__
from dask_elastic.planning import registry
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.protocol import group_calls, home_calls, job_calls, part_calls
from dask_elastic.runtime.protocol.calls import Call, Version, message_of
from dask_elastic.runtime.protocol.job_calls import Retire
from dask_elastic.runtime.protocol.job_spec import ELASTIC, RESOURCE
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, error_text, load_error
from dask_elastic.runtime.scheduler import job_starts
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.worker.handlers import Handlers
from dask_elastic.vocab.checkpoint import CheckpointDescription
from dask_elastic.vocab.errors import (
    JobFailed,
    JobStopped,
    MissingExtra,
    NodeLost,
    SinkError,
    SubmitError,
    UnknownJob,
    VersionMismatch,
)


@pytest.fixture
def workers(fake):
    return fake.Scheduler({"a": 2, "b": 2})


def test_forget_of_old_generation_leaves_new_generation_running(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        await coordinator.stop(job_calls.Stop("job"))
        gate = workers.held["a", part_calls.Forget] = asyncio.Event()
        old = asyncio.ensure_future(coordinator.forget(job_calls.Forget("job")))
        await fake.settle()
        del workers.held["a", part_calls.Forget]
        await coordinator.submit(fake.submission())
        gate.set()
        await old
        assert (await coordinator.describe(job_calls.Describe("job"))).status is Status.RUNNING
        ends = [*workers.asked(part_calls.End), *workers.asked(part_calls.Forget)]
        assert {call.generation for _, call in ends} == {1}

    asyncio.run(run())


def test_job_stopped_while_starting_does_not_run(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        gate = workers.held["b", part_calls.Prepare] = asyncio.Event()
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        await fake.settle()
        await coordinator.stop(job_calls.Stop("job"))
        gate.set()
        assert (await submitted).status is Status.STOPPED
        assert isinstance([call for address, call in workers.calls if address == "b"][-1], part_calls.End)

    asyncio.run(run())


def test_job_that_is_forgotten_while_the_next_one_of_its_name_is_refused_is_not_listed(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        await coordinator.stop(job_calls.Stop("job"))
        gate = workers.held["a", Version] = asyncio.Event()
        workers.answers["a", Version] = "0.0.1"
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        await fake.settle()
        ended = asyncio.ensure_future(coordinator.forget(job_calls.Forget("job")))
        await fake.settle()
        gate.set()
        with pytest.raises(VersionMismatch):
            await submitted
        await ended
        assert coordinator.jobs == {}
        await coordinator.close()

    asyncio.run(run())


def test_slow_worker_forgets_job_that_failed_to_start(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        gate = workers.held["b", part_calls.Prepare] = asyncio.Event()
        workers.answers["a", part_calls.Prepare] = SubmitError("no")
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        await fake.settle()
        assert workers.asked(part_calls.Forget) == []
        gate.set()
        with pytest.raises(Relayed):
            await submitted
        assert isinstance(workers.calls[-1][1], part_calls.Forget)
        assert coordinator.jobs == {}

    asyncio.run(run())


def test_client_that_waits_for_a_job_that_cannot_start_gets_the_error(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        gate = workers.held["b", part_calls.Prepare] = asyncio.Event()
        workers.answers["a", part_calls.Prepare] = SinkError("the table does not exist")
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        await fake.settle()
        waiting = asyncio.ensure_future(coordinator.wait(job_calls.Wait("job", 60.0)))
        await fake.settle()
        gate.set()
        with pytest.raises(Relayed):
            await submitted
        described = await waiting
        assert described.status is Status.FAILED
        assert error_text(described.error) == "the table does not exist"

    asyncio.run(run())


def test_error_amid_the_end_of_a_job_becomes_that_of_the_job(fake, workers, monkeypatch):
    def broken(record):
        raise ModuleNotFoundError("No module named 'flights'")

    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        record = coordinator.jobs["job"]
        monkeypatch.setattr(coordinator.health, "_agree", broken)
        for node, address in enumerate(record.nodes):
            workers.answers[address, part_calls.Report] = fake.empty_report()
            await coordinator.health.report(fake.report_call(record, node, fake.empty_report()))
        await fake.settle()
        assert record.status is Status.FAILED
        assert "No module named 'flights'" in error_text(record.error)
        await coordinator.close()

    asyncio.run(run())


def test_wait_for_a_failed_job_without_an_error_raises(monkeypatch):
    failed = SimpleNamespace(name="job", live=False, settled=True, awaited=False, error=None, status=Status.FAILED)
    monkeypatch.setattr(Job, "_ask", lambda job, call, deadline: failed)
    with pytest.raises(JobFailed, match="job 'job' failed"):
        Job("job", SimpleNamespace(extensions={})).wait(progress=False)


@pytest.mark.parametrize(("status", "kind"), [(Status.STOPPED, JobStopped), (Status.FAILED, JobFailed)])
def test_wait_amid_the_handling_of_an_error_shows_that_error(monkeypatch, status, kind):
    ended = SimpleNamespace(name="job", live=False, settled=True, awaited=False, error=None, status=status)
    monkeypatch.setattr(Job, "_ask", lambda job, call, deadline: ended)
    handled = KeyError("of the program")

    def program():
        try:
            raise handled
        except KeyError:
            Job("job", SimpleNamespace(extensions={})).wait(progress=False)

    with pytest.raises(kind) as raised:
        program()
    assert raised.value.__context__ is handled
    assert not raised.value.__suppress_context__


def test_drain_during_a_start_begins_when_the_sources_have_started(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        gate = workers.held["b", part_calls.Prepare] = asyncio.Event()
        not_hosted = UnknownJob("worker b hosts no job 'job'")
        workers.answers["b", part_calls.Drain] = lambda call: None if gate.is_set() else not_hosted
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        await fake.settle()
        await coordinator.drain(job_calls.Drain("job"))
        assert coordinator.jobs["job"].status is Status.STARTING
        gate.set()
        assert (await submitted).status is Status.DRAINING
        assert [type(call) for _, call in workers.calls[-4:]] == [part_calls.StartSources] * 2 + [part_calls.Drain] * 2
        await coordinator.close()

    asyncio.run(run())


def test_drain_is_repeated_for_sources_that_started_after_it(fake, workers):
    async def run():
        coordinator = Coordinator(workers)
        gate = workers.held["b", part_calls.StartSources] = asyncio.Event()
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission()))
        await fake.settle()
        await coordinator.drain(job_calls.Drain("job"))
        gate.set()
        assert (await submitted).status is Status.DRAINING
        assert [address for address, _ in workers.asked(part_calls.Drain)] == ["a", "b"] * 2
        await coordinator.close()

    asyncio.run(run())


def test_job_forgotten_while_starting_is_dropped_with_its_parts_and_its_folder(fake, workers, tmp_path):
    async def run():
        coordinator = Coordinator(workers)
        gate = workers.held["b", part_calls.Prepare] = asyncio.Event()
        submitted = asyncio.ensure_future(coordinator.submit(fake.submission(checkpoint=str(tmp_path))))
        async with asyncio.timeout(20):
            while not workers.asked(part_calls.Prepare):
                await asyncio.sleep(0.005)
        await coordinator.forget(job_calls.Forget("job"))
        gate.set()
        assert (await submitted).status is Status.STOPPED
        assert isinstance([call for address, call in workers.calls if address == "b"][-1], part_calls.Forget)
        assert coordinator.jobs == coordinator._folders == {}

    asyncio.run(run())


@pytest.mark.parametrize("arguments", [{"version": "0.0.1", "topology": b""}, {"version": "0.0.1"}, {}])
def test_submission_of_another_version_is_a_version_mismatch(workers, arguments):
    reply = asyncio.run(Coordinator(workers).handlers()["elastic_submit"](**arguments))
    error = load_error(reply["error"])
    assert isinstance(error, VersionMismatch)
    assert f"dask_elastic {__version__} cannot read the call elastic_submit" in str(error)
    assert ("of version 0.0.1" in str(error)) == ("version" in arguments)


def test_submission_with_other_fields_is_a_version_mismatch(fake, workers):
    arguments = message_of(fake.submission())
    arguments["summaries"] = tuple((*summary, "later") for summary in arguments["summaries"])
    reply = asyncio.run(Coordinator(workers).handlers()["elastic_submit"](**{**arguments, "version": "9.0"}))
    error = load_error(reply["error"])
    assert isinstance(error, VersionMismatch)
    came = len(arguments["summaries"][0])
    assert f"ComponentSummary has {came - 1} fields, and {came} came" in str(error)


def test_end_of_earlier_generation_does_not_end_later_one():
    ended = []
    job_part = SimpleNamespace(
        spec=SimpleNamespace(generation=2), refused=0, checkpoints=None, end=lambda: ended.append(2)
    )

    async def forget(job):
        ended.append(job)
        return []

    commands = Handlers(
        SimpleNamespace(refuse=lambda job, generation, incarnation: None, job_parts={"job": job_part}, forget=forget)
    )
    for generation in (1, 2):
        asyncio.run(commands.end(part_calls.End("job", generation)))
        asyncio.run(commands.forget(part_calls.Forget("job", generation)))
    assert ended == [2, "job"]


STALE = ("job", 1)
STALE_CALLS = [
    part_calls.Members(*STALE, change=1, nodes=(), guests=()),
    part_calls.StartExecutors(*STALE),
    part_calls.StartSources(*STALE),
    part_calls.Drain(*STALE),
    part_calls.BeginCheckpoint(*STALE, number=1),
    part_calls.AbandonCheckpoint(*STALE, number=1),
    part_calls.HoldSources(*STALE, number=1),
    part_calls.ContinueSources(*STALE, number=1),
    part_calls.CommitCheckpoint(*STALE, number=1),
    part_calls.End(*STALE),
    part_calls.Forget(*STALE),
    part_calls.Report(*STALE),
    part_calls.SetCores(*STALE, change=1, operator="op", executor=0, cores={}),
    part_calls.MoveShard(*STALE, operator="op", executor=0, shard=0, task=0),
    part_calls.Moves(*STALE),
    part_calls.Recoveries(*STALE),
    part_calls.Assignment(*STALE),
    part_calls.AwaitTaskEnds(*STALE, nodes=(0,), wait=0.0),
    part_calls.State(*STALE, operator="op", executor=0),
    part_calls.StateTypes(*STALE, operator="op", executor=0),
    part_calls.Send(*STALE, source="rows", instance=0, rows=memoryview(b"")),
    part_calls.CloseSource(*STALE, source="rows", instance=0),
    part_calls.Collect(*STALE, operator="out"),
    part_calls.DeadLetters(*STALE, operator="op"),
    part_calls.ChangeSharing(*STALE, operator="op", executor=0, separate=True, since=None),
    home_calls.PrepareHome(*STALE, operator="op", executor=0, tables={}),
    home_calls.CancelHome(*STALE, operator="op", executor=0, version=1),
    home_calls.CopyHome(*STALE, operator="op", executor=0, table=HomeTable(1, (0,))),
    home_calls.CopyState(*STALE, operator="op", executor=0, number=1, position=0, portion=()),
    home_calls.MoveHome(*STALE, operator="op", executor=0, table=HomeTable(1, (0,)), cores=1),
    group_calls.CopyGroups(*STALE, operator="op", version=1, executors={}),
    group_calls.InstallCopied(*STALE, operator="op", version=1, executor=0, source=1, groups=(), position=0, rows=()),
    group_calls.HoldGroups(*STALE, operator="op", version=1, executors={}, drains=False),
    group_calls.SwitchGroups(*STALE, operator="op", version=1, executors={}, pauses=False),
    group_calls.GiveGroups(*STALE, operator="op", version=1),
    group_calls.ResumeGroups(*STALE, operator="op", version=1),
    group_calls.ForgetGroups(*STALE, operator="op", version=1),
    group_calls.InstallGroups(
        *STALE,
        operator="op",
        version=1,
        executor=0,
        source=1,
        groups=(),
        portions=0,
        rest=(),
        schemas={},
        event_time=None,
        taken=0.0,
    ),
    home_calls.InstallHome(
        *STALE,
        operator="op",
        executor=0,
        copy=1,
        portions=0,
        rest=(),
        schemas={},
        chains={},
        event_time=None,
        counts=(),
        inputs=(),
        inputs_time=None,
        watermarks=(),
        sharing=(False, ()),
        clocks=(None, 0),
        taken=0.0,
        incarnations={},
        cores=1,
        over=0,
        newest_change=0,
        rows=0,
        credit=(),
    ),
]
"""Every call to a job's part that a node hosts."""


@pytest.mark.parametrize("call", STALE_CALLS, ids=lambda call: call.operation)
def test_call_to_earlier_generation_is_refused_and_counted(call):
    """The job has no other part here: carrying the call out would raise another error."""
    job_part = SimpleNamespace(spec=SimpleNamespace(generation=2), refused=0)
    worker = SimpleNamespace(address="here")
    commands = Handlers(
        SimpleNamespace(refuse=lambda *arguments: None, job_parts={"job": job_part}, worker=worker, in_thread=None)
    )
    reply = asyncio.run(commands.handlers()[call.operation](**message_of(call)))
    assert job_part.refused == 1
    if isinstance(call, part_calls.End | part_calls.Forget):
        assert reply == {"answer": ()}
    else:
        assert isinstance(load_error(reply["error"]), UnknownJob)


@pytest.mark.parametrize(("nodes", "message"), [(("here", "there"), "worker there"), (("here", ""), "a worker")])
def test_cores_on_lost_worker_are_refused_by_its_name(nodes, message):
    spec = SimpleNamespace(generation=1, node=0, nodes=nodes)
    watch = SimpleNamespace(note=lambda: None)
    job_part = SimpleNamespace(
        spec=spec, members=SimpleNamespace(lost={"there"}), idle_watch=watch, homes={}, refused=0
    )
    commands = Handlers(
        SimpleNamespace(
            refuse=lambda *arguments: None, job_parts={"job": job_part}, worker=SimpleNamespace(address="here")
        )
    )
    call = part_calls.SetCores("job", 1, change=1, operator="op", executor=0, cores={0: 1, 1: 1})
    with pytest.raises(NodeLost, match=f"{message} of job 'job' is lost"):
        asyncio.run(commands.set_cores(call))


def test_stale_call_test_covers_every_part_call():
    handlers = Handlers(SimpleNamespace()).handlers()
    kinds: set[type[Call]] = {type(call) for call in STALE_CALLS}
    assert {kind.operation for kind in (*kinds, Version, part_calls.CheckCode, part_calls.Prepare)} == set(handlers)


def test_rejoined_worker_ignores_forget_of_earlier_part():
    forgotten = []

    async def forget(job):
        forgotten.append(job)
        return []

    job_part = SimpleNamespace(spec=SimpleNamespace(generation=2, incarnation=5), refused=0)
    commands = Handlers(
        SimpleNamespace(refuse=lambda job, generation, incarnation: None, job_parts={"job": job_part}, forget=forget)
    )
    asyncio.run(commands.forget(part_calls.Forget("job", 2, incarnation=4)))
    assert (forgotten, job_part.refused) == ([], 1)
    asyncio.run(commands.forget(part_calls.Forget("job", 2, incarnation=5)))
    assert forgotten == ["job"]


def test_command_takes_one_checkpoint_also_while_another_is_in_progress(fake, workers, tmp_path):
    async def run():
        coordinator = Coordinator(workers)
        await coordinator.submit(fake.submission())
        state = coordinator.jobs["job"].checkpoints = JobCheckpoints(str(tmp_path), None)
        in_progress = state.next_number()
        taking = asyncio.ensure_future(coordinator.checkpoints.take_now(job_calls.TakeCheckpoint("job")))
        await fake.settle()
        state.completed(CheckpointDescription(in_progress, 0.0, 1.0))
        await fake.settle()
        assert state.requested.is_set()
        assert not taking.done()
        state.requested.clear()
        requested = CheckpointDescription(state.next_number(), 1.0, 1.0)
        state.completed(requested)
        assert await taking == requested
        assert not state.requested.is_set()
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("placement", "homes"),
    [
        ("spread", {"op0": (0, 1, 0), "op1": (1, 0, 1)}),
        ("ssm", {"op0": (0, 0, 0), "op1": (1, 1, 1)}),
    ],
)
def test_placement_at_submit_decides_the_homes(fake, placement, homes):
    coordinator = Coordinator(fake.Scheduler({"h:1": 4, "h:2": 4}))

    async def run():
        await coordinator.submit(fake.submission(executors=3, operators=2, placement=placement))
        coordinator.controller.stop()

    asyncio.run(run())
    assert {name: coordinator.jobs["job"].spec.homes[name] for name in homes} == homes


def test_placement_without_its_solver_is_refused_by_name(fake, monkeypatch):
    def missing(*_):
        raise MissingExtra("planner 'milp' needs highspy: pip install it")

    monkeypatch.setattr(registry, "require", missing)
    coordinator = Coordinator(fake.Scheduler({"h:1": 4}))
    with pytest.raises(SubmitError, match="placement='milp': planner 'milp' needs highspy"):
        asyncio.run(coordinator.submit(fake.submission(placement="milp")))
    assert not coordinator.jobs


def test_restart_places_homes_by_free_slots_when_the_planner_fails(fake, monkeypatch, caplog):
    def missing(*_):
        raise MissingExtra("planner 'milp' needs highspy: pip install it")

    monkeypatch.setattr(registry, "require", missing)
    coordinator, call = Coordinator(fake.Scheduler({"h:1": 4})), fake.submission(placement="milp")
    assert asyncio.run(coordinator.starts._planned_again(call, ["h:1"], {"rows": 1, "op0": 2})) is None
    assert "its homes are placed by free slots: placement='milp': planner 'milp' needs highspy" in caplog.text


def test_worker_that_leaves_while_homes_are_planned_gets_none(fake, monkeypatch):
    scheduler = fake.Scheduler({"h:1": 4, "h:2": 4})
    coordinator = Coordinator(scheduler)

    async def planned(*_):
        del scheduler.workers["h:1"]
        return {"op0": (0, 0)}

    monkeypatch.setattr(coordinator.starts, "_planned", planned)

    async def run():
        await coordinator.submit(fake.submission(executors=2, placement="flux"))
        coordinator.controller.stop()

    asyncio.run(run())
    spec = coordinator.jobs["job"].spec
    assert (spec.nodes, spec.homes["op0"]) == (("h:2",), (0, 0))


@pytest.mark.parametrize("paradigm", [ELASTIC, RESOURCE])
def test_worker_that_leaves_while_the_folder_is_opened_gets_nothing(fake, tmp_path, monkeypatch, paradigm):
    scheduler = fake.Scheduler({"h:1": 4, "h:2": 4})
    coordinator = Coordinator(scheduler)
    own, reached, goes_on = job_starts.open_checkpoints, threading.Event(), threading.Event()

    def opened(*arguments):
        reached.set()
        assert goes_on.wait(100)
        return own(*arguments)

    monkeypatch.setattr(job_starts, "open_checkpoints", opened)

    async def run():
        call = fake.submission(executors=2, checkpoint=str(tmp_path), checkpoint_interval=3600.0, paradigm=paradigm)
        submitted = asyncio.ensure_future(coordinator.submit(call))
        while not reached.is_set():
            await asyncio.sleep(0.001)
        await coordinator.retirement.retire(Retire(("h:1",), timeout=60))
        goes_on.set()
        await submitted
        coordinator.controller.stop()
        record = coordinator.jobs["job"]
        assert (record.spec.nodes, record.spec.homes["op0"]) == (("h:2",), (0, 0))
        assert (record.checkpoints.url, record.spec.generation) == (str(tmp_path), record.checkpoints.reserved)
        assert record.spec.run == record.submitted.run
        assert not coordinator.needed_workers() & {"h:1"}
        await coordinator.close()

    asyncio.run(run())
