from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.spreading import spread
from dask_elastic.planning.cores.columns import CoreColumns


def spread_all(current, granted, capacity, home, per_node=1, keep=None, hosts=None, occupied=None):
    granted = np.array(granted)
    return spread(
        CoreColumns.of(np.array(current)),
        granted,
        granted if keep is None else np.array(keep),
        np.full(len(granted), per_node),
        np.array(capacity),
        np.array(home),
        hosts or [f"h{i}" for i in range(len(capacity))],
        np.zeros(len(capacity), dtype=int) if occupied is None else np.array(occupied),
    ).matrix


def test_spread_moves_cores_above_limit_to_other_nodes():
    assert spread_all([[3], [0], [0]], [3], [4, 4, 4], [0]).ravel().tolist() == [1, 1, 1]


def test_spread_allows_limit_of_two_per_node():
    assert spread_all([[3], [0]], [3], [4, 4], [0], per_node=2).ravel().tolist() == [2, 1]


def test_spread_places_executors_on_separate_nodes():
    cores = spread_all([[1, 0], [0, 1], [0, 0], [0, 0]], [2, 2], [4] * 4, [0, 1])
    assert cores.sum(axis=1).tolist() == [1, 1, 1, 1]


def test_spread_prefers_free_then_near_cores():
    assert spread_all([[1], [0], [0]], [2], [4] * 3, [0], occupied=[0, 4, 0]).ravel().tolist() == [1, 0, 1]
    assert spread_all([[1], [0], [0]], [2], [4] * 3, [0], hosts=["a", "b", "a"]).ravel().tolist() == [1, 0, 1]


def test_spread_keeps_allowed_surplus_and_releases_rest_remote_first():
    assert spread_all([[1], [1], [1]], [1], [4] * 3, [0], keep=[3]).ravel().tolist() == [1, 1, 1]
    assert spread_all([[1], [1], [1]], [1], [4] * 3, [0], keep=[2]).ravel().tolist() == [1, 1, 0]


def test_spread_leaves_retiring_node():
    assert spread_all([[1], [1], [0]], [2], [4, 0, 4], [0]).ravel().tolist() == [1, 0, 1]


def test_spread_gives_each_executor_a_core_on_full_nodes():
    cores = spread_all([[1, 0, 0], [0, 0, 0]], [1, 1, 1], [3, 0], [0, 0, 0])
    assert cores.sum(axis=0).tolist() == [1, 1, 1]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_spread_keeps_invariants(seed):
    random = np.random.default_rng(seed)
    nodes, executors = int(random.integers(1, 6)), int(random.integers(1, 5))
    capacity = random.integers(0, 5, nodes)
    current = random.integers(0, 3, (nodes, executors))
    granted = random.integers(1, 5, executors)
    while capacity.sum() < granted.sum():
        capacity[random.integers(nodes)] += 1
    per_node = random.integers(1, 3, executors)
    home = random.integers(0, nodes, executors)
    before = current.copy()
    columns = CoreColumns.of(current)
    free = np.zeros(nodes, dtype=int)
    cores = spread(columns, granted, granted, per_node, capacity, home, ["h"] * nodes, free).matrix
    assert (current == before).all()
    assert (cores >= 0).all()
    assert (cores.sum(axis=1) <= capacity).all()
    assert (cores.sum(axis=0) >= 1).all()
    assert ((cores <= per_node) | (cores.sum(axis=0) == 1)).all()
    assert (cores.sum(axis=0) <= granted).all()
