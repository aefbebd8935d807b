"""The control loop on the scheduler: the changes that it carries out, their order, and changes that fail."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import dask.config
import pytest

from dask_elastic.control.recording import loads
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.job_calls import Decisions, Describe, Forget, Snapshots, Stop
from dask_elastic.runtime.scheduler import control_driver as module
from dask_elastic.runtime.scheduler.control.decision_texts import decisions_text
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.errors import PlanningError, SubmitError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision, Outlook, Plan


class Scripted:
    """A control loop with the plans of the test."""

    def __init__(self, *plans):
        self.plans = list(plans)
        self.seen = []

    def tick(self, snapshot):
        self.seen.append(snapshot)
        plan = self.plans.pop(0) if self.plans else Plan()
        if isinstance(plan, Exception):
            raise plan
        return plan


def change(record, index, before, after):
    return CoreChange(record.name, record.spec.generation, ExecutorId("op0", index), before, after)


def decided(number, record, *changes, applied=True):
    return Decision(number, 5.0, record.name, record.spec.generation, 0.1, 0.2, 0.05, True, {}, changes, applied, "So.")


def planned(number, record, *changes):
    return Plan(changes, (decided(number, record, *changes),), {record.name: Outlook(0.05, True, 2, ("op0",))})


class Bench:
    """A coordinator with jobs on fake workers; the test runs the periods of the control loop."""

    def __init__(self, fake, threads):
        self.fake = fake
        self.scheduler = fake.Scheduler(threads)
        self.coordinator = Coordinator(self.scheduler)
        self.controller = self.coordinator.controller
        self.pool = ThreadPoolExecutor(1)

    async def submit(self, name="job", **given):
        await self.coordinator.submit(self.fake.submission(name, **given))
        self.controller.stop()
        await self.fake.settle()
        return self.coordinator.jobs[name]

    async def period(self, *plans):
        self.controller._loop = Scripted(*plans)
        await self.controller._guarded_period(self.pool)
        return self.controller._loop.seen

    def set_cores(self):
        """Return the changes of cores that homes got: (home, executor, cores)."""
        return [(address, call.executor, call.cores) for address, call in self.scheduler.asked(part_calls.SetCores)]


@pytest.fixture
def bench(fake):
    def run(test, threads):
        async def with_bench():
            made = Bench(fake, threads)
            await test(made)
            await made.coordinator.close()
            made.pool.shutdown()

        asyncio.run(with_bench())

    return run


def test_cores_are_released_before_others_are_assigned(bench):
    async def test(bench):
        record = await bench.submit(executors=3)
        plan = planned(
            0,
            record,
            change(record, 0, {0: 2}, {0: 2, 1: 1}),
            change(record, 1, {1: 2}, {1: 1}),
            change(record, 2, {2: 2}, {0: 1, 2: 1}),
        )
        await bench.period(plan)
        assert bench.set_cores() == [("b", 1, {1: 1}), ("a", 0, {0: 2, 1: 1}), ("c", 2, {0: 1, 2: 1})]
        assert record.cores == {("op0", 0): {0: 2, 1: 1}, ("op0", 1): {1: 1}, ("op0", 2): {0: 1, 2: 1}}

    bench(test, {"a": 2, "b": 2, "c": 2})


def test_core_is_assigned_only_after_its_release_is_confirmed(bench):
    async def test(bench):
        record = await bench.submit(executors=2)
        gate = bench.scheduler.held["b", part_calls.SetCores] = asyncio.Event()
        plan = planned(0, record, change(record, 1, {1: 2}, {1: 1}), change(record, 0, {0: 2}, {0: 2, 1: 1}))
        running = asyncio.ensure_future(bench.period(plan))
        while not bench.set_cores():
            await asyncio.sleep(0.001)
        await bench.fake.settle()
        assert bench.set_cores() == [("b", 1, {1: 1})]
        gate.set()
        await running
        assert bench.set_cores()[-1] == ("a", 0, {0: 2, 1: 1})

    bench(test, {"a": 2, "b": 2})


def test_nodes_of_the_snapshot_are_translated_to_those_of_the_job(bench):
    async def test(bench):
        await bench.submit("first", executors=1)
        await bench.period()
        bench.scheduler.add("a", 2)
        record = await bench.submit("second", executors=1)
        assert record.nodes == ["a", "b", "c"]
        [snapshot] = await bench.period(planned(0, record, change(record, 0, {2: 2}, {0: 1, 2: 1})))
        assert [node.address for node in snapshot.nodes] == ["b", "c", "a"]
        assert bench.set_cores() == [("a", 0, {1: 1, 0: 1})]

    bench(test, {"b": 2, "c": 2})


def test_decisions_are_recorded_published_and_described(bench):
    async def test(bench):
        record = await bench.submit(executors=1)
        await bench.period(
            planned(7, record, change(record, 0, {0: 2}, {0: 2, 1: 1})),
        )
        assert [one.number for one in bench.controller.decisions.log.of("job")] == [7]
        assert bench.controller.history.job("job").starved == 2
        [(topic, event)] = bench.scheduler.events
        assert (topic, event["number"], event["job"]) == ("dask_elastic", 7, "job")
        wanted = {"executor": "op0[0]", "before": {"a": 2}, "after": {"a": 2, "b": 1}, "moved_bytes": 0.0}
        [recorded] = json.loads(bytes(await bench.controller.decided(Decisions("job"))))
        assert recorded["changes"] == event["changes"] == [wanted]
        assert recorded["applied"]
        view = (await bench.coordinator.describe(Describe("job"))).control
        assert view.bound == ("op0",)
        assert (view.starved, view.predicted, view.decided) == (2, 0.05, "So.")
        assert view.control_error is None
        [taken] = loads(bytes(await bench.controller.snapshots(Snapshots("job"))))
        assert taken.jobs[0].executors[0].cores == {0: 2}

    bench(test, {"a": 2, "b": 2})


def test_decisions_can_be_asked_for_in_each_turn_while_they_are_remembered(bench):
    async def test(bench):
        record = await bench.submit(executors=1)
        controller = bench.controller
        [snapshot] = await bench.period()
        remembering = asyncio.ensure_future(controller._remember(snapshot, 0, planned(7, record)))
        answers = []
        while not remembering.done():
            await asyncio.sleep(0)
            answers.append(
                json.loads(bytes(decisions_text(controller.decisions.with_addresses("job", record.spec.generation))))
            )
        assert len(answers) > 3
        assert [[one["number"] for one in answer] for answer in answers] == [[7]] * len(answers)

    bench(test, {"a": 2})


def test_loop_plans_rarely_while_all_jobs_are_idle_and_at_once_after_a_report(bench):
    async def test(bench):
        record = await bench.submit(executors=1)
        report = bench.fake.report([bench.fake.measure("op0", 0)])

        async def plans(reports):
            """Run a period after each report; return in which of them the loop has planned."""
            planned = []
            for received in reports:
                await bench.coordinator.health.report(bench.fake.report_call(record, 0, received))
                planned.append(len(await bench.period()))
            return planned

        assert await plans([report, report]) == [1, 1]
        idle = [0] * (module.IDLE_PERIODS - 1) + [1]
        assert await plans([None] * 2 * len(idle)) == idle * 2
        assert await plans([None, report, report, None, None]) == [0, 1, 1, 0, 0]

    bench(test, {"a": 2})


def test_loop_plans_again_after_an_error_although_jobs_are_idle(bench):
    async def test(bench):
        record = await bench.submit(executors=1)
        report = bench.fake.report([bench.fake.measure("op0", 0)])
        for received in (report, None):
            await bench.coordinator.health.report(bench.fake.report_call(record, 0, received))
        assert len(await bench.period(ValueError("no plan"))) == 1
        assert bench.controller.error is not None
        assert len(await bench.period()) == 1
        assert bench.controller.error is None
        assert len(await bench.period()) == 0

    bench(test, {"a": 2})


def test_decisions_and_snapshots_cover_current_generation_only(bench):
    async def test(bench):
        record = await bench.submit(executors=1)
        await bench.period(planned(0, record))
        await bench.coordinator.stop(Stop("job"))
        await bench.submit(executors=1)
        assert json.loads(bytes(await bench.controller.decided(Decisions("job")))) == []
        assert loads(bytes(await bench.controller.snapshots(Snapshots("job")))) == []
        for _ in range(3):
            await bench.period()
        assert len(loads(bytes(await bench.controller.snapshots(Snapshots("job"))))) == 3
        assert len(loads(bytes(await bench.controller.snapshots(Snapshots("job", last=2))))) == 2

    bench(test, {"a": 2})


@pytest.mark.parametrize("what", ["pinned", "other cores", "ended", "submitted anew"])
def test_stale_plan_is_not_applied_and_decision_gives_reason(bench, what, caplog):
    async def test(bench):
        record = await bench.submit(executors=1)
        plan = planned(0, record, change(record, 0, {0: 2}, {0: 1}))
        if what == "pinned":
            record.pinned.add(("op0", 0))
        elif what == "other cores":
            record.cores["op0", 0] = {0: 2, 1: 1}
        else:
            await bench.coordinator.stop(Stop("job"))
        if what == "submitted anew":
            await bench.submit(executors=1)
        with caplog.at_level("INFO"):
            await bench.period(plan)
        assert bench.set_cores() == []
        # Nothing is wrong when a plan has been made for a job that has ended.
        [said] = [one for one in caplog.records if "keeps its cores" in one.getMessage()]
        assert said.levelname == ("INFO" if what in ("ended", "submitted anew") else "WARNING")
        [decision] = bench.controller.decisions.log.of("job")
        assert not decision.applied
        assert "could not be carried out: op0[0]" in decision.reason
        assert bench.controller.error is None

    bench(test, {"a": 2, "b": 2})


def test_home_that_refuses_keeps_its_cores_and_others_change(bench):
    async def test(bench):
        record = await bench.submit(executors=2)
        bench.scheduler.answers["a", part_calls.SetCores] = PlanningError("not now")
        await bench.period(planned(0, record, change(record, 0, {0: 2}, {0: 1}), change(record, 1, {1: 2}, {1: 1})))
        assert record.cores == {("op0", 0): {0: 2}, ("op0", 1): {1: 1}}
        [decision] = bench.controller.decisions.log.of("job")
        assert "op0[0]: not now" in decision.reason

    bench(test, {"a": 2, "b": 2})


def test_unresponsive_home_does_not_delay_others(bench, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)

    async def test(bench):
        record = await bench.submit(executors=2)
        gate = bench.scheduler.held["a", part_calls.SetCores] = asyncio.Event()
        await bench.period(planned(0, record, change(record, 0, {0: 2}, {0: 1}), change(record, 1, {1: 2}, {1: 1})))
        assert record.cores == {("op0", 0): {0: 2}, ("op0", 1): {1: 1}}
        [snapshot] = await bench.period()
        assert [executor.pinned for executor in snapshot.jobs[0].executors] == [True, False]
        gate.set()
        await bench.fake.settle()
        assert record.cores["op0", 0] == {0: 1}
        [snapshot] = await bench.period()
        assert [executor.pinned for executor in snapshot.jobs[0].executors] == [False, False]

    bench(test, {"a": 2, "b": 2})


def test_control_error_is_logged_and_shown_and_loop_continues(bench, caplog):
    async def test(bench):
        await bench.submit()
        await bench.period(ZeroDivisionError("no load"))
        assert "ZeroDivisionError: no load" in caplog.text
        assert (await bench.coordinator.describe(Describe("job"))).control.control_error == "ZeroDivisionError: no load"
        await bench.period()
        assert (await bench.coordinator.describe(Describe("job"))).control.control_error is None

    bench(test, {"a": 2})


def test_control_loop_ends_quietly_when_the_program_has_shut_its_pool_down(bench, caplog):
    async def test(bench):
        await bench.submit()
        controller = bench.controller
        controller._loop = Scripted(RuntimeError("cannot schedule new futures after shutdown"))
        assert await controller._guarded_period(bench.pool)
        assert "cannot schedule" in caplog.text
        caplog.clear()
        pool = ThreadPoolExecutor(1)
        controller._planned = None
        pool.shutdown()
        assert not await controller._guarded_period(pool)
        assert not caplog.text

    bench(test, {"a": 2})


def test_control_loop_stops_with_last_job(fake):
    async def run():
        with dask.config.set({"elastic.control-period": "10ms"}):
            coordinator = Coordinator(fake.Scheduler({"a": 2}))
        for name in ("first", "second"):
            coordinator.controller._loop = Scripted()
            await coordinator.submit(fake.submission(name))
            deadline = time.monotonic() + 100
            while len(coordinator.controller._loop.seen) < 3:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.005)
            await coordinator.stop(Stop(name))
            while not coordinator.controller._task.done():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.005)
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize("now", [1_700_000_000.0, 1_700_000_000.049, 1_700_000_000.051, 1_700_000_000.9])
@pytest.mark.parametrize("period", [0.25, 1.0])
def test_control_period_begins_just_after_worker_reports(now, period):
    wait = module.until_look(now, period)
    assert 0 < wait <= period
    assert (now + wait) % period == pytest.approx(module.LOOK_SECONDS, abs=1e-6)


def test_load_jump_halves_control_period_temporarily(bench, monkeypatch):
    async def test(bench):
        controller, looks = bench.controller, []
        monkeypatch.setattr(module, "until_look", lambda now, period: looks.append(period) or period * 0.001)
        record = await bench.submit(executors=1)
        period = controller.options.period

        async def waits(*jumps):
            for count in jumps:
                report = bench.fake.report([bench.fake.measure("op0", 0, jumps=count)])
                await bench.coordinator.health.report(bench.fake.report_call(record, 0, report))
            looks.clear()
            await controller._next_look()
            return looks

        assert await waits(0, 0) == [period]
        assert await waits(1) == [period / 2]
        assert await waits(1) == [period / 2]
        controller._restless_until = time.monotonic()
        assert await waits(1) == [period]

    bench(test, {"a": 2})


def test_load_jump_reported_during_wait_ends_the_wait(bench, monkeypatch):
    async def test(bench):
        controller = bench.controller
        period = controller.options.period
        monkeypatch.setattr(module, "until_look", lambda now, asked: 1_000.0 if asked == period else 0.001)
        waiting = asyncio.ensure_future(controller._next_look())
        await bench.fake.settle()
        assert not waiting.done()
        controller.look_soon()
        await asyncio.wait_for(waiting, 100)

    bench(test, {"a": 2})


def test_oversubscribed_flag_is_cleared_once_slots_suffice(bench):
    async def test(bench):
        first = await bench.submit("first", executors=1)
        second = await bench.submit("second", executors=1)
        assert second.oversubscribed
        await bench.period()
        assert second.oversubscribed
        await bench.period(planned(0, first, change(first, 0, {0: 2}, {0: 1})))
        assert not second.oversubscribed

    bench(test, {"a": 2})


def test_forgotten_job_leaves_no_history(bench):
    async def test(bench):
        await bench.submit()
        await bench.period()
        assert bench.controller.history.jobs() == ["job"]
        await bench.coordinator.forget(Forget("job"))
        assert bench.controller.history.jobs() == []

    bench(test, {"a": 2})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("control-period", "0s"), ("control-period", "soon"), ("control-cooldown", "-1s"), ("control-budget", "much"),
        ("control-headroom", 0.5), ("control-locality-threshold", 0),
    ],
)  # fmt: skip
def test_wrong_scheduler_configuration_is_raised_at_submit(fake, option, value):
    async def run():
        with dask.config.set({f"elastic.{option}": value}):
            coordinator = Coordinator(fake.Scheduler({"a": 2}))
        with pytest.raises(SubmitError, match=option.removeprefix("control-").replace("-", "[-_]")):
            await coordinator.submit(fake.submission())

    asyncio.run(run())


def test_sending_a_thousand_decisions_does_not_block_the_event_loop(bench, monkeypatch):
    text, turned = module.decisions_text, threading.Event()

    def after_a_turn(known):
        assert turned.wait(60), "the event loop does not turn meanwhile"
        return text(known)

    monkeypatch.setattr(module, "decisions_text", after_a_turn)

    async def test(bench):
        record = await bench.submit(executors=2)
        changes = [change(record, index % 2, {0: 2}, {0: 2, 1: 1}) for index in range(20)]
        controller = bench.controller
        controller.decisions.keep([decided(number, record, *changes) for number in range(1_000)], ["a", "b"])
        answer = asyncio.ensure_future(controller.decided(Decisions("job")))
        await bench.fake.settle()
        turned.set()
        decisions = json.loads(bytes(await answer))
        assert len(decisions) == 1_000
        assert decisions[0]["changes"][0]["after"] == {"a": 2, "b": 1}
        assert [one["number"] for one in json.loads(bytes(await controller.decided(Decisions("job", last=2))))] == [
            998,
            999,
        ]

    bench(test, {"a": 2, "b": 2})


def test_look_that_fails_is_logged_and_the_loop_goes_on(bench, caplog):
    async def test(bench):
        record = await bench.submit(executors=1)
        looks = []

        async def look():
            looks.append(1)
            raise ValueError("no plan of windows")

        bench.controller._look = look
        for number in range(1, 4):
            before = record.cores["op0", 0]
            assert await bench.period(planned(number, record)), "it decides in every period"
            assert bench.controller.error is None
            assert record.cores["op0", 0] == before
            await bench.fake.settle()
        assert len(looks) == 3
        assert "no plan of windows" in caplog.text

    bench(test, {"a": 2})
