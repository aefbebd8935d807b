"""The rows of a move's table that simulations rarely take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.moves import UNREQUESTED
from dask_elastic.executor.task_status import TaskStatus
from dask_elastic.migration.labelled import Phase
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import MoveRefused, ProtocolError
from dask_elastic.vocab.identity import ExecutorId

SOURCE = ExecutorId("source", 0)
HOME, NEAR, FAR = 0, 1, 2
AT_HOME, FIRST_NEAR, SECOND_NEAR, THIRD_FAR = range(4)
ONE_TWO_ONE = {HOME: 1, NEAR: 2, FAR: 1}
TARGETS = pytest.mark.parametrize("target", [AT_HOME, SECOND_NEAR, THIRD_FAR])


def make(cores=ONE_TWO_ONE):
    """Return an executor of one task at home, two on a near node and one on a far node, whose moves wait."""
    limits = ExecutorLimits(patience=1.0)
    return ElasticExecutor(ExecutorId("per_key", 0), KeySpace(1, 8), HOME, cores, [SOURCE], limits=limits)


def keep_busy(executor, task, shard):
    """Have a task take a row of a shard; returns the number of the sub-batch."""
    rows = pa.record_batch({"key": pa.array([shard], pa.int64())})
    batch = Batch(rows, np.array([shard], dtype=np.uint64), 0.0)
    executor.accept(executor.split(batch), SOURCE, batch, 100, 0.0)
    number, _ = executor.take(task)
    return number


def waiting_move(executor, shard, target):
    """Begin a move from the busy first near task and bring it to the phase in which it waits for the task."""
    number = keep_busy(executor, FIRST_NEAR, shard)
    executor.handle(events.MoveShard(shard, target), 0.0)
    executor.take_back(a_flush(shard), 0.1)
    assert executor.moves.by_shard[shard].phase is Phase.WAITING
    return number


def installing_move(executor, shard, target):
    """Begin such a move and bring it to the phase in which the target is installed; returns the instructions."""
    number = waiting_move(executor, shard, target)
    executor.done(FIRST_NEAR, number, 0.1, 0.3)
    returned = executor.take_back(m.LabelReturned(FIRST_NEAR, shard, number, None), 0.4)
    assert executor.moves.by_shard[shard].phase is Phase.INSTALLING
    return returned


def a_flush(shard):
    return m.Flush(FIRST_NEAR, -1, None, UNREQUESTED, shard)


def lose(executor, node):
    executor.links.cut(node)
    return executor.handle(events.NodeLeft(node), 0.2)


@TARGETS
def test_waiting_move_is_cancelled_when_its_source_is_lost(target):
    executor = make()
    waiting_move(executor, 1, target)
    lose(executor, NEAR)
    assert SECOND_NEAR not in executor.moves.targets().values()
    move = executor.moves.by_shard.get(1)
    assert move is None or (move.recovers and move.phase is Phase.INSTALLING), "the shard moves to an heir at once"


@TARGETS
def test_waiting_move_is_cancelled_when_its_target_is_draining(target):
    executor = make()
    number = waiting_move(executor, 1, target)
    node = executor.routes.tasks[target].node
    executor.handle(events.SetCores({**ONE_TWO_ONE, node: ONE_TWO_ONE[node] - 1}), 0.2)
    assert executor.routes.tasks[target].status is TaskStatus.DRAINING
    assert executor.moves.by_shard[1].phase is Phase.WAITING
    executor.done(FIRST_NEAR, number, 0.1, 0.3)
    assert executor.moves.targets().get(1) != target
    assert int(executor.assignment()[0][1]) == FIRST_NEAR


def test_waiting_move_is_cancelled_when_its_target_is_lost():
    executor = make()
    waiting_move(executor, 1, THIRD_FAR)
    lose(executor, FAR)
    assert 1 not in executor.moves
    assert int(executor.assignment()[0][1]) == FIRST_NEAR


def test_installing_move_resumes_when_target_is_lost_and_heir_is_at_home():
    executor = make()
    installing_move(executor, 1, THIRD_FAR)
    lose(executor, FAR)
    assert 1 not in executor.moves
    assert int(executor.assignment()[0][1]) == AT_HOME


def test_installing_move_is_installed_anew_when_target_is_lost_and_heir_is_remote():
    executor = make({NEAR: 2, FAR: 1})
    number = keep_busy(executor, 0, 0)
    executor.handle(events.MoveShard(0, 2), 0.0)
    executor.take_back(m.Flush(0, -1, None, UNREQUESTED, 0), 0.1)
    executor.done(0, number, 0.1, 0.2)
    executor.take_back(m.LabelReturned(0, 0, number, None), 0.3)
    assert executor.moves.by_shard[0].phase is Phase.INSTALLING
    installed = [i.shard for i in lose(executor, FAR) if isinstance(i, do.InstallState)]
    assert 0 in installed
    assert executor.moves.by_shard[0].phase is Phase.INSTALLING
    assert executor.moves.by_shard[0].target in (0, 1)


@TARGETS
def test_late_flush_leaves_waiting_move_as_it_is(target):
    executor = make()
    number = waiting_move(executor, 1, target)
    assert executor.take_back(a_flush(1), 0.2) == []
    assert executor.moves.by_shard[1].phase is Phase.WAITING
    executor.done(FIRST_NEAR, number, 0.1, 0.3)
    assert executor.moves.by_shard[1].phase is Phase.LABELLED
    assert executor.take_back(a_flush(1), 0.4) == []
    assert executor.moves.by_shard[1].phase is Phase.LABELLED


@pytest.mark.parametrize(("target", "copy"), [(SECOND_NEAR, False), (THIRD_FAR, True)])
def test_late_flush_leaves_installing_move_as_it_is(target, copy):
    executor = make()
    node = executor.routes.tasks[target].node
    assert installing_move(executor, 1, target) == [do.InstallState(1, target, node, copy)]
    assert executor.take_back(a_flush(1), 0.5) == []
    assert executor.moves.by_shard[1].phase is Phase.INSTALLING
    executor.handle(events.StateInstalled(1, target), 0.6)
    assert 1 not in executor.moves
    assert int(executor.assignment()[0][1]) == target


def test_flush_without_a_move_changes_nothing():
    executor = make()
    assert executor.take_back(a_flush(1), 0.1) == []
    assert len(executor.moves) == 0


@pytest.mark.parametrize("event", [events.LabelBack(FIRST_NEAR, 1), events.StateInstalled(1, AT_HOME)])
def test_illegal_event_before_the_pause_changes_nothing(event):
    executor = make()
    waiting_move(executor, 1, AT_HOME)
    before = executor.routes.table, executor.store.owner.tolist()
    with pytest.raises(ProtocolError, match="illegal in phase 'waiting'"):
        executor.handle(event, 0.2)
    assert (executor.routes.table, executor.store.owner.tolist()) == before
    assert executor.moves.by_shard[1].phase is Phase.WAITING


def test_second_move_of_a_shard_is_refused_in_every_phase():
    executor = make()
    number = waiting_move(executor, 1, AT_HOME)
    with pytest.raises(MoveRefused, match="about to move already"):
        executor.handle(events.MoveShard(1, SECOND_NEAR), 0.2)
    executor.done(FIRST_NEAR, number, 0.1, 0.3)
    with pytest.raises(MoveRefused, match="moving already"):
        executor.handle(events.MoveShard(1, SECOND_NEAR), 0.4)
