"""Workers that are emptied before they leave: homes, then cores, then tasks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

import dask_elastic as de
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.calls import Version
from dask_elastic.runtime.protocol.cluster_calls import Keep
from dask_elastic.runtime.protocol.home_calls import CancelHome, CopyHome, HomeCopied, HomeMoved, MoveHome, PrepareHome
from dask_elastic.runtime.protocol.job_calls import MoveExecutor, Retire, SetCores, Stop
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.scheduler import membership
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.homes import retirement
from dask_elastic.vocab.errors import MoveRefused, NodeLost, PlanningError, UnknownJob
from dask_elastic.vocab.identity import ExecutorId


@pytest.fixture
def emptied(fake, monkeypatch):
    """Return a function that runs a test with a job whose source and sinks are on a, and two of its homes on b."""
    monkeypatch.setattr(retirement, "RETRY_SECONDS", 0.001)

    def run(test, threads=None, **given):
        async def with_job():
            scheduler = fake.Scheduler(threads or {"a": 8, "b": 4, "c": 4})
            coordinator = Coordinator(scheduler)
            given_workers = dict(scheduler.workers)
            for address in ("b", "c"):
                scheduler.workers.pop(address, None)
            await coordinator.submit(fake.submission(**{"executors": 2, "cores": {"op0": 2}, **given}))
            coordinator.controller.stop()
            scheduler.workers.update(given_workers)
            record = coordinator.jobs["job"]
            for address in scheduler.workers:
                scheduler.answers[address, part_calls.Report] = fake.empty_report(complete=False)
                scheduler.answers[address, CopyHome] = HomeCopied(9, 1)
                scheduler.answers[address, MoveHome] = lambda call: HomeMoved(
                    9, 0, 0.1, record.cores["op0", call.executor]
                )
            await coordinator.membership.join_new()
            for index in range(2):
                await coordinator.homes.move_executor(MoveExecutor("job", "op0", index, "b"))
            scheduler.calls.clear()
            await asyncio.wait_for(test(coordinator, scheduler, record), 100)
            await coordinator.close()

        asyncio.run(with_job())

    return run


def test_homes_move_before_cores_and_tasks(emptied):
    async def test(coordinator, scheduler, record):
        assert record.homes.of("op0") == (1, 1)
        for index, other in enumerate("ca"):
            await coordinator.set_cores(SetCores("job", "op0", {"b": 1, other: 1}, executor=index))
        scheduler.calls.clear()
        await coordinator.retirement.retire(Retire(("b",), timeout=60))
        assert record.homes.of("op0") == (2, 0)
        assert record.cores == {("op0", 0): {2: 2}, ("op0", 1): {0: 2}}
        kinds = [type(call) for _, call in scheduler.calls]
        last_move = max(position for position, kind in enumerate(kinds) if kind is MoveHome)
        assert kinds.index(part_calls.AwaitTaskEnds) > last_move
        assert coordinator.needed_workers() == {"a", "c"}
        assert coordinator.used_workers() == {"a", "c"}
        assert record.spec.guests == (1,)
        reasons = [one.reason for one in coordinator.controller.decisions.log.of("job") if one.homes[0].source == "b"]
        assert len(reasons) == 2
        assert all(reason.startswith("Worker b is to leave.") for reason in reasons)
        del scheduler.workers["b"]
        coordinator.node_lost("b")
        assert record.live

    emptied(test)


def test_job_ends_without_waiting_for_the_lease_of_a_former_home_that_has_left(emptied, fake, tmp_path):
    async def test(coordinator, scheduler, record):
        report = fake.empty_report(complete=False)
        await coordinator.health.report(fake.report_call(record, 1, report, record.incarnations[1]))
        await coordinator.retirement.retire(Retire(("b",), timeout=60))
        assert 1 in record.leases.held(time.monotonic())
        del scheduler.workers["b"]
        coordinator.node_lost("b")
        await fake.settle()
        assert record.nodes == ["a", "", "c"]
        assert 1 not in record.leases.held(time.monotonic())
        scheduler.answers.clear()
        for node in (0, 2):
            incarnation = record.incarnations.get(node, 0)
            await coordinator.health.report(fake.report_call(record, node, fake.empty_report(), incarnation))
        await record.ended()
        assert record.status is Status.FINISHED

    emptied(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_worker_that_joined_the_cluster_just_now_takes_homes(emptied, fake):
    async def test(coordinator, scheduler, record):
        scheduler.add("new", 16)
        scheduler.answers["new", part_calls.Report] = fake.empty_report(complete=False)
        await coordinator.retirement.retire(Retire(("b", "c"), timeout=60))
        assert "new" in record.nodes
        homes = {record.nodes[node] for node in record.homes.of("op0")}
        assert homes <= {"a", "new"}
        assert "new" in coordinator.needed_workers()

    emptied(test, {"a": 4, "b": 4, "c": 4})


def test_homes_move_to_another_worker_if_the_first_choice_does_not_answer(emptied):
    async def test(coordinator, scheduler, record):
        scheduler.add("A", 16)
        scheduler.answers["A", Version] = NodeLost("no answer")
        await coordinator.retirement.retire(Retire(("b",), timeout=60))
        assert {record.nodes[node] for node in record.homes.of("op0")} <= {"a", "c"}
        assert [address for address, _ in scheduler.asked(Version)].count("A") == 1

    emptied(test)


def test_worker_that_hangs_and_holds_nothing_does_not_fail_the_retirement_of_another_one(emptied, monkeypatch):
    monkeypatch.setattr(membership, "ANSWER_SECONDS", 0.01)

    async def test(coordinator, scheduler, record):
        for index, other in enumerate("aa"):
            await coordinator.homes.move_executor(MoveExecutor("job", "op0", index, other))
        assert record.spec.guests == (2, 1)
        record.spec = replace(record.spec, guests=(2,))
        scheduler.held["c", part_calls.Members] = asyncio.Event()
        await coordinator.retirement.retire(Retire(("b",), timeout=60))
        assert record.spec.guests == (2, 1)

    emptied(test)


def test_worker_stays_if_no_other_is_left_for_its_executors(emptied):
    async def test(coordinator, scheduler, record):
        scheduler.workers["a"].status.name = "paused"
        scheduler.calls.clear()
        match = r"worker b cannot be drained: no other worker is left for op0\[0\] of job 'job', op0\[1\] of job 'job'"
        with pytest.raises(PlanningError, match=match):
            await coordinator.retirement.retire(Retire(("b", "c"), timeout=60))
        assert scheduler.calls == []
        assert coordinator.workers.retiring == set()

    emptied(test)


@pytest.mark.parametrize("kind", [CopyHome, MoveHome])
def test_retirement_waits_no_longer_than_its_timeout_for_a_move_that_goes_on(emptied, kind):
    async def test(coordinator, scheduler, record):
        coordinator.retirement.timeout = 0.05
        gate = scheduler.held["b", kind] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.retirement.vacate(["b"]))
        kept = await asyncio.wait_for(moving, 10)
        assert "op0[0], op0[1] of job 'job' are still at home" in kept["b"]
        # The next one finds the move in progress.
        assert list(await asyncio.wait_for(coordinator.retirement.vacate(["b"]), 10)) == ["b"]
        assert coordinator.workers.retiring == set()
        gate.set()
        await record.homes.still()
        assert record.homes.of("op0").count(1) == 1
        coordinator.retirement.timeout = 60.0
        assert await coordinator.retirement.vacate(["b"]) == {}
        assert 1 not in record.homes.of("op0")

    emptied(test)


def test_job_that_is_starting_delays_retirement_until_its_timeout_and_that_of_no_worker_not_at_all(emptied):
    async def test(coordinator, scheduler, record):
        record.status = Status.STARTING
        record._started.clear()
        # The source and the sink are there.
        kept = await asyncio.wait_for(coordinator.retirement.vacate(["a"]), 5)
        assert "cannot be drained" in kept["a"]
        coordinator.retirement.timeout = 0.01
        kept = await asyncio.wait_for(coordinator.retirement.vacate(["b"]), 5)
        assert "job 'job' is still starting" in kept["b"]
        assert coordinator.workers.retiring == set()
        record.status = Status.RUNNING
        record._started.set()

    emptied(test)


def test_executor_that_cannot_move_is_named_after_some_attempts(emptied):
    async def test(coordinator, scheduler, record):
        scheduler.answers["b", MoveHome] = MoveRefused("its inputs have ended")
        with pytest.raises(MoveRefused, match=r"op0\[0\] of job 'job' stays on b: its inputs have ended"):
            await coordinator.retirement.retire(Retire(("b",), timeout=None))
        assert len(scheduler.asked(MoveHome)) == retirement.ATTEMPTS
        assert coordinator.workers.retiring == {"b"}

    emptied(test)


def test_move_that_fails_once_is_repeated(emptied):
    async def test(coordinator, scheduler, record):
        failures = [MoveRefused("no connection")]

        def prepared(call):
            return failures.pop() if failures else None

        scheduler.answers["c", PrepareHome] = prepared
        await coordinator.retirement.retire(Retire(("b",), timeout=None))
        assert failures == []
        assert 1 not in record.homes.of("op0")

    emptied(test)


def test_timeout_names_the_executors_that_are_still_at_home_there(emptied):
    async def test(coordinator, scheduler, record):
        record.finishing = True
        with pytest.raises(TimeoutError, match=r"op0\[0\], op0\[1\] of job 'job' are still at home on workers"):
            await coordinator.retirement.retire(Retire(("b",), timeout=0.01))

    emptied(test)


def test_retirement_ends_when_the_job_ends(emptied):
    async def test(coordinator, scheduler, record):
        record.finishing = True
        retiring = asyncio.ensure_future(coordinator.retirement.retire(Retire(("b",), timeout=None)))
        await asyncio.sleep(0)
        await coordinator.stop(Stop("job"))
        await retiring
        assert scheduler.asked(MoveHome) == []

    emptied(test)


def test_two_calls_empty_a_worker_together(emptied):
    async def test(coordinator, scheduler, record):
        calls = (coordinator.retirement.retire(Retire(("b",), timeout=60)) for _ in range(2))
        await asyncio.gather(*calls)
        assert len(scheduler.asked(MoveHome)) == 2
        assert 1 not in record.homes.of("op0")

    emptied(test)


def test_worker_that_is_to_stay_after_all_is_emptied_no_further(emptied):
    async def test(coordinator, scheduler, record):
        goes_on = scheduler.held["b", MoveHome] = asyncio.Event()
        retiring = asyncio.ensure_future(coordinator.retirement.retire(Retire(("b",), timeout=60)))
        while not scheduler.asked(MoveHome):
            await asyncio.sleep(0)
        await coordinator.cluster.keep(Keep(("b",)))
        goes_on.set()
        with pytest.raises(PlanningError, match="worker b stays: it is needed again"):
            await retiring
        assert len(scheduler.asked(MoveHome)) == 1
        assert "b" in coordinator.needed_workers()

    emptied(test)


def test_worker_that_is_kept_meanwhile_keeps_its_homes(emptied):
    async def test(coordinator, scheduler, record):
        answer = scheduler.answers["b", MoveHome]

        def kept(call):
            coordinator.workers.retiring.discard("b")
            return answer(call)

        scheduler.answers["b", MoveHome] = kept
        with pytest.raises(PlanningError, match="worker b stays: it is needed again"):
            await coordinator.retirement.retire(Retire(("b",), timeout=5.0))
        assert len(scheduler.asked(MoveHome)) == 1
        assert len(record.homes.at(1)) == 1

    emptied(test)


def test_call_ends_when_a_worker_with_tasks_is_to_stay_after_all(emptied):
    async def test(coordinator, scheduler, record):
        busy = (ExecutorId("op0", 0),)
        for address in "abc":
            scheduler.answers[address, part_calls.AwaitTaskEnds] = busy
        retiring = asyncio.ensure_future(coordinator.retirement.retire(Retire(("b",), timeout=5)))
        while not scheduler.asked(part_calls.AwaitTaskEnds):
            await asyncio.sleep(0)
        await coordinator.cluster.keep(Keep(("b",)))
        with pytest.raises(PlanningError, match="worker b stays: it is needed again"):
            await retiring

    emptied(test)


def test_worker_that_is_kept_while_its_tasks_end_is_awaited_no_longer(emptied):
    async def test(coordinator, scheduler, record):
        def kept(call):
            coordinator.workers.retiring.discard("b")
            return (ExecutorId("op0", 0),)

        scheduler.answers["a", part_calls.AwaitTaskEnds] = kept
        with pytest.raises(PlanningError, match="worker b stays: it is needed again"):
            await coordinator.retirement.retire(Retire(("b",), timeout=None))

    emptied(test)


def test_worker_that_is_lost_while_it_is_emptied_holds_up_nothing(emptied):
    async def test(coordinator, scheduler, record):
        moving = scheduler.held["b", MoveHome] = asyncio.Event()
        retiring = asyncio.ensure_future(coordinator.retirement.retire(Retire(("b",), timeout=0.5)))
        while not scheduler.asked(MoveHome):
            await asyncio.sleep(0)
        scheduler.answers["b", MoveHome] = MoveRefused("no connection")
        coordinator.workers.retiring.discard("b")
        del scheduler.workers["b"]
        moving.set()
        with pytest.raises(TimeoutError, match="are still at home on workers"):
            await retiring
        assert len(scheduler.asked(MoveHome)) == 1

    emptied(test)


def test_executor_that_is_moving_to_the_worker_leaves_it_again(emptied, fake):
    async def test(coordinator, scheduler, record):
        for index in range(2):
            await coordinator.homes.move_executor(MoveExecutor("job", "op0", index, "c"))
        scheduler.held["c", MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, "b")))
        await fake.settle()
        assert record.homes.moving.begun
        retiring = asyncio.ensure_future(coordinator.retirement.retire(Retire(("b",), timeout=60)))
        await fake.settle()
        assert not retiring.done()
        scheduler.held["c", MoveHome].set()
        await moving
        await retiring
        assert record.homes.at(1) == []

    emptied(test)


def test_worker_that_is_to_leave_since_it_was_prepared_becomes_no_home(emptied, fake):
    async def test(coordinator, scheduler, record):
        scheduler.held["c", PrepareHome] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, "c")))
        await fake.settle()
        coordinator.workers.retiring.add("c")
        scheduler.held["c", PrepareHome].set()
        with pytest.raises(MoveRefused, match="worker c is to leave: it becomes no home"):
            await moving
        assert scheduler.asked(MoveHome) == []
        assert [address for address, _ in scheduler.asked(CancelHome)] == ["b", "c"]

    emptied(test)


def test_workers_that_dask_retires_are_emptied_and_used_no_more(emptied):
    async def test(coordinator, scheduler, record):
        assert await coordinator.retirement.vacate(["b"]) == {}
        assert 1 not in record.homes.of("op0")
        assert coordinator.workers.retiring == {"b"}
        coordinator.retirement.keep(["b"])
        assert coordinator.workers.retiring == set()

    emptied(test)


def test_worker_that_jobs_cannot_leave_stays_and_others_are_emptied(emptied):
    async def test(coordinator, scheduler, record):
        kept = await coordinator.retirement.vacate(["a", "b"])
        assert list(kept) == ["a"]
        assert "worker a cannot be drained: it hosts rows[0], out[0] of job 'job'" in kept["a"]
        assert 1 not in record.homes.of("op0")
        assert coordinator.workers.retiring == {"b"}

    emptied(test)


@pytest.mark.parametrize(
    ("asked", "kind"), [("b", part_calls.SetCores), ("b", part_calls.AwaitTaskEnds), ("c", part_calls.Report)]
)
def test_job_that_restarts_while_it_leaves_a_worker_leaves_it(emptied, tmp_path, asked, kind):
    """Whatever one of its parts was asked meanwhile."""

    async def test(coordinator, scheduler, record):
        await coordinator.set_cores(SetCores("job", "op0", {"b": 1, "c": 1}, executor=0))
        generation = record.spec.generation

        def unless_stale(call):
            default = () if kind is part_calls.AwaitTaskEnds else None
            return UnknownJob("job 'job' has ended") if call.generation == generation else default

        waiting = scheduler.held[asked, kind] = asyncio.Event()
        scheduler.answers[asked, kind] = unless_stale
        scheduler.calls.clear()
        retiring = asyncio.ensure_future(coordinator.retirement.vacate(["c"]))
        while not any(address == asked for address, _ in scheduler.asked(kind)):
            await asyncio.sleep(0)
        # The source is on this one.
        del scheduler.workers["a"]
        coordinator.node_lost("a")
        while record.spec.generation == generation or record.status is not Status.RUNNING:
            await asyncio.sleep(0.001)
        waiting.set()
        assert await retiring == {}
        assert (record.nodes, coordinator.workers.retiring) == (["b"], {"c"})

    emptied(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_worker_that_is_not_emptied_in_time_is_used_again(emptied):
    async def test(coordinator, scheduler, record):
        record.finishing = True
        coordinator.retirement.timeout = 0.01
        kept = await coordinator.retirement.vacate(["b"])
        assert "are still at home on workers that are to leave" in kept["b"]
        assert coordinator.workers.retiring == set()
        assert coordinator.retirement.active == 0

    emptied(test)


@pytest.mark.parametrize("workers", [None, [], 0, ["tcp://a:1", 2]])
def test_retirement_of_what_is_no_address_is_refused_by_name(workers):
    with pytest.raises(PlanningError, match=r"^workers=.*: give the address of a worker, as 'tcp://") as refused:
        de.retire(workers)
    assert repr(workers) in str(refused.value)
