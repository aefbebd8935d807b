"""Workers that join and leave running jobs, and those that cannot."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.calls import Version
from dask_elastic.runtime.protocol.job_calls import Describe, Retire, SetCores, Stop
from dask_elastic.runtime.protocol.job_spec import STATIC
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.part_calls import AwaitTaskEnds, Forget, Members, Prepare, StartSources
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error, load_error
from dask_elastic.runtime.scheduler import job_health, membership
from dask_elastic.runtime.scheduler.cluster.occupant import occupants
from dask_elastic.runtime.scheduler.job_record import ReceivedReport
from dask_elastic.vocab.errors import NodeLost, NoWorkers, PlanningError
from dask_elastic.vocab.identity import ExecutorId


async def submit(coordinator, fake, name="job", **given):
    await coordinator.submit(fake.submission(name, **given))
    coordinator.controller.stop()
    await fake.settle()
    return coordinator.jobs[name]


# joining


def test_new_worker_prepares_then_is_announced_then_starts(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        scheduler.calls.clear()
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "b", "new"]
        assert record.spec.guests == (2,)
        assert [(address, type(call)) for address, call in scheduler.calls] == [
            ("new", Version), ("new", Prepare), ("a", Members), ("b", Members), ("new", StartSources),
        ]  # fmt: skip
        [(_, prepared)] = scheduler.asked(Prepare)
        assert (prepared.spec.node, prepared.spec.nodes) == (2, ("a", "b", "new"))
        assert prepared.components == b"components"
        await coordinator.membership.join_new()
        assert len(scheduler.asked(Prepare)) == 1

    on({"a": 2, "b": 2}, test)


def test_job_with_joined_node_completes_after_that_node(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        await coordinator.membership.join_new()
        await coordinator.health.report(fake.report_call(record, 0, fake.empty_report()))
        assert not record.finishing
        await coordinator.health.report(fake.report_call(record, 1, fake.empty_report(), 1))
        await fake.settle()
        assert (await coordinator.describe(Describe("job"))).status is Status.FINISHED
        assert "new" in [address for address, _ in scheduler.asked(part_calls.End)]

    on({"a": 2}, test)


def test_workers_do_not_join_static_starting_and_ended_jobs(on, fake):
    async def test(coordinator, scheduler):
        static = await submit(coordinator, fake, "static", paradigm=STATIC)
        ended = await submit(coordinator, fake, "ended")
        await coordinator.stop(Stop("ended"))
        scheduler.held["a", Prepare] = asyncio.Event()
        starting = asyncio.ensure_future(submit(coordinator, fake, "starting"))
        await fake.settle()
        scheduler.add("new")
        await coordinator.membership.join_new()
        assert static.nodes == ended.nodes == coordinator.jobs["starting"].nodes == ["a"]
        scheduler.held["a", Prepare].set()
        record = await starting
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "new"]

    on({"a": 2}, test)


def test_worker_that_fails_to_join_forgets_job_and_is_retried(on, fake, caplog):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        scheduler.answers["a", Members] = NodeLost("no way there")
        await coordinator.membership.join_new()
        await fake.settle()
        assert record.nodes == ["a"]
        assert [address for address, _ in scheduler.asked(Forget)] == ["new"]
        assert "new could not join: no way there" in caplog.text
        del scheduler.answers["a", Members]
        await coordinator.membership.join_new()
        assert record.nodes == ["a"]
        coordinator.membership._waits["new"] = (1.0, 0.0)
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "new"]

    on({"a": 2}, test)


@pytest.mark.parametrize("what", ["worker", "job"])
def test_join_is_abandoned_when_worker_or_job_ends(on, fake, what):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        gate = scheduler.held["a", Members] = asyncio.Event()
        joining = asyncio.ensure_future(coordinator.membership.join_new())
        await fake.settle()
        if what == "worker":
            del scheduler.workers["new"]
            coordinator.node_lost("new")
        else:
            await coordinator.stop(Stop("job"))
        gate.set()
        await joining
        await fake.settle()
        assert record.nodes == ["a"]
        assert record.live == (what == "worker")
        assert [address for address, _ in scheduler.asked(Forget)] == (["new"] if what == "job" else [])

    on({"a": 2}, test)


# leaving


def test_next_worker_takes_place_of_lost_guest(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        for address in ("x", "y"):
            scheduler.add(address)
        await coordinator.membership.join_new()
        await coordinator.health.report(fake.report_call(record, 1, fake.empty_report(dead_letters={"op0": 3}), 1))
        assert coordinator.needed_workers() == {"a"}
        del scheduler.workers["x"]
        coordinator.node_lost("x")
        await fake.settle()
        assert record.nodes == ["a", "", "y"]
        assert record.spec.guests == (2,)
        assert (await coordinator.describe(Describe("job"))).dead_letters == {"op0": 3}
        scheduler.add("z")
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "z", "y"]
        assert record.spec.guests == (2, 1)
        assert scheduler.asked(Members)[-1][1].nodes == ("a", "z", "y")
        await coordinator.set_cores(SetCores("job", "op0", {"z": 1, "a": 1}))
        assert scheduler.asked(part_calls.SetCores)[-1][1].cores == {1: 1, 0: 1}

    on({"a": 2}, test)


def test_job_fails_when_home_is_lost(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        assert coordinator.needed_workers() == {"a"}
        del scheduler.workers["a"]
        coordinator.node_lost("a")
        assert record.status.value == "failed"
        assert "home of executors" in str(load_error(record.error))

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize("lost", ["founder", "guest"])
def test_job_continues_when_node_with_remote_tasks_only_is_lost(on, fake, lost):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        scheduler.add("guest")
        scheduler.add("founder" if lost == "guest" else "other")
        await coordinator.membership.join_new()
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1, lost: 2}))
        node = record.nodes.index(lost)
        del scheduler.workers[lost]
        coordinator.node_lost(lost)
        await fake.settle()
        assert record.live
        assert lost not in record.nodes
        assert sum(record.cores["op0", 0].values()) == 3
        assert node not in record.cores["op0", 0]
        assert scheduler.asked(part_calls.SetCores)[-1][0] == "a"
        informed = {address for address, call in scheduler.asked(Members) if call.nodes[node] == ""}
        assert informed == {"a", *record.addresses}

    on({"a": 2, "founder": 2} if lost == "founder" else {"a": 2}, test)


@pytest.mark.parametrize(("cores", "left"), [({"a": 1, "guest": 2}, {0: 1}), ({"guest": 2}, {0: 1})])
def test_cores_that_home_confirms_after_their_node_has_left_are_not_kept(on, fake, cores, left):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        scheduler.add("guest")
        await coordinator.membership.join_new()
        confirms = scheduler.held["a", part_calls.SetCores] = asyncio.Event()
        setting = asyncio.ensure_future(coordinator.set_cores(SetCores("job", "op0", cores)))
        await fake.settle()
        del scheduler.workers["guest"]
        coordinator.node_lost("guest")
        await fake.settle()
        assert record.nodes == ["a", ""]
        confirms.set()
        await setting
        assert record.cores["op0", 0] == left
        assert coordinator.jobs.held() == {"a": 1}
        view = coordinator.controller.snapshot_builder.view(time.time())
        assert view.snapshot(lambda: None).jobs[0].executors[0].cores == left

    on({"a": 2}, test)


def test_unreachable_node_is_removed_and_rejoins(on, fake, monkeypatch):
    monkeypatch.setattr(membership, "FIRST_WAIT", 0.0)

    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1, "b": 1}))
        cut_off = fake.empty_report(complete=False, lost=("b",))
        await coordinator.health.report(fake.report_call(record, 0, cut_off))
        await coordinator.health.report(fake.report_call(record, 0, cut_off))
        await fake.settle()
        assert record.nodes == ["a", ""]
        assert [address for address, _ in scheduler.asked(Forget)] == ["b"]
        failed = fake.empty_report(error=dump_error(NodeLost("no home")))
        await coordinator.health.report(fake.report_call(record, 1, failed))
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "b"]
        await coordinator.health.report(fake.report_call(record, 1, failed))
        assert record.live
        assert record.refused == 2
        await coordinator.health.report(fake.report_call(record, 1, failed, 1))
        assert record.status.value == "failed"

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize("reports", [True, False])
def test_unreachable_home_fails_job_only_without_recent_report(on, fake, reports):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        if reports:
            await coordinator.health.report(fake.report_call(record, 0, fake.empty_report(complete=False)))
        await coordinator.health.report(fake.report_call(record, 1, fake.empty_report(lost=("a",))))
        await fake.settle()
        assert record.live == reports
        assert record.nodes == ["a", "b"]

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize(
    ("idle", "age", "live"), [(False, 1.5, True), (False, 2.5, False), (True, 2.5, True), (True, 3.5, False)]
)
def test_home_that_stops_reporting_is_lost_sooner_if_it_is_not_idle(on, fake, monkeypatch, idle, age, live):
    now = time.time()
    monkeypatch.setattr(job_health, "time", SimpleNamespace(time=lambda: now, monotonic=time.monotonic))

    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        record.reports[0] = ReceivedReport(now - age, fake.empty_report(complete=False), idle)
        await coordinator.health.report(fake.report_call(record, 1, fake.empty_report(lost=("a",))))
        await fake.settle()
        assert record.live == live

    on({"a": 2, "b": 2}, test)


def test_repeated_report_counts_as_a_report_of_the_same_content(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        await coordinator.health.report(fake.report_call(record, 0, None))
        assert record.reports == {}
        report = fake.empty_report(complete=False, refused=3)
        record.reports[0] = ReceivedReport(time.time() - 60.0, report)
        await coordinator.health.report(fake.report_call(record, 0, None))
        assert record.reports[0].report == report
        assert record.reports[0].idle
        assert time.time() - record.reports[0].at < 30.0

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize("cores", [{"a": 1, "b": 1}, {"b": 2}])
def test_last_workers_leave_without_errors_in_the_scheduler(on, fake, cores):
    async def test(coordinator, scheduler):
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        record = await submit(coordinator, fake, executors=1)
        await coordinator.set_cores(SetCores("job", "op0", cores))
        scheduler.workers.clear()
        for address in ("b", "a"):
            coordinator.node_lost(address)
            await fake.settle()
        gc.collect()
        assert errors == []
        assert record.status is Status.FAILED
        assert str(load_error(record.error)).startswith("worker a of job 'job' has left the cluster")

    on({"a": 2, "b": 2}, test)


# retiring


def test_retired_workers_are_drained_become_guests_and_get_no_cores(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1, "b": 1, "c": 1}))
        left = [(ExecutorId("op0", 0),), ()]
        scheduler.answers["a", AwaitTaskEnds] = lambda call: left.pop(0)
        scheduler.answers["b", part_calls.Report] = fake.empty_report(dead_letters={"op0": 2})
        await coordinator.retirement.retire(Retire(("b",), timeout=10))
        assert {call.nodes for _, call in scheduler.asked(AwaitTaskEnds)} == {(1,)}
        assert left == []
        assert record.cores["op0", 0] == {0: 2, 2: 1}
        assert record.spec.guests == (1,)
        assert scheduler.asked(Members)[-1][1].guests == (1,)
        assert coordinator.needed_workers() == {"a"}
        assert coordinator.used_workers() == {"a", "c"}
        with pytest.raises(PlanningError, match="worker b is about to leave"):
            await coordinator.set_cores(SetCores("job", "op0", {"b": 1}))
        await coordinator.set_cores(SetCores("job", "op0", 4))
        assert record.cores["op0", 0] == {0: 2, 2: 2}
        other = await submit(coordinator, fake, "other")
        assert other.nodes == ["a", "c"]
        del scheduler.workers["b"]
        coordinator.node_lost("b")
        await fake.settle()
        assert record.live
        assert record.nodes == ["a", "", "c"]
        assert (await coordinator.describe(Describe("job"))).dead_letters == {"op0": 2}
        scheduler.add("b")
        assert "b" in coordinator.workers.usable()

    on({"a": 2, "b": 2, "c": 2}, test)


def test_executor_whose_only_worker_is_retired_gets_core_at_home(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        await coordinator.set_cores(SetCores("job", "op0", {"b": 2}))
        await submit(coordinator, fake, "other", executors=1, cores={"op0": 2})
        await coordinator.retirement.retire(Retire(("b",), timeout=10))
        assert record.cores["op0", 0] == {0: 1}

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize(
    ("workers", "match"),
    [
        (("nowhere",), "there is no worker 'nowhere': the workers are a, b, c"),
        (("c", "a"), r"worker a cannot be drained: it hosts rows\[0\], out\[0\] of job 'job'"),
        (("c", "b"), r"worker b cannot be drained: it hosts out\[1\] of job 'job'"),
    ],
)
def test_retire_of_worker_with_source_or_sink_or_of_unknown_worker_is_refused(on, fake, workers, match):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=2)
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1, "c": 1}))
        scheduler.calls.clear()
        with pytest.raises(PlanningError, match=match):
            await coordinator.retirement.retire(Retire(workers, timeout=1))
        assert scheduler.calls == []
        assert coordinator.workers.retiring == set()
        assert record.spec.guests == ()

    on({"a": 2, "b": 2, "c": 2}, test)


def test_retirement_timeout_error_names_executors_with_tasks_left(on, fake):
    async def test(coordinator, scheduler):
        await submit(coordinator, fake, executors=1)
        scheduler.answers["a", AwaitTaskEnds] = (ExecutorId("op0", 0),)
        with pytest.raises(TimeoutError, match=r"op0\[0\] of job 'job' still run"):
            await coordinator.retirement.retire(Retire(("b",), timeout=0.1))
        assert coordinator.workers.retiring == {"b"}

    on({"a": 2, "b": 2}, test)


def test_submit_with_all_workers_retired_is_refused(on, fake):
    async def test(coordinator, scheduler):
        await coordinator.retirement.retire(Retire(("a",), timeout=1))
        with pytest.raises(NoWorkers, match="no workers that stay"):
            await submit(coordinator, fake)

    on({"a": 2}, test)


def test_retirement_ends_when_job_ends_while_homes_wait(on, fake):
    async def test(coordinator, scheduler):
        await submit(coordinator, fake, executors=1)
        scheduler.held["a", AwaitTaskEnds] = asyncio.Event()
        retiring = asyncio.ensure_future(coordinator.retirement.retire(Retire(("b",), timeout=None)))
        await fake.settle()
        assert not retiring.done()
        await coordinator.stop(Stop("job"))
        await asyncio.wait_for(retiring, 100)

    on({"a": 2, "b": 2}, test)


def test_retirement_waits_for_starting_job(on, fake):
    async def test(coordinator, scheduler):
        gate = scheduler.held["a", Prepare] = asyncio.Event()
        starting = asyncio.ensure_future(submit(coordinator, fake, executors=1))
        await fake.settle()
        retiring = asyncio.ensure_future(coordinator.retirement.retire(Retire(("b",), timeout=10)))
        await fake.settle()
        assert scheduler.asked(AwaitTaskEnds) == []
        gate.set()
        record = await starting
        await asyncio.wait_for(retiring, 100)
        assert record.spec.guests == (1,)

    on({"a": 2, "b": 2}, test)


# restarts meanwhile


def begin_next_generation(record):
    """Restart a job whose nodes then have other places."""
    record.halt()
    spec = record.spec
    record.begin_generation(replace(spec, generation=spec.generation + 1, nodes=spec.nodes[::-1]), False)


def test_worker_that_joins_while_job_restarts_is_not_announced_to_next_generation(on, fake, caplog):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        generation = record.spec.generation
        scheduler.add("new")
        scheduler.held["new", Prepare] = asyncio.Event()
        joining = asyncio.ensure_future(coordinator.membership.join_new())
        await fake.settle()
        assert scheduler.asked(Prepare)[-1][0] == "new"
        begin_next_generation(record)
        scheduler.held["new", Prepare].set()
        await joining
        await fake.settle()
        assert scheduler.asked(Members) == []
        assert record.nodes == ["b", "a"]
        assert record.incarnations == {}
        assert [(address, call.generation) for address, call in scheduler.asked(Forget)] == [("new", generation)]
        assert "new could not join: job 'job' was restarted meanwhile" in caplog.text

    on({"a": 2, "b": 2}, test)


def test_removal_of_node_ends_when_job_restarts_meanwhile(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1, "b": 1}))
        cores = dict(record.cores)
        scheduler.held["a", part_calls.SetCores] = asyncio.Event()
        removal = asyncio.ensure_future(coordinator.membership.expel(record, "b"))
        await fake.settle()
        assert len(scheduler.asked(part_calls.SetCores)) == 2
        begin_next_generation(record)
        after = dict(record.cores)
        scheduler.held["a", part_calls.SetCores].set()
        await removal
        assert record.nodes == ["b", "a"]
        assert record.cores == after != cores
        assert scheduler.asked(Members) == []

    on({"a": 2, "b": 2}, test)


# a home that cannot reach a node


def test_removal_of_a_node_ends_when_a_home_has_lost_touch_with_it_meanwhile(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=2)
        scheduler.add("guest")
        await coordinator.membership.join_new()
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1}, executor=0))
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1, "guest": 1}, executor=1))
        record.pinned.clear()
        generation = record.spec.generation
        answers = scheduler.held["a", part_calls.SetCores] = asyncio.Event()
        scheduler.answers["a", part_calls.SetCores] = lambda call: (
            NodeLost("no connection to guest") if call.executor == 0 else None
        )
        # The control loop takes the core of one executor back while it gives one to the other.
        taking = asyncio.ensure_future(coordinator.cores.change(record, ("op0", 1), {0: 1, 1: 1}, {0: 1}))
        given = SimpleNamespace(executor=ExecutorId("op0", 0))
        giving = asyncio.ensure_future(coordinator.controller._enact(record, given, {0: 1}, {0: 1, 1: 1}))
        await fake.settle()
        removal = asyncio.ensure_future(coordinator.membership.expel(record, "guest"))
        await fake.settle()
        assert record.nodes == ["a", "guest"]
        answers.set()
        with pytest.raises(Relayed):
            await giving
        await taking
        await removal
        assert record.nodes == ["a", ""]
        assert [call.nodes for address, call in scheduler.asked(Members)][-1] == ("a", "")
        assert [(address, call.generation, call.incarnation) for address, call in scheduler.asked(Forget)] == [
            ("guest", generation, 1)
        ]

    on({"a": 4}, test)


@pytest.mark.parametrize("answered", [False, True])
def test_workers_become_guests_although_a_home_has_lost_touch_with_one_of_them_meanwhile(on, fake, answered):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        scheduler.add("first")
        scheduler.add("second")
        await coordinator.membership.join_new()
        assert record.spec.guests == (2, 3)
        place = record.nodes.index("second")
        lost = fake.empty_report(complete=False, dead_letters={"op0": 3})
        await coordinator.health.report(fake.report_call(record, place, lost, 1))
        held = scheduler.held["second" if answered else "first", part_calls.Report] = asyncio.Event()
        scheduler.answers["second", part_calls.Report] = lost
        becoming = asyncio.ensure_future(coordinator.membership.make_guests(record, ["b", "first", "second"]))
        await fake.settle()
        coordinator.membership.lost_touch(record, occupants(record, [place]))
        held.set()
        await becoming
        assert record.nodes == ["a", "b", "first", ""]
        assert 1 in record.spec.guests
        assert place not in record.reports
        assert record.dead_letters() == {"op0": 3}

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize("restarted", [False, True])
def test_guest_stays_that_has_the_place_of_a_guest_with_which_a_home_had_lost_touch(on, fake, restarted):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        scheduler.add("guest")
        await coordinator.membership.join_new()
        answered = scheduler.held["a", part_calls.SetCores] = asyncio.Event()
        scheduler.answers["a", part_calls.SetCores] = NodeLost("no connection to guest")
        change, before = SimpleNamespace(executor=ExecutorId("op0", 0)), record.cores["op0", 0]
        giving = asyncio.ensure_future(coordinator.controller._enact(record, change, before, {0: 1, 1: 1}))
        await fake.settle()
        if restarted:
            record.halt()
            record.begin_generation(replace(record.spec, generation=record.spec.generation + 1), False)
        else:
            await coordinator.membership.expel(record, "guest")
            del scheduler.workers["guest"]
            scheduler.add("next")
            await coordinator.membership.join_new()
        nodes = record.nodes
        answered.set()
        with pytest.raises(Relayed):
            await giving
        assert record.nodes == nodes == ["a", "guest" if restarted else "next"]

    on({"a": 4}, test)


def test_cores_are_not_given_to_a_worker_that_has_taken_the_place_of_the_planned_one(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        scheduler.add("guest")
        await coordinator.membership.join_new()
        key = "op0", 0
        async with record.changing[key]:
            changing = asyncio.ensure_future(coordinator.cores.change(record, key, record.cores[key], {0: 1, 1: 1}))
            await fake.settle()
            await coordinator.membership.expel(record, "guest")
            del scheduler.workers["guest"]
            scheduler.add("next")
            await coordinator.membership.join_new()
        with pytest.raises(PlanningError, match="changed meanwhile"):
            await changing
        assert scheduler.asked(part_calls.SetCores) == []

    on({"a": 4}, test)


def test_dead_letters_of_a_node_that_leaves_while_its_job_finishes_are_counted_once(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        scheduler.add("guest")
        await coordinator.membership.join_new()
        letters = fake.empty_report(dead_letters={"op0": 3})
        scheduler.answers["guest", part_calls.Report] = letters
        held = scheduler.held["a", part_calls.Report] = asyncio.Event()
        await coordinator.health.report(fake.report_call(record, 0, fake.empty_report()))
        await coordinator.health.report(fake.report_call(record, 1, letters, 1))
        await fake.settle()
        assert record.finishing
        await coordinator.membership.expel(record, "guest")
        held.set()
        await fake.settle()
        assert record.status is Status.FINISHED
        assert record.dead_letters() == {"op0": 3}

    on({"a": 4}, test)
