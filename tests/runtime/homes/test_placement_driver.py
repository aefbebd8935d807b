"""Moves that planners decide on, carried out on workers that answer what the test tells them to."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dask_elastic.control.placement.decision import PlacementDecision
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.home_calls import CopyHome, HomeCopied, HomeMoved, MoveHome, PrepareHome
from dask_elastic.runtime.protocol.job_calls import Decisions, Forget, MoveExecutor
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.scheduler.control.periodic_planning import PLANNING_SHARE
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.homes import placement_driver
from dask_elastic.vocab.errors import CheckpointError, MoveRefused
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import HomeMove, StrategyCost
from dask_elastic.vocab.snapshot import NodeSnapshot, Snapshot

NODES = ("a", "b", "c")
SNAPSHOT = Snapshot(5.0, tuple(NodeSnapshot(address, address, 4) for address in NODES), ())
COSTS = (StrategyCost("none", 20.0, 0.0, 0.0, 0.0), StrategyCost("home", 10.0, 9.0, 0.1, 0.0))


class Scripted:
    """A placement loop with the decisions of the test, which is asked once per period."""

    def __init__(self, *periods):
        self.periods, self.seen = list(periods), []
        self.rates = None

    def observe(self, snapshot):
        self.seen.append(snapshot)

    def decide(self, snapshot):
        self.seen.append(snapshot)
        return self.periods.pop(0) if self.periods else ()


class Bench:
    """A coordinator with a job of two executors at home on a; the test runs the periods of the placement loop."""

    def __init__(self, coordinator, scheduler, pool):
        self.coordinator, self.scheduler, self.pool = coordinator, scheduler, pool
        self.driver, self.record = coordinator.placement, coordinator.jobs["job"]

    def decision(self, *moves, **given):
        """Return a decision about moves, given as (executor, source, target)."""
        generation = self.record.spec.generation
        found = tuple(
            HomeMove("job", generation, ExecutorId("op0", index), NODES.index(source), NODES.index(target),
                     moved_bytes=2e6, pause=0.06, gain=0.5, traffic=1e6, costs=COSTS)
            for index, source, target in moves
        )  # fmt: skip
        return PlacementDecision(
            5.0, "job", generation, "flux", found, "homes move for balance.", bottleneck="network", **given
        )

    async def period(self, *decisions):
        """Run a period with these decisions, and what it carries out."""
        self.coordinator.controller.snapshot_log.add(SNAPSHOT)
        self.driver._seen = None
        self.driver._loop = Scripted(decisions)
        await self.driver._guarded_period(self.pool)
        assert self.driver.error is None
        await asyncio.gather(*self.driver._moving.values())

    def homes(self):
        return [self.record.nodes[node] for node in self.record.homes.of("op0")]

    def decided(self):
        return self.coordinator.controller.decisions.log.of("job")


@pytest.fixture
def bench(fake):
    """Return a function that runs a test with a job of two executors at home on a."""

    def run(test, placement="flux", **given):
        async def with_job():
            scheduler = fake.Scheduler({"a": 4, "b": 4, "c": 4})
            others = {address: scheduler.workers.pop(address) for address in "bc"}
            coordinator = Coordinator(scheduler)
            await coordinator.submit(fake.submission(executors=2, placement=placement, **given))
            coordinator.controller.stop()
            coordinator.placement.stop()
            scheduler.workers.update(others)
            await coordinator.membership.join_new()
            for address in NODES:
                scheduler.answers[address, part_calls.Report] = fake.empty_report(complete=False)
                scheduler.answers[address, CopyHome] = HomeCopied(nbytes=3_000_000, rounds=1)
                scheduler.answers[address, MoveHome] = HomeMoved(
                    nbytes=3_000_000, paused_bytes=0, pause=0.012, cores={0: 1}
                )
            scheduler.calls.clear()
            with ThreadPoolExecutor(1) as pool:
                await asyncio.wait_for(test(Bench(coordinator, scheduler, pool)), 100)
            await coordinator.close()

        asyncio.run(with_job())

    return run


def test_moves_are_carried_out_one_after_the_other_with_what_was_expected(bench):
    async def test(bench):
        await bench.period(bench.decision((0, "a", "b"), (1, "a", "c")))
        assert bench.homes() == ["b", "c"]
        kinds = [type(call) for _, call in bench.scheduler.calls if isinstance(call, PrepareHome | MoveHome)]
        assert kinds == [PrepareHome, MoveHome, PrepareHome, MoveHome]
        first, second = bench.decided()
        assert (first.applied, second.homes[0].target) == (True, "c")
        [change] = first.homes
        assert (change.moved_bytes, change.pause, change.forecast.moved_bytes) == (3e6, 0.012, 2e6)
        assert (change.forecast.placement, change.forecast.gain, change.forecast.costs) == ("flux", 0.5, COSTS)
        assert first.reason.startswith("Placement 'flux': homes move for balance. Expected: 1.9 MiB of state")
        assert "Rows wait for 10 row-seconds if the home moves, 20 if nothing moves." in first.reason
        assert first.reason.endswith(
            "from a to b with 2.9 MiB of state; its rows waited for 12 ms, while the last 0 bytes were sent."
        )
        shown = bytes(await bench.coordinator.controller.decided(Decisions("job", None)))
        assert b'"strategy": "none"' in shown

    bench(test)


def test_each_snapshot_is_seen_once_although_the_clock_was_set_back(bench):
    async def test(bench):
        log, seen = bench.coordinator.controller.snapshot_log, []
        for times in ((3_601.0, 3_602.0), (3_603.0, 1.0, 2.0), (3.0,), ()):
            for now in times:
                log.add(Snapshot(now, SNAPSHOT.nodes, ()))
            seen.append([snapshot.now for snapshot in bench.driver.fresh()])
        assert seen == [[3_601.0, 3_602.0], [3_603.0, 1.0, 2.0], [3.0], []]
        log.add(Snapshot(1_000.0, SNAPSHOT.nodes, ()))
        assert [snapshot.now for snapshot in bench.driver.fresh()] == [1_000.0]
        bench.driver._seen = None
        assert [snapshot.now for snapshot in bench.driver.fresh()] == [1_000.0], "others are older than a period"

    bench(test)


def test_pauses_of_moves_change_what_is_expected_of_later_ones(bench):
    async def test(bench):
        before = bench.driver._measured.rates().pause(3e6)
        await bench.period(bench.decision((0, "a", "b")))
        loop = Scripted(())
        bench.driver._loop, bench.driver._seen = loop, None
        await bench.driver._guarded_period(bench.pool)
        assert loop.rates.pause(3e6) < before

    bench(test)


@pytest.mark.parametrize("dry_run", [False, True])
def test_texts_of_moves_are_made_by_the_planners_thread(bench, monkeypatch, dry_run):
    threads, made = [], placement_driver.move_reason

    def noted(*given):
        threads.append(threading.current_thread())
        return made(*given)

    async def test(bench):
        monkeypatch.setattr(placement_driver, "move_reason", noted)
        plan = bench.decision((0, "a", "b"), (1, "a", "c"))
        await bench.period(replace(plan, moves=(), deferred=plan.moves) if dry_run else plan)
        assert bench.decided()[-1].homes
        assert len(threads) == 2
        assert threading.current_thread() not in threads

    bench(test, dry_run=dry_run)


def by_shards(plan, strategy="labelled"):
    """Return a decision in which shards move, or nothing does, and not homes."""
    moves = tuple(replace(move, strategy=strategy) for move in plan.moves)
    return replace(plan, moves=moves) if strategy == "labelled" else replace(plan, moves=(), kept=moves)


def test_cores_move_where_shards_cost_less_and_the_home_stays(bench):
    async def test(bench):
        await bench.period(by_shards(bench.decision((0, "a", "b"))))
        assert bench.homes() == ["a", "a"]
        assert bench.scheduler.asked(CopyHome) == bench.scheduler.asked(MoveHome) == []
        [(address, call)] = bench.scheduler.asked(part_calls.SetCores)
        assert (address, call.executor, call.cores) == ("a", 0, {1: 2})
        assert bench.record.cores["op0", 0] == {1: 2}
        [decision] = bench.decided()
        assert decision.applied
        assert decision.homes == ()
        [change] = decision.changes
        assert (change.executor, change.before, change.after) == (ExecutorId("op0", 0), {0: 2}, {1: 2})
        shown = bytes(await bench.coordinator.controller.decided(Decisions("job", None)))
        assert b'"b"' in shown

    bench(test)


def test_cores_stay_if_the_other_worker_has_no_slots_by_now(bench):
    async def test(bench):
        before = dict(bench.record.cores)
        bench.record.cores["op0", 1] = {1: 4}
        await bench.period(by_shards(bench.decision((0, "a", "b"))))
        assert bench.scheduler.asked(part_calls.SetCores) == []
        assert bench.record.cores["op0", 0] == before["op0", 0]
        [decision] = bench.decided()
        assert not decision.applied
        assert "op0[0] has 2 cores at home, and b not as many free slots" in decision.reason

    bench(test)


def test_moves_that_cost_more_than_they_save_are_noted_once(bench):
    async def test(bench):
        for least in (20.0, 21.0):
            plan = by_shards(bench.decision((0, "a", "b")), "none")
            costs = (replace(COSTS[0], waiting=least), replace(COSTS[1], waiting=30.0))
            kept = tuple(replace(move, costs=costs) for move in plan.kept)
            await bench.period(replace(plan, kept=kept, reason="rows would wait longer."))
        assert bench.homes() == ["a", "a"]
        [decision] = bench.decided()
        assert not decision.applied
        assert decision.reason == (
            "Placement 'flux': rows would wait longer. Rows wait for 20 row-seconds if nothing moves, 30 if the home "
            "moves."
        )

    bench(test)


def test_home_that_has_moved_meanwhile_makes_the_plan_void(bench):
    async def test(bench):
        await bench.coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, "c"))
        bench.scheduler.calls.clear()
        await bench.period(bench.decision((0, "a", "b"), (1, "a", "b")))
        assert bench.homes() == ["c", "a"]
        assert bench.scheduler.asked(PrepareHome) == []
        [_, decision] = bench.decided()
        assert not decision.applied
        assert "the plan no longer fits: op0[0] is at home on c by now, not on a" in decision.reason
        assert [(one.source, one.target) for one in decision.homes] == [("a", "b")]

    bench(test)


def test_worker_that_has_left_meanwhile_makes_the_plan_void(bench):
    async def test(bench):
        plan = bench.decision((0, "a", "b"))
        del bench.scheduler.workers["b"]
        await bench.period(plan)
        assert bench.homes() == ["a", "a"]
        assert bench.scheduler.asked(PrepareHome) == []
        [decision] = bench.decided()
        assert "the plan no longer fits: worker b has left the cluster" in decision.reason

    bench(test)


def test_move_that_fails_is_noted_once_and_tried_again_in_the_next_period(bench):
    async def test(bench):
        moves = bench.scheduler.answers["a", MoveHome]
        bench.scheduler.answers["a", MoveHome] = MoveRefused("its inputs have ended")
        for _ in range(2):
            await bench.period(bench.decision((0, "a", "b"), (1, "a", "c")))
        [decision] = bench.decided()
        assert (decision.applied, bench.homes()) == (False, ["a", "a"])
        assert "op0[0] of job 'job' stays on a: its inputs have ended" in decision.reason
        assert len(bench.scheduler.asked(MoveHome)) == 2
        bench.scheduler.answers["a", MoveHome] = moves
        await bench.period(bench.decision((0, "a", "b"), (1, "a", "c")))
        assert bench.homes() == ["b", "c"]

    bench(test)


def test_dry_run_moves_nothing_and_its_plan_is_noted_once(bench):
    async def test(bench):
        plan = bench.decision((0, "a", "b"))
        dry = replace(plan, moves=(), deferred=plan.moves, reason="homes would move, but this is a dry run.")
        for _ in range(3):
            await bench.period(dry)
        assert bench.homes() == ["a", "a"]
        [decision] = bench.decided()
        assert (decision.applied, len(decision.homes)) == (False, 1)
        assert decision.reason == "Placement 'flux': homes would move, but this is a dry run."

    bench(test, dry_run=True)


def test_move_waits_for_the_checkpoint_in_progress(bench, fake, tmp_path):
    async def test(bench):
        exclusive = bench.record.checkpoints.exclusive
        await exclusive.acquire()
        period = asyncio.ensure_future(bench.period(bench.decision((0, "a", "b"))))
        while not bench.driver._moving:
            await asyncio.sleep(0)
        await fake.settle()
        assert (bench.homes(), bench.scheduler.asked(PrepareHome)) == (["a", "a"], [])
        exclusive.release()
        await period
        assert bench.homes() == ["b", "a"]

    bench(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_checkpoint_that_begins_while_the_state_is_copied_is_not_given_up(bench, fake, tmp_path):
    async def test(bench):
        checkpoints = bench.record.checkpoints
        gate = bench.scheduler.held["a", CopyHome] = asyncio.Event()
        period = asyncio.ensure_future(bench.period(bench.decision((0, "a", "b"))))
        while not bench.scheduler.asked(CopyHome):
            await asyncio.sleep(0.001)
        taken = asyncio.ensure_future(bench.coordinator.checkpoints.take(bench.record))
        while checkpoints.progress is None:
            await asyncio.sleep(0.001)
        gate.set()
        await fake.settle()
        assert (checkpoints.progress is not None, bench.scheduler.asked(MoveHome)) == (True, [])
        checkpoints.settle(dump_error(CheckpointError("the disk is full")))
        await period
        assert bench.homes() == ["b", "a"]
        with pytest.raises(CheckpointError, match="the disk is full"):
            await taken

    bench(test, checkpoint=str(tmp_path), checkpoint_interval=3600.0)


def test_nothing_moves_while_workers_are_emptied_or_the_job_finishes(bench):
    async def test(bench):
        bench.coordinator.retirement.active += 1
        await bench.period(bench.decision((0, "a", "b")))
        bench.coordinator.retirement.active -= 1
        bench.record.finishing = True
        await bench.period(bench.decision((0, "a", "b")))
        assert (bench.homes(), bench.decided()) == (["a", "a"], [])

    bench(test)


def test_second_plan_waits_until_the_first_one_is_carried_out(bench):
    async def test(bench):
        gate = bench.scheduler.held["a", MoveHome] = asyncio.Event()
        first = asyncio.ensure_future(bench.period(bench.decision((0, "a", "b"))))
        while not bench.scheduler.asked(MoveHome):
            await asyncio.sleep(0.001)
        bench.driver._loop, bench.driver._seen = Scripted((bench.decision((1, "a", "c")),)), None
        await bench.driver._guarded_period(bench.pool)
        assert bench.driver._loop.periods == []
        gate.set()
        await first
        assert bench.homes() == ["b", "a"]

    bench(test)


def test_jobs_without_planner_are_left_alone(bench):
    async def test(bench):
        bench.driver.wake()
        assert bench.driver.placed() == []
        assert bench.driver._task is None
        bench.coordinator.controller.snapshot_log.add(SNAPSHOT)
        loop = bench.driver._loop = Scripted()
        await bench.driver._guarded_period(bench.pool)
        assert loop.seen == []

    bench(test, placement="spread")


def test_expensive_planner_decides_less_often(bench):
    async def test(bench):
        period = bench.driver.settings.period
        assert bench.driver.wait() == period
        # The first decision imports what planners need.
        bench.driver._spent.append(30.0)
        assert bench.driver.wait() == period
        bench.driver._spent.append(2.0)
        assert bench.driver.wait() == pytest.approx(2.0 / PLANNING_SHARE)

    bench(test)


def test_unknown_plan_is_noted(bench):
    async def test(bench):
        given = PlacementDecision(5.0, "job", 1, "flux", (), "no plan: no node stays.")
        await bench.period(given)
        await bench.period(given)
        [decision] = bench.decided()
        assert (decision.applied, decision.reason) == (False, "Placement 'flux': no plan: no node stays.")

    bench(test)


def test_what_was_noted_is_forgotten_with_the_job(bench):
    async def test(bench):
        await bench.period(PlacementDecision(5.0, "job", 1, "flux", (), "no plan: no node stays."))
        await bench.period()
        assert bench.driver._told.keys() == {"job"}
        await bench.coordinator.forget(Forget("job"))
        await bench.period()
        assert bench.driver._told == {}

    bench(test)
