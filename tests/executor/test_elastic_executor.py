from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import FINAL_FLUSH, FIRST_ROWS, ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.moves import UNREQUESTED
from dask_elastic.executor.remote import RemotePart
from dask_elastic.executor.task import REMOTE_WINDOW
from dask_elastic.executor.task_queue import LabelItem, StopItem, Work
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import MoveRefused, PlanningError, ProtocolError
from dask_elastic.vocab.identity import ExecutorId

SOURCE = ExecutorId("source", 0)
ME = ExecutorId("per_key", 0)
SHARDS = 8


def make(cores=None, home=0, patience=0.0):
    limits = ExecutorLimits(patience=patience)
    return ElasticExecutor(ME, KeySpace(1, SHARDS), home, cores or {home: 2}, [SOURCE], limits=limits)


def batch(*hashes):
    rows = pa.record_batch({"key": pa.array(hashes, pa.int64()), "number": pa.array(range(len(hashes)), pa.int64())})
    return Batch(rows, np.array(hashes, dtype=np.uint64), 0.0)


def offer(executor, *hashes, nbytes=100):
    rows = batch(*hashes)
    return executor.accept(executor.split(rows), SOURCE, rows, nbytes, 0.0)


def keep_busy(executor, task, key):
    """Have a task take a row, so that its label has to wait."""
    offer(executor, key)
    number, work = executor.take(task)
    assert keys(work) == [key]
    return number


def waiting_rows(executor):
    """Return how many rows wait for paused shards."""
    return sum(piece.length for pieces in executor.routes.waiting.values() for piece in pieces)


def drain(executor, task, cores):
    """Return the core of an idle remote task, and have it answer labels until it takes its stop item."""
    executor.handle(events.SetCores(cores), 0.0)
    while isinstance(item := executor.take(task)[1], LabelItem):
        executor.take_back(m.LabelReturned(task, item.shard, -1, None), 0.0)
    assert isinstance(item, StopItem)


def keys(work):
    return work.batch().rows["key"].to_pylist()


def test_first_tasks_share_shards_and_only_home_tasks_own_state_at_home():
    executor = make({0: 1, 1: 2})
    assert executor.start() == [
        do.StartTask(0, 0, (0, 3, 6)),
        do.StartTask(1, 1, (1, 4, 7)),
        do.StartTask(2, 1, (2, 5)),
    ]
    assert np.flatnonzero(executor.store.owner == 0).tolist() == [0, 3, 6]
    assert (executor.store.owner != -1).sum() == 3


def test_rows_go_to_tasks_of_their_shards_and_credit_is_released_when_all_are_processed():
    executor = make()
    assert executor.take(0) is None
    assert executor.take(1) is None
    assert sorted(i.task for i in offer(executor, 0, 1, 2, 9)) == [0, 1]
    assert offer(executor, 3) == []
    first, second = executor.take(0), executor.take(1)
    assert keys(first[1]) == [0, 2]
    assert sorted(keys(second[1])) == [1, 3, 9]
    assert executor.done(0, first[0], 0.001, 1.0) == []
    assert executor.done(1, second[0], 0.001, 1.0) == [do.Release(SOURCE, 100, wanted_more=True)] * 2
    assert executor.measure(1.0).rows == 5


def test_task_takes_no_more_rows_than_its_limit():
    executor = make({0: 1})
    offer(executor, *range(FIRST_ROWS + 5))
    assert executor.take(0)[1].rows == FIRST_ROWS
    assert executor.take(0)[1].rows == 5


def test_only_rows_of_moving_shard_wait_and_they_arrive_in_order():
    executor = make()
    offer(executor, 0, 2, 0)
    number, taken = executor.take(0)
    offer(executor, 0, 2)
    executor.handle(events.MoveShard(0, 1), 1.0)
    offer(executor, 8, 2, 1)
    assert waiting_rows(executor) == 2
    assert keys(executor.take(1)[1]) == [1]
    executor.done(0, number, 0.0001, 1.0)
    assert executor.take(0)[1] == LabelItem(0, 1, True)
    assert keys(executor.take(0)[1]) == [2, 2]
    assert executor.take(1) is None
    assert executor.handle(events.LabelBack(0, 0), 2.0) == [do.Wake(1)]
    assert executor.store.owner[0] == 1
    assert keys(executor.take(1)[1]) == [0, 8]
    assert sorted(keys(taken)) == [0, 0, 2]
    assert (executor.moves.finished, executor.moves.finished_across) == (1, 0)
    assert executor.finished_moves()[0].pause == 1.0


def test_move_pauses_its_shard_when_source_has_nothing_in_flight():
    executor = make(patience=1.0)
    offer(executor, 0, 2)
    number, _ = executor.take(0)
    offer(executor, 0, 0)
    assert executor.handle(events.MoveShard(0, 1), 1.0) == []
    with pytest.raises(MoveRefused, match="about to move"):
        executor.handle(events.MoveShard(0, 1), 1.0)
    assert waiting_rows(executor) == 0
    executor.done(0, number, 0.0001, 1.5)
    assert executor.finished_moves()[0].pause == 0.0
    assert executor.take(0) is None
    assert keys(executor.take(1)[1]) == [0, 0]


def test_shard_of_idle_home_task_moves_at_once():
    executor = make({0: 2, 1: 1})
    executor.take(1)
    offer(executor, 0, 3)
    assert executor.handle(events.MoveShard(0, 1), 1.0) == [do.Wake(1)]
    assert executor.handle(events.MoveShard(3, 2), 1.0) == [do.InstallState(3, 2, 1, True)]
    assert keys(executor.take(1)[1]) == [0]
    assert waiting_rows(executor) == 1
    executor.handle(events.StateInstalled(3, 2), 1.5)
    assert keys(executor.take(2)[1]) == [3]
    assert [move.pause for move in executor.finished_moves()] == [0.0, 0.5]


def test_move_from_busy_source_pauses_its_shard_at_the_deadline():
    executor = make({1: 1, 0: 1}, home=0, patience=1.0)
    remote = next(t.number for t in executor.routes.tasks.values() if not t.at_home)
    home = 1 - remote
    shard = int(executor.routes.table.shards_of(remote)[0])
    numbers = []
    for _ in range(REMOTE_WINDOW):
        offer(executor, shard)
        numbers.append(executor.take(remote)[0])
    [request] = executor.handle(events.MoveShard(shard, home), 0.0)
    assert request == do.RequestFlush(remote, 1, UNREQUESTED, shard)
    executor.take_back(m.Flush(remote, -1, None, UNREQUESTED, shard), 0.1)
    executor.done(remote, numbers[0], 0.1, 0.5)
    assert not executor.moves.paused
    offer(executor, shard)
    numbers.append(executor.take(remote)[0])
    executor.done(remote, numbers[1], 0.1, 1.0)
    assert shard in executor.moves.paused


def test_batch_split_before_a_move_is_routed_by_the_current_table():
    executor = make()
    keep_busy(executor, 0, 4)
    given = batch(0, 1, 2)
    block = executor.split(given)
    executor.handle(events.MoveShard(0, 1), 0.0)
    executor.accept(block, SOURCE, given, 1, 0.0)
    assert waiting_rows(executor) == 1
    assert executor.take(0)[1] == LabelItem(0, 1, True)
    executor.handle(events.LabelBack(0, 0), 0.0)
    assert keys(executor.take(0)[1]) == [2]
    assert sorted(keys(executor.take(1)[1])) == [0, 1]


def test_move_to_another_node_installs_state_before_it_releases_rows():
    executor = make({0: 1, 1: 1})
    executor.take(1)
    keep_busy(executor, 0, 2)
    executor.handle(events.MoveShard(0, 1), 0.0)
    offer(executor, 0)
    assert executor.take(0)[1] == LabelItem(0, 1, False)
    assert executor.handle(events.LabelBack(0, 0), 0.0) == [do.InstallState(0, 1, 1, True)]
    assert executor.store.owner[0] == -1
    assert waiting_rows(executor) == 1
    assert executor.handle(events.StateInstalled(0, 1), 0.0) == [do.Wake(1)]
    assert keys(executor.take(1)[1]) == [0]
    assert executor.moves.finished_across == 1


def test_window_bounds_sub_batches_in_flight_but_not_labels():
    executor = make({1: 1})
    for number in range(3):
        offer(executor, *range(number * FIRST_ROWS, (number + 1) * FIRST_ROWS))
    taken = [executor.take(0) for _ in range(REMOTE_WINDOW)]
    assert all(isinstance(item, Work) for _, item in taken)
    assert executor.take(0) is None
    executor.handle(events.SetCores({1: 1, 0: 1}), 0.0)
    executor.handle(events.MoveShard(3, 1), 0.0)
    assert executor.take(0)[1] == LabelItem(3, 1, False)
    assert executor.take(0) is None
    assert do.Wake(0) in executor.done(0, taken[0][0], 0.01, 0.1)
    assert isinstance(executor.take(0)[1], Work)


@pytest.mark.parametrize(
    ("busy", "in_flight"),
    [
        pytest.param(0.0025, REMOTE_WINDOW + 28, id="brief sub-batches cover the round trip"),
        pytest.param(0.007, REMOTE_WINDOW + 10, id="of rows that take longer fewer do"),
        pytest.param(0.35, REMOTE_WINDOW + 1, id="one that takes longer than the round trip does"),
    ],
)
def test_work_in_flight_to_a_remote_task_lasts_for_a_round_trip(busy, in_flight):
    executor, hop = make({1: 1}), 0.069
    for sent in range(20):
        offer(executor, sent)
        number, _ = executor.take(0, float(sent))
        executor.done(0, number, busy, sent + hop + busy)
    for number in range(200):
        offer(executor, number)
    taken = 0
    while executor.take(0, 100.0) is not None:
        taken += 1
    assert taken == in_flight


def test_task_of_returned_core_is_drained_then_stopped():
    executor = make({0: 2})
    keep_busy(executor, 1, 1)
    executor.handle(events.SetCores({0: 1}), 0.0)
    assert executor.measure(0.0).cores == {0: 1}
    labels = []
    while not isinstance(item := executor.take(1)[1], StopItem):
        labels.append(item.shard)
        executor.handle(events.LabelBack(1, item.shard), 0.0)
    assert sorted(labels) == [1, 3, 5, 7]
    executor.handle(events.TaskEnded(1), 0.0)
    assert executor.assignment()[0].tolist() == [0] * SHARDS
    assert executor.assignment()[1] == {0: 0}


def test_an_idle_task_that_must_go_is_stopped_at_once():
    executor = make({0: 2})
    executor.take(1)
    assert executor.handle(events.SetCores({0: 1}), 0.0) == [do.Wake(1)]
    assert isinstance(executor.take(1)[1], StopItem)
    assert executor.assignment()[0].tolist() == [0] * SHARDS


def test_leaving_task_is_stopped_when_move_to_it_is_cancelled():
    executor = make(patience=1.0)
    executor.handle(events.SetCores({0: 3}), 0.0)
    executor.take(2)
    offer(executor, 1)
    number, _ = executor.take(1)
    executor.handle(events.MoveShard(1, 2), 0.0)
    executor.handle(events.SetCores({0: 2}), 0.0)
    assert executor.take(2) is None
    assert do.Wake(2) in executor.done(1, number, 0.001, 0.5)
    assert isinstance(executor.take(2)[1], StopItem)
    assert executor.assignment()[0].tolist() == [0, 1] * (SHARDS // 2)


def test_balance_gives_new_task_loaded_shards():
    executor = make({0: 1})
    offer(executor, *range(SHARDS))
    executor.done(0, executor.take(0)[0], 0.1, 0.5)
    assert do.StartTask(1, 0) in executor.handle(events.SetCores({0: 2}), 0.6)
    assert executor.moves.finished == SHARDS // 2
    assert np.count_nonzero(executor.assignment()[0] == 1) == SHARDS // 2


@pytest.mark.parametrize(("busy", "moves"), [(0.002, False), (0.9, True)])
def test_balance_moves_no_shard_whose_move_costs_more_than_it_gains(busy, moves):
    """All work is on one task: little of it is left there, much of it is shared."""
    executor = make({0: 2})
    offer(executor, *(shard for shard in range(SHARDS) if executor.assignment()[0][shard] == 0))
    executor.done(0, executor.take(0)[0], busy, 0.5)
    executor.handle(events.BalanceDue(), 0.6)
    assert (executor.moves.finished > 0) is moves


@pytest.mark.parametrize("cores", [{}, {0: 0}, {0: -1, 1: 2}])
def test_cores_below_one_are_refused(cores):
    executor = make()
    with pytest.raises(PlanningError, match="at least one core"):
        executor.handle(events.SetCores(cores), 0.0)
    assert executor.measure(0.0).cores == {0: 2}


@pytest.mark.parametrize(("shard", "target"), [(SHARDS, 1), (-1, 1), (0, 9), (2, 1)])
def test_impossible_move_is_refused_and_changes_nothing(shard, target):
    executor = make()
    keep_busy(executor, 0, 0)
    executor.handle(events.MoveShard(2, 1), 0.0)
    before = executor.routes.table
    with pytest.raises(MoveRefused):
        executor.handle(events.MoveShard(shard, target), 0.0)
    assert executor.routes.table is before


def test_move_to_owner_does_nothing():
    executor = make()
    assert executor.handle(events.MoveShard(0, 0), 0.0) == []
    assert executor.moves.by_shard == {}


def test_executor_finishes_when_input_is_processed_and_state_is_flushed():
    executor = make({0: 1, 1: 1})
    offer(executor, 1)
    assert executor.handle(events.InputEnded(SOURCE), 0.0) == []
    number, _ = executor.take(1)
    released = do.Release(SOURCE, 100, wanted_more=True)
    assert executor.done(1, number, 0.1, 0.2) == [released, do.RequestFlush(1, 1, FINAL_FLUSH)]
    assert not executor.finished
    assert executor.take_back(m.Flush(1, 0, None, FINAL_FLUSH), 0.3) == [do.Finished()]
    assert executor.finished


def test_flush_does_not_wait_for_ended_tasks():
    executor = make({0: 1, 1: 1})
    assert executor.handle(events.FlushDue(5), 0.0) == [do.RequestFlush(1, 1, 5)]
    drain(executor, 1, {0: 1})
    assert executor.handle(events.TaskEnded(1), 0.0) == [do.FlushComplete(5)]
    assert executor.handle(events.FlushDue(6), 0.0) == [do.FlushComplete(6)]


@pytest.mark.parametrize(
    "event",
    [
        events.LabelBack(0, 0),
        events.StateInstalled(0, 0),
        events.InputEnded(ExecutorId("stranger", 0)),
    ],
)
def test_illegal_event_raises(event):
    with pytest.raises(ProtocolError):
        make().handle(event, 0.0)


def test_batch_of_ended_input_raises():
    executor = make()
    executor.handle(events.InputEnded(SOURCE), 0.0)
    with pytest.raises(ProtocolError, match="has ended or is no input"):
        offer(executor, 1)


def test_settling_work_that_was_not_taken_raises():
    with pytest.raises(ProtocolError, match="which is not in flight"):
        make().done(0, 3, 0.1, 0.0)


def test_remote_part_ignores_flush_request_of_ended_task_but_no_other_message():
    part = RemotePart(ME, KeySpace(1, SHARDS))
    part.receive(m.StartTask(4, (1, 2)))
    part.control(m.StopTask(4))
    assert part.receive(m.FlushRequest(4, 9)) is False
    with pytest.raises(ProtocolError, match="task 4, which does not exist"):
        part.receive(m.Label(4, 1, True))


def test_move_from_remote_source_pauses_its_shard_after_the_flush_ahead():
    executor = make({1: 1, 0: 1}, home=0, patience=1.0)
    remote = next(t.number for t in executor.routes.tasks.values() if not t.at_home)
    shard = int(executor.routes.table.shards_of(remote)[0])
    assert executor.handle(events.MoveShard(shard, 1 - remote), 0.0) == [do.RequestFlush(remote, 1, UNREQUESTED, shard)]
    assert not executor.moves.paused, "the shard's rows still go to the remote task"
    executor.take_back(m.Flush(remote, -1, None, UNREQUESTED, shard), 0.1)
    assert shard in executor.moves.paused
    assert executor.take_back(m.Flush(remote, -1, None, UNREQUESTED, shard), 0.2) == [], "the move has begun before"


def test_task_wanted_more_rows_only_if_it_took_all_and_less_than_its_limit():
    executor = make({0: 1})
    offer(executor, *range(10))
    [number, work] = executor.take(0)
    assert work.wanted_more, "ten rows are fewer than the first limit"
    executor.done(0, number, 0.010, 0.0)
    for _ in range(4):
        offer(executor, *range(4))
    limits = [executor.take(0)[1] for _ in range(3)]
    assert [(work.rows, work.wanted_more) for work in limits] == [(5, False), (5, False), (5, False)]
    assert executor.take(0)[1].wanted_more
