"""Rows of groups that leave, or have come, do not wait for those of other groups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.groups.group_executor import HASTE_SECONDS, GroupExecutor
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.piece import SMALL_BLOCK
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.shard_owners import NO_OWNER
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import StateError
from dask_elastic.vocab.identity import ExecutorId

SOURCE = ExecutorId("rows", 0)
GROUPS = 4
SECONDS_PER_ROW = 1e-4


def an_executor(index=0, groups=(0, 1, 2, 3)):
    return GroupExecutor(ExecutorId("per_key", index), KeySpace(1, GROUPS), 0, {0: 1}, [SOURCE], groups=groups)


def offer(executor, groups, numbers):
    hashes = np.array(groups, dtype=np.uint64)
    batch = Batch(pa.record_batch({"number": pa.array(numbers, pa.int64())}), hashes, 0.0)
    executor.accept(executor.split(batch), SOURCE, batch, 100, 0.0)


def take(executor):
    """Return the number and the work of the only task, None if nothing waits."""
    return executor.take(next(iter(executor.routes.tasks)), 0.0)


def taken(executor):
    """Process what the task takes next; returns the numbers in the rows, and what the executor asks for."""
    number, work = take(executor)
    numbers = work.batch().rows["number"].to_pylist()
    return numbers, executor.done(0, number, len(numbers) * SECONDS_PER_ROW, 0.0)


def switched(executor, version=1):
    executor.handle(events.MarksDue(version), 0.0)
    return executor.handle(events.EndMark(SOURCE, version), 0.0)


@pytest.mark.parametrize("rows", [20, 2_000])
def test_rows_of_groups_that_leave_are_processed_first_and_in_order(rows):
    executor = an_executor()
    for start in (0, rows):
        offer(executor, [number % GROUPS for number in range(rows)], range(start, start + rows))
    executor.handle(events.HoldGroups(1, (), {1: 1, 3: 1}, drains=False), 0.0)
    assert switched(executor) == []
    done, drained = [], False
    while not drained:
        numbers, instructions = taken(executor)
        done += numbers
        drained = do.GroupsDrained(1) in instructions
    assert done == [number for number in range(2 * rows) if number % 2]
    while take(executor) is not None:
        pass
    assert executor.routes.backlog().sum() == 0


def test_rows_that_are_sorted_by_group_are_processed_first_and_in_order():
    executor, rows = an_executor(0, groups=(1, 2, 3)), 2 * SMALL_BLOCK
    executor.handle(events.HoldGroups(1, (0,), {}, drains=False), 0.0)
    offer(executor, [1 + number % 3 for number in range(rows)], range(rows))
    switched(executor)
    executor.handle(events.GroupsInstalled(HandedGroups(1, 1, (0,), 0, (), {}, None, 0.0)), 0.0)
    executor.handle(events.HoldGroups(2, (), {1: 1, 3: 1}, drains=False), 0.0)
    switched(executor, 2)
    done = []
    while executor.routes.backlog().any():
        done += taken(executor)[0]
    leaving = len([number for number in done if number % 3 != 1])
    assert sorted(done) == [*range(rows)]
    assert all(number % 3 != 1 for number in done[:leaving])
    for group in range(3):
        assert [number for number in done if number % 3 == group] == [*range(group, rows, 3)]


def test_rows_of_a_queue_are_not_copied_where_the_lock_is_held_to_hasten_some():
    executor = an_executor()
    for rows in (20, 2_000):
        offer(executor, [number % GROUPS for number in range(rows)], range(rows))
    [task] = executor.routes.tasks.values()
    before = {id(piece.block.rows) for piece in task.queue.pieces}
    executor.handle(events.HoldGroups(1, (), {1: 1}, drains=False), 0.0)
    switched(executor)
    pieces = task.queue.pieces
    assert [piece.length for piece in pieces] == [5, 500, 15, 1_500]
    assert {id(piece.block.rows) for piece in pieces} == before


def test_synchronised_move_changes_no_order():
    executor = an_executor()
    offer(executor, [0, 1, 0, 1], range(4))
    executor.handle(events.HoldGroups(1, (), {1: 1}, drains=True), 0.0)
    switched(executor)
    assert taken(executor)[0] == [0, 1, 2, 3]


def test_rows_that_have_waited_for_a_group_are_processed_first_and_alone():
    executor = an_executor(1, groups=(2, 3))
    executor.handle(events.HoldGroups(1, (1,), {}, drains=False), 0.0)
    offer(executor, [2, 1, 3, 1], range(4))
    switched(executor)
    executor.handle(events.GroupsInstalled(HandedGroups(1, 0, (1,), 0, (), {}, None, 0.0)), 0.0)
    assert taken(executor)[0] == [1, 3]
    assert taken(executor)[0] == [0, 2]


def test_executor_holds_groups_once_its_task_has_done_what_it_had_taken():
    executor = an_executor()
    offer(executor, [0, 1, 2, 3], range(4))
    number, _ = take(executor)
    offer(executor, [0], [4])
    assert executor.handle(events.HoldGroups(1, (), {1: 1}, drains=False), 0.0) == []
    assert do.GroupsHeld(1) in executor.done(0, number, 4 * SECONDS_PER_ROW, 0.0)
    assert do.GroupsHeld(1) not in taken(executor)[1]


@pytest.mark.parametrize("drains", [False, True])
def test_executor_holds_groups_at_once_unless_rows_would_wait_for_its_task(drains):
    executor = an_executor()
    if drains:
        offer(executor, [0], [0])
        take(executor)
    assert executor.handle(events.HoldGroups(1, (), {1: 1}, drains), 0.0) == [do.GroupsHeld(1)]


def test_task_takes_little_at_once_while_rows_of_groups_wait():
    executor = an_executor()
    for rows in (10, 20, 40, 80, 160):
        offer(executor, [0] * rows, range(rows))
        taken(executor)
    offer(executor, [0] * 200, range(200))
    most = round(executor.limits.inbox_time / SECONDS_PER_ROW)
    assert len(taken(executor)[0]) == pytest.approx(most, rel=0.1)
    executor.handle(events.HoldGroups(1, (), {1: 1}, drains=False), 0.0)
    assert len(taken(executor)[0]) == pytest.approx(HASTE_SECONDS / SECONDS_PER_ROW, rel=0.2)
    executor.handle(events.ForgetGroups(1), 0.0)
    assert len(taken(executor)[0]) == pytest.approx(most, rel=0.1)


def test_state_of_groups_that_are_elsewhere_has_no_owner():
    assert an_executor(groups=(1, 2)).store.owner.tolist() == [NO_OWNER, 0, 0, NO_OWNER]


def test_shards_that_another_task_owns_are_not_granted():
    store = an_executor(groups=(1, 2)).store
    store.grant_all(np.array([NO_OWNER, 0, NO_OWNER, NO_OWNER]))
    with pytest.raises(StateError, match=r"shards \[1\] are owned by other tasks"):
        store.grant_all(np.array([5, 5, NO_OWNER, NO_OWNER]))
    assert store.owner.tolist() == [NO_OWNER, 0, 0, NO_OWNER]
