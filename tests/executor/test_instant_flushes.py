"""A flush is complete only when no partials of a shard are on their way to its next owner."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.flushes import TRIM
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.moving import merging
from dask_elastic.executor.task_queue import LARGE_PIECE
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state import store
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import PartialsMoved
from dask_elastic.vocab.watermark import Watermark

ORIGIN = ExecutorId("rows", 0)
AT_HOME, FAR = 0, 1
SHARDS, SHARD, KEYS, TOKEN = 4, 0, 3, 7


@pytest.fixture
def executor():
    """Return an executor with state in a shard of its task at home, and a task on another node."""
    made = ElasticExecutor(
        ExecutorId("per_key", 0), KeySpace(1, SHARDS), 0, {0: 1, 1: 1}, [ORIGIN], timed=[ORIGIN], clocks={"event"},
        limits=ExecutorLimits(migration="instant", patience=0.0),
    )  # fmt: skip
    made.start()
    primary = made.store
    primary.declare(pa.schema({"key": pa.int64()}), [Field("count", np.dtype(np.int64), 0)])
    session = primary.session(AT_HOME)
    rows = pa.record_batch({"key": [*range(KEYS)]})
    located = session.locate(rows, ["key"], np.arange(KEYS, dtype=np.uint64) * SHARDS + SHARD)
    session.apply(located, lambda current: [current[0] + 1])
    return made


def begin(executor):
    """Begin to move the shard to the other node, whose flushes of it are set aside."""
    instructions = executor.handle(events.MoveShard(SHARD, FAR), 0.0)
    assert [type(one) for one in instructions] == [do.OpenShard]
    assert executor.moves.instant.open(SHARD, FAR)


def arrive(executor):
    """Let the target begin, and the source at home leave: its state is set aside."""
    executor.handle(events.StateInstalled(SHARD, FAR), 0.0)
    assert do.SetAside(SHARD) in executor.handle(events.LabelBack(AT_HOME, SHARD), 0.0)
    while executor.moves.instant.set_portion_aside(SHARD):
        pass
    return executor.handle(events.StateSetAside(SHARD), 0.0)


def merge_one(executor):
    """Let the target merge the next partials."""
    number, work = executor.take(FAR, 0.0)
    assert isinstance(work.record, PartialsMoved)
    return executor.take_back(m.Done(FAR, number, 0.001), 0.0)


def completed(instructions):
    return [one.token for one in instructions if isinstance(one, do.FlushComplete)]


def requested(instructions):
    return [one.token for one in instructions if isinstance(one, do.RequestFlush) and one.token == TOKEN]


def a_flush(executor):
    return executor.take_back(m.Flush(FAR, -1, None, TOKEN), 0.0)


def test_flush_that_was_requested_before_a_move_waits_for_its_partials(executor):
    assert requested(executor.handle(events.FlushDue(TOKEN), 0.0)) == [TOKEN]
    begin(executor)
    assert completed(a_flush(executor)) == []
    arrive(executor)
    assert requested(merge_one(executor)) == [TOKEN]
    assert completed(a_flush(executor)) == [TOKEN]


def test_flush_that_the_target_answers_before_a_move_waits_for_its_partials(executor):
    executor.handle(events.SetCores({0: 1, 1: 2}), 0.0)
    other = max(executor.routes.tasks)
    executor.handle(events.FlushDue(TOKEN), 0.0)
    assert completed(a_flush(executor)) == []
    begin(executor)
    arrive(executor)
    assert requested(merge_one(executor)) == [TOKEN, TOKEN]
    assert completed(executor.take_back(m.Flush(other, -1, None, TOKEN), 0.0)) == []
    assert completed(a_flush(executor)) == [TOKEN]


def test_flush_waits_for_all_partials_before_a_record(executor, monkeypatch):
    monkeypatch.setattr(merging, "MERGED_ROWS", 1)
    begin(executor)
    arrive(executor)
    executor.handle(events.InputWatermark(Watermark(ORIGIN, 5)), 0.0)
    assert requested(executor.handle(events.FlushDue(TOKEN), 0.0)) == []
    asked = [requested(merge_one(executor)) for _ in range(KEYS)]
    assert asked == [[], [], [TOKEN]]
    assert SHARD not in executor.moves


def state_of(hashes):
    """Return encoded state of keys with these hashes."""
    made = store.KeyedStore(SHARDS, lambda found: (found % SHARDS).astype(np.intp))
    made.declare(pa.schema({"key": pa.int64()}), [Field("count", np.dtype(np.int64), 0)])
    for shard in range(SHARDS):
        made.grant(shard, 0)
    session = made.session(0)
    rows = pa.record_batch({"key": [*range(len(hashes))]})
    session.apply(session.locate(rows, ["key"], hashes), lambda current: [current[0] + 1])
    return made.extract()


def a_remote_shard(executor, shard):
    """Let the task on the other node own a shard, without state."""
    executor.store.revoke(shard)
    executor.routes.pause(shard)
    executor.routes.resume(shard, FAR)


def test_checkpoint_waits_for_the_partials_that_are_set_aside(executor):
    a_remote_shard(executor, 1)
    executor.handle(events.MoveShard(1, AT_HOME), 0.0)
    assert executor.handle(events.BarriersAligned(5), 0.0) == []
    assert not executor.moves.instant.set_portion_aside(1)
    executor.handle(events.StateSetAside(1), 0.0)
    assert executor.moves.instant.open(1, AT_HOME)
    begun = executor.handle(events.StateInstalled(1, AT_HOME), 0.0)
    assert not [one for one in begun if isinstance(one, do.RequestFlush)]
    left = executor.take_back(m.LabelReturned(FAR, 1, -1, None), 0.0)
    assert [one.task for one in left if isinstance(one, do.RequestFlush)] == [FAR]


def test_flush_waits_while_the_primary_copy_of_a_remote_source_is_set_aside(executor):
    far = 1
    executor.handle(events.FlushDue(TOKEN), 0.0)
    a_remote_shard(executor, far)
    begun = executor.handle(events.MoveShard(far, AT_HOME), 0.0)
    assert begun == [do.SetAside(far)]
    assert completed(a_flush(executor)) == []
    assert requested(executor.handle(events.FlushDue(TOKEN), 0.0)) == []
    assert not executor.moves.paused
    assert not executor.moves.instant.set_portion_aside(far)
    assert [type(one) for one in executor.handle(events.StateSetAside(far), 0.0)] == [do.OpenShard]
    assert executor.moves.paused == {far}


def arrived_at(executor, monkeypatch):
    """Let the shard move with partials in parts of one key, the first of which is merged; returns its task."""
    monkeypatch.setattr(merging, "MERGED_ROWS", 1)
    begin(executor)
    arrive(executor)
    return executor.routes.tasks[FAR]


def offer(executor, rows=1):
    """Let rows of a key of the shard arrive."""
    batch = Batch(pa.record_batch({"key": np.zeros(rows, np.int64)}), np.full(rows, SHARD, np.uint64), 0.0)
    executor.accept(executor.split(batch), ORIGIN, batch, 0, 0.0)


def kinds(executor, now=0.0):
    """Return whether what the target takes are partials, until it gets nothing."""
    return [work.record is not None for _, work in iter(lambda: executor.take(FAR, now), None)]


def done(executor, number, busy=0.001, now=0.0):
    executor.take_back(m.Done(FAR, number, busy), now)


def test_next_part_of_partials_waits_until_the_rows_before_it_are_settled(executor, monkeypatch):
    arrived_at(executor, monkeypatch)
    offer(executor)
    (merged, _), (row, rows) = executor.take(FAR, 0.0), executor.take(FAR, 0.0)
    assert rows.record is None
    done(executor, merged)
    assert kinds(executor) == []
    done(executor, row)
    assert kinds(executor) == [True]


def test_part_of_partials_that_waits_for_long_is_merged_by_a_busy_task(executor, monkeypatch):
    arrived_at(executor, monkeypatch)
    offer(executor)
    (merged, _), (row, _) = executor.take(FAR, 0.0), executor.take(FAR, 0.0)
    done(executor, merged, busy=0.1)
    offer(executor)
    assert kinds(executor, now=0.8) == [False]
    done(executor, row, now=0.8)
    assert kinds(executor, now=0.8) == []
    assert kinds(executor, now=0.95) == [True]


def test_part_of_partials_that_waits_for_long_is_merged_before_the_rows_that_wait(executor, monkeypatch):
    arrived_at(executor, monkeypatch)
    merged, _ = executor.take(FAR, 0.0)
    for _ in range(4):
        offer(executor, LARGE_PIECE + 1)
    done(executor, merged, busy=0.1)
    row, rows = executor.take(FAR, 0.0)
    assert rows.record is None
    done(executor, row, now=0.95)
    assert kinds(executor, now=0.95)[:2] == [True, False]


def test_part_of_partials_waits_for_long_only_if_no_flush_waits_for_it(executor, monkeypatch):
    arrived_at(executor, monkeypatch)
    offer(executor)
    (merged, _), _ = executor.take(FAR, 0.0), executor.take(FAR, 0.0)
    done(executor, merged, busy=0.1)
    assert kinds(executor, now=0.11) == []
    assert requested(executor.handle(events.FlushDue(TOKEN), 0.11)) == []
    assert kinds(executor, now=0.11) == [True]


def test_parts_of_several_shards_together_have_no_larger_share_of_a_busy_task(executor, monkeypatch):
    arrived_at(executor, monkeypatch)
    merged, _ = executor.take(FAR, 0.0)
    done(executor, merged, busy=0.1)
    late = executor.moves.instant.merging.is_late
    assert late(SHARD, 1, 0.91)
    assert not late(SHARD, 2, 1.79)
    assert late(SHARD, 2, 1.81)


def test_part_of_partials_waits_while_the_pending_queue_is_half_full(executor, monkeypatch):
    task = arrived_at(executor, monkeypatch)
    merged, _ = executor.take(FAR, 0.0)
    task.pending.limit = 1
    done(executor, merged)
    assert kinds(executor) == []
    wakes = executor.take_back(m.Flush(FAR, merged, None, TRIM), 0.0)
    assert do.Wake(FAR) in wakes
    assert kinds(executor) == [True]


def test_checkpoint_lets_no_part_of_partials_wait(executor, monkeypatch):
    arrived_at(executor, monkeypatch)
    offer(executor)
    (merged, _), _ = executor.take(FAR, 0.0), executor.take(FAR, 0.0)
    done(executor, merged)
    executor.handle(events.BarriersAligned(5), 0.0)
    assert len(executor.routes.tasks[FAR].queue) == KEYS - 1


def test_record_lets_no_part_of_partials_wait(executor, monkeypatch):
    arrived_at(executor, monkeypatch)
    offer(executor)
    (merged, _), _ = executor.take(FAR, 0.0), executor.take(FAR, 0.0)
    done(executor, merged)
    executor.handle(events.InputWatermark(Watermark(ORIGIN, 5)), 0.0)
    waiting = [piece.block.record is not None for piece in executor.routes.tasks[FAR].queue.pieces]
    assert waiting == [True] * KEYS


def test_part_of_partials_that_waits_for_a_lost_task_is_merged_by_the_next_one(executor, monkeypatch):
    arrived_at(executor, monkeypatch)
    offer(executor)
    (merged, _), _ = executor.take(FAR, 0.0), executor.take(FAR, 0.0)
    done(executor, merged)
    executor.links.cut(1)
    executor.handle(events.NodeLeft(1), 0.0)
    # Its label, which the source has left in its queue.
    executor.take(AT_HOME, 0.0)
    taken = 0
    for number, work in iter(lambda: executor.take(AT_HOME, 0.0), None):
        taken += isinstance(work.record, PartialsMoved)
        executor.done(AT_HOME, number, 0.001, 0.0)
    assert taken == KEYS
    assert not executor.moves.instant.under_way


def test_shards_are_set_aside_one_after_the_other(executor):
    for shard in (1, 3):
        a_remote_shard(executor, shard)
    first = executor.handle(events.MoveShard(1, AT_HOME), 0.0)
    second = executor.handle(events.MoveShard(3, AT_HOME), 0.0)
    assert (first, second) == ([do.SetAside(1)], [])
    assert do.SetAside(3) in executor.handle(events.StateSetAside(1), 0.0)


def test_portion_that_is_being_set_aside_is_not_lost_as_the_target_drains(executor, monkeypatch):
    executor.handle(events.SetCores({0: 1, 1: 1, 2: 1}), 0.0)
    far, other = 1, max(executor.routes.tasks)
    a_remote_shard(executor, far)
    hashes = np.arange(KEYS, dtype=np.uint64) * SHARDS + far
    rows = pa.record_batch({"key": [*range(KEYS)]})
    batch = Batch(rows, hashes, 0.0)
    executor.accept(executor.split(batch), ORIGIN, batch, 0, 0.0)
    number, _ = executor.take(FAR, 0.0)
    executor.store.install(state_of(hashes))
    assert executor.handle(events.MoveShard(far, other), 0.0) == [do.SetAside(far)]
    executor.handle(events.SetCores({0: 1, 1: 1}), 0.0)
    real = store.encode

    def encode(state):
        # A sub-batch that the source has processed is settled by the thread that reads its connection.
        executor.take_back(m.Done(FAR, number, 0.001), 0.0)
        return real(state)

    monkeypatch.setattr(store, "encode", encode)
    executor.moves.instant.set_portion_aside(far)
    monkeypatch.undo()
    while executor.moves.instant.set_portion_aside(far):
        pass
    executor.handle(events.StateSetAside(far), 0.0)
    assert far not in executor.moves
    assert executor.store.extract([far]).num_rows == KEYS


def test_source_leaves_when_a_cut_becomes_due_before_its_target_is_open(executor):
    begin(executor)
    [move] = executor.moves.instant.moves
    move.smooth = True
    executor.handle(events.BarriersAligned(1), 0.0)
    # No record would close its windows before the cut.
    arrive(executor)
    assert [one.task for one in merge_one(executor) if isinstance(one, do.RequestFlush)] == [FAR]
