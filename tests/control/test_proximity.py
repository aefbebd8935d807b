from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.proximity import nearer
from dask_elastic.planning.cores import migration_cost
from dask_elastic.planning.cores.columns import CoreColumns

HOSTS = ["a", "b", "a", "b"]


def moved(before, planned, capacity, state, home, hosts=HOSTS, fixed=None):
    return nearer(
        CoreColumns.of(np.array(before)), CoreColumns.of(np.array(planned)), np.array(capacity),
        np.array(state, dtype=float), np.array(home), hosts, fixed,
    ).matrix  # fmt: skip


def test_nearer_moves_added_core_to_free_core_on_homes_host():
    assert moved([[2], [0], [0], [0]], [[2], [2], [0], [0]], [2, 4, 1, 4], [9.0], [0]).ravel().tolist() == [2, 1, 1, 0]


def test_nearer_prefers_the_home_node():
    assert moved([[1], [0], [0], [0]], [[1], [1], [0], [0]], [2, 4, 4, 4], [0.0], [0]).ravel().tolist() == [2, 0, 0, 0]


def test_nearer_exchanges_added_cores_of_two_executors():
    before = [[2, 0], [0, 2], [0, 0], [0, 0]]
    planned = [[2, 0], [0, 2], [0, 1], [1, 0]]
    assert moved(before, planned, [2, 2, 1, 1], [5.0, 5.0], [0, 1]).tolist() == [[2, 0], [0, 2], [1, 0], [0, 1]]


def test_nearer_keeps_old_cores_and_fixed_executors():
    before = [[1], [1], [0], [0]]
    assert moved(before, before, [4] * 4, [1.0], [0]).tolist() == before
    planned = [[1], [2], [0], [0]]
    assert moved(before, planned, [1, 4, 4, 4], [1.0], [0], fixed=np.array([True])).tolist() == planned


def test_nearer_moves_no_additional_state():
    before, planned = [[1], [2], [0], [0]], [[1], [3], [0], [0]]
    assert moved(before, planned, [1, 4, 4, 4], [100.0], [0]).tolist() == planned
    assert moved(before, planned, [1, 4, 4, 4], [0.0], [0]).ravel().tolist() == [1, 2, 1, 0]


def distance(cores, home, hosts):
    far = np.array([[hosts[node] != hosts[place] for place in home] for node in range(len(hosts))])
    return int((cores * far).sum())


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_nearer_is_never_worse_than_the_plan(seed):
    random = np.random.default_rng(seed)
    nodes, executors = int(random.integers(2, 7)), int(random.integers(1, 6))
    hosts = [f"h{i}" for i in random.integers(0, 3, nodes)]
    home = random.integers(0, nodes, executors)
    before = random.integers(0, 3, (nodes, executors))
    before[home, np.arange(executors)] += 1
    planned = np.maximum(before + random.integers(-1, 2, before.shape), 0)
    planned[home, np.arange(executors)] += planned.sum(axis=0) == 0
    capacity = planned.sum(axis=1) + random.integers(0, 3, nodes)
    state = random.choice([0.0, 1.0, 5.0], executors)
    after = moved(before, planned, capacity, state, home, hosts)
    assert (after >= 0).all()
    assert (after.sum(axis=0) == planned.sum(axis=0)).all()
    assert (after.sum(axis=1) <= capacity).all()
    assert migration_cost(before, after, state) <= migration_cost(before, planned, state) + 1e-9
    assert distance(after, home, hosts) <= distance(planned, home, hosts)
