"""What an executor reports of its key groups: the load of the rows that arrive, also after groups have come or left."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.groups.incoming_groups import IncomingGroups
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

SOURCE = ExecutorId("rows", 0)
GROUPS = 4
STEP = 0.25


def an_executor(index, groups):
    return GroupExecutor(ExecutorId("per_key", index), KeySpace(1, GROUPS), 0, {0: 1}, [SOURCE], groups=groups)


def offer(executor, group, rows, now):
    hashes = np.full(rows, group, dtype=np.uint64)
    batch = Batch(pa.record_batch({"key": pa.array(hashes, pa.uint64())}), hashes, now)
    executor.accept(executor.split(batch), SOURCE, batch, 100, now)


def process(executor, seconds_per_row, now):
    """Process the next work, if there is any."""
    task = next(iter(executor.routes.tasks))
    if (taken := executor.take(task, now)) is not None:
        number, work = taken
        executor.done(task, number, work.rows * seconds_per_row, now)


def test_load_of_groups_is_what_arrives_while_an_executor_cannot_keep_up():
    executor = an_executor(0, [0, 1])
    executor.measure(0.0)
    for tick in range(1, 9):
        offer(executor, 0, 30, tick * STEP)
        offer(executor, 1, 10, tick * STEP)
        if tick <= 4:
            process(executor, 0.01, tick * STEP)
        if tick % 2 == 0:
            measure = executor.measure(tick * STEP)
    # 160 rows per second of 10 ms each, of which none have been processed in the last second.
    assert measure.arriving_load == pytest.approx([1.2, 0.4, 0.0, 0.0], rel=0.05)
    assert measure.shard_load.sum() < measure.arriving_load.sum()


def two_executors():
    """Return an executor with the groups 0 and 1, one with 2 and 3, and what runs both for some ticks."""
    old, new = an_executor(0, [0, 1]), an_executor(1, [2, 3])
    for executor in (old, new):
        executor.measure(0.0)
    owners = {0: old, 1: old, 2: new, 3: new}

    def run(ticks, now):
        for _ in range(ticks):
            now += STEP
            for group, executor in owners.items():
                offer(executor, group, 10, now)
            for executor in (old, new):
                process(executor, 0.001, now)
                executor.measure(now)
        return now

    return old, new, owners, run


def move(old, new, now, drains, waiting=0):
    """Move group 1, for which rows wait meanwhile."""
    for executor, gains, loses in ((old, (), {1: 1}), (new, (1,), {})):
        executor.handle(events.HoldGroups(1, gains, loses, drains), now)
    if waiting:
        offer(new, 1, waiting, now + 0.01)
    for executor in (old, new):
        executor.handle(events.MarksDue(1), now + 0.02)
        executor.handle(events.EndMark(SOURCE, 1), now + 0.02)
    handed = HandedGroups.take_out(old, 1, (1,), None)
    old.handle(events.GroupsGiven(1), now + 0.03)
    handed.install(new, IncomingGroups(1, new.identity, new.store))
    new.handle(events.GroupsInstalled(handed), now + 0.03)
    if drains:
        new.handle(events.GroupsGiven(1), now + 0.03)
    assert (old.owned, new.owned) == ({0}, {1, 2, 3})
    assert old.exchange is None
    assert new.exchange is None


def test_group_that_has_moved_counts_in_full_at_its_new_executor_alone_after_a_pause():
    old, new, owners, run = two_executors()
    now = run(8, 0.0)
    # Rows that wait for the group arrive in its first moments.
    move(old, new, now, drains=True, waiting=200)
    owners[1] = new
    now = run(2, now + 0.03)
    assert old.measure(now).arriving_load == pytest.approx([0.04, 0.0, 0.0, 0.0], rel=0.05)
    assert new.measure(now).arriving_load == pytest.approx([0.0, 0.04, 0.04, 0.04], rel=0.05)


@pytest.mark.parametrize("ticks", range(1, 6))
def test_group_that_has_moved_without_a_pause_counts_in_full_at_both_executors_together(ticks):
    old, new, owners, run = two_executors()
    now = run(8, 0.0)
    move(old, new, now, drains=False)
    owners[1] = new
    now = run(ticks, now)
    loads = [executor.measure(now).arriving_load for executor in (old, new)]
    assert loads[0][1] == pytest.approx(max(0, 4 - ticks) * 0.01)
    assert sum(loads) == pytest.approx([0.04] * 4)
