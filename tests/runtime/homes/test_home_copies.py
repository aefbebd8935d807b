"""State that is copied to the next home of an executor while the executor goes on."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.runtime.protocol.home_calls import CopyState, HomeCopied
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.errors import MoveRefused, NodeLost, ProtocolError

sys.path.insert(0, str(Path(__file__).parent))
from moving_job import AFTER, BEFORE, FIRST, NODES, SPACE, call_of

sys.path.pop(0)

KEYS = 200


def write(home, keys):
    """Add one to the count of some keys."""
    store, rows = home.executor.store, pa.record_batch({"k": keys})
    store.declare(pa.schema({"k": pa.int64()}), [Field("n", np.dtype(np.int64), 0)])
    store.input_schema = rows.schema
    task = next(iter(home.executor.routes.tasks))
    # Hashes of shards that this executor has; any task may write here.
    hashes = np.asarray(keys, np.uint64) * np.uint64(SPACE.executors) * np.uint64(SPACE.shards)
    for shard in range(SPACE.shards):
        store.grant(shard, task)
    session = store.session(task)
    session.apply(session.locate(rows, ["k"], hashes), lambda current: [current[0] + 1])
    session.close()


def counts(store):
    """The count of each key."""
    keys, (values,) = store.rows()
    return dict(zip(keys["k"].to_pylist(), values.tolist(), strict=True))


@pytest.fixture
def threads(old):
    """The threads that the old home starts, each of which begins at once."""
    started = []

    def start(name, run):
        thread = threading.Thread(target=old.threads.guarded(run), name=name, daemon=True)
        started.append(thread)
        thread.start()

    old.threads.start = start
    yield started
    for thread in started:
        thread.join(100)
        assert not thread.is_alive()


def test_state_arrives_before_the_executor_and_what_changes_then_in_the_hand_over(old, new, threads, wait_for):
    home = old.homes[FIRST]
    write(home, range(KEYS))
    old.node.receive = new.arrivals.copy
    copied = old.moves.copies.begin(FIRST, AFTER).result(100)
    assert copied == HomeCopied(copied.nbytes, 1)
    assert copied.nbytes > KEYS * 8
    assert counts(new.expected[FIRST]) == dict.fromkeys(range(KEYS), 1)
    write(home, [3, KEYS])
    call = call_of(old, new, wait_for)
    assert sum(part.rows.nbytes for part in call.rest) < copied.nbytes
    new.arrivals.prepare(FIRST, {"op": BEFORE})
    new.arrivals.install(call)
    assert counts(new.homes[FIRST].executor.store) == {**dict.fromkeys(range(KEYS + 1), 1), 3: 2}
    assert new.expected == {}
    old.moves.abort()


def test_executor_that_was_not_copied_takes_its_state_along(old, new, wait_for):
    write(old.homes[FIRST], range(KEYS))
    call = call_of(old, new, wait_for)
    new.arrivals.prepare(FIRST, {"op": BEFORE})
    new.arrivals.install(call)
    assert counts(new.homes[FIRST].executor.store) == dict.fromkeys(range(KEYS), 1)
    old.moves.abort()


def test_cancelled_copy_leaves_nothing_at_either_home_and_a_later_one_is_whole(old, new, threads):
    home = old.homes[FIRST]
    write(home, range(KEYS))
    old.node.receive = new.arrivals.copy
    old.moves.copies.begin(FIRST, AFTER).result(100)
    old.moves.copies.cancelled(FIRST, AFTER.version)
    new.arrivals.cancel(FIRST, AFTER.version)
    for thread in threads:
        thread.join(100)
    assert home.executor.store.slots.uncopied is None
    assert new.expected == {}
    with pytest.raises(MoveRefused, match=r"copy 1 of op\[0\] is of no use on node 3"):
        new.arrivals.copy(old.node.portions[0])
    write(home, [KEYS])
    later = AFTER.moved(0, to=1).moved(0, to=3)
    old.moves.copies.begin(FIRST, later).result(100)
    assert counts(new.expected[FIRST]) == dict.fromkeys(range(KEYS + 1), 1)
    old.moves.copies.cancelled(FIRST, AFTER.version)
    assert home.executor.store.slots.uncopied is not None, "the later copy goes on"
    old.moves.abort()


def test_copy_to_a_lost_node_ends(old, threads):
    write(old.homes[FIRST], range(KEYS))
    reached, goes_on = threading.Event(), threading.Event()

    def receive(call):
        reached.set()
        goes_on.wait(100)

    old.node.receive = receive
    copying = old.moves.copies.begin(FIRST, AFTER)
    reached.wait(100)
    old.moves.copies.node_left(2)
    assert not copying.done()
    old.moves.copies.node_left(3)
    with pytest.raises(MoveRefused, match=r"op\[0\] stays: its new home was lost"):
        copying.result(0)
    goes_on.set()


def test_no_copy_begins_to_a_node_that_this_one_has_lost(old, threads):
    # It hangs, and the scheduler has not noticed.
    old.members.lose(3)
    with pytest.raises(MoveRefused, match=r"op\[0\] stays: its new home was lost"):
        old.moves.copies.begin(FIRST, AFTER).result(100)
    for thread in threads:
        thread.join(100)
    assert old.node.portions == []
    assert old.homes[FIRST].executor.store.slots.uncopied is None


def test_error_of_the_other_node_ends_the_copy_and_not_the_job(old, threads):
    write(old.homes[FIRST], range(KEYS))

    def receive(call):
        raise NodeLost(f"no way to {NODES[3]}")

    old.node.receive = receive
    with pytest.raises(MoveRefused, match=r"the state of op\[0\] cannot be copied: no way to three"):
        old.moves.copies.begin(FIRST, AFTER).result(100)
    assert old.errors == []


def test_copy_of_an_executor_that_is_elsewhere_or_finishes_is_refused(old, new, threads):
    with pytest.raises(MoveRefused, match=r"op\[0\] is not at home on node 3"):
        new.moves.copies.begin(FIRST, AFTER)
    old.homes[FIRST].executor.finished = True
    with pytest.raises(MoveRefused, match=r"op\[0\] has finished"):
        old.moves.copies.begin(FIRST, AFTER)


def test_portions_are_installed_once_and_in_order(new):
    def portion(number, position):
        return CopyState("job", 1, "op", 0, number, position, ())

    with pytest.raises(MoveRefused, match=r"node 3 has no copy of op\[0\] that could be continued"):
        new.arrivals.copy(portion(4, 1))
    new.arrivals.copy(portion(4, 0))
    for number, position in ((4, 2), (5, 1)):
        with pytest.raises(
            ProtocolError, match=f"portion {position} of copy {number} does not follow portion 1 of copy 4"
        ):
            new.arrivals.copy(portion(number, position))
    new.arrivals.copy(portion(4, 1))
    with pytest.raises(ProtocolError, match="portion 0 of copy 4 does not follow portion 2"):
        new.arrivals.copy(portion(4, 0))
    new.arrivals.copy(portion(5, 0))
    # The cancellation of copy 4 was lost; what comes late of it, or of one before, replaces nothing.
    for number, position in ((4, 2), (4, 0), (3, 0)):
        with pytest.raises(MoveRefused, match=rf"copy {number} of op\[0\] is of no use on node 3"):
            new.arrivals.copy(portion(number, position))
    new.arrivals.copy(portion(5, 1))
