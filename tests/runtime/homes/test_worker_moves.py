"""Moves of homes as a worker carries them out: what is refused, sent, awaited and passed on."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.home_calls import HomeMoved
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import JobEnded, MoveRefused, NodeLost, ProtocolError
from dask_elastic.vocab.watermark import Watermark

sys.path.insert(0, str(Path(__file__).parent))
from moving_job import AFTER, BEFORE, FIRST, NODES, OTHER, ROWS, SECOND, Part, call_of, drained, end_marks, fenced

sys.path.pop(0)

# the old home


def test_begin_switches_all_nodes_and_sends_the_end_marks_of_instances_here(old):
    result = old.moves.begin(FIRST, AFTER, 1)
    assert not result.done()
    switches = [(address, table) for kind, address, _, table in old.node.sent if kind == "switch"]
    assert switches == [(NODES[node], AFTER) for node in (0, 2, 3, 4)]
    alignment = old.homes[FIRST].driver._alignment
    assert alignment._blocked == {OTHER}, "its own instance has sent the end mark"
    assert old.members.tier.settled >= {1, 3}


@pytest.mark.parametrize(
    ("executor", "table", "message"),
    [
        (SECOND, BEFORE.moved(1, to=3), r"op\[1\] is not at home on node 1"),
        (FIRST, BEFORE, r"does not follow HomeTable\(version=0, homes=\(1, 2\)\) by a move of op\[0\]"),
        (FIRST, BEFORE.moved(1, to=3), r"does not follow .* by a move of op\[0\]"),
        (FIRST, HomeTable(0, (3, 2)), r"does not follow"),
        (FIRST, HomeTable(1, (9, 2)), r"the new home is not connected"),
    ],
)
def test_move_that_does_not_fit_is_refused_and_changes_nothing(old, executor, table, message):
    with pytest.raises(MoveRefused, match=message):
        old.moves.begin(executor, table, 1)
    assert old.node.sent == []
    assert old.members.tier.tables["op"] == BEFORE


def test_move_to_a_node_that_is_not_connected_is_refused(old):
    old.node.unreachable.add(NODES[3])
    with pytest.raises(MoveRefused, match="the new home is not connected: the channel to three is closed"):
        old.moves.begin(FIRST, AFTER, 1)
    assert old.node.sent == []


def test_second_move_is_refused_until_the_first_has_ended(old):
    old.homes[SECOND] = old.threads_of(old.executor(SECOND, {1: 1}))
    old.moves.begin(FIRST, AFTER, 1)
    with pytest.raises(MoveRefused, match=r"op\[0\] is moving: one home of a job moves at a time"):
        old.moves.begin(SECOND, AFTER.moved(1, to=4), 1)


def test_needed_node_that_is_lost_at_the_switch_fails_the_job_and_a_guest_does_not(old):
    old.node.unreachable.add(NODES[4])
    old.moves.begin(FIRST, AFTER, 1)
    assert old.errors == []
    lost = Part(1)
    lost.homes[FIRST] = lost.threads_of(lost.executor(FIRST, {1: 1}))
    lost.node.unreachable.add(NODES[2])
    with pytest.raises(NodeLost):
        lost.moves.begin(FIRST, AFTER, 1)
    assert isinstance(lost.errors[0], NodeLost)


def test_executor_that_finishes_first_stays_and_all_nodes_switch_back(old):
    result = old.moves.begin(FIRST, AFTER, 1)
    old.node.sent.clear()
    old.moves.finished(FIRST)
    with pytest.raises(MoveRefused, match=r"op\[0\] has finished: its home does not move any more"):
        result.result(0)
    back = {table for kind, _, _, table in old.node.sent if kind == "switch"}
    assert back == {HomeTable(2, (1, 2))}
    assert old.members.tier.tables["op"] == HomeTable(2, (1, 2))
    assert 3 not in old.members.tier.settled
    old.moves.finished(FIRST)


def test_executor_is_handed_over_when_the_needed_nodes_have_confirmed_the_fence(old, wait_for):
    batch = Batch(pa.record_batch({"k": [1]}), None, 0.0)
    old.exchange._gate(FIRST, SECOND).acquire(batch.nbytes)
    result = old.moves.begin(FIRST, AFTER, 1)
    thread = drained(old)
    assert fenced(old, wait_for) == {0, 2, 3, 4}
    assert FIRST not in old.homes
    for node in (0, 2, 4):
        old.moves.fence_passed(FIRST, node)
    assert old.node.calls == [], "the new home has not confirmed"
    old.moves.fence_passed(FIRST, 3)
    wait_for(lambda: old.node.calls)
    [(address, call)] = old.node.calls
    assert (address, call.operator, call.executor) == ("three", "op", 0)
    assert [(one.target, one.nbytes, one.batches) for one in call.credit] == [(SECOND, batch.nbytes, 1)]
    old.exchange.take_credit(FIRST, SECOND, batch.nbytes, False)
    late = ("credit", "three", SECOND, FIRST, batch.nbytes, False, False)
    assert old.node.sent[-1] == late, "late credit is passed on"
    old.node.answer.set_result({3: 1})
    moved = result.result(100)
    assert isinstance(moved, HomeMoved)
    assert moved.cores == {3: 1}
    thread.join(100)
    assert old.events == [("store", FIRST), ("discard", FIRST)]
    assert 3 in old.members.tier.settled
    assert 1 in old.members.tier.settled, "it has a source and a sink"


def test_late_requests_at_the_old_home_are_refused_by_name(old, wait_for):
    home = old.homes[FIRST]
    old.moves.begin(FIRST, AFTER, 1)
    drained(old)
    fenced(old, wait_for)
    with pytest.raises(MoveRefused, match=r"op\[0\] has moved to another worker: ask for its state there"):
        home.flush(100)
    with pytest.raises(ProtocolError, match=r"op\[0\] is not at home on node 1, but EndMark"):
        end_marks(old)
    with pytest.raises(ProtocolError, match=r"op\[0\] is not on node 1, but rows for it have arrived there"):
        old.exchange.input_ended(FIRST, ROWS)
    old.moves.abort()


def test_end_of_the_job_ends_every_wait_of_a_move(old, wait_for):
    result = old.moves.begin(FIRST, AFTER, 1)
    thread = drained(old)
    fenced(old, wait_for)
    old.moves.abort()
    thread.join(100)
    assert not thread.is_alive()
    with pytest.raises(JobEnded, match=r"job 'job' ended while op\[0\] moved"):
        result.result(0)
    assert old.errors == []


def test_end_of_the_job_ends_the_wait_for_the_new_home(old, wait_for):
    old.moves.begin(FIRST, AFTER, 1)
    thread = drained(old)
    fenced(old, wait_for)
    for node in (0, 2, 3):
        old.moves.fence_passed(FIRST, node)
    wait_for(lambda: old.node.calls)
    old.moves.abort()
    thread.join(100)
    assert not thread.is_alive()
    assert old.errors == []


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (JobEnded("job 'job' has ended on worker three"), []),
        (OSError("connection reset"), ["the home of op[0] could not be moved: connection reset"]),
        (MoveRefused("node 3 does not await it"), ["the home of op[0] could not be moved: node 3 does not await it"]),
    ],
)
def test_error_of_the_new_home_is_a_loss_unless_the_job_has_ended_there(old, wait_for, error, reported):
    old.moves.begin(FIRST, AFTER, 1)
    thread = drained(old)
    fenced(old, wait_for)
    for node in (0, 2, 3):
        old.moves.fence_passed(FIRST, node)
    wait_for(lambda: old.node.calls)
    old.node.answer.set_exception(error)
    thread.join(100)
    assert not thread.is_alive()
    assert [str(error) for error in old.errors] == reported
    assert all(isinstance(error, NodeLost) for error in old.errors), "a job with checkpoints restarts"


# other nodes


def test_fence_turns_credit_to_the_new_home_ends_remote_tasks_and_is_confirmed():
    part = Part(2)
    closed = []
    remote = SimpleNamespace(home=1, close=lambda: closed.append(1), part=SimpleNamespace(store=None))
    part.remotes[FIRST] = remote
    part.exchange.release(FIRST, SECOND, 8)
    part.moves.fence(FIRST, 1, 3)
    part.exchange.release(FIRST, SECOND, 9)
    assert [(kind, address) for kind, address, *_ in part.node.sent] == [
        ("credit", "one"), ("fence_passed", "one"), ("credit", "three"),
    ]  # fmt: skip
    assert closed == [1]
    assert part.remotes == {}
    later = SimpleNamespace(home=3, close=lambda: closed.append(3))
    part.remotes[FIRST] = later
    part.moves.fence(FIRST, 1, 3)
    assert part.remotes == {FIRST: later}, "the new home has started tasks already"


def test_switch_to_a_node_that_was_lost_as_a_guest_fails_the_job():
    part = Part(0)
    part.members.lose(3)
    part.moves.switch(FIRST, AFTER)
    [error] = part.errors
    assert "the channel to three is broken, and op[0] moves there" in str(error)


# the new home


def test_executor_continues_at_its_new_home_with_what_was_held(old, new, wait_for):
    old.exchange._gate(FIRST, SECOND).acquire(80)
    call = call_of(old, new, wait_for)
    new.arrivals.prepare(FIRST, {"op": BEFORE})
    assert new.events == [("expect", FIRST)]
    assert new.node.reports == 1
    new.moves.switch(FIRST, AFTER)
    new.exchange.accept(FIRST, ROWS, Batch(pa.record_batch({"k": [1, 2]}), None, 0.0), 16)
    new.exchange.receive_watermark(FIRST, Watermark(ROWS, None))
    new.exchange.take_credit(FIRST, SECOND, 80, False)
    started = []
    new.threads.start = lambda name, run: started.append((name, run))
    assert new.arrivals.install(call) == {3: 2}, "the cores that follow"
    home = new.homes[FIRST]
    taken = []
    home.offer = lambda origin, batch, nbytes: taken.append((origin, batch.rows.num_rows, nbytes))
    home.receive_watermark = lambda watermark, version: taken.append((watermark, version))
    [release] = [run for name, run in started if name == "op[0]-arrival"]
    release()
    assert taken == [(ROWS, 2, 16), (Watermark(ROWS, None), 0)]
    assert new.exchange.arrivals == {}
    gate = new.exchange._gate(FIRST, SECOND)
    assert (gate.used, gate.batches) == (0, 0)


def test_executor_is_prepared_and_installed_once(old, new, wait_for):
    call = call_of(old, new, wait_for)
    with pytest.raises(MoveRefused, match=r"node 3 does not await op\[0\]"):
        new.arrivals.install(call)
    new.arrivals.prepare(FIRST, {"op": BEFORE})
    with pytest.raises(MoveRefused, match=r"op\[0\] is at home on node 3 already, or about to be"):
        new.arrivals.prepare(FIRST, {"op": BEFORE})
    new.arrivals.install(call)
    with pytest.raises(MoveRefused, match="does not await"):
        new.arrivals.install(call)
    new.arrivals.cancel(FIRST, 1)
    assert FIRST in new.homes


def test_cancelled_arrival_leaves_nothing(new):
    new.arrivals.cancel(FIRST, 0)
    new.arrivals.prepare(FIRST, {"op": BEFORE})
    new.arrivals.cancel(FIRST, 1)
    assert new.events == [("expect", FIRST), ("discard", FIRST)]
    assert new.exchange.arrivals == {}


def test_executor_whose_move_was_cancelled_before_is_not_awaited_but_by_the_next_move(new):
    new.arrivals.cancel(FIRST, AFTER.version)
    with pytest.raises(MoveRefused, match=r"the move of op\[0\] to node 3 is cancelled"):
        new.arrivals.prepare(FIRST, {"op": BEFORE})
    assert (new.events, new.exchange.arrivals) == ([], {})
    # The cancelled move has used one more version.
    new.arrivals.prepare(FIRST, {"op": HomeTable(AFTER.version + 1, BEFORE.homes)})
    assert new.events == [("expect", FIRST)]


def test_node_that_has_lost_a_needed_one_becomes_no_home(new):
    new.node.unreachable.add(NODES[2])
    with pytest.raises(NodeLost, match="the channel to two is closed"):
        new.arrivals.prepare(FIRST, {"op": BEFORE})
    assert new.exchange.arrivals == {}
    assert new.events == []


def test_waits_of_a_departure_end_as_aborted(old):
    old.moves.begin(FIRST, AFTER, 1)
    departure = old.moves._departures[FIRST]
    old.moves.abort()
    with pytest.raises(Aborted):
        departure.wait_for_fences()
    with pytest.raises(Aborted):
        departure.answers.of(Future())


def test_executor_that_leaves_and_returns_while_its_release_ends_is_awaited(old, new, wait_for):
    call = call_of(old, new, wait_for)
    new.arrivals.prepare(FIRST, {"op": BEFORE})
    started = []
    new.threads.start = lambda name, run: started.append((name, run))
    new.arrivals.install(call)
    returns = []

    def come_back():
        del new.homes[FIRST]
        new.arrivals.prepare(FIRST, {"op": BEFORE})

    class Arrivals(dict):
        """Lets the executor come back behind what the release looks up, unless that excludes it."""

        def get(self, key, default=None):
            found = super().get(key, default)
            if new.arrivals._lock.acquire(blocking=False):
                new.arrivals._lock.release()
                come_back()
            else:
                returns.append(come_back)
            return found

    new.exchange.arrivals = Arrivals(new.exchange.arrivals)
    [release] = [run for name, run in started if name == "op[0]-arrival"]
    release()
    for run in returns:
        run()
    assert FIRST in new.exchange.arrivals


def test_move_that_begins_when_the_job_has_just_ended_ends(old):
    old.threads.end()
    old.moves.abort()
    with pytest.raises(JobEnded, match=r"job 'job' ended while op\[0\] moved"):
        old.moves.begin(FIRST, AFTER, 1).result(0)
    assert old.node.sent == []
