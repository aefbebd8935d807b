"""Cores that a user sets: pinned until they are given back to the control loop. Changes that wait for a restart."""

from __future__ import annotations

import asyncio

import pytest

from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.job_calls import MoveShard, SetCores, Stop
from dask_elastic.runtime.protocol.job_spec import STATIC
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.scheduler.coordinator import Coordinator
from dask_elastic.vocab.errors import NodeLost, PlanningError, UnknownOperator


@pytest.fixture
def job(fake):
    """Return a function that runs a test with a coordinator that has a job."""

    def run(threads, test, **given):
        async def with_job():
            scheduler = fake.Scheduler(threads)
            coordinator = Coordinator(scheduler)
            await coordinator.submit(fake.submission(**given))
            await test(coordinator, scheduler, coordinator.jobs["job"])
            await coordinator.close()

        asyncio.run(with_job())

    return run


def test_cores_set_by_user_are_pinned_until_auto(job):
    async def test(coordinator, scheduler, record):
        described = await coordinator.set_cores(SetCores("job", "op0", 1, executor=1))
        assert described.pinned == (("op0", 1),)
        await coordinator.set_cores(SetCores("job", "op0", 2))
        assert record.pinned == {("op0", 0), ("op0", 1)}
        await coordinator.set_cores(SetCores("job", "op0", "auto", executor=0))
        assert record.pinned == {("op0", 1)}
        calls = len(scheduler.asked(part_calls.SetCores))
        await coordinator.set_cores(SetCores("job", "op0", "auto"))
        assert record.pinned == set()
        assert len(scheduler.asked(part_calls.SetCores)) == calls

    job({"a": 2, "b": 2}, test, executors=2)


def test_cores_refused_by_home_are_not_pinned(job):
    async def test(coordinator, scheduler, record):
        scheduler.answers["a", part_calls.SetCores] = PlanningError("no")
        with pytest.raises(Exception, match=r"^no$"):
            await coordinator.set_cores(SetCores("job", "op0", {"a": 1}))
        assert record.pinned == set()
        assert record.cores["op0", 0] == {0: 2}

    job({"a": 2}, test)


def test_core_change_omits_nodes_without_cores(job):
    async def test(coordinator, scheduler, record):
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1, "b": 0}))
        assert record.cores["op0", 0] == {0: 1}

    job({"a": 2, "b": 2}, test, executors=1)


@pytest.mark.parametrize("cores", ["outo", 1.5, True, None, [1], -1, 0, {"a": "2"}, {"a": -1}])
def test_invalid_cores_are_refused_and_change_nothing(job, cores):
    async def test(coordinator, scheduler, record):
        with pytest.raises(PlanningError, match=r'or "auto"|at least one core'):
            await coordinator.set_cores(SetCores("job", "op0", cores))
        assert scheduler.asked(part_calls.SetCores) == []
        assert record.pinned == set()

    job({"a": 2}, test)


@pytest.mark.parametrize("cores", [{"a": 1, "b": 1}, {"b": 1}])
def test_cores_on_worker_that_has_just_died_are_refused_by_its_name(job, cores):
    async def test(coordinator, scheduler, record):
        del scheduler.workers["b"]
        with pytest.raises(NodeLost, match="worker b has left the cluster: job 'job' gets no cores there"):
            await coordinator.set_cores(SetCores("job", "op0", cores))
        await coordinator.set_cores(SetCores("job", "op0", 2))
        assert record.cores["op0", 0] == {0: 2}

    job({"a": 2, "b": 2}, test, executors=1)


@pytest.mark.parametrize("cores", [4, {"a": 3, "b": 1}, {"b": 200}])
def test_more_cores_of_an_executor_than_slots_are_refused_as_by_submit(job, cores):
    async def test(coordinator, scheduler, record):
        with pytest.raises(PlanningError, match=r"which are 3\. Give at most 3, or add workers"):
            await coordinator.set_cores(SetCores("job", "op0", cores))
        assert scheduler.asked(part_calls.SetCores) == []
        await coordinator.set_cores(SetCores("job", "op0", 3))

    job({"a": 2, "b": 1}, test, executors=2)


def test_ended_job_checks_changes_and_answers_with_its_status(job):
    async def test(coordinator, scheduler, record):
        await coordinator.stop(Stop("job"))
        described = await coordinator.set_cores(SetCores("job", "op0", 1))
        assert described.status.value == "stopped"
        assert await coordinator.cores.move_shard(MoveShard("job", "op0", 0, 0, 0)) == "stopped"
        assert scheduler.asked(part_calls.SetCores) == scheduler.asked(part_calls.MoveShard) == []
        with pytest.raises(UnknownOperator, match="no stateful operator 'op9'"):
            await coordinator.set_cores(SetCores("job", "op9", 1))

    job({"a": 2}, test)


def test_cores_without_any_worker_are_refused(job):
    async def test(coordinator, scheduler, record):
        scheduler.workers.clear()
        with pytest.raises(NodeLost, match="every worker of the job has left"):
            await coordinator.set_cores(SetCores("job", "op0", 3))

    job({"a": 2}, test, executors=1)


@pytest.mark.parametrize("present", [True, False])
def test_planned_change_for_worker_that_has_just_died_is_stale_or_refused(job, present):
    async def test(coordinator, scheduler, record):
        await coordinator.set_cores(SetCores("job", "op0", {"a": 1, "b": 1}))
        if not present:
            del scheduler.workers["b"]
        before = dict(record.cores["op0", 0])
        change = coordinator.cores.change(record, ("op0", 0), before, {0: 2})
        if present:
            with pytest.raises(PlanningError, match="were set by a user meanwhile"):
                await change
        else:
            await change
            assert record.cores["op0", 0] == {0: 2}

    job({"a": 2, "b": 2}, test, executors=1)


def test_unknown_operator_or_executor_is_named(job):
    async def test(coordinator, scheduler, record):
        with pytest.raises(UnknownOperator, match=r"no stateful operator 'op1': choose from \['op0'\]"):
            await coordinator.set_cores(SetCores("job", "op1", "auto"))
        with pytest.raises(UnknownOperator, match="executors 0 to 0, not 3"):
            await coordinator.set_cores(SetCores("job", "op0", "auto", executor=3))

    job({"a": 2}, test)


def test_static_job_has_one_core_per_slot_and_refuses_changes(job):
    async def test(coordinator, scheduler, record):
        held = [*record.cores.values()]
        assert len(held) == 8
        assert all(list(by_node.values()) == [1] for by_node in held)
        assert record.cores_by_address() == {"a": 4, "b": 4}
        assert [len(homes) for name, homes in record.spec.homes.items() if name != "rows"] == [3, 3, 2]
        for forbidden in (
            coordinator.set_cores(SetCores("job", "op0", 2)),
            coordinator.set_cores(SetCores("job", "op0", "auto")),
            coordinator.cores.move_shard(MoveShard("job", "op0", 0, 1, 0)),
        ):
            with pytest.raises(PlanningError, match="has the paradigm 'static': neither its cores nor its shards move"):
                await forbidden
        assert scheduler.asked(part_calls.SetCores) == scheduler.asked(part_calls.MoveShard) == []

    job({"a": 4, "b": 4}, test, operators=3, paradigm=STATIC)


def test_static_job_without_free_slots_shares_slots(job):
    async def test(coordinator, scheduler, record):
        assert [len(homes) for homes in record.spec.homes.values()] == [1, 1, 1]
        assert record.oversubscribed

    job({"a": 1}, test, operators=2, paradigm=STATIC)


# restarts


@pytest.fixture
def durable(job, tmp_path):
    """Return a function that runs a test with a job whose only executor is at home on a, with one core."""

    def run(threads, test):
        job(threads, test, executors=1, cores={"op0": 1}, checkpoint=str(tmp_path), checkpoint_interval=3600.0)

    return run


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def lose(coordinator, scheduler, address):
    """Lose the worker of a home, and return when the job runs without it."""
    record = coordinator.jobs["job"]
    del scheduler.workers[address]
    coordinator.node_lost(address)
    await until(lambda: address not in record.nodes and record.status is Status.RUNNING)


def test_pinned_executor_has_its_cores_again_when_its_job_has_lost_a_home(durable):
    async def test(coordinator, scheduler, record):
        await coordinator.set_cores(SetCores("job", "op0", 3))
        await lose(coordinator, scheduler, "a")
        await until(lambda: sum(record.cores["op0", 0].values()) == 3)
        assert record.pinned == {("op0", 0)}
        await coordinator.set_cores(SetCores("job", "op0", "auto"))
        await lose(coordinator, scheduler, record.nodes[record.homes.node("op0", 0)])
        assert sum(record.cores["op0", 0].values()) == 1

    durable({"a": 4, "b": 4, "c": 4}, test)


def test_pinned_executor_gets_as_many_cores_as_there_are_slots_until_there_are_enough_again(durable, caplog):
    async def test(coordinator, scheduler, record):
        await coordinator.set_cores(SetCores("job", "op0", 5))
        await lose(coordinator, scheduler, "a")
        await until(lambda: record.cores["op0", 0] == {0: 2})
        what = "op0[0] gets 2 cores: its workers have no slots any more for the 5 cores that a user set"
        assert what in caplog.text
        scheduler.add("c", 8)
        await lose(coordinator, scheduler, "b")
        await until(lambda: record.cores["op0", 0] == {0: 5})

    durable({"a": 4, "b": 2}, test)


def test_pinned_executor_whose_home_refuses_its_cores_after_a_restart_is_logged(durable, caplog):
    async def test(coordinator, scheduler, record):
        await coordinator.set_cores(SetCores("job", "op0", 2))
        scheduler.answers["b", part_calls.SetCores] = PlanningError("no")
        await lose(coordinator, scheduler, "a")
        await until(lambda: "op0[0] has other cores than a user set: no" in caplog.text)
        assert record.live

    durable({"a": 4, "b": 4}, test)


async def behind_a_change(coordinator, scheduler, change):
    """Begin a change that waits until a change of the first generation is over and the job has restarted on others."""
    record = coordinator.jobs["job"]
    await coordinator.set_cores(SetCores("job", "op0", "auto"))
    hangs = scheduler.held["a", part_calls.SetCores] = asyncio.Event()
    first = asyncio.ensure_future(coordinator.cores.change(record, ("op0", 0), {0: 1}, {0: 2}))
    await until(lambda: scheduler.asked(part_calls.SetCores))
    waiting = asyncio.ensure_future(change)
    await asyncio.sleep(0)
    await lose(coordinator, scheduler, "a")
    cores = dict(record.cores)
    hangs.set()
    results = await asyncio.gather(first, waiting, return_exceptions=True)
    assert record.cores == cores
    assert len(scheduler.asked(part_calls.SetCores)) == 1
    return results


def test_planned_change_that_waits_while_the_job_restarts_is_stale(durable):
    async def test(coordinator, scheduler, record):
        # The next generation has two nodes.
        change = coordinator.cores.change(record, ("op0", 0), {0: 1}, {0: 1, 2: 1})
        for error in await behind_a_change(coordinator, scheduler, change):
            assert isinstance(error, PlanningError)
            assert "job 'job' was restarted" in str(error)

    durable({"a": 2, "b": 2, "c": 2}, test)


def test_cores_of_the_next_generation_stay_when_earlier_ones_were_to_leave_a_worker(durable):
    async def test(coordinator, scheduler, record):
        # The home in the next generation is node 0, as it was before.
        _, error = await behind_a_change(coordinator, scheduler, coordinator.cores.vacate(record, ("op0", 0), {0}))
        assert isinstance(error, PlanningError)
        assert "job 'job' was restarted meanwhile" in str(error)

    durable({"a": 2, "b": 2, "c": 2}, test)
