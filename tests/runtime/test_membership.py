"""Workers that join running jobs, workers that leave them, and those that cannot."""

from __future__ import annotations

import asyncio

import pytest

from dask_elastic.runtime.protocol.job_spec import STATIC
from dask_elastic.runtime.protocol.remote_errors import dump_error, load_error
from dask_elastic.runtime.scheduler import membership
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import NodeLost, NoWorkers, PlanningError


@pytest.fixture
def on(fake):
    """Return a function that runs a test with a coordinator on pretended workers."""

    def run(threads, test):
        async def with_coordinator():
            scheduler = fake.Scheduler(threads)
            coordinator = Coordinator(scheduler)
            await test(coordinator, scheduler)
            await coordinator.close()

        asyncio.run(with_coordinator())

    return run


async def submit(coordinator, fake, name="job", **given):
    await coordinator.submit(name, **fake.message(**given))
    coordinator.controller.stop()
    await fake.settle()
    return coordinator.jobs[name]


# joining


def test_a_new_worker_prepares_the_others_learn_of_it_and_then_it_begins(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        scheduler.calls.clear()
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "b", "new"]
        assert record.spec.guests == (2,)
        assert [(address, name) for address, name, _ in scheduler.calls] == [
            ("new", "version"), ("new", "prepare"), ("a", "members"), ("b", "members"), ("new", "start_sources"),
        ]  # fmt: skip
        [(_, prepared)] = scheduler.asked("prepare")
        assert (prepared["spec"]["node"], prepared["spec"]["nodes"]) == (2, ("a", "b", "new"))
        assert prepared["components"] == b"components"
        await coordinator.membership.join_new()
        assert len(scheduler.asked("prepare")) == 1

    on({"a": 2, "b": 2}, test)


def test_the_job_is_complete_once_the_new_node_is_too(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        await coordinator.membership.join_new()
        generation = record.spec.generation
        await coordinator.report("job", generation, 0, fake.empty_report())
        assert not record.finishing
        await coordinator.report("job", generation, 1, fake.empty_report(), 1)
        await fake.settle()
        assert (await coordinator.describe("job"))["status"] == "finished"
        assert "new" in [address for address, _ in scheduler.asked("end")]

    on({"a": 2}, test)


def test_static_jobs_starting_jobs_and_ended_jobs_take_nobody_in(on, fake):
    async def test(coordinator, scheduler):
        static = await submit(coordinator, fake, "static", paradigm=STATIC)
        ended = await submit(coordinator, fake, "ended")
        await coordinator.stop("ended")
        scheduler.held["a", "prepare"] = asyncio.Event()
        starting = asyncio.ensure_future(submit(coordinator, fake, "starting"))
        await fake.settle()
        scheduler.add("new")
        await coordinator.membership.join_new()
        assert static.nodes == ended.nodes == coordinator.jobs["starting"].nodes == ["a"]
        scheduler.held["a", "prepare"].set()
        record = await starting
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "new"]

    on({"a": 2}, test)


def test_a_worker_that_cannot_join_is_sent_away_and_asked_again_later(on, fake, caplog):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        scheduler.answers["a", "members"] = NodeLost("no way there")
        await coordinator.membership.join_new()
        assert record.nodes == ["a"]
        assert [address for address, _ in scheduler.asked("forget")] == ["new"]
        assert "new could not join: no way there" in caplog.text
        del scheduler.answers["a", "members"]
        await coordinator.membership.join_new()
        assert record.nodes == ["a"]
        coordinator.membership._waits["new"] = (1.0, 0.0)
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "new"]

    on({"a": 2}, test)


@pytest.mark.parametrize("what", ["worker", "job"])
def test_who_ends_while_joining_has_not_joined(on, fake, what):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("new")
        gate = scheduler.held["a", "members"] = asyncio.Event()
        joining = asyncio.ensure_future(coordinator.membership.join_new())
        await fake.settle()
        if what == "worker":
            del scheduler.workers["new"]
            coordinator.node_lost("new")
        else:
            await coordinator.stop("job")
        gate.set()
        await joining
        assert record.nodes == ["a"]
        assert record.live == (what == "worker")
        assert [address for address, _ in scheduler.asked("forget")] == (["new"] if what == "job" else [])

    on({"a": 2}, test)


# leaving


def test_a_guest_that_holds_nothing_may_be_lost_and_its_place_is_taken_by_the_next(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        for address in ("x", "y"):
            scheduler.add(address)
        await coordinator.membership.join_new()
        await coordinator.report("job", 1, 1, {**fake.empty_report(), "dead_letters": {"op0": 3}}, 1)
        assert coordinator.needed_workers() == {"a"}
        del scheduler.workers["x"]
        coordinator.node_lost("x")
        await fake.settle()
        assert record.nodes == ["a", "", "y"]
        assert record.spec.guests == (2,)
        assert (await coordinator.describe("job"))["dead_letters"] == {"op0": 3}
        scheduler.add("z")
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "z", "y"]
        assert record.spec.guests == (2, 1)
        assert scheduler.asked("members")[-1][1]["nodes"] == ("a", "z", "y")
        await coordinator.set_cores("job", "op0", {"z": 1, "a": 1})
        assert scheduler.asked("set_cores")[-1][1]["cores"] == [[1, 1], [0, 1]]

    on({"a": 2}, test)


def test_the_loss_of_a_home_takes_the_job_down(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        assert coordinator.needed_workers() == {"a"}
        del scheduler.workers["a"]
        coordinator.node_lost("a")
        assert record.status.value == "failed"
        assert "home of executors" in str(load_error(record.error))

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize("lost", ["founder", "guest"])
def test_a_job_goes_on_without_a_node_that_has_but_remote_tasks(on, fake, lost):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        scheduler.add("guest")
        scheduler.add("founder" if lost == "guest" else "other")
        await coordinator.membership.join_new()
        await coordinator.set_cores("job", "op0", {"a": 1, lost: 2})
        node = record.nodes.index(lost)
        del scheduler.workers[lost]
        coordinator.node_lost(lost)
        await fake.settle()
        assert record.live
        assert lost not in record.nodes
        assert sum(record.cores["op0", 0].values()) == 3
        assert node not in record.cores["op0", 0]
        assert scheduler.asked("set_cores")[-1][0] == "a"
        told = {address for address, call in scheduler.asked("members") if call["nodes"][node] == ""}
        assert told == {"a", *record.addresses}

    on({"a": 2, "founder": 2} if lost == "founder" else {"a": 2}, test)


def test_a_node_that_another_has_lost_touch_with_is_out_and_may_join_anew(on, fake, monkeypatch):
    monkeypatch.setattr(membership, "FIRST_WAIT", 0.0)

    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        await coordinator.set_cores("job", "op0", {"a": 1, "b": 1})
        cut_off = {**fake.empty_report(complete=False), "lost": ["b"]}
        await coordinator.report("job", 1, 0, cut_off)
        await coordinator.report("job", 1, 0, cut_off)
        await fake.settle()
        assert record.nodes == ["a", ""]
        assert [address for address, _ in scheduler.asked("forget")] == ["b"]
        failed = {**fake.empty_report(), "error": dump_error(NodeLost("no home"))}
        await coordinator.report("job", 1, 1, failed)
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "b"]
        await coordinator.report("job", 1, 1, failed)
        assert record.live
        assert record.refused == 2
        await coordinator.report("job", 1, 1, failed, 1)
        assert record.status.value == "failed"

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize("reports", [True, False])
def test_a_home_that_is_out_of_reach_ends_the_job_only_if_it_reports_no_more(on, fake, reports):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        if reports:
            await coordinator.report("job", 1, 0, fake.empty_report(complete=False))
        await coordinator.report("job", 1, 1, {**fake.empty_report(), "lost": ["a"]})
        await fake.settle()
        assert record.live == reports
        assert record.nodes == ["a", "b"]

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize(("operation", "wait"), [("version", "PING_SECONDS"), ("prepare", "ANSWER_SECONDS")])
def test_a_worker_that_hangs_does_not_keep_others_from_joining(on, fake, monkeypatch, operation, wait):
    monkeypatch.setattr(membership, wait, 0.05)

    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        scheduler.add("hangs")
        scheduler.held["hangs", operation] = asyncio.Event()
        await coordinator.membership.join_new()
        scheduler.add("new")
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "new"]

    on({"a": 2}, test)


# retiring


def test_workers_are_drained_become_guests_and_get_nothing_new(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        await coordinator.set_cores("job", "op0", {"a": 1, "b": 1, "c": 1})
        left = [[["op0", 0, [0, 1]]], [["op0", 0, [0]]]]
        scheduler.answers["a", "task_nodes"] = lambda **run: left.pop(0)
        scheduler.answers["b", "report"] = {**fake.empty_report(), "dead_letters": {"op0": 2}}
        await coordinator.membership.retire(["b"], timeout=10)
        assert left == []
        assert record.cores["op0", 0] == {0: 2, 2: 1}
        assert record.spec.guests == (1,)
        assert scheduler.asked("members")[-1][1]["guests"] == (1,)
        assert coordinator.needed_workers() == {"a"}
        with pytest.raises(PlanningError, match="worker b is about to leave"):
            await coordinator.set_cores("job", "op0", {"b": 1})
        await coordinator.set_cores("job", "op0", 6)
        assert record.cores["op0", 0] == {0: 3, 2: 3}
        other = await submit(coordinator, fake, "other")
        assert other.nodes == ["a", "c"]
        del scheduler.workers["b"]
        coordinator.node_lost("b")
        await fake.settle()
        assert record.live
        assert record.nodes == ["a", "", "c"]
        assert (await coordinator.describe("job"))["dead_letters"] == {"op0": 2}
        scheduler.add("b")
        assert "b" in coordinator.workers.usable()

    on({"a": 2, "b": 2, "c": 2}, test)


def test_an_executor_that_has_cores_nowhere_else_gets_one_at_home(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=1)
        await coordinator.set_cores("job", "op0", {"b": 2})
        await submit(coordinator, fake, "other", executors=1, cores={"op0": 2})
        await coordinator.membership.retire(["b"], timeout=10)
        assert record.cores["op0", 0] == {0: 1}

    on({"a": 2, "b": 2}, test)


@pytest.mark.parametrize(
    ("workers", "match"),
    [
        (["nowhere"], "there is no worker 'nowhere': the workers are a, b, c"),
        (["c", "a"], r"worker a cannot be drained: .*op0\[0\], rows\[0\], out\[0\] of job 'job'"),
        (["c", "b"], r"worker b cannot be drained: it is the home of op0\[1\], out\[1\] of job 'job'"),
    ],
)
def test_who_cannot_leave_is_named_before_anything_changes(on, fake, workers, match):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake, executors=2)
        await coordinator.set_cores("job", "op0", {"a": 1, "c": 1})
        scheduler.calls.clear()
        with pytest.raises(PlanningError, match=match):
            await coordinator.membership.retire(workers, timeout=1)
        assert scheduler.calls == []
        assert coordinator.workers.retiring == set()
        assert record.spec.guests == ()

    on({"a": 2, "b": 2, "c": 2}, test)


def test_tasks_that_do_not_go_in_time_are_named(on, fake):
    async def test(coordinator, scheduler):
        await submit(coordinator, fake, executors=1)
        scheduler.answers["a", "task_nodes"] = [["op0", 0, [0, 1]]]
        with pytest.raises(TimeoutError, match=r"op0\[0\] of job 'job' still run"):
            await coordinator.membership.retire(["b"], timeout=0.1)
        assert coordinator.workers.retiring == {"b"}

    on({"a": 2, "b": 2}, test)


def test_a_cluster_whose_workers_all_leave_takes_no_job(on, fake):
    async def test(coordinator, scheduler):
        await coordinator.membership.retire(["a"], timeout=1)
        with pytest.raises(NoWorkers, match="no workers that stay"):
            await submit(coordinator, fake)

    on({"a": 2}, test)
