from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control import assignment
from dask_elastic.control.assignment import assign, with_room
from dask_elastic.planning.cores import CoreAssignment, migration_cost
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.planning.registry import names, planner
from dask_elastic.vocab.errors import InvalidPlan, PlanningError, UnknownPlanner


def problem(current, granted, capacity, state=None, home=None, intensity=None):
    current = np.array(current)
    count = current.shape[1]
    return CoreProblem(
        current,
        np.array(granted),
        np.array(capacity),
        np.ones(count) if state is None else np.array(state, dtype=float),
        np.zeros(count, dtype=int) if home is None else np.array(home),
        np.zeros(count) if intensity is None else np.array(intensity, dtype=float),
    )


def assigned(made, planners=None, keep=None, per_node=None, hosts=None):
    count = made.current.shape[1]
    return assign(
        made,
        planners or ["elasticutor"] * count,
        made.granted if keep is None else np.array(keep),
        np.zeros(count, dtype=int) if per_node is None else np.array(per_node),
        hosts or [f"h{i}" for i in range(len(made.capacity))],
    ).matrix


def random_problem(seed):
    random = np.random.default_rng(seed)
    nodes, executors = int(random.integers(1, 6)), int(random.integers(1, 8))
    capacity = random.integers(0, 9, nodes)
    capacity[int(random.integers(nodes))] += 2
    current = random.integers(0, 3, (nodes, executors)) * (random.random((nodes, executors)) < 0.5)
    granted = random.integers(1, 5, executors)
    made = problem(
        current, granted, capacity, random.exponential(1e6, executors), random.integers(0, nodes, executors),
        random.choice([0.0, 1e5, 1e7], executors),
    )  # fmt: skip
    return random, with_room(made, capacity)


def test_core_planners_have_names():
    assert names("cores") == ("elasticutor", "naive")


def test_unknown_core_planner_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownPlanner, match="did you mean 'naive'"):
        planner("niave", "cores")


@pytest.mark.parametrize("name", names("cores"))
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100_000))
def test_every_core_planner_keeps_the_rules(name, seed):
    _, made = random_problem(seed)
    cores = planner(name, "cores").plan(made, seed=1).assignment
    assert (cores >= 0).all()
    assert (cores.sum(axis=1) <= made.capacity).all()
    assert (cores.sum(axis=0) >= made.granted).all()
    assert (planner(name, "cores").plan(made, seed=2).assignment == cores).all()
    kept = replace(made, current=cores)
    assert (planner(name, "cores").plan(kept).assignment.sum(axis=0) >= made.granted).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_assignment_for_all_jobs_keeps_the_rules(seed):
    random, made = random_problem(seed)
    count = made.current.shape[1]
    per_node = random.choice([0, 0, 1, 2], count)
    keep = made.granted + random.integers(0, 3, count)
    planners = random.choice(["elasticutor", "naive"], count).tolist()
    hosts = [f"h{i}" for i in random.integers(0, 3, len(made.capacity))]
    cores = assigned(made, planners, keep, per_node, hosts)
    assert (cores.sum(axis=1) <= made.capacity).all()
    assert (cores.sum(axis=0) >= 1).all()
    free = per_node == 0
    assert (cores.sum(axis=0) >= made.granted)[free].all()
    assert (cores.sum(axis=0) <= np.maximum(made.current.sum(axis=0), np.maximum(keep, made.granted) + 1))[free].all()
    limited = np.flatnonzero(~free)
    for executor in limited:
        column = cores[:, executor]
        assert column.max() <= per_node[executor] or column.sum() == 1


def test_elasticutor_moves_less_state_than_first_fit():
    saved = []
    for seed in range(30):
        made = replace(random_problem(seed)[1], threshold=1e12)
        costs = [
            migration_cost(made.current, planner(name, "cores").plan(made).assignment, made.state_bytes)
            for name in ("elasticutor", "naive")
        ]
        assert costs[0] <= 1.05 * costs[1] + 1e-6
        saved.append(costs[1] - costs[0])
    assert max(saved) > 0


def test_data_intensive_executors_are_at_home_with_elasticutor_only():
    made = problem([[1, 1], [0, 0]], [2, 2], [3, 3], home=[1, 1], intensity=[1e9, 0.0])
    assert assigned(made)[:, 0].tolist() == [0, 2]
    assert assigned(made, ["naive"] * 2)[:, 0].tolist() == [2, 0]


def test_first_fit_releases_home_and_stays_on_far_hosts():
    made = problem([[2], [2]], [2], [2, 2], state=[1e6], home=[0])
    assert assigned(made).ravel().tolist() == [2, 0]
    assert assigned(made, ["naive"]).ravel().tolist() == [0, 2]
    full = problem([[1, 1], [0, 0], [0, 0]], [2, 1], [2, 1, 1], home=[0, 0])
    assert assigned(full, hosts=["a", "b", "a"])[:, 0].tolist() == [1, 0, 1]
    assert assigned(full, ["naive"] * 2, hosts=["a", "b", "a"])[:, 0].tolist() == [1, 1, 0]


def test_a_surplus_is_released_down_to_what_is_kept():
    made = problem([[4], [2]], [1], [8, 8])
    assert assigned(made, keep=[5]).ravel().tolist() == [4, 1]
    assert assigned(made, keep=[9]).ravel().tolist() == [4, 2]
    assert assigned(made).ravel().tolist() == [1, 0]


def test_executors_of_two_planners_share_the_nodes():
    made = problem([[4, 0], [0, 1]], [1, 4], [4, 2], home=[0, 1])
    cores = assigned(made, ["naive", "elasticutor"], keep=[4, 4])
    assert cores.sum(axis=0).tolist()[1] == 4
    assert (cores.sum(axis=1) <= [4, 2]).all()


def test_gil_bound_executor_is_spread_first_and_others_make_room():
    made = problem([[2, 0], [0, 4]], [2, 4], [4, 4], home=[0, 1])
    cores = assigned(made, per_node=[1, 0])
    assert cores[:, 0].tolist() == [1, 1]
    assert cores[:, 1].sum() == 4


def test_granted_cores_of_others_come_before_kept_cores():
    made = problem([[1, 1], [1, 0], [1, 0]], [1, 3], [2, 1, 1])
    cores = assigned(made, keep=[3, 3], per_node=[1, 0])
    assert cores.sum(axis=0).tolist() == [1, 3]


def test_slots_are_shared_where_executors_are_first_then_evenly():
    made = with_room(problem([[3, 0, 0], [0, 1, 1]], [3, 1, 1], [1, 2]), np.array([1, 2]))
    assert made.capacity.tolist() == [3, 2]
    made = with_room(problem([[0, 0, 0], [0, 0, 0]], [2, 2, 2], [2, 1]), np.array([2, 1]))
    assert made.capacity.tolist() == [4, 2]
    made = with_room(problem([[1], [1], [0]], [3], [0, 1, 1]), np.array([0, 2, 2]))
    assert made.capacity.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[9], [0]], "gives out 9 cores of node 0, which has 4"),
        ([[1], [0]], "gives 1 core to executor 0, which has to get 2"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_refused(monkeypatch, answer, said):
    class Wrong:
        first_fit = True

        def plan(self, problem, seed=0):
            return CoreAssignment(np.array(answer), 0.0, 1.0)

    monkeypatch.setattr(assignment, "planner", lambda name, kind: Wrong())
    with pytest.raises(InvalidPlan, match=said):
        assigned(problem([[1], [0]], [2], [4, 4]), ["naive"])


def test_shapes_that_disagree_are_refused_by_name():
    made = problem([[1, 1]], [1, 1], [4])
    with pytest.raises(PlanningError, match="granted has shape"):
        replace(made, granted=np.array([1]))
    with pytest.raises(PlanningError, match="capacity has shape"):
        replace(made, capacity=np.array([1, 2]))
