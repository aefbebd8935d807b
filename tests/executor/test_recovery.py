"""Failover of remote tasks: the rows of the replay, their tasks, their order, and their outputs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import FINAL_FLUSH, ElasticExecutor
from dask_elastic.executor.flushes import TRIM
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.pending import Sent
from dask_elastic.executor.piece import Block, Piece, Receipt
from dask_elastic.executor.task_queue import LabelItem, Work
from dask_elastic.executor.task_status import TaskStatus
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import PlanningError, PoisonBatch, ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import TimersDue

SOURCE = ExecutorId("source", 0)
ME = ExecutorId("per_key", 0)
SHARDS = 4
HOME, NEAR, FAR = 0, 1, 2


def make(cores, clocks=(), **limits):
    executor = ElasticExecutor(
        ME, KeySpace(1, SHARDS), HOME, cores, [SOURCE], limits=ExecutorLimits(patience=0.0, **limits), clocks=clocks
    )
    executor.recovery.keys = ("key",)
    return executor


def offer(executor, *hashes, nbytes=100, now=0.0):
    rows = pa.record_batch({"key": pa.array(hashes, pa.int64())})
    batch = Batch(rows, np.array(hashes, dtype=np.uint64), 0.0)
    return executor.accept(executor.split(batch), SOURCE, batch, nbytes, now)


def send(executor, task, *hashes, **given):
    """Offer rows and send a remote task all that its window allows; returns the numbers of the sub-batches."""
    offer(executor, *hashes, **given)
    numbers = []
    while (taken := executor.take(task)) is not None:
        numbers.append(taken[0])
        assert taken[1].batch() is taken[1].batch(), "the batch kept for a replay is the one that was sent, not a copy"
    return numbers


def settle(executor, task, number, outputs=True, now=0.0):
    if outputs:
        assert executor.links.leaves(m.Outputs(task, number, ()))
    return executor.take_back(m.Done(task, number, 0.001), now)


def lose(executor, node, now=1.0, **given):
    executor.links.cut(node)
    return executor.handle(events.NodeLeft(node, **given), now)


def install_all(executor, instructions, now=1.0):
    """Install shards as the driver does; returns the instructions that follow."""
    following = []
    for instruction in instructions:
        if isinstance(instruction, do.InstallState):
            following += executor.handle(events.StateInstalled(instruction.shard, instruction.task), now)
    return following


def processed(executor, task):
    """Let a task process its queue; returns [(key, silent)] for each sub-batch."""
    units = []
    while (taken := executor.take(task)) is not None:
        number, work = taken
        assert isinstance(work, Work)
        units.append([(key, work.silent) for key in work.batch().rows["key"].to_pylist()])
        executor.done(task, number, 0.001, 2.0)
    return units


def test_home_task_keeps_nothing_for_a_replay():
    executor = make({HOME: 2})
    offer(executor, 0, 1)
    number, work = executor.take(0)
    assert executor.routes.tasks[0].pending is None
    assert work.batch() is not work.batch()
    executor.done(0, number, 0.1, 0.0)
    assert executor.routes.pending_bytes == 0


def test_replay_omits_flushed_rows_and_outputs_that_have_left():
    executor = make({HOME: 1, NEAR: 1})
    [flushed] = send(executor, 1, 1)
    settle(executor, 1, flushed)
    executor.take_back(m.Flush(1, flushed, None, TRIM), 0.0)
    [settled] = send(executor, 1, 5)
    settle(executor, 1, settled)
    [emitted] = send(executor, 1, 9)
    assert executor.links.leaves(m.Outputs(1, emitted, ()))
    [in_flight] = send(executor, 1, 13)
    assert (flushed, settled, emitted, in_flight) == (0, 1, 2, 3)
    offer(executor, 17)
    lose(executor, NEAR)
    assert processed(executor, 0) == [[(5, True), (9, True)], [(13, False)], [(17, False)]]
    assert executor.assignment()[0].tolist() == [0] * SHARDS


def test_rows_that_were_counted_are_replayed_by_themselves_where_event_time_counts():
    executor = make({HOME: 1, NEAR: 1}, clocks={"event"})
    [settled] = send(executor, 1, 5)
    settle(executor, 1, settled)
    [emitted] = send(executor, 1, 9)
    assert executor.links.leaves(m.Outputs(1, emitted, ()))
    lose(executor, NEAR)
    counted = []
    while (taken := executor.take(0)) is not None:
        number, work = taken
        batch = work.batch()
        counted.append((batch.rows["key"].to_pylist(), batch.settled))
        executor.done(0, number, 0.001, 2.0)
    assert counted == [([5], True), ([9], False)]


def test_replayed_rows_count_once_and_release_their_credit_once():
    executor = make({HOME: 1, NEAR: 1})
    [settled] = send(executor, 1, 1, nbytes=70)
    assert do.Release(SOURCE, 70, wanted_more=True) in settle(executor, 1, settled)
    send(executor, 1, 5, nbytes=30)
    lose(executor, NEAR)
    assert executor.measure(1.0).queue_rows == 2
    released = []
    while (taken := executor.take(0)) is not None:
        released += [i for i in executor.done(0, taken[0], 0.001, 2.0) if isinstance(i, do.Release)]
    assert released == [do.Release(SOURCE, 30, wanted_more=True)]
    assert executor.measure(2.0).rows == 2
    assert executor.measure(2.0).queue_rows == 0


def test_shard_that_left_the_task_is_not_replayed():
    executor = make({HOME: 1, NEAR: 1})
    [number] = send(executor, 1, 1, 3)
    settle(executor, 1, number)
    executor.handle(events.MoveShard(1, 0), 0.0)
    assert executor.take(1)[1] == LabelItem(1, 0, False)
    executor.take_back(m.LabelReturned(1, 1, number, None), 0.0)
    lose(executor, NEAR)
    assert processed(executor, 0) == [[(3, True)]]


def test_shard_that_returned_to_the_task_is_replayed_from_its_return():
    executor = make({HOME: 1, NEAR: 1})
    [before] = send(executor, 1, 1)
    settle(executor, 1, before)
    executor.handle(events.MoveShard(1, 0), 0.0)
    executor.take(1)
    executor.take_back(m.LabelReturned(1, 1, before, None), 0.0)
    executor.handle(events.MoveShard(1, 1), 0.0)
    executor.handle(events.StateInstalled(1, 1), 0.0)
    [after] = send(executor, 1, 5)
    settle(executor, 1, after)
    lose(executor, NEAR)
    assert processed(executor, 0) == [[(5, True)]]


def test_target_replays_first_when_source_is_lost_during_move():
    executor = make({HOME: 1, NEAR: 1, FAR: 1})
    send(executor, 1, 1)
    executor.handle(events.MoveShard(1, 2), 0.0)
    assert executor.take(1)[1] == LabelItem(1, 2, False)
    offer(executor, 5)
    instructions = lose(executor, NEAR)
    assert do.InstallState(1, 2, FAR, True) in instructions
    assert do.Wake(2) not in instructions
    executor.take(2)
    assert do.Wake(2) in install_all(executor, instructions)
    assert executor.take(2)[1].batch().rows["key"].to_pylist() == [1]
    assert executor.take(2)[1].batch().rows["key"].to_pylist() == [5]
    assert executor.moves.finished == 0, "a recovery does not count as a move"


def test_shard_moves_to_heir_when_target_is_lost_while_installing():
    executor = make({HOME: 1, NEAR: 1, FAR: 1})
    executor.handle(events.MoveShard(0, 1), 0.0)
    offer(executor, 0)
    instructions = lose(executor, NEAR)
    assert executor.handle(events.StateInstalled(0, 1), 1.0) == [], "the task is lost"
    install_all(executor, instructions)
    assert not executor.moves.by_shard
    owner, nodes = executor.assignment()
    assert nodes == {0: HOME, 2: FAR}
    assert set(owner.tolist()) <= set(nodes)
    assert sum(len(unit) for task in nodes for unit in processed(executor, task)) == 1


def test_lost_target_is_replaced_while_label_is_in_flight():
    executor = make({HOME: 1, NEAR: 1, FAR: 1})
    [number] = send(executor, 2, 2)
    executor.handle(events.MoveShard(2, 1), 0.0)
    assert executor.take(2)[1] == LabelItem(2, 1, False)
    lose(executor, NEAR)
    settle(executor, 2, number)
    instructions = executor.take_back(m.LabelReturned(2, 2, number, None), 1.5)
    install_all(executor, instructions)
    assert 2 not in executor.moves.by_shard
    assert int(executor.assignment()[0][2]) in (0, 2)


def test_stopping_task_is_lost_and_its_end_is_ignored():
    executor = make({HOME: 1, NEAR: 1})
    executor.handle(events.SetCores({HOME: 1}), 0.0)
    while isinstance(item := executor.take(1)[1], LabelItem):
        executor.take_back(m.LabelReturned(1, item.shard, -1, None), 0.0)
    task = executor.routes.tasks[1]
    assert task.status is TaskStatus.STOPPING
    lose(executor, NEAR)
    assert task.status is TaskStatus.LOST
    assert executor.handle(events.TaskEnded(1), 1.0) == []


def test_second_loss_during_replay_is_recovered():
    executor = make({HOME: 1, NEAR: 1, FAR: 1})
    [first] = send(executor, 1, 1)
    settle(executor, 1, first)
    send(executor, 2, 2)
    lose(executor, NEAR, replacements={FAR: 1})
    instructions = lose(executor, FAR)
    assert [i for i in instructions if isinstance(i, do.StartTask)] == []
    assert processed(executor, 0) == [[(1, True)], [(2, False)]]
    assert executor.recovery.rows == 0
    assert [record.node for record in executor.recoveries()] == [NEAR, FAR]


def test_executor_that_loses_its_last_core_continues_at_home():
    executor = make({NEAR: 1})
    send(executor, 0, 1)
    instructions = lose(executor, NEAR)
    assert do.StartTask(1, HOME) in instructions
    assert processed(executor, 1) == [[(1, False)]]
    assert executor.measure(1.0).cores == {HOME: 1}


def test_replacement_tasks_start_on_nodes_of_the_event():
    executor = make({HOME: 1, NEAR: 1})
    send(executor, 1, 1)
    instructions = lose(executor, NEAR, replacements={FAR: 1})
    assert instructions[0] == do.StartTask(2, FAR)
    assert executor.measure(1.0).cores == {HOME: 1, FAR: 1}
    with pytest.raises(PlanningError, match="node 1 is lost"):
        executor.handle(events.SetCores({HOME: 1, NEAR: 1}), 1.0)
    executor.handle(events.NodeReturned(NEAR), 1.0)
    assert do.StartTask(3, NEAR) in executor.handle(events.SetCores({HOME: 1, NEAR: 1}), 1.0)


def test_messages_of_lost_node_change_nothing():
    executor = make({HOME: 1, NEAR: 1})
    [number] = send(executor, 1, 1)
    before = executor.links.stamp(1)
    lose(executor, NEAR)
    rows = executor.recovery.rows
    assert not executor.links.admit(NEAR, before)
    assert executor.take(1) is None
    assert executor.links.stamp(1) is None
    assert not executor.links.leaves(m.Outputs(1, number, ()))
    assert executor.take_back(m.Done(1, number, 0.1), 1.0) == []
    poison = pa.record_batch({"no": ["state"]})
    assert executor.take_back(m.Flush(1, number, poison, TRIM), 1.0) == []
    assert executor.take_back(m.LabelReturned(1, 1, number, poison), 1.0) == []
    assert executor.handle(events.TaskEnded(1), 1.0) == []
    assert executor.links.refused == executor.measure(1.0).refused == 5
    assert executor.recovery.rows == rows == 1


def test_pending_queue_requests_flush_when_half_full_and_stops_the_task_when_full():
    executor = make({NEAR: 1}, pending_bytes=100)
    [number] = send(executor, 0, 1, nbytes=50)
    assert do.RequestFlush(0, NEAR, TRIM) in settle(executor, 0, number)
    [second] = send(executor, 0, 1, nbytes=60)
    assert do.RequestFlush(0, NEAR, TRIM) not in settle(executor, 0, second), "one flush is in progress"
    assert send(executor, 0, 1, nbytes=60) == []
    assert executor.routes.pending_bytes == 110
    instructions = executor.take_back(m.Flush(0, number, None, TRIM), 0.0)
    assert do.Wake(0) in instructions
    assert do.RequestFlush(0, NEAR, TRIM) in instructions, "the queue is still more than half full"
    assert isinstance(executor.take(0)[1], Work)


def test_flush_completes_only_after_the_replay():
    executor = make({HOME: 1, NEAR: 1})
    [number] = send(executor, 1, 1)
    settle(executor, 1, number)
    assert executor.handle(events.FlushDue(7), 0.0) == [do.RequestFlush(1, NEAR, 7)]
    assert do.FlushComplete(7) not in lose(executor, NEAR)
    assert executor.handle(events.FlushDue(8), 0.0) == []
    number, _ = executor.take(0)
    following = executor.done(0, number, 0.1, 2.0)
    assert [i for i in following if isinstance(i, do.FlushComplete)] == [do.FlushComplete(7), do.FlushComplete(8)]


def test_executor_finishes_only_after_the_replay():
    executor = make({HOME: 1, NEAR: 1})
    [number] = send(executor, 1, 1)
    executor.handle(events.InputEnded(SOURCE), 0.0)
    assert do.RequestFlush(1, NEAR, FINAL_FLUSH) in settle(executor, 1, number)
    lose(executor, NEAR)
    assert not executor.finished
    number, _ = executor.take(0)
    assert executor.done(0, number, 0.1, 2.0)[-1] == do.Finished()


def test_recovery_record_has_time_to_first_replayed_row():
    executor = make({HOME: 1, NEAR: 1})
    send(executor, 1, 1, 3)
    assert executor.measure(0.5).recovery is None
    lose(executor, NEAR, now=1.0)
    [record] = executor.recoveries()
    assert (record.tasks, record.shards, record.rows) == (1, 2, 2)
    assert (record.lost, record.first, record.ended) == (1.0, None, None)
    number, _ = executor.take(0)
    executor.done(0, number, 0.1, 3.0)
    [record] = executor.recoveries()
    assert (record.first, record.ended) == (3.0, 3.0)
    measure = executor.measure(3.0)
    assert (measure.recovered, measure.recovery) == (1, (2.0, 2.0))


def test_loss_of_home_raises():
    executor = make({HOME: 1})
    with pytest.raises(ProtocolError, match="cannot lose its home"):
        lose(executor, HOME)


def test_loss_of_node_whose_link_is_not_cut_raises():
    executor = make({HOME: 1, NEAR: 1})
    with pytest.raises(ProtocolError, match="link was not cut before"):
        executor.handle(events.NodeLeft(NEAR), 0.0)


def test_flush_of_unsettled_sub_batch_raises():
    executor = make({NEAR: 1})
    [number] = send(executor, 0, 1)
    with pytest.raises(ProtocolError, match="is not settled"):
        executor.take_back(m.Flush(0, number, None, TRIM), 0.0)


def test_outputs_sent_twice_raise():
    executor = make({NEAR: 1})
    [number] = send(executor, 0, 1)
    assert executor.links.leaves(m.Outputs(0, number, ()))
    with pytest.raises(ProtocolError, match="twice"):
        executor.links.leaves(m.Outputs(0, number, ()))


def test_replayed_rows_keep_their_processing_time():
    executor = make({HOME: 1, NEAR: 1})
    home, near = sorted(executor.routes.tasks, key=lambda number: not executor.routes.tasks[number].at_home)
    first, second = (int(shard) for shard in executor.routes.table.shards_of(near)[:2])
    space = executor.routes.space
    keys = [next(n for n in range(1_000) if space.shard_of(np.array([n], np.uint64))[0] == s) for s in (first, second)]
    for key, now in zip(keys, (5.0, 6.0), strict=True):
        offer(executor, key, now=now)
        executor.take(near, now)
    install_all(executor, lose(executor, NEAR, now=9.0), now=9.0)
    offer(executor, keys[0], now=10.0)
    times = []
    while (taken := executor.take(home, 11.0)) is not None:
        times.append(taken[1].now)
        executor.done(home, taken[0], 0.001, 11.0)
    assert times == [5.0, 6.0, 11.0]


def has_suspects(executor):
    return executor.recovery.has_suspects()


def test_rows_of_which_two_nodes_died_raise_poison_batch():
    executor = make({NEAR: 1, FAR: 1})
    send(executor, 0, 0)
    install_all(executor, lose(executor, NEAR, died=True))
    assert has_suspects(executor), "the rows wait for their heir"
    _, work = executor.take(1)
    assert work.rows == 1
    assert not has_suspects(executor), "the rows are on another node"
    executor.links.cut(FAR)
    with pytest.raises(PoisonBatch) as raised:
        executor.handle(events.NodeLeft(FAR, died=True), 2.0)
    assert (raised.value.operator, raised.value.batch) == (ME.component, "1 row with the key 0, from source[0]")


def test_every_sub_batch_that_a_dead_node_may_have_processed_is_suspect():
    """It may have died of the second one before it reported that it had processed the first."""
    executor = make({NEAR: 1, FAR: 1})
    far = 1
    for now, key in enumerate((0, 4)):
        offer(executor, key)
        executor.take(0, float(now))
    install_all(executor, lose(executor, NEAR, died=True))
    first, _ = executor.take(far)
    assert executor.take(far) is None, "the next suspect is not sent before the first is known to be processed"
    settle(executor, far, first)
    assert executor.take(far) is not None
    executor.links.cut(FAR)
    with pytest.raises(PoisonBatch, match="while processing 1 row with the key 4, from source"):
        executor.handle(events.NodeLeft(FAR, died=True), 2.0)


def test_timers_that_are_suspect_are_described_as_such():
    rows = pa.record_batch({"shard": [0]})
    receipt = Receipt(SOURCE, 0, 1, 0.0, 0.0)
    piece = Piece(Block(rows, np.zeros(1, np.uint64), record=TimersDue(event=5)), 0, 1, receipt)
    assert make({HOME: 1}).recovery.described(Sent(0, Work([piece]), 0)) == "timers or windows that were due"


def test_suspects_are_sent_when_nothing_else_is_in_flight():
    """The node may die of them before it reports that it has processed what it was sent before."""
    executor = make({NEAR: 1, FAR: 1})
    far = 1
    [own] = send(executor, far, 1)
    send(executor, 0, 0)
    install_all(executor, lose(executor, NEAR, died=True))
    assert executor.take(far) is None
    settle(executor, far, own)
    number, _ = executor.take(far)
    offer(executor, 5)
    assert executor.take(far) is None, "ordinary rows wait as well: none may be mistaken for suspects"
    settle(executor, far, number)
    assert len(send(executor, far, 1)) == 1


def test_rows_processed_at_home_are_no_longer_suspects():
    executor = make({HOME: 1, NEAR: 1})
    send(executor, 1, 1)
    offer(executor, 5)
    install_all(executor, lose(executor, NEAR, died=True))
    assert has_suspects(executor)
    number, work = executor.take(0)
    assert work.rows == 1
    assert has_suspects(executor), "a task at home processes them"
    executor.done(0, number, 0.1, 2.0)
    assert not has_suspects(executor)


@pytest.mark.parametrize("died", [False, True])
def test_settled_rows_of_dead_node_are_no_suspects(died):
    executor = make({HOME: 1, NEAR: 1})
    [number] = send(executor, 1, 1)
    settle(executor, 1, number)
    install_all(executor, lose(executor, NEAR, died=died))
    assert not has_suspects(executor), "the node had processed all that it was sent"
    assert executor.recovery.rows == 1
