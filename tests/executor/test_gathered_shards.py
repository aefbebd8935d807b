"""Which tasks of a node have the shards of an executor, and what the executor tells about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dask_elastic.executor import events
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.measures import AHEAD_SECONDS
from dask_elastic.executor.moves import UNREQUESTED
from dask_elastic.migration.labelled import Phase
from dask_elastic.planning.gathering import Gathering
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.identity import ExecutorId

ME, SOURCE = ExecutorId("per_key", 0), ExecutorId("rows", 0)
SHARDS, HOME, OTHER = 8, 0, 1


class Fixed(Gathering):
    """Gathers on so many tasks of each node, whatever it sees."""

    def look(self, seen):
        self.seen = seen


def make(cores, most=None, **limits):
    limits = {"patience": 0.0, "gathers": True, "first_takers": most} | limits
    executor = ElasticExecutor(ME, KeySpace(1, SHARDS), HOME, cores, [SOURCE], limits=ExecutorLimits(**limits))
    executor.cores.gathering = Fixed(most)
    executor._loads = lambda now: np.full(SHARDS, 2 * AHEAD_SECONDS / SHARDS)
    return executor


def balanced(executor, now=1.0):
    """Balance, and let all moves end."""
    executor.handle(events.BalanceDue(0.5), now)
    while moving := list(executor.moves.by_shard.values()):
        for move in moving:
            if move.phase is Phase.REQUESTED:
                executor.take_back(m.Flush(move.source, -1, None, UNREQUESTED, move.shard), now)
            elif move.phase is Phase.LABELLED:
                executor.take(move.source, now)
                if executor.routes.tasks[move.source].at_home:
                    executor.handle(events.LabelBack(move.source, move.shard), now)
                else:
                    executor.take_back(m.LabelReturned(move.source, move.shard, -1, None), now)
            else:
                executor.handle(events.StateInstalled(move.shard, move.target), now)
    return executor


def shards_of(executor):
    """Return how many shards each task has."""
    owners = executor.routes.table.owner.tolist()
    return {task: owners.count(task) for task in sorted(executor.routes.tasks)}


def test_first_task_of_each_node_gets_the_shards_in_the_beginning():
    assert shards_of(make({HOME: 2, OTHER: 2}, most=1)) == {0: 4, 1: 0, 2: 4, 3: 0}


def test_all_tasks_get_shards_if_they_do_not_gather():
    assert shards_of(make({HOME: 2}, most=1, gathers=False)) == {0: 4, 1: 4}


def test_shards_gather_on_the_task_of_their_node_that_has_most():
    executor = make({HOME: 2, OTHER: 2})
    executor.moves.begin(0, 1, 0.0)
    executor._loads = lambda now: np.array([0.0] + [1.0] * (SHARDS - 1))
    balanced(executor, 0.5)
    executor.cores.gathering.most = 1
    gathered = shards_of(balanced(executor))
    assert gathered[0] == 0
    assert gathered[1] == 4
    assert sorted(gathered.values()) == [0, 0, 4, 4]
    assert executor.moves.finished_across == 0


def test_shards_spread_over_all_tasks_again():
    executor = make({HOME: 2}, most=1)
    executor.cores.gathering.most = None
    assert shards_of(balanced(executor)) == {0: 4, 1: 4}


def test_shards_spread_over_some_more_tasks():
    executor = make({HOME: 4}, most=1)
    executor.cores.gathering.most = 2
    assert sorted(shards_of(balanced(executor)).values()) == [0, 0, 4, 4]


def test_a_shard_that_a_command_has_moved_stays():
    executor = make({HOME: 2}, most=1)
    executor.handle(events.MoveShard(3, 1), 0.0)
    assert shards_of(balanced(executor)) == {0: SHARDS - 1, 1: 1}


def test_new_tasks_get_no_shards_while_those_of_the_node_are_enough():
    executor = make({HOME: 1}, most=1)
    executor.handle(events.SetCores({HOME: 3, OTHER: 1}), 0.0)
    balanced(executor)
    assert shards_of(executor) == {0: SHARDS // 2, 1: 0, 2: 0, 3: SHARDS // 2}


@pytest.mark.parametrize(("computing", "spread"), [(0.05, [2, 2, 2, 2]), (0.8, [0, 0, 0, SHARDS])])
def test_logic_seen_to_wait_in_one_task_spreads_over_the_cores_of_another_node(computing, spread):
    executor = make({HOME: 1}, most=1)
    executor.cores.gathering = Gathering(1)
    executor.handle(events.BalanceDue(computing), 0.5)
    executor.handle(events.SetCores({OTHER: 4}), 0.6)
    owned = shards_of(balanced(executor))
    assert sorted(owned[number] for number in range(1, 5)) == spread


def test_another_task_gets_the_shards_of_one_that_drains():
    executor = make({HOME: 2}, most=1)
    executor.routes.tasks[0].busy.add(0.5, 0.9)
    executor.handle(events.SetCores({HOME: 1}), 1.0)
    # The task without shards is the one that drains.
    assert shards_of(balanced(executor))[0] == SHARDS


def test_light_loads_gather_at_home():
    executor = make({HOME: 2, OTHER: 2}, most=1, light_load=10.0)
    executor.cores.light.at_home = True
    assert shards_of(balanced(executor)) == {0: SHARDS, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(("waiting", "busy"), [(0, 0.0), (5, 0.8)])
def test_what_is_seen_is_that_of_the_tasks_with_shards(waiting, busy):
    executor = make({HOME: 3, OTHER: 1}, most=1)
    for task in (executor.routes.tasks[number] for number in (0, 3)):
        for now in (0.0, 1.0):
            task.busy.add(busy / 2, now)
        task.queue.rows = waiting
    executor.measures.rows_before = 70
    executor.handle(events.BalanceDue(0.4), 1.0)
    seen = executor.cores.gathering.seen
    assert (seen.rows, seen.tasks, seen.nodes, seen.waiting, seen.computing) == (70, 3, 2, waiting > 0, 0.4)
    assert seen.busy == pytest.approx(busy, abs=0.1)
    assert not seen.moving


def test_shards_that_are_to_move_are_seen():
    executor = make({HOME: 2})
    executor.cores.gathering.most = 1
    executor.handle(events.BalanceDue(), 1.0)
    assert executor.cores.gathering.seen.moving


def test_what_is_proven_is_measured():
    executor = make({HOME: 2})
    executor.cores.gathering.proven = lambda now: 1
    assert executor.measure(1.0).enough_cores == 1
    assert make({HOME: 2}, gathers=False).measure(1.0).enough_cores is None


def test_limits_say_whether_shards_gather():
    limits = replace(ExecutorLimits(), gathers=True, first_takers=1)
    assert ElasticExecutor(ME, KeySpace(1, 4), HOME, {HOME: 2}, [SOURCE], limits=limits).cores.gathering.most == 1
    assert ElasticExecutor(ME, KeySpace(1, 4), HOME, {HOME: 2}, [SOURCE]).cores.gathering is None


def test_rows_must_wait_for_each_task_with_shards():
    executor = make({HOME: 2, OTHER: 2}, most=1)
    executor.routes.tasks[0].queue.rows = 7
    executor.handle(events.BalanceDue(), 1.0)
    assert not executor.cores.gathering.seen.waiting


def test_executors_without_a_task_at_home_look_too():
    executor = make({OTHER: 3}, most=1)
    executor.routes.tasks[0].queue.rows = 7
    executor.handle(events.BalanceDue(), 1.0)
    seen = executor.cores.gathering.seen
    assert (seen.tasks, seen.waiting, seen.computing) == (3, True, None)


def test_heirs_of_many_shards_are_chosen_among_the_same_tasks(monkeypatch):
    executor, counted = make({HOME: 2, OTHER: 2}, most=1), []
    real = executor.cores._owners_to_be
    monkeypatch.setattr(executor.cores, "_owners_to_be", lambda: [counted.append(None), real()][1])
    heirs = executor.cores.heirs(range(SHARDS), np.ones(SHARDS))
    assert sorted(Counter(heirs.values()).items()) == [(0, SHARDS // 2), (2, SHARDS // 2)]
    assert len(counted) == 1, "the owners of all shards are looked through for each shard"
