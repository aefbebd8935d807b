"""Where the shards of an executor with a light load are: at home, until the load needs the cores of other nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.executor import events
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.measures import AHEAD_SECONDS
from dask_elastic.routing.keyspace import KeySpace
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


def test_shards_that_are_on_another_node_stay_when_the_load_becomes_light():
    executor = make({HOME: 1, 1: 1})
    loaded(executor, 0.01)
    executor.handle(events.BalanceDue(), 1.0)
    assert nodes_of(executor) == {HOME: SHARDS // 2, 1: SHARDS // 2}


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
    loads = np.full(SHARDS, cores_used * AHEAD_SECONDS / SHARDS)
    takers = executor.cores.takers(loads)
    assert takers
    assert {task.number for task in takers} <= {task.number for task in executor.cores.active}
    owners = {*executor.routes.table.owner.tolist()}
    assert owners <= {task.number for task in takers}, "shards never have to leave an active task"
