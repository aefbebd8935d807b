"""Batches of which one group is processed by itself: each row once and in order, at a limited cost."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.executor.groups.traffic_sampler import TrafficSampler
from dask_elastic.meters.group_flows import GroupFlows
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import PartialsMoved, TimersDue

GROUPS = 8
SPACES = {"first": KeySpace(1, GROUPS), "second": KeySpace(1, GROUPS)}
HASHES = {group: next(h for h in range(2**12) if SPACES["first"].shard_of(np.array([h], np.uint64))[0] == group)
          for group in range(GROUPS)}  # fmt: skip


def batch_of(groups, start=0, **given):
    """Rows of some groups, numbered."""
    hashes = np.array([HASHES[group] for group in groups], np.uint64)
    rows = pa.record_batch({"group": pa.array(groups, pa.int64()), "row": np.arange(start, start + len(groups))})
    return Batch(rows, hashes, 0.0, **given)


class Clock:
    """Time that passes as a test says."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Passing:
    """Passes rows on to the same group of the next operator, at a cost per call and per row."""

    def __init__(self, clock, per_call=0.0, per_row=0.0):
        self.clock, self.per_call, self.per_row = clock, per_call, per_row
        self.calls = []

    def __call__(self, batch):
        self.calls.append(batch)
        self.clock.now += self.per_call + self.per_row * batch.rows.num_rows
        if batch.record is not None:
            return []
        return [Delivery(ExecutorId("second", 0), batch), Delivery(ExecutorId("sink", 0), batch._replace(hashes=None))]


def sampler_of(clock, **given):
    flows = GroupFlows()
    return TrafficSampler(flows, "first", SPACES, contextlib.nullcontext(), clock, **given), flows


@given(st.lists(st.lists(st.integers(0, GROUPS - 1), max_size=12), min_size=1, max_size=12))
def test_each_row_is_processed_once_and_groups_keep_their_order(batches):
    clock = Clock()
    sampler, _ = sampler_of(clock)
    process, start = Passing(clock), 0
    for groups in batches:
        out = sampler.process(batch_of(groups, start), process)
        passed = [row for target, one in out if target.component == "second" for row in one.rows.to_pylist()]
        assert sorted(row["row"] for row in passed) == [*range(start, start + len(groups))]
        for group in set(groups):
            numbers = [row["row"] for row in passed if row["group"] == group]
            assert numbers == sorted(numbers)
        start += len(groups)


def test_bytes_count_for_the_groups_that_get_them_and_all_groups_get_their_turn():
    clock = Clock()
    sampler, flows = sampler_of(clock)
    for _ in range(GROUPS):
        sampler.process(batch_of([*range(GROUPS)] * 5), Passing(clock))
    [flow] = flows.measured(0.0, np.full(GROUPS, 100.0))
    assert flow.operator == "second"
    assert flow.source.tolist() == flow.target.tolist() == [*range(GROUPS)]
    # Two columns and a hash, of eight bytes each.
    assert flow.rate == pytest.approx(np.full(GROUPS, 2400.0))


@pytest.mark.parametrize(("per_call", "per_row"), [(0.001, 0.0), (0.0005, 0.0001), (0.01, 0.001)])
def test_samples_take_no_more_than_their_share_of_the_time(per_call, per_row):
    seconds = {}
    for sampled in (False, True):
        clock = Clock()
        sampler, _ = sampler_of(clock, share=0.01)
        process = Passing(clock, per_call, per_row)
        for _ in range(4_000):
            batch = batch_of([*range(GROUPS)] * 4)
            sampler.process(batch, process) if sampled else process(batch)
        seconds[sampled] = clock.now
    extra = seconds[True] / seconds[False] - 1
    assert 0.002 < extra < 0.015


def test_expensive_rows_are_sampled_as_often_as_cheap_ones():
    """A row costs the same in a part: only what a second call costs counts."""
    clock = Clock()
    sampler, _ = sampler_of(clock)
    process = Passing(clock, per_row=2**-7)
    for _ in range(5):
        sampler.process(batch_of([0, 1, 2, 3]), process)
    assert len(process.calls) == 10


def record_batch(groups, record):
    return Batch(pa.record_batch({"shard": pa.array(groups, pa.int64())}), np.zeros(len(groups), np.uint64), 0.0,
                 record=record)  # fmt: skip


def test_state_record_fires_once_for_each_group_and_counts_once():
    clock = Clock()
    sampler, flows = sampler_of(clock)
    process = Passing(clock)

    def noting(batch):
        sampler.note_record(batch.now)
        return process(batch)

    for _ in range(3):
        sampler.process(record_batch([1, 4, 6], TimersDue(event=5)), noting)
        noting(record_batch([1, 4, 6], TimersDue(event=6)))
    fired = [batch.rows.column(0).to_pylist() for batch in process.calls]
    assert fired == [[1], [4, 6], [1, 4, 6], [4], [1, 6], [1, 4, 6], [6], [1, 4], [1, 4, 6]]
    assert flows.records.count == 6


def test_rows_of_one_group_alone_and_other_records_are_not_divided():
    clock = Clock()
    sampler, _ = sampler_of(clock)
    process = Passing(clock)
    sampler.process(batch_of([3, 3]), process)
    sampler.process(record_batch([1, 2], PartialsMoved(shard=1)), process)
    assert len(process.calls) == 2
