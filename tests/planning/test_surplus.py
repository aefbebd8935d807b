from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.planning.cores import assign_cores, migration_cost
from dask_elastic.planning.cores.surplus import release
from dask_elastic.vocab.errors import PlanningError


@st.composite
def clusters(draw, most=4):
    nodes, executors = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    column = st.lists(st.integers(0, most), min_size=nodes, max_size=nodes)
    current = np.array([draw(column) for _ in range(executors)]).T
    wanted = [draw(st.integers(0, nodes * most)) for _ in range(executors)]
    state = [draw(st.sampled_from([0.0, 1.0, 70.0])) for _ in range(executors)]
    home = [draw(st.integers(0, nodes - 1)) for _ in range(executors)]
    return current, np.array(wanted), np.array(state), np.array(home)


def least_loss(column, keep, state, home):
    """The least state moved among the ways to keep so many cores that take as few from home as can be."""
    best = (math.inf, math.inf)
    for kept in itertools.product(*(range(count + 1) for count in column)):
        if sum(kept) == keep:
            cost = migration_cost(column[:, None], np.array(kept)[:, None], [state])
            best = min(best, (int(column[home]) - kept[home], cost))
    return best


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_release_matches_brute_force(cluster):
    current, wanted, state, home = cluster
    after = release(*cluster)
    for j in range(current.shape[1]):
        held = int(current[:, j].sum())
        keep = min(held, max(int(wanted[j]), 1))
        assert after[:, j].sum() == keep
        taken, cost = least_loss(current[:, j], keep, state[j], home[j])
        assert current[home[j], j] - after[home[j], j] == taken
        assert migration_cost(current[:, [j]], after[:, [j]], state[[j]]) == pytest.approx(cost, abs=1e-9)


@given(clusters())
def test_release_adds_no_core_and_releasing_again_changes_nothing(cluster):
    current, wanted, state, home = cluster
    before = current.copy()
    after = release(*cluster)
    assert (after <= current).all()
    assert (current == before).all()
    assert (release(after, wanted, state, home) == after).all()


@settings(max_examples=60, deadline=None)
@given(clusters(), st.integers(0, 2**32 - 1))
def test_release_keeps_satisfied_constraints(cluster, seed):
    current, wanted, state, home = cluster
    intensity = np.random.default_rng(seed).choice([0.0, 1e6], len(wanted))
    capacity = np.maximum(current.sum(axis=1), 1)
    wanted = np.minimum(wanted, current.sum(axis=0))
    plan = assign_cores(current, wanted, capacity, state, home, intensity, threshold=5e5)
    after = release(plan.assignment, wanted, state, home)
    again = assign_cores(after, wanted, capacity, state, home, intensity, threshold=plan.threshold, doublings=0)
    assert (again.assignment == after).all()
    assert (after.sum(axis=0) == np.minimum(np.maximum(wanted, 1), plan.assignment.sum(axis=0))).all()


def test_remote_cores_go_before_those_at_home():
    # Taking the core at home would move a twentieth of the state, the remote one a fifth.
    assert release([[4], [1]], [4], [60.0], [0]).tolist() == [[4], [0]]


def test_a_node_that_loses_its_share_loses_no_state():
    before = np.array([[2], [2], [4]])
    after = release(before, [4], [8.0], [0])
    assert after.tolist() == [[2], [0], [2]]
    even = release(np.array([[0], [2], [4]]), [3], [8.0], [0])
    assert even.tolist() == [[0], [1], [2]]
    assert migration_cost([[0], [2], [4]], even, [8.0]) == 0.0


def test_executor_without_state_leaves_whole_nodes():
    assert release([[1], [1], [3], [2]], [4], [0.0], [0]).tolist() == [[1], [0], [3], [0]]


def test_release_keeps_the_last_core():
    assert release([[1, 0], [1, 0]], [0, 0], [1.0, 1.0], [0, 0]).tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1], [-1]], [1], [1.0], [0]), "current contains -1"),
        (([[1]], [1, 1], [1.0], [0]), r"wanted has shape \(2,\)"),
        (([[1]], [1.5], [1.0], [0]), r"wanted contains 1\.5"),
        (([[1]], [1], [math.nan], [0]), "state_bytes contains nan"),
        (([[1]], [1], [1.0], [1]), "home contains 1, but the last of 1 nodes is 0"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, message):
    with pytest.raises(PlanningError, match=message):
        release(*arguments)
