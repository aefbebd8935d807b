"""Measures of an executor: rates, bytes, sub-batches, latencies, loads and sizes of shards."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.measures import AHEAD_SECONDS
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

SOURCE = ExecutorId("source", 0)
ME = ExecutorId("per_key", 0)
SHARDS = 8


def make(tasks):
    return ElasticExecutor(ME, KeySpace(1, SHARDS), 0, {0: tasks}, [SOURCE])


def offer(executor, hashes, stamp, now, nbytes=100):
    rows = pa.record_batch({"key": pa.array(hashes, pa.int64())})
    batch = Batch(rows, np.array(hashes, dtype=np.uint64), stamp)
    executor.accept(executor.split(batch), SOURCE, batch, nbytes, now)


def process(executor, task, busy, now):
    number, work = executor.take(task, now - busy)
    executor.done(task, number, busy, now)
    return work.rows


def test_executor_without_tuples_has_empty_measures():
    measure = make(1).measure(10.0)
    assert measure.service_rate is None
    assert measure.sojourn is None
    assert measure.latency_mean is None
    assert measure.customer_rows == 1.0
    assert measure.arrival_rate == measure.throughput == measure.bytes_in == measure.bytes_out == 0.0
    assert measure.shard_load.tolist() == measure.shard_bytes.tolist() == [0] * SHARDS


@pytest.mark.parametrize(("tasks", "customer"), [(1, 16.0), (2, 8.0), (4, 4.0)])
def test_batch_counts_as_one_customer_per_task_that_gets_rows(tasks, customer):
    executor = make(tasks)
    for tenth in range(10):
        offer(executor, range(16), 0.0, tenth / 10)
    assert executor.measure(1.0).customer_rows == customer


def test_rows_of_moving_shard_count_as_no_customer():
    limits = ExecutorLimits(patience=0.0)
    executor = ElasticExecutor(ME, KeySpace(1, SHARDS), 0, {0: 2}, [SOURCE], limits=limits)
    offer(executor, [0], 0.0, 0.0)
    executor.take(0)
    executor.handle(events.MoveShard(0, 1), 0.0)
    offer(executor, [0, 0], 0.0, 0.1)
    assert executor.measures.customers.total(0.5) == 1
    assert executor.measure(0.5).queue_rows == 3


def test_traffic_is_measured_by_upstream_instance():
    other = ExecutorId("source", 1)
    executor = ElasticExecutor(ME, KeySpace(1, SHARDS), 0, {0: 1}, [SOURCE, other])
    executor.measure(0.0)
    for origin, nbytes in [(SOURCE, 300), (other, 500), (SOURCE, 300)]:
        batch = Batch(pa.record_batch({"key": pa.array([1], pa.int64())}), np.array([1], dtype=np.uint64), 0.0)
        executor.accept(executor.split(batch), origin, batch, nbytes, 0.5)
    assert executor.measure(1.0).traffic == ((SOURCE, 600.0), (other, 500.0))


def test_arrivals_and_outputs_are_measured_separately():
    executor = make(1)
    for tenth in range(10):
        offer(executor, range(20), 0.0, tenth / 10, nbytes=500)
    rows = process(executor, 0, 0.01, 0.5)
    executor.emitted(300, 0.5)
    measure = executor.measure(1.0)
    assert measure.arrival_rate == pytest.approx(200)
    assert measure.bytes_in == pytest.approx(5_000)
    assert measure.throughput * 300 == pytest.approx(measure.bytes_out * rows)
    assert 0 < measure.throughput < 200
    assert measure.rows == rows
    assert measure.queue_rows == 200 - rows


def test_sojourn_counts_from_arrival_and_latency_from_source():
    executor = make(1)
    offer(executor, [1, 2, 3], stamp=9.0, now=10.0)
    offer(executor, [4], stamp=9.8, now=10.2)
    assert process(executor, 0, 0.1, 10.5) == 4
    measure = executor.measure(11.0)
    assert measure.sojourn == pytest.approx((3 * 0.5 + 0.3) / 4)
    assert measure.latency_mean == pytest.approx((3 * 1.5 + 0.7) / 4)
    assert measure.latency_rows == 4
    assert measure.latency_now.count == 4
    assert executor.measure(20.0).sojourn is None
    assert executor.measure(15.0).latency_now.count == 0
    assert executor.measure(15.0).latency.count == 4


def test_shard_loads_are_measured_separately():
    executor = make(1)
    offer(executor, [1, 1, 1, 6], 0.0, 0.0)
    process(executor, 0, 0.4, 0.5)
    measure = executor.measure(1.0)
    assert measure.shard_load[1] == pytest.approx(3 * measure.shard_load[6])
    assert np.flatnonzero(measure.shard_load).tolist() == [1, 6]
    assert measure.state_bytes == measure.shard_bytes.sum()


def test_balance_follows_arrivals_after_their_distribution_jumps():
    executor = make(2)
    shard_of = executor.routes.space.shard_of(np.arange(1000, dtype=np.uint64))
    key_of = [int(np.flatnonzero(shard_of == shard)[0]) for shard in range(SHARDS)]
    owner = executor.routes.table.owner.tolist()
    first, second = ([shard for shard in range(SHARDS) if owner[shard] == task] for task in (0, 1))

    def quarter(number, hot):
        keys = [key_of[shard] for shard in range(SHARDS) for _ in range(40 if shard in hot else 4)]
        now = number / 4
        offer(executor, keys, now, now)
        for task in (0, 1):
            while (taken := executor.take(task, now)) is not None:
                executor.done(task, taken[0], taken[1].rows / 1000, now)
        executor.handle(events.BalanceDue(), now + 0.01)

    for number in range(12):
        quarter(number, {first[0], second[0]})
    assert len(executor.moves) == executor.moves.finished == 0
    quarter(12, {first[0], first[1]})
    assert executor.measures.demand.jumps == 1
    assert executor.moves.finished >= 1


def test_work_of_shard_is_its_waiting_and_expected_rows_times_its_cost():
    measures = make(1).measures
    nothing = np.zeros(SHARDS, dtype=np.int64)
    assert measures.work_by_shard(nothing, nothing, 0.0).tolist() == [0.0] * SHARDS
    rows = np.array([100, 0, 50, 0, 0, 0, 0, 0])
    for half in range(3):
        measures.service.add(150, 2.0)
        measures.loads.add(rows * [1, 0, 0, 0, 0, 0, 0, 0], 1.0, half / 2)
        measures.loads.add(rows * [0, 0, 1, 0, 0, 0, 0, 0], 1.0, half / 2)
        work = measures.work_by_shard(nothing, nothing, half / 2 + 0.01)
    # 200 and 100 rows a second for two seconds, at 10 and 20 ms.
    assert work.tolist() == pytest.approx([4, 0, 4, 0, 0, 0, 0, 0])
    waiting = np.array([0, 0, 0, 10, 0, 0, 0, 0])
    assert measures.work_by_shard(waiting, nothing, 1.02)[3] == pytest.approx(10 * 2.0 / 150, rel=0.01)


def test_state_records_count_as_lasting_load():
    measures = make(1).measures
    nothing = np.zeros(SHARDS, dtype=np.int64)
    assert measures.lasting_load(0) is None
    for second in range(5):
        measures.settled(SimpleNamespace(record="timers are due"), [0], 0.25, float(second))
        measures.note_arrived(nothing, nothing, float(second))
    assert measures.lasting_load(0) == pytest.approx(0.25)


def test_waiting_rows_count_as_lasting_load():
    measures = make(1).measures
    rows = np.array([100, 0, 0, 0, 0, 0, 0, 0])
    for second in range(5):
        measures.lasting.add(100, 0.1, float(second))
        measures.note_arrived(rows * second, rows * 0, float(second))
    assert measures.lasting_load(0) == pytest.approx(0.1)
    assert measures.lasting_load(400) == pytest.approx(0.1 + 400 * 0.001 / AHEAD_SECONDS)
