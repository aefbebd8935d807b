"""Balancing weighs what it gains with what moves cost: pauses, and partials that are merged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.executor import events
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.measures import AHEAD_SECONDS
from dask_elastic.meters import ShardArrivals
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.identity import ExecutorId

ME, SOURCE = ExecutorId("per_key", 0), ExecutorId("rows", 0)
SHARDS, HOME = 16, 0


def make(cores, strategy="labelled", state_bytes=0, steady=0.0, threshold=1.05):
    """Return an executor whose shards have so much state, and whose loads have been steady for so many seconds."""
    limits = ExecutorLimits(patience=0.0, threshold=threshold, migration=strategy)
    executor = ElasticExecutor(ME, KeySpace(1, SHARDS), HOME, cores, [SOURCE], limits=limits)
    executor.moves.choice.shard_bytes = np.full(SHARDS, state_bytes, np.int64)
    executor.cores.steady_seconds = lambda now: steady
    return executor


def planned(executor, cores_used):
    """Return how many shards a plan moves if the tasks are busy for these shares of their time."""
    owner = executor.routes.table.owner
    tasks = sorted({*owner.tolist()})
    loads = np.zeros(SHARDS)
    for task, used in zip(tasks, cores_used, strict=True):
        loads[owner == task] = used * AHEAD_SECONDS / np.count_nonzero(owner == task)
    executor._loads = lambda now: loads
    before = owner.copy()
    executor.handle(events.BalanceDue(), 1.0)
    moving = executor.moves.targets()
    started = np.array([moving.get(shard, task) for shard, task in enumerate(executor.routes.table.owner.tolist())])
    return np.count_nonzero(started != before) + len(executor.cores._planned)


BETWEEN, WITHIN = {HOME: 1, 1: 1}, {HOME: 2}
MERGING = {"strategy": "instant", "state_bytes": int(4e7)}


def test_loaded_task_keeps_shards_whose_partials_take_longer_to_merge_than_the_move_gains():
    assert planned(make(BETWEEN), (0.9, 0.6)) > 0
    assert planned(make(BETWEEN, "instant"), (0.9, 0.6)) > 0
    assert planned(make(BETWEEN, **MERGING), (0.9, 0.6)) == 0


def test_merging_is_worth_it_as_soon_as_loads_have_been_steady():
    assert planned(make(BETWEEN, **MERGING, steady=1.0), (0.9, 0.6)) == 0
    assert planned(make(BETWEEN, **MERGING, steady=20.0), (0.9, 0.6)) > 0


def test_backlog_makes_any_move_worth_its_cost():
    """Waiting rows are work as well: shards that are dear to move do so when rows wait long enough."""
    counts = [planned(make(BETWEEN, **MERGING), (used, 0.6)) for used in (0.9, 1.5, 4.0)]
    assert counts[0] == 0 < counts[-1]
    assert counts == sorted(counts)


def test_state_costs_nothing_within_a_node():
    assert planned(make(WITHIN, **MERGING), (0.9, 0.6)) == planned(make(WITHIN), (0.9, 0.6)) > 0


@pytest.mark.parametrize("strategy", ["labelled", "disruptive"])
def test_move_that_gains_little_is_not_made_if_rows_wait_for_state(strategy):
    """The shard is heavier than half of the difference: most of its load would make the target the busiest."""
    assert planned(make(BETWEEN, strategy), (0.9, 0.754)) == 1
    assert planned(make(BETWEEN, strategy, int(4e7)), (0.9, 0.754)) == 0


def test_new_tasks_get_shards_however_much_state_these_have():
    executor = make({HOME: 1}, state_bytes=int(1e9))
    executor._loads = lambda now: np.full(SHARDS, 0.05)
    executor.handle(events.SetCores({HOME: 1, 1: 1}), 0.0)
    assert len(executor.moves) + len(executor.cores._planned) == SHARDS // 2


@given(st.floats(0.1, 2), st.floats(0.1, 2), st.integers(0, 10**8), st.integers(0, 10**8), st.floats(0, 100))
def test_more_state_never_makes_more_moves(first, second, some, more, steady):
    few, many = (planned(make(BETWEEN, "instant", state, steady), (first, second)) for state in (some + more, some))
    assert few <= many


def test_noise_between_loaded_tasks_moves_no_large_state():
    """Loads differ from period to period by chance alone, at tasks that are busy for most of their time."""
    counts = {}
    for state in (0, int(3e7)):
        random, counts[state] = np.random.default_rng(3), 0
        for _ in range(60):
            executor = make(BETWEEN, "instant", state)
            loads = random.poisson(0.1 * 200, SHARDS) / 200
            executor._loads = lambda now, loads=loads: loads
            executor.handle(events.BalanceDue(), 1.0)
            counts[state] += len(executor.moves.targets()) + len(executor.cores._planned)
    assert counts[0] > 10
    assert counts[int(3e7)] == 0


def test_shares_are_steady_since_their_last_jump():
    arrivals = ShardArrivals(shards=2)
    assert arrivals.steady_since is None
    for tick in range(8):
        arrivals.note(np.array([400.0, 100.0]) * tick, now=1 + tick * 0.25)
    assert arrivals.steady_since == 1.0
    arrivals.note(np.array([2820.0, 1480.0]), now=3.0)
    assert (arrivals.jumps, arrivals.steady_since) == (1, 3.0)
    arrivals.note(np.array([2820.0, 1480.0]), now=60.0)
    assert arrivals.steady_since == 60.0, "nothing is known of the time since the last call"
