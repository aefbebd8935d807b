"""Whether windows share slices: by command, and by the cost model after some periods; executors change together."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace

import pytest

from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.home_calls import CopyHome, HomeCopied, HomeMoved, MoveHome
from dask_elastic.runtime.protocol.job_calls import MoveExecutor, ShareWindows, Stop
from dask_elastic.runtime.protocol.job_spec import ELASTIC, RESOURCE, STATIC
from dask_elastic.runtime.protocol.remote_errors import Relayed
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.topology.windowing import EventWindow, Windowing
from dask_elastic.vocab.errors import JobEnded, PlanningError, UnknownOperator
from dask_elastic.vocab.window_costs import WindowCosts

SECOND = 1_000_000
EXPENSIVE = WindowCosts.of_batch(10_000, 10_000, 1e-3)._replace(merged=1e3, merging=1.0, results=1e3, instances=1.0)
"""Rows that cost 100 ns, and results of slices that cost 1 ms."""
HOPPING = Windowing((EventWindow(0, 10 * SECOND, SECOND),), ("at",))
NODES = {"a": 2, "b": 2}


class Job:
    """A job with a windowed compute of two executors; the test sets the clock and what is measured."""

    def __init__(self, fake, coordinator, scheduler):
        self.fake, self.coordinator, self.scheduler = fake, coordinator, scheduler
        self.record = coordinator.jobs["job"]
        self.sharing = coordinator.sharing
        self.now = 0.0
        self.costs = EXPENSIVE
        self.deaf = set()
        self.sharing.clock = lambda: self.now

    def report(self, seconds, rows, partials):
        """Report the event time, and the rows and partials of both executors together."""
        for node in range(2):
            values = {"event_time": int(seconds * SECOND), "rows": rows // 2, "open_windows": partials // 2}
            values |= {"window_costs": self.costs, "service_rate": None}
            measures = [
                self.fake.measure("op0", index, node, separate=self.separate(index), **values)
                for index, home in enumerate(self.record.spec.homes["op0"])
                if home == node
            ]
            self.record.receive(node, self.fake.report(measures))

    def separate(self, executor):
        """The plan that an executor has been told."""
        told = [call.separate for call in self.changes if call.executor == executor and executor not in self.deaf]
        return bool(told) and told[-1]

    async def period(self, rows_per_second, keys=1000):
        """Let one period pass in which event time goes as fast as the clock."""
        self.now += 10
        self.report(self.now, int(self.now * rows_per_second), 10 * keys)
        await self.sharing.look()

    async def share(self, mode, **options):
        return await self.sharing.share(ShareWindows("job", "op0", mode, **options))

    @property
    def changes(self):
        return [call for _, call in self.scheduler.asked(part_calls.ChangeSharing)]


@pytest.fixture
def run(fake):
    def run(test, windowing=HOPPING, **options):
        async def with_job():
            scheduler = fake.Scheduler(NODES)
            coordinator = Coordinator(scheduler)
            given = fake.submission(executors=2, **options)
            pickled = None if windowing is None else pickle.dumps(windowing)
            summaries = tuple(
                replace(one, windowing=pickled) if one.kind == "compute" else one for one in given.summaries
            )
            await coordinator.submit(replace(given, summaries=summaries))
            # The test calls for a look itself.
            coordinator.controller.stop()
            await test(Job(fake, coordinator, scheduler))
            await coordinator.close()

        asyncio.run(with_job())

    return run


def test_command_changes_all_executors_at_an_event_time_that_none_has_reached(run):
    async def test(job):
        job.report(12.5, 0, 0)
        status = await job.share("instances")
        assert (status.mode, status.partials, status.since, status.late) == ("instances", "instances", 13 * SECOND, 0)
        assert [(call.executor, call.separate, call.since) for call in job.changes] == [
            (0, True, 13 * SECOND),
            (1, True, 13 * SECOND),
        ]
        await job.share("instances")
        await job.share("auto")
        assert len(job.changes) == 2, "the plan is the same"
        await job.share("slices")
        assert [call.separate for call in job.changes] == [True, True, False, False]
        described = job.record.description((), job.coordinator.controller.view(job.record))
        assert [status.partials for status in described.sharing] == ["slices"]
        events = [message for _, message in job.scheduler.events if message.get("event") == "sharing"]
        assert [message["partials"] for message in events] == ["instances", "slices"]

    run(test)


def test_executors_that_had_passed_the_time_are_counted(run):
    async def test(job):
        job.report(12.5, 0, 0)
        job.scheduler.answers["a", part_calls.ChangeSharing] = 20 * SECOND
        status = await job.share("instances")
        assert status.late == len([home for home in job.record.spec.homes["op0"] if home == 0])

    run(test)


def test_next_generation_begins_with_the_choice(run):
    async def test(job):
        await job.share("instances")
        assert job.changes[0].since is None, "nothing is known of event time"
        job.record.halt()
        job.record.begin_generation(replace(job.record.spec, generation=2), oversubscribed=False)
        assert job.record.spec.separate == ("op0",)

    run(test)


@pytest.mark.parametrize("paradigm", [ELASTIC, STATIC])
def test_cost_model_changes_the_plan_once_it_has_agreed_for_some_periods(run, paradigm):
    async def test(job):
        for _ in range(3):
            await job.period(rows_per_second=1)
        assert job.changes == []
        await job.period(rows_per_second=1)
        executors = len(job.record.spec.homes["op0"])
        assert [call.separate for call in job.changes] == [True] * executors
        status = job.record.sharing["op0"]
        assert (status.mode, status.partials) == ("auto", "instances")
        assert "saves" in status.reason
        for _ in range(4):
            await job.period(rows_per_second=1)
        assert len(job.changes) == executors

    run(test, paradigm=paradigm)


def test_plan_of_windows_whose_key_groups_move_stays(run):
    async def test(job):
        for _ in range(6):
            await job.period(rows_per_second=1)
        assert job.changes == []
        with pytest.raises(PlanningError, match="how it keeps partials of windows does not change"):
            await job.share("instances")

    run(test, paradigm=RESOURCE)


@pytest.mark.parametrize("lateness", [0, SECOND])
def test_updates_that_look_up_much_end_slices(run, lateness):
    async def test(job):
        few = WindowCosts.of_batch(10_000, 10_000, 1e-3)._replace(results=1e3, instances=1.0, updates=1e5)
        few = few._replace(merged=1e3, merging=1e-4, lookups=1e4, looked=1e4, consolidating=1e-3)
        many = few._replace(lookups=1e6, looked=1e6, consolidating=0.1)
        job.costs = WindowCosts()
        for costs, changes in ((few, 0), (many, 2)):
            for _ in range(5):
                job.costs = job.costs.plus(costs)
                await job.period(rows_per_second=10_000)
            assert [call.separate for call in job.changes] == [True] * changes

    run(test, windowing=replace(HOPPING, emit="updates", allowed_lateness=lateness))


def test_rehearsals_that_promise_too_much_do_not_change_the_plan_to_and_fro(run):
    async def test(job):
        common = {"results": 1e3, "instances": 1.0, "updates": 1e5, "lookups": 1e6}
        slices = WindowCosts.of_batch(10_000, 10_000, 1e-2)._replace(**common, merged=1e3, merging=1e-4)
        slices = slices._replace(looked=1e6, consolidating=0.1, tried=1e3, trying=1e-5)
        instances = WindowCosts.of_batch(10_000, 100_000, 1.0)._replace(**common, apart=1e3, closing=1e-4)
        job.costs = WindowCosts()

        async def periods(costs, count):
            for _ in range(count):
                job.costs = job.costs.plus(costs)
                await job.period(rows_per_second=10_000)
            return [call.separate for call in job.changes if call.executor == 0]

        assert await periods(slices, 4) == [True]
        assert await periods(instances, 4) == [True, False]
        assert await periods(slices, 12) == [True, False]
        assert await periods(slices, 30) == [True, False, True], "the load may have changed since"

    run(test, windowing=replace(HOPPING, emit="updates"))


def test_load_that_changes_to_and_fro_changes_no_plan(run):
    async def test(job):
        rows = 0
        for number in range(12):
            job.now += 10
            rows += 10 if number % 3 else 10**8
            job.report(job.now, rows, 10_000)
            await job.sharing.look()
        assert job.changes == []

    run(test)


def test_set_plan_is_left_alone(run):
    async def test(job):
        await job.share("slices")
        for _ in range(6):
            await job.period(rows_per_second=1)
        assert job.changes == []

    run(test)


def test_dry_run_changes_nothing_by_itself(run):
    async def test(job):
        for _ in range(6):
            await job.period(rows_per_second=1)
        assert job.changes == []

    run(test, dry_run=True)


def test_limit_of_the_close_takes_effect(run):
    async def test(job):
        await job.share("auto", close_limit=1e-9)
        for _ in range(4):
            await job.period(rows_per_second=10**6)
        assert [call.separate for call in job.changes] == [True, True]
        assert "more than the limit" in job.record.sharing["op0"].reason

    run(test)


def test_home_that_refuses_leaves_the_plan_and_the_next_period_tries_again(run):
    async def test(job):
        job.scheduler.answers["b", part_calls.ChangeSharing] = PlanningError("the home has moved")
        for _ in range(4):
            await job.period(rows_per_second=1)
        assert "op0" not in job.record.sharing
        del job.scheduler.answers["b", part_calls.ChangeSharing]
        for _ in range(3):
            await job.period(rows_per_second=1)
        assert job.record.sharing["op0"].partials == "instances"

    run(test)


@pytest.mark.parametrize(
    ("windowing", "error"),
    [
        (None, "no aggregates over windows"),
        (replace(HOPPING, share=True), "share=True"),
        (replace(HOPPING, share=False), "share=False"),
        (replace(HOPPING, allowed_lateness=10_000 * SECOND, emit="updates"), "too many slices"),
        (Windowing((EventWindow(0, SECOND, SECOND),), ("at",)), "no row is in two instances"),
    ],
)
def test_windows_that_cannot_change_are_refused(run, windowing, error):
    async def test(job):
        with pytest.raises(PlanningError, match=error):
            await job.share("instances")
        for _ in range(5):
            await job.period(rows_per_second=1)
        assert job.changes == []

    run(test, windowing)


def test_executor_that_missed_a_change_is_told_again(run):
    async def test(job):
        job.report(12.5, 0, 0)
        await job.share("instances")
        job.deaf = {1}
        job.report(13, 0, 0)
        await job.sharing.look()
        assert len(job.changes) == 2, "the report may be older than the change"
        await job.sharing.look()
        assert [(call.executor, call.separate) for call in job.changes[2:]] == [(1, True)]
        job.deaf = set()
        job.report(14, 0, 0)
        for _ in range(3):
            await job.sharing.look()
        assert len(job.changes) == 3

    run(test)


def test_executor_that_alone_has_changed_gets_the_plan_that_holds(run):
    async def test(job):
        job.report(12.5, 0, 0)
        [away] = job.record.spec.homes["op0"][1:2]
        address = job.record.spec.nodes[away]
        job.scheduler.answers[address, part_calls.ChangeSharing] = PlanningError("the home has moved")
        with pytest.raises((PlanningError, Relayed)):
            await job.share("instances")
        assert "op0" not in job.record.sharing
        del job.scheduler.answers[address, part_calls.ChangeSharing]
        job.deaf = {1}
        job.report(13, 0, 0)
        await job.sharing.look()
        await job.sharing.look()
        assert [(call.executor, call.separate) for call in job.changes[2:]] == [(0, False)]

    run(test)


def test_recent_costs_take_the_place_of_those_since_the_start(run):
    async def test(job):
        # Merging was expensive for long, and is cheap now.
        cheap = WindowCosts(
            rows=1e4, batches=1, pairs=1e4, adding=1e-2, merged=1e3, merging=1e-5, results=1e3, instances=1
        )
        for _ in range(6):
            await job.period(rows_per_second=1)
            job.costs = job.costs.plus(cheap)
        assert job.changes == []

    run(test)


def test_unknown_modes_and_operators_are_refused(run):
    async def test(job):
        with pytest.raises(PlanningError, match="'slices', 'instances' or 'auto'"):
            await job.share("both")
        with pytest.raises(UnknownOperator):
            await job.sharing.share(ShareWindows("job", "op9", "auto"))

    run(test)


def test_compute_that_cannot_be_looked_at_does_not_hold_up_the_others(run, monkeypatch, caplog):
    async def test(job):
        looked = []

        async def look_at(record, operator, windowing):
            looked.append(operator)
            raise ValueError(f"nothing is known of {operator}")

        monkeypatch.setattr(job.sharing, "_look_at", look_at)
        await job.sharing.look()
        assert looked == ["op0", "op1"]
        assert "nothing is known of op1" in caplog.text

    run(test, operators=2)


def test_ended_and_restarting_jobs_are_refused_by_name(run):
    async def test(job):
        job.record.halt()
        with pytest.raises(PlanningError, match="job 'job' is restarting"):
            await job.share("instances")
        job.record.halted = False
        await job.coordinator.stop(Stop("job"))
        with pytest.raises(JobEnded, match="job 'job' has stopped"):
            await job.share("instances")
        assert job.changes == []

    run(test)


def test_home_does_not_move_while_the_plan_changes_nor_the_other_way_round(run):
    async def test(job):
        for address in NODES:
            job.scheduler.answers[address, part_calls.Report] = job.fake.empty_report(complete=False)
            job.scheduler.answers[address, CopyHome] = HomeCopied(9, 1)
            job.scheduler.answers[address, MoveHome] = HomeMoved(9, 0, 0.1, {0: 1})
        [home] = [job.record.nodes[node] for node in job.record.homes.of("op0")[:1]]
        [other] = set(NODES).difference({home})
        gate = job.scheduler.held[home, part_calls.ChangeSharing] = asyncio.Event()
        sharing = asyncio.ensure_future(job.share("instances"))
        while not job.changes:
            await asyncio.sleep(0)
        moving = asyncio.ensure_future(job.coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, other)))
        while job.record.homes.moving is None:
            await asyncio.sleep(0)
        await job.fake.settle()
        assert job.scheduler.asked(MoveHome) == [], "the plan changes at the home of now"
        gate.set()
        await sharing
        await moving
        gate = job.scheduler.held[other, MoveHome] = asyncio.Event()
        moving = asyncio.ensure_future(job.coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, home)))
        while len(job.scheduler.asked(MoveHome)) < 2:
            await asyncio.sleep(0)
        sharing = asyncio.ensure_future(job.share("slices"))
        await job.fake.settle()
        gate.set()
        await moving
        assert (await sharing).partials == "slices"
        [*_, (first, _), (second, _)] = job.scheduler.asked(part_calls.ChangeSharing)
        assert home in (first, second)

    run(test)
