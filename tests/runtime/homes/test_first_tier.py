"""Where the instances on a node send to, and where it returns credit, while homes move."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from dask_elastic.routing.home_table import HomeTable
from dask_elastic.routing.versioned_sends import MarkDue
from dask_elastic.runtime.worker.homes.first_tier import FirstTier
from dask_elastic.runtime.worker.members import Members
from dask_elastic.vocab.identity import ExecutorId

sys.path.insert(0, str(Path(__file__).parent))
from moving_job import spec

sys.path.pop(0)

ROWS, OTHER = ExecutorId("rows", 0), ExecutorId("rows", 1)


@pytest.fixture
def tier():
    return FirstTier(spec())


MOVED = HomeTable.initial((1, 2)).moved(1, to=3)


def test_old_home_is_needed_until_the_fence_has_passed_and_with_a_sink_after_it(tier):
    assert tier.settled == {0, 1, 2}
    tier.switch("op", MOVED, [ROWS])
    assert tier.settled == {0, 1, 2, 3}
    tier.set_emitter(ExecutorId("op", 1), 3)
    assert tier.settled == {0, 1, 2, 3}, "a sink on node 2 gets the outputs of both homes"
    again = MOVED.moved(1, to=4)
    tier.switch("op", again, [ROWS])
    assert 3 in tier.settled
    tier.set_emitter(ExecutorId("op", 1), 4)
    assert tier.settled == {0, 1, 2, 4}
    assert tier.sinks_of(ExecutorId("op", 1)) == 2


def test_both_homes_are_needed_at_the_old_one_while_an_executor_leaves(tier):
    tier.moving = frozenset((4, 2))
    assert tier.settled == {0, 1, 2, 4}


def test_instance_that_has_sent_nothing_sends_an_end_mark_at_the_switch(tier):
    marks = tier.switch("op", MOVED, [ROWS, OTHER])
    assert marks == [(origin, MarkDue(1, 2, 1)) for origin in (ROWS, OTHER)]
    assert tier.switch("op", MOVED, [ROWS, OTHER]) == []
    assert tier.sends(ROWS, "op").begin() == MOVED
    assert tier.sends(ROWS, "out") is None, "sinks do not move"


def test_tables_of_other_nodes_are_adopted_unless_they_are_older(tier):
    tier.adopt({"op": MOVED})
    assert [tier.node_of(ExecutorId("op", index)) for index in range(2)] == [1, 3]
    assert tier.emitter(ExecutorId("op", 1)) == 3
    tier.adopt({"op": HomeTable.initial((1, 2))})
    assert tier.node_of(ExecutorId("op", 1)) == 3


def test_executor_that_comes_back_sends_as_the_tables_say(tier):
    op = ExecutorId("op", 0)
    tier.sends(op, "op")
    tier.switch("op", MOVED, [])
    tier.restart(op)
    assert tier.sends(op, "op").begin() == MOVED


def test_node_lost_as_a_guest_is_named_when_it_becomes_a_home():
    members = Members(spec(node=0))
    assert members.lose(3), "remote tasks there fail over"
    assert members.lost_settled() == []
    members.tier.switch("op", MOVED, [ROWS])
    assert members.lost_settled() == ["three"]
    assert members.both_hold_instances(3)
    guest = Members(spec(node=4))
    guest.lose(3)
    guest.tier.switch("op", MOVED, [])
    assert guest.lost_settled() == [], "a guest holds nothing that the other needs"


@pytest.fixture
def hasty_switches():
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_switches")
def test_end_mark_follows_the_last_send_to_the_old_home_whichever_thread_makes_it(tier):
    channel, started, switched = [], threading.Barrier(5), threading.Event()

    def send():
        started.wait(100)
        left = 200
        while left:
            # Some sends come after the switch, however late that is.
            left -= switched.is_set() or left > 100
            sends = tier.sends(ROWS, "op")
            table = sends.begin()
            channel.append(table.homes[1])
            channel.extend(sends.end(table))

    threads = [threading.Thread(target=send, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait(100)
    channel.extend(mark for _, mark in tier.switch("op", MOVED, [ROWS]))
    switched.set()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    [place] = [place for place, sent in enumerate(channel) if isinstance(sent, MarkDue)]
    assert 2 not in channel[place:]
    assert channel.count(3) >= 400
