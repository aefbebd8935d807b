"""State records at one executor: in order with the rows, behind no barrier, and never joined."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.control_records.state_records import TICKS_UNSETTLED
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.task_queue import Work
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import END_OF_TIME, TimersDue
from dask_elastic.vocab.watermark import Watermark

ORIGIN = ExecutorId("rows", 0)
SHARDS = 4


@pytest.fixture
def executor():
    made = ElasticExecutor(
        ExecutorId("per_key", 0), KeySpace(1, SHARDS), 0, {0: 2}, [ORIGIN], timed=[ORIGIN],
        clocks={"event", "processing"},
    )  # fmt: skip
    made.start()
    return made


def send(executor, *hashes):
    rows = pa.record_batch({"key": pa.array(hashes)})
    batch = Batch(rows, np.array(hashes, np.uint64), 0.0)
    executor.accept(executor.split(batch), ORIGIN, batch, 10, 0.0)


def taken(executor, task):
    """Take everything of a task: the record, or the hashes of the rows, of each unit of work."""
    found = []
    while (item := executor.take(task, 1.0)) is not None:
        number, work = item
        assert isinstance(work, Work)
        batch = work.batch()
        found.append((number, batch.record or batch.hashes.tolist()))
    return found


def settle(executor, task, work):
    instructions = []
    for number, _ in work:
        instructions += executor.done(task, number, 0.001, 1.0)
    return instructions


def watermark(executor, time):
    return executor.handle(events.InputWatermark(Watermark(ORIGIN, time)), 0.0)


def test_record_stays_between_rows_and_is_joined_with_nothing(executor):
    send(executor, 0, 1)
    send(executor, 0)
    watermark(executor, 5)
    watermark(executor, 6)
    send(executor, 0)
    rows = [work for _, work in taken(executor, 0)]
    assert rows == [[0, 0], TimersDue(5), TimersDue(6), [0]]
    assert [work for _, work in taken(executor, 1)] == [[1], TimersDue(5), TimersDue(6)]


def test_watermark_leaves_when_all_shards_have_processed_its_record(executor):
    watermark(executor, 5)
    first, second = taken(executor, 0), taken(executor, 1)
    assert do.EmitWatermark() not in settle(executor, 0, first)
    assert do.EmitWatermark() in settle(executor, 1, second)
    assert executor.watermarks.take() == Watermark(executor.identity, 5)


def test_same_time_makes_no_second_record(executor):
    watermark(executor, 5)
    watermark(executor, 5)
    assert len(taken(executor, 0)) == 1


def test_clock_fires_nothing_between_barriers_and_copy(executor):
    send(executor, 0)
    executor.handle(events.BarriersAligned(1), 1.0)
    assert executor.handle(events.ClockTicked(), 2.0) == []
    work = taken(executor, 0)
    assert work == [(0, [0])]
    taken(executor, 1)
    assert do.Cut(1) in settle(executor, 0, work)
    # The instruction is not carried out yet.
    assert executor.handle(events.ClockTicked(), 3.0) == []
    executor.cuts.made()
    assert executor.handle(events.ClockTicked(), 4.0) == [do.Wake(0), do.Wake(1)]
    assert [record for _, record in taken(executor, 0)] == [TimersDue(processing=4_000_000)]


def test_clock_fires_again_after_a_checkpoint_is_given_up(executor):
    send(executor, 0)
    executor.handle(events.BarriersAligned(1), 1.0)
    executor.handle(events.CheckpointAbandoned(1), 1.0)
    executor.handle(events.ClockTicked(), 2.0)
    assert [work for _, work in taken(executor, 0)] == [[0], TimersDue(processing=2_000_000)]


def test_clock_fires_again_after_a_checkpoint_is_given_up_between_flush_and_cut(executor):
    executor.handle(events.BarriersAligned(1), 1.0)
    assert executor.cuts.under_way
    # The flush is complete, and the thread that is to cut finds later that the checkpoint was given up.
    executor.handle(events.CheckpointAbandoned(1), 1.0)
    executor.handle(events.ClockTicked(), 2.0)
    assert [work for _, work in taken(executor, 0)] == [TimersDue(processing=2_000_000)]


def test_clock_waits_for_the_next_cut_when_an_older_checkpoint_is_given_up(executor):
    executor.handle(events.BarriersAligned(2), 1.0)
    executor.handle(events.CheckpointAbandoned(1), 1.0)
    executor.handle(events.ClockTicked(), 2.0)
    assert taken(executor, 0) == []


def test_cut_waits_for_records(executor):
    watermark(executor, 5)
    executor.handle(events.BarriersAligned(1), 1.0)
    first, second = taken(executor, 0), taken(executor, 1)
    assert do.Cut(1) not in settle(executor, 0, first)
    assert do.Cut(1) in settle(executor, 1, second)


def test_end_of_input_fires_all_timers_before_the_executor_finishes(executor):
    executor.handle(events.InputEnded(ORIGIN), 1.0)
    assert executor.handle(events.ClockTicked(), 2.0) == []
    first, second = taken(executor, 0), taken(executor, 1)
    assert [record for _, record in first] == [TimersDue(END_OF_TIME, END_OF_TIME, last=True)]
    assert do.Finished() not in settle(executor, 0, first)
    assert do.Finished() in settle(executor, 1, second)


def test_records_are_no_rows_to_meters(executor):
    watermark(executor, 5)
    assert executor.measure(1.0).queue_rows == 0
    work = taken(executor, 0)
    assert executor.measure(1.0).queue_rows == 0
    settle(executor, 0, work)
    measure = executor.measure(1.0)
    assert (measure.rows, measure.throughput, measure.service_rate) == (0, 0, None)
    assert measure.shard_load.sum() > 0
    assert executor.routes.backlog().sum() == executor.routes.in_flight().sum() == 0


def test_clock_makes_few_records_while_a_task_is_blocked(executor):
    for tick in range(10 * TICKS_UNSETTLED):
        executor.handle(events.ClockTicked(), 1.0 + tick)
    first, blocked = taken(executor, 0), taken(executor, 1)
    assert len(first) == len(blocked) == TICKS_UNSETTLED
    settle(executor, 0, first)
    executor.handle(events.ClockTicked(), 1_000.0)
    assert taken(executor, 0) == []
    settle(executor, 1, blocked)
    executor.handle(events.ClockTicked(), 1_001.0)
    assert [record for _, record in taken(executor, 0)] == [TimersDue(processing=1_001_000_000)]


def test_records_share_their_rows_until_shards_move(executor):
    table = executor.routes.table
    first, second = (executor.records.block(TimersDue(time), table) for time in (1, 2))
    assert (first.record, second.record) == (TimersDue(1), TimersDue(2))
    assert first.hashes is second.hashes
    assert executor.records.block(TimersDue(3), table.pause(0)).hashes is not first.hashes


def test_executor_without_timers_makes_no_records():
    plain = ElasticExecutor(ExecutorId("per_key", 0), KeySpace(1, SHARDS), 0, {0: 1}, [ORIGIN], timed=[ORIGIN])
    plain.start()
    watermark(plain, 5)
    plain.handle(events.ClockTicked(), 1.0)
    assert taken(plain, 0) == []


def test_end_is_no_event_time_for_rows_after_a_resume(executor):
    watermark(executor, 5)
    executor.handle(events.InputEnded(ORIGIN), 1.0)
    record = taken(executor, 0)[-1][1]
    assert record.last
    assert executor.store.event_time == 5
