"""Workers that hang, or are slow to answer, when they are to join a job."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from dask_elastic.runtime.protocol.calls import Version
from dask_elastic.runtime.protocol.job_calls import MoveExecutor, Stop
from dask_elastic.runtime.protocol.part_calls import Forget, Members, Prepare, StartSources
from dask_elastic.runtime.scheduler import membership
from dask_elastic.vocab.errors import JobEnded, NodeLost


async def submit(coordinator, fake):
    await coordinator.submit(fake.submission(executors=1))
    coordinator.controller.stop()
    await fake.settle()
    return coordinator.jobs["job"]


def add_refusing(scheduler):
    """Add a worker that cannot join, and that does not answer afterwards until the gate opens, which is returned."""
    scheduler.add("hangs")
    scheduler.answers["hangs", Prepare] = NodeLost("no way there")
    gate = scheduler.held["hangs", Forget] = asyncio.Event()
    return gate


@pytest.mark.parametrize(("operation", "wait"), [(Version, "PING_SECONDS"), (Prepare, "ANSWER_SECONDS")])
def test_hanging_worker_does_not_block_join_of_others(on, fake, monkeypatch, operation, wait):
    monkeypatch.setattr(membership, wait, 0.3)

    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("hangs")
        scheduler.held["hangs", operation] = asyncio.Event()
        await coordinator.membership.join_new()
        scheduler.add("new")
        await coordinator.membership.join_new()
        assert record.nodes == ["a", "new"]

    on({"a": 2}, test)


@pytest.mark.parametrize("call", [("guest", Members), ("new", Prepare)], ids=["announced", "connects"])
def test_worker_joins_as_soon_as_a_guest_that_hangs_is_removed(on, fake, monkeypatch, call):
    """Nothing is waited for that needs the guest: its answer, or the connection of the new worker to it."""
    monkeypatch.setattr(membership, "ANSWER_SECONDS", 1_000.0)

    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("guest")
        await coordinator.membership.join_new()
        scheduler.add("new")
        scheduler.held[call] = asyncio.Event()
        joining = asyncio.ensure_future(coordinator.membership.join_new())
        while not any((address, type(made)) == call and "new" in nodes_of(made) for address, made in scheduler.calls):
            await asyncio.sleep(0)
        if call[1] is Prepare:
            del scheduler.held[call]
        async with asyncio.timeout(50):
            await coordinator.membership.expel(record, "guest")
            await joining
        assert (record.nodes, record.spec.guests) == (["a", "new"], (1,))
        first, second = (made for address, made in scheduler.asked(Prepare) if address == "new")
        [dismissed] = [made for address, made in scheduler.asked(Forget) if address == "new"]
        assert dismissed.incarnation == first.spec.incarnation < second.spec.incarnation
        assert coordinator.membership._waits.keys() == {"guest"}

    on({"a": 2}, test)


def test_worker_joins_while_a_guest_that_was_removed_does_not_answer(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("guest")
        await coordinator.membership.join_new()
        scheduler.add("new")
        for kind in (Members, Forget):
            scheduler.held["guest", kind] = asyncio.Event()
        joining = asyncio.ensure_future(coordinator.membership.join_new())
        while "guest" not in [address for address, call in scheduler.asked(Members) if "new" in call.nodes]:
            await asyncio.sleep(0)
        removing = asyncio.ensure_future(coordinator.membership.expel(record, "guest"))
        async with asyncio.timeout(50):
            await joining
        assert record.nodes == ["a", "new"]
        assert not removing.done()
        assert record.expelling == set()
        scheduler.held["guest", Forget].set()
        await removing

    on({"a": 2}, test)


def test_worker_joins_while_another_one_that_could_not_join_does_not_answer(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        gate = add_refusing(scheduler)
        refused = asyncio.ensure_future(coordinator.membership.join_new())
        while not scheduler.asked(Forget):
            await asyncio.sleep(0)
        scheduler.add("new")
        async with asyncio.timeout(50):
            await coordinator.membership.join_new()
        assert record.nodes == ["a", "new"]
        await refused
        gate.set()

    on({"a": 2}, test)


def test_control_loop_lets_workers_join_while_one_that_could_not_join_does_not_answer(on, fake):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        gate = add_refusing(scheduler)
        await coordinator.controller._let_join()
        scheduler.add("new")
        await coordinator.controller._let_join()
        assert record.nodes == ["a", "new"]
        assert [address for address, _ in scheduler.asked(Forget)] == ["hangs"]
        gate.set()

    on({"a": 2}, test)


@pytest.mark.parametrize("kind", [Prepare, StartSources])
def test_no_call_is_left_over_when_the_join_of_many_workers_is_given_up(on, fake, kind):
    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("guest")
        await coordinator.membership.join_new()
        new = [f"new{number}" for number in range(2 * membership.CALLS_AT_ONCE)]
        for address in new:
            scheduler.add(address)
        gates = [scheduler.held.setdefault((address, kind), asyncio.Event()) for address in ("a", "guest", *new)]
        joining = asyncio.ensure_future(coordinator.membership.join_new())
        made = len(scheduler.asked(kind))
        while len(scheduler.asked(kind)) < made + membership.CALLS_AT_ONCE:
            await asyncio.sleep(0)
        removing = asyncio.ensure_future(coordinator.membership.expel(record, "guest"))
        await fake.settle()
        for gate in gates:
            gate.set()
        await asyncio.gather(removing, joining)
        assert set(record.addresses) == {"a", *new}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        on({"a": 2}, test)
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_join_whose_call_is_cancelled_is_not_tried_again_at_once(on, fake):
    """Nothing is to be removed first: another attempt might end in the same way, again and again."""

    async def test(coordinator, scheduler):
        await submit(coordinator, fake)
        scheduler.add("new")
        scheduler.answers["new", Prepare] = lambda call: cancel() if len(scheduler.asked(Prepare)) < 10 else None
        await coordinator.membership.join_new()
        assert [address for address, _ in scheduler.asked(Prepare)] == ["a", "new"]
        assert not coordinator.membership.may_try("new")

    def cancel():
        raise asyncio.CancelledError

    on({"a": 2}, test)


def nodes_of(call):
    return call.spec.nodes if isinstance(call, Prepare) else call.nodes


def test_worker_that_is_slow_to_answer_joins_when_it_does_while_others_go_on(on, fake, monkeypatch):
    monkeypatch.setattr(membership, "PING_SECONDS", 0.3)

    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        for address in ("slow", "new"):
            scheduler.add(address)
        answer = scheduler.held["slow", Version] = asyncio.Event()
        for _ in range(3):
            await coordinator.membership.join_new()
        assert record.nodes == ["a", "new"]
        assert [address for address, _ in scheduler.asked(Version)].count("slow") == 1, "it is asked once"
        answer.set()
        await fake.settle()
        assert record.nodes == ["a", "new", "slow"]
        assert coordinator.membership._waits == {}

    on({"a": 2}, test)


@pytest.mark.parametrize("happens", ["hangs", "job stops", "leaves", "is to leave"])
def test_worker_that_does_not_answer_until_it_is_too_late_does_not_join(on, fake, monkeypatch, happens):
    monkeypatch.setattr(membership, "PING_SECONDS", 0.3)

    async def test(coordinator, scheduler):
        record = await submit(coordinator, fake)
        scheduler.add("slow")
        answer = scheduler.held["slow", Version] = asyncio.Event()
        if happens == "hangs":
            coordinator.calls.timeout = 0.6
        await coordinator.membership.join_new()
        if happens == "job stops":
            await coordinator.stop(Stop("job"))
        elif happens == "leaves":
            del scheduler.workers["slow"]
            coordinator.node_lost("slow")
        elif happens == "is to leave":
            coordinator.workers.retiring.add("slow")
        else:
            while "slow" not in coordinator.membership._waits:
                await asyncio.sleep(0.01)
        answer.set()
        await fake.settle()
        assert record.nodes == ["a"]
        assert coordinator.membership._asked == set()
        assert [*coordinator.membership._waits] == (["slow"] if happens == "hangs" else [])
        if happens == "hangs":
            coordinator.membership._waits["slow"] = (1.0, 0.0)
            await coordinator.membership.join_new()
            assert record.nodes == ["a", "slow"]

    on({"a": 2}, test)


def test_worker_that_answers_when_the_job_has_ended_does_not_prepare_for_a_move(on, fake):
    async def test(coordinator, scheduler):
        await submit(coordinator, fake)
        scheduler.add("slow")
        answer = scheduler.held["slow", Version] = asyncio.Event()
        moving = asyncio.ensure_future(coordinator.homes.move_executor(MoveExecutor("job", "op0", 0, "slow")))
        await fake.settle()
        await coordinator.stop(Stop("job"))
        answer.set()
        with pytest.raises(JobEnded, match="its executors do not move any more"):
            await moving
        assert "slow" not in [address for address, _ in scheduler.asked(Prepare)]
        assert coordinator.membership._waits == {}

    on({"a": 2}, test)
