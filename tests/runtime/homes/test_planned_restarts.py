"""Sources and sinks that leave workers: a checkpoint at which sources wait, then a restart on the other workers."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace

import pytest

from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.pickled import Pickled
from dask_elastic.runtime.protocol import checkpoint_calls, job_calls, part_calls
from dask_elastic.runtime.protocol.checkpoint_parts import ExecutorPart, SourcePosition
from dask_elastic.runtime.protocol.cluster_calls import Keep
from dask_elastic.runtime.protocol.group_calls import (
    CopyGroups,
    ForgetGroups,
    GroupsMoved,
    HoldGroups,
    MoveGroups,
    SwitchGroups,
)
from dask_elastic.runtime.protocol.job_calls import MoveExecutor, Retire, SetCores
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.scheduler.checkpoints import instances
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.runtime.scheduler.homes import planned_restarts, retirement
from dask_elastic.runtime.scheduler.homes.planned_restarts import fixed_at
from dask_elastic.vocab.errors import CheckpointError, MoveRefused, PlanningError


class Parts:
    """Workers that take checkpoints.

    Attributes
    ----------
    on_begin : list of callable
        Called one by one when checkpoints begin; a checkpoint is acknowledged if the function returns True.
    commits : bool
        Whether sinks commit.
    """

    def __init__(self, coordinator, scheduler):
        self.coordinator, self.scheduler = coordinator, scheduler
        self.on_begin, self.commits = [], True
        self._begun, self._tasks = set(), []
        for address in scheduler.workers:
            scheduler.answers[address, part_calls.BeginCheckpoint] = self._begin
            scheduler.answers[address, part_calls.CommitCheckpoint] = self._commit

    @property
    def record(self):
        return self.coordinator.jobs["job"]

    @property
    def halted(self):
        """Whether sources wait behind each of the checkpoints that have begun, in order."""
        begun = {call.number: call.halts for _, call in self.scheduler.asked(part_calls.BeginCheckpoint)}
        return [begun[number] for number in sorted(begun)]

    def spawn(self, work):
        """Run a coroutine beside the test."""
        self._tasks.append(asyncio.ensure_future(work))

    def _begin(self, call):
        if call.number not in self._begun:
            self._begun.add(call.number)
            event = self.on_begin.pop(0) if self.on_begin else None
            if event is None or event():
                self.spawn(self._acknowledge(call))

    async def _acknowledge(self, call):
        kinds = {summary.name: summary.kind for summary in self.record.spec.summaries}
        made = {"source": SourcePosition(), "compute": ExecutorPart(Chain(4), 0.0), "sink": ()}
        for one in instances(self.record.spec):
            if one.component in self.record.groups.tables:
                table = self.record.groups.table(one.component)
                made["compute"] = ExecutorPart(Chain(table.groups), 0.0, groups=table.owned_by(one.index))
            part = pickle.dumps(Pickled.of(made[kinds[one.component]]))
            await self.coordinator.checkpoints.acknowledge(
                checkpoint_calls.Acknowledge(call.job, call.generation, call.number, *one, part)
            )

    def _commit(self, call):
        self.spawn(self._committed(call))

    async def _committed(self, call):
        for one in instances(self.record.spec) if self.commits else ():
            await self.coordinator.checkpoints.committed(
                checkpoint_calls.Committed(call.job, call.generation, call.number, *one)
            )


@pytest.fixture
def durable(fake, monkeypatch, tmp_path):
    """Return a function that runs a test with a job that takes checkpoints, whose source is on worker a."""
    monkeypatch.setattr(retirement, "RETRY_SECONDS", 0.001)

    def run(test, threads=None, **given):
        async def with_job():
            scheduler = fake.Scheduler(threads or {"a": 2, "b": 2, "c": 2})
            for address in scheduler.workers:
                scheduler.answers[address, part_calls.Report] = fake.empty_report(complete=False)
            coordinator = Coordinator(scheduler)
            parts = Parts(coordinator, scheduler)
            options = {"executors": 3, "checkpoint": str(tmp_path), "checkpoint_interval": 3600.0, **given}
            await coordinator.submit(fake.submission(**options))
            coordinator.controller.stop()
            scheduler.calls.clear()
            await asyncio.wait_for(test(coordinator, scheduler, parts), 100)
            await coordinator.close()

        asyncio.run(with_job())

    return run


def test_sources_and_sinks_leave_behind_a_checkpoint_at_which_sources_wait(durable):
    async def test(coordinator, scheduler, parts):
        record = parts.record
        generation, homes = record.spec.generation, record.instances_by_address()
        assert set(homes.values()) == {"a", "b", "c"}
        assert [*map(str, fixed_at(record, ["a"]))] == ["rows[0]", "out[0]"]
        await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert record.spec.generation == generation + 1
        assert record.status is Status.RUNNING
        assert sorted(record.nodes) == ["b", "c"]
        assert fixed_at(record, ["a"]) == []
        assert "a" not in coordinator.needed_workers()
        assert parts.halted == [False, True]
        kinds = [type(call) for _, call in scheduler.calls]
        last_commit = max(place for place, kind in enumerate(kinds) if kind is part_calls.CommitCheckpoint)
        assert last_commit < kinds.index(part_calls.Forget) < kinds.index(part_calls.Prepare)
        after = record.instances_by_address()
        assert all(after[key] == address for key, address in homes.items() if address != "a")
        assert sum(sum(cores.values()) for cores in record.cores.values()) == 4
        state = record.checkpoints
        assert (state.newest, state.restarts, state.attempts, state.leaving) == (2, 1, 0, False)
        [decision] = coordinator.controller.decisions.log.of("job")
        assert decision.others == ("restarted from checkpoint 2",)
        assert decision.reason.startswith(
            "Worker a is to leave. The job was restarted from checkpoint 2 elsewhere with rows[0], out[0]; it paused"
        )

    durable(test)


def test_sources_on_workers_that_stay_stay_there(durable):
    async def test(coordinator, scheduler, parts):
        before = parts.record.instances_by_address()
        assert before["rows", 0] == "a"
        await coordinator.retirement.retire(Retire(("c",), timeout=60))
        after = parts.record.instances_by_address()
        assert {key: after[key] for key, address in before.items() if address != "c"} == {
            key: address for key, address in before.items() if address != "c"
        }
        assert "c" not in after.values()

    durable(test)


def test_workers_that_leave_together_cost_one_restart(durable):
    async def test(coordinator, scheduler, parts):
        generation = parts.record.spec.generation
        calls = (coordinator.retirement.retire(Retire((one,), timeout=60)) for one in "ab")
        await asyncio.gather(*calls)
        assert parts.record.nodes == ["c"]
        assert parts.record.spec.generation == generation + 1

    durable(test)


def test_worker_that_is_retired_while_sources_wait_leaves_by_the_same_restart(durable):
    async def test(coordinator, scheduler, parts):
        def retire_another():
            parts.spawn(coordinator.retirement.retire(Retire(("b",), timeout=60)))
            return True

        parts.on_begin = [None, retire_another]
        generation = parts.record.spec.generation
        await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert parts.halted == [False, True]
        assert parts.record.nodes == ["c"]
        assert parts.record.spec.generation == generation + 1

    durable(test)


def test_executors_of_static_jobs_leave_by_a_restart(durable):
    async def test(coordinator, scheduler, parts):
        executors = len(parts.record.spec.homes["op0"])
        assert await coordinator.retirement.vacate(["a"]) == {}
        assert sorted(parts.record.nodes) == ["b", "c"]
        assert len(parts.record.spec.homes["op0"]) == executors

    durable(test, paradigm="static", executors=None)


def test_sinks_that_do_not_commit_hold_up_no_source(durable):
    async def test(coordinator, scheduler, parts):
        parts.commits = False
        generation = parts.record.spec.generation
        coordinator.retirement.timeout = 0.5
        kept = await coordinator.retirement.vacate(["a"])
        assert kept["a"].startswith("rows[0], out[0] of job 'job' are still on workers that are to leave.")
        assert coordinator.workers.retiring == set()
        assert parts.halted == [False]
        assert parts.record.spec.generation == generation
        # What has begun goes on, and finds that the worker stays.
        parts.commits = True
        assert (await coordinator.checkpoints.take(parts.record)).number == 2
        while coordinator.leaving._running:
            await asyncio.sleep(0.001)
        assert (parts.halted, parts.record.spec.generation) == ([False, False], generation)

    durable(test)


def test_sources_go_on_if_the_checkpoint_for_which_they_wait_is_not_committed(durable, monkeypatch):
    monkeypatch.setattr(planned_restarts, "PAUSE_SECONDS", 0.3)
    monkeypatch.setattr(retirement, "RESTART_ATTEMPTS", 1)

    async def test(coordinator, scheduler, parts):
        def stop_committing():
            parts.commits = False
            return True

        parts.on_begin = [None, stop_committing]
        generation = parts.record.spec.generation
        with pytest.raises(CheckpointError, match="goes on where it is: the checkpoint for which its sources wait"):
            await coordinator.retirement.retire(Retire(("a",), timeout=None))
        assert parts.halted == [False, True]
        assert {call.number for _, call in scheduler.asked(part_calls.ContinueSources)} == {2}
        assert not parts.record.checkpoints.leaving
        assert parts.record.spec.generation == generation
        parts.commits = True
        monkeypatch.undo()
        await coordinator.retirement.retire(Retire(("a",), timeout=None))
        assert "a" not in parts.record.nodes

    durable(test)


def test_job_goes_on_where_it_is_if_the_worker_is_needed_again(durable):
    async def test(coordinator, scheduler, parts):
        async def keep():
            await coordinator.cluster.keep(Keep(("a",)))

        def needed():
            parts.spawn(keep())
            return True

        parts.on_begin = [None, needed]
        generation = parts.record.spec.generation
        with pytest.raises(PlanningError, match="worker a stays: it is needed again"):
            await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert scheduler.asked(part_calls.ContinueSources)
        assert parts.record.spec.generation == generation

    durable(test)


def test_loss_of_another_worker_meanwhile_restarts_the_job_once(durable):
    async def test(coordinator, scheduler, parts):
        def lose():
            del scheduler.workers["c"]
            coordinator.node_lost("c")
            return False

        parts.on_begin = [None, lose]
        generation = parts.record.spec.generation
        await coordinator.retirement.retire(Retire(("a",), timeout=60))
        while parts.record.status is not Status.RUNNING:
            await asyncio.sleep(0.001)
        assert parts.record.nodes == ["b"]
        assert parts.record.spec.generation == generation + 1
        assert parts.record.checkpoints.restarts == 1
        assert not parts.record.checkpoints.leaving
        # The sources of the next generation wait for nothing.
        await coordinator.checkpoints.take(parts.record)
        assert parts.halted[-1] is False or scheduler.asked(part_calls.ContinueSources)

    durable(test)


def test_home_does_not_move_while_sources_wait(durable):
    async def test(coordinator, scheduler, parts):
        refused = []

        async def move():
            try:
                await coordinator.homes.move_executor(MoveExecutor("job", "op0", 1, "c"))
            except MoveRefused as error:
                refused.append(str(error))

        def moved():
            parts.spawn(move())
            return True

        parts.on_begin = [None, moved]
        await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert ["is about to restart without workers that are to leave" in one for one in refused] == [True]

    durable(test)


def test_key_groups_do_not_move_while_sources_wait_and_stay_with_their_executors(durable):
    async def test(coordinator, scheduler, parts):
        for address in scheduler.workers:
            scheduler.answers[address, CopyGroups] = None
            scheduler.answers[address, HoldGroups] = scheduler.answers[address, ForgetGroups] = None
            scheduler.answers[address, SwitchGroups] = GroupsMoved(0, 0.0, 0)
        await coordinator.groups.move_groups(MoveGroups("job", "op0", (0,), 2, None))
        before, refused = parts.record.groups.table("op0").owners.tolist(), []

        async def move():
            try:
                await coordinator.groups.move_groups(MoveGroups("job", "op0", (1,), 1, None))
            except MoveRefused as error:
                refused.append(str(error))

        def moved():
            parts.spawn(move())
            return True

        parts.on_begin = [None, moved]
        await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert ["is about to restart without workers that are to leave" in one for one in refused] == [True]
        assert parts.halted == [False, True]
        assert sorted(parts.record.nodes) == ["b", "c"]
        assert parts.record.groups.table("op0").owners.tolist() == before

    durable(test, paradigm=RESOURCE, migration="progressive")


def test_job_that_stops_with_a_savepoint_is_not_restarted(durable):
    async def test(coordinator, scheduler, parts):
        parts.record.checkpoints.stopping = True
        with pytest.raises(TimeoutError, match=r"rows\[0\], out\[0\] of job 'job' are still on workers"):
            await coordinator.retirement.retire(Retire(("a",), timeout=0.02))
        assert parts.halted == []
        parts.record.checkpoints.stopping = False

    durable(test)


def test_savepoint_that_stops_the_job_goes_before_the_restart(durable):
    async def test(coordinator, scheduler, parts):
        def stops():
            parts.record.checkpoints.stopping = True
            return True

        parts.on_begin = [None, stops]
        generation = parts.record.spec.generation
        retiring = asyncio.ensure_future(coordinator.retirement.retire(Retire(("a",), timeout=None)))
        while parts.halted != [False, True] or coordinator.leaving._running:
            await asyncio.sleep(0.001)
        assert parts.record.spec.generation == generation
        # It copies the checkpoint behind which sources wait.
        assert scheduler.asked(part_calls.ContinueSources) == []
        parts.record.checkpoints.stopping = False
        await retiring
        assert parts.record.spec.generation == generation + 1

    durable(test)


def test_pinned_executors_keep_their_cores(durable):
    async def test(coordinator, scheduler, parts):
        await coordinator.set_cores(SetCores("job", "op0", 3, executor=1))
        assert sum(parts.record.cores["op0", 1].values()) == 3
        await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert sum(parts.record.cores["op0", 1].values()) == 3
        assert sum(parts.record.cores["op0", 0].values()) == 1

    durable(test, {"a": 4, "b": 4, "c": 4}, cores={"op0": 1})


def test_job_that_would_lose_rows_in_a_restart_is_refused_by_name(durable):
    async def test(coordinator, scheduler, parts):
        record = parts.record
        summaries = tuple(replace(one, lossy=one.name == "out") for one in record.spec.summaries)
        record.spec = replace(record.spec, summaries=summaries)
        match = r"hosts rows\[0\], out\[0\] of job 'job', and rows of out, which promises at-most-once, would be lost"
        with pytest.raises(PlanningError, match=match):
            await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert scheduler.calls == []
        assert coordinator.workers.retiring == set()

    durable(test)


def test_job_without_checkpoints_is_refused_with_the_remedy(durable):
    async def test(coordinator, scheduler, parts):
        match = r"hosts rows\[0\], out\[0\] of job 'job', and it takes no checkpoints: submit it with checkpoint="
        with pytest.raises(PlanningError, match=match):
            await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert scheduler.calls == []

    durable(test, checkpoint=None)


def test_worker_stays_if_no_other_is_left_for_its_sources(durable):
    async def test(coordinator, scheduler, parts):
        with pytest.raises(PlanningError, match=r"worker a cannot be drained: no other worker is left for rows\[0\]"):
            await coordinator.retirement.retire(Retire(("a", "b", "c"), timeout=60))
        assert coordinator.workers.retiring == set()

    durable(test)


def test_job_that_is_stopped_meanwhile_ends_the_retirement(durable):
    async def test(coordinator, scheduler, parts):
        def stop():
            parts.spawn(coordinator.stop(job_calls.Stop("job")))
            return False

        parts.on_begin = [None, stop]
        await coordinator.retirement.retire(Retire(("a",), timeout=60))
        assert parts.record.status is Status.STOPPED

    durable(test)
