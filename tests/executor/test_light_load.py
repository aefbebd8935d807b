"""Where the shards of an executor with a light load are: at home, while the load does not need other nodes' cores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.executor import events
from dask_elastic.executor.cores import MOVES_AT_ONCE
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.measures import AHEAD_SECONDS
from dask_elastic.executor.moves import UNREQUESTED
from dask_elastic.migration.labelled import Phase
from dask_elastic.planning.light_load import FIRST_PATIENCE, RETURN_SHARE
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.identity import ExecutorId

ME, SOURCE = ExecutorId("per_key", 0), ExecutorId("rows", 0)
SHARDS, HOME = 8, 0
LIGHT = 0.2


def make(cores=None, light_load=LIGHT):
    limits = ExecutorLimits(patience=0.0, light_load=light_load)
    return ElasticExecutor(ME, KeySpace(1, SHARDS), HOME, cores or {HOME: 1}, [SOURCE], limits=limits)


def loaded(executor, cores):
    """Let the load of the executor be so many cores, evenly over its shards."""
    executor._loads = lambda now: np.full(SHARDS, cores * AHEAD_SECONDS / SHARDS)
    executor._lasting_load = lambda: cores


def balanced(executor, since, seconds):
    """Balance the executor every half second; returns the time."""
    for half in range(int(2 * seconds) + 1):
        executor.handle(events.BalanceDue(), since + half / 2)
        arrive(executor, since + half / 2)
    return since + seconds


def arrive(executor, now):
    """Let all moves to and from remote tasks end."""
    while moving := list(executor.moves.by_shard.values()):
        for move in moving:
            # Each step may begin other moves.
            if move.phase is Phase.REQUESTED:
                flushed(executor, move, now)
            elif move.phase is Phase.LABELLED:
                take_label(executor, move, now)
            else:
                executor.handle(events.StateInstalled(move.shard, move.target), now)


def flushed(executor, move, now):
    executor.take_back(m.Flush(move.source, -1, None, UNREQUESTED, move.shard), now)


def take_label(executor, move, now):
    executor.take(move.source, now)
    if executor.routes.tasks[move.source].at_home:
        executor.handle(events.LabelBack(move.source, move.shard), now)
    else:
        executor.take_back(m.LabelReturned(move.source, move.shard, -1, None), now)


def nodes_of(executor):
    """Return how many shards are on each node, or move there."""
    owners = executor.routes.table.owner.tolist()
    tasks = [executor.moves.targets().get(shard, owner) for shard, owner in enumerate(owners)]
    nodes = [executor.routes.tasks[task].node for task in tasks]
    return {node: nodes.count(node) for node in set(nodes)}


def test_new_core_on_another_node_gets_no_shard_of_a_light_load():
    executor = make()
    loaded(executor, 0.0)
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 0.0)
    loaded(executor, 0.9 * LIGHT)
    executor.handle(events.BalanceDue(), 1.0)
    assert nodes_of(executor) == {HOME: SHARDS}


def test_waiting_core_gets_shards_as_soon_as_the_load_is_higher():
    executor = make()
    loaded(executor, 0.0)
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 0.0)
    loaded(executor, 1.1 * LIGHT)
    executor.handle(events.BalanceDue(), 1.0)
    assert nodes_of(executor) == {HOME: SHARDS // 2, 1: SHARDS // 2}


def test_shards_of_another_node_stay_until_the_load_has_been_light_for_some_time():
    executor = make({HOME: 1, 1: 1})
    loaded(executor, 0.9 * RETURN_SHARE * LIGHT)
    now = balanced(executor, 0.0, FIRST_PATIENCE - 0.5)
    assert nodes_of(executor) == {HOME: SHARDS // 2, 1: SHARDS // 2}
    balanced(executor, now + 0.5, 0.0)
    assert nodes_of(executor) == {HOME: SHARDS}
    assert executor.moves.finished == SHARDS // 2


def test_shards_of_another_node_stay_while_the_load_is_only_just_light():
    executor = make({HOME: 1, 1: 1})
    loaded(executor, 0.9 * LIGHT)
    balanced(executor, 0.0, 10 * FIRST_PATIENCE)
    assert nodes_of(executor) == {HOME: SHARDS // 2, 1: SHARDS // 2}
    assert executor.moves.finished == 0


def test_returning_shards_are_spread_over_the_tasks_at_home():
    executor = make({HOME: 2, 1: 2})
    loaded(executor, 0.1 * LIGHT)
    balanced(executor, 0.0, 2 * FIRST_PATIENCE)
    owners = executor.routes.table.owner.tolist()
    assert nodes_of(executor) == {HOME: SHARDS}
    assert [owners.count(task) for task in (0, 1)] == [SHARDS // 2] * 2


def test_shard_that_was_moved_by_a_command_stays_when_the_load_is_light():
    executor = make()
    loaded(executor, 0.01)
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 0.0)
    executor.handle(events.MoveShard(3, 1), 0.0)
    arrive(executor, 0.0)
    balanced(executor, 0.5, 2 * FIRST_PATIENCE)
    assert executor.routes.table.owner.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


def test_shard_that_the_executor_has_moved_since_the_command_comes_home():
    executor = make({HOME: 1, 1: 1})
    loaded(executor, 4 * LIGHT)
    executor.handle(events.MoveShard(0, 1), 0.0)
    arrive(executor, 0.0)
    for now, heavy, task in ((1.0, 1, 0), (2.0, 0, 1)):
        # A shard that has nearly all of the load ends apart from the others.
        loads = np.full(SHARDS, 0.1)
        loads[heavy] = 2.0
        executor._loads = lambda now, loads=loads: loads
        executor.handle(events.BalanceDue(), now)
        arrive(executor, now)
        assert executor.routes.table.owner[0] == task
    loaded(executor, 0.01)
    balanced(executor, 3.0, FIRST_PATIENCE)
    assert nodes_of(executor) == {HOME: SHARDS}


def test_shard_that_a_command_moves_while_others_return_stays():
    executor = make({HOME: 1, 1: 2})
    loaded(executor, 0.01)
    balanced(executor, 0.0, FIRST_PATIENCE - 0.5)
    executor.handle(events.BalanceDue(), FIRST_PATIENCE)
    assert len(executor.moves) == MOVES_AT_ONCE
    owners = executor.routes.table.owner.tolist()
    waiting = next(shard for shard, owner in enumerate(owners) if owner and shard not in executor.moves)
    executor.handle(events.MoveShard(waiting, 3 - owners[waiting]), FIRST_PATIENCE)
    # This move ends before those that began earlier.
    move = executor.moves.by_shard[waiting]
    flushed(executor, move, FIRST_PATIENCE)
    take_label(executor, move, FIRST_PATIENCE)
    executor.handle(events.StateInstalled(waiting, move.target), FIRST_PATIENCE)
    arrive(executor, FIRST_PATIENCE)
    assert executor.routes.table.owner.tolist() == [3 - owners[s] if s == waiting else 0 for s in range(SHARDS)]


def test_new_core_on_another_node_gets_no_shard_as_soon_as_the_load_is_light_again():
    executor = make()
    loaded(executor, 2 * LIGHT)
    executor.handle(events.BalanceDue(), 0.0)
    loaded(executor, 0.9 * LIGHT)
    executor.handle(events.BalanceDue(), 0.5)
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 1.0)
    balanced(executor, 1.5, 1.0)
    assert nodes_of(executor) == {HOME: SHARDS}


def test_loads_that_came_and_went_without_a_move_do_not_delay_a_return():
    executor = make()
    for cycle in range(8):
        loaded(executor, 2 * LIGHT)
        executor.handle(events.BalanceDue(), cycle * 20.0)
        loaded(executor, 0.01)
        balanced(executor, cycle * 20.0 + 0.5, 10.0)
    loaded(executor, 2 * LIGHT)
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 200.0)
    arrive(executor, 200.0)
    assert nodes_of(executor) == {HOME: SHARDS // 2, 1: SHARDS // 2}
    loaded(executor, 0.01)
    balanced(executor, 200.5, FIRST_PATIENCE)
    assert nodes_of(executor) == {HOME: SHARDS}


def test_shards_of_an_executor_that_has_finished_do_not_return():
    executor = make({HOME: 1, 1: 1})
    loaded(executor, 0.0)
    [flush] = executor.handle(events.InputEnded(SOURCE), 0.0)
    executor.take_back(m.Flush(flush.task, -1, None, flush.token), 0.0)
    assert executor.finished
    balanced(executor, 1.0, 2 * FIRST_PATIENCE)
    assert executor.moves.finished == 0


def test_return_ends_when_the_load_becomes_higher():
    executor = make({HOME: 1, 1: 1})
    loaded(executor, 0.01)
    for half in range(int(2 * FIRST_PATIENCE) + 1):
        executor.handle(events.BalanceDue(), half / 2)
    assert len(executor.moves) == MOVES_AT_ONCE or nodes_of(executor) == {HOME: SHARDS}
    loaded(executor, 2 * LIGHT)
    balanced(executor, FIRST_PATIENCE + 0.5, 1.0)
    assert nodes_of(executor)[1] > 1


def test_home_that_gets_a_core_again_gets_its_share_at_once():
    executor = make()
    loaded(executor, 0.01)
    executor.handle(events.SetCores({1: 1}), 0.0)
    arrive(executor, 0.0)
    assert nodes_of(executor) == {1: SHARDS}
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 1.0)
    arrive(executor, 1.0)
    assert nodes_of(executor) == {HOME: SHARDS // 2, 1: SHARDS // 2}
    balanced(executor, 1.5, 2 * FIRST_PATIENCE)
    assert nodes_of(executor) == {HOME: SHARDS}


def test_new_core_at_home_gets_shards_of_a_light_load():
    executor = make()
    loaded(executor, 0.1)
    executor.handle(events.SetCores({HOME: 2, 1: 1}), 0.0)
    assert nodes_of(executor) == {HOME: SHARDS}
    assert len({*executor.routes.table.owner.tolist()}) == 2


def test_light_load_leaves_a_home_without_cores():
    executor = make()
    loaded(executor, 0.01)
    executor.handle(events.SetCores({1: 1}), 0.0)
    assert nodes_of(executor)[1] > 0


def test_draining_task_at_home_passes_a_light_load_to_another_at_home():
    executor = make({HOME: 2})
    loaded(executor, 0.01)
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 0.0)
    assert nodes_of(executor) == {HOME: SHARDS}


def test_without_a_bound_a_new_core_gets_shards_of_any_load():
    executor = make(light_load=0.0)
    loaded(executor, 0.01)
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 0.0)
    assert nodes_of(executor)[1] > 0


@pytest.mark.parametrize("light_load", [0.0, LIGHT])
@given(st.floats(0, 4), st.dictionaries(st.integers(0, 3), st.integers(1, 2), min_size=1))
def test_some_task_takes_shards_at_any_load(light_load, cores_used, cores):
    executor = make(cores, light_load)
    executor.cores.light.look(cores_used, 0.0)
    takers = executor.cores.takers
    assert takers
    assert {task.number for task in takers} <= {task.number for task in executor.cores.active}
    owners = {*executor.routes.table.owner.tolist()}
    assert owners <= {task.number for task in takers}, "shards never have to leave an active task"
