from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.plan import IntervalPlan, moved_state
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.vocab.errors import Infeasible, PlanningError


def owners(intervals, tasks):
    """The node of each task, by looking into every row."""
    return [next(n for n, (low, high) in enumerate(intervals) if low <= task < high) for task in range(tasks)]


def fits(load, bounds, nodes, tau, allow_empty):
    limit = (1 + tau) * sum(load) / nodes + 1e-9
    pairs = list(itertools.pairwise(bounds))
    return all(sum(load[a:b]) <= limit for a, b in pairs) and (allow_empty or all(a < b for a, b in pairs))


def least_cost(load, state, intervals, nodes, tau, allow_empty):
    """The least cost by trying all bounds with all choices of nodes; None if no bounds keep the limit."""
    tasks, rows = len(load), max(len(intervals), nodes)
    before = np.array(owners(intervals, tasks))
    costs = []
    for cuts in itertools.combinations_with_replacement(range(tasks + 1), nodes - 1):
        bounds = (0, *cuts, tasks)
        if fits(load, bounds, nodes, tau, allow_empty):
            for chosen in itertools.permutations(range(rows), nodes):
                after = np.repeat(chosen, np.diff(bounds))
                costs.append(float(np.array(state)[after != before].sum()))
    return min(costs, default=None)


@st.composite
def problems(draw, tasks=7, nodes=4):
    count = draw(st.integers(1, tasks))
    load = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    state = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    rows = draw(st.integers(1, nodes))
    cuts = sorted(draw(st.lists(st.integers(0, count), min_size=rows - 1, max_size=rows - 1)))
    intervals = draw(st.permutations(list(itertools.pairwise([0, *cuts, count]))))
    tau = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0, 3.0]))
    return load, state, intervals, draw(st.integers(1, nodes)), tau, draw(st.booleans())


@given(problem=problems())
@settings(max_examples=250, deadline=None)
def test_single_step_cost_is_minimal(problem):
    load, state, intervals, nodes, _, allow_empty = problem
    best = least_cost(*problem)
    if best is None:
        with pytest.raises(Infeasible):
            single_step(*problem)
        return
    plan = single_step(*problem)
    assert plan.cost == best
    assert plan.intervals.shape == (max(len(intervals), nodes), 2)
    used = plan.intervals[plan.intervals[:, 0] < plan.intervals[:, 1]]
    assert len(used) <= nodes
    assert allow_empty or len(used) == nodes
    assert fits(load, [0, *sorted(used[:, 1])], nodes, problem[4], True)
    changed = np.array(owners(intervals, len(load))) != owners(plan.intervals, len(load))
    assert np.array(state)[changed].sum() == plan.cost


@st.composite
def large(draw):
    tasks, nodes = draw(st.integers(20, 80)), draw(st.integers(1, 12))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    load, state = random.lognormal(0, 0.5, tasks), random.lognormal(0, 1.0, tasks)
    before = draw(st.integers(1, 12))
    cuts = np.sort(random.integers(0, tasks + 1, before - 1))
    bounds = np.concatenate([[0], cuts, [tasks]])
    intervals = np.stack([bounds[:-1], bounds[1:]], axis=1)[random.permutation(before)]
    return load, state, intervals, nodes


@given(problem=large(), extra=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_looser_limit_never_costs_more(problem, extra):
    load, _, _, nodes = problem
    tau = least_tau(load, nodes)
    tight, loose = single_step(*problem, tau), single_step(*problem, tau + extra)
    assert loose.cost <= tight.cost + 1e-9
    without = single_step(*problem, tau + extra, allow_empty=False)
    assert loose.cost <= without.cost + 1e-9
    assert single_step(load, problem[1], loose.intervals, nodes, tau + extra).cost == 0


@given(problem=large())
@settings(max_examples=40, deadline=None)
def test_order_of_nodes_does_not_matter(problem):
    load, state, intervals, nodes = problem
    tau = least_tau(load, nodes) + 0.1
    turned = single_step(load, state, intervals[::-1], nodes, tau)
    assert turned.cost == pytest.approx(single_step(load, state, intervals, nodes, tau).cost)


@given(problem=large())
@settings(max_examples=40, deadline=None)
def test_mirrored_tasks_cost_the_same(problem):
    load, state, intervals, nodes = problem
    tau = least_tau(load, nodes) + 0.1
    mirrored = single_step(load[::-1], state[::-1], len(load) - intervals[:, ::-1], nodes, tau)
    assert mirrored.cost == pytest.approx(single_step(load, state, intervals, nodes, tau).cost)


def test_least_tau_is_the_limit_of_what_is_feasible():
    random = np.random.default_rng(5)
    for _ in range(30):
        load, nodes = random.integers(0, 9, 12).astype(float), int(random.integers(1, 6))
        tau = least_tau(load, nodes)
        single_step(load, load, [[0, 12]], nodes, tau)
        if tau > 1e-6:
            with pytest.raises(Infeasible):
                single_step(load, load, [[0, 12]], nodes, tau - 1e-6)


def test_an_interval_may_be_empty_and_is_then_cheaper():
    intervals = [[0, 5], [5, 10]]
    assert single_step([1] * 10, [1] * 10, intervals, 3, tau=0.5).cost == 0
    assert single_step([1] * 10, [1] * 10, intervals, 3, tau=0.5, allow_empty=False).cost == 1


def test_nodes_that_leave_are_free_to_choose():
    # The two light states are moved, wherever they are.
    plan = single_step([1] * 4, [9, 1, 1, 9], [[0, 1], [1, 2], [2, 3], [3, 4]], 2, tau=0.0)
    assert plan.intervals.tolist() == [[0, 2], [0, 0], [0, 0], [2, 4]]
    assert plan.cost == 2


def test_an_unused_node_is_used_again_before_a_row_is_added():
    plan = single_step([1] * 4, [1] * 4, [[0, 4], [0, 0]], 2, tau=0.0)
    assert plan.intervals.tolist() in ([[0, 2], [2, 4]], [[2, 4], [0, 2]])


def test_tasks_without_state_stay_where_possible():
    plan = single_step([1] * 6, [0] * 6, [[0, 2], [2, 4], [4, 6]], 3, tau=0.0)
    assert plan.intervals.tolist() == [[0, 2], [2, 4], [4, 6]]


def test_single_step_without_load_moves_nothing():
    assert single_step([0, 0, 0], [1, 1, 1], [[0, 1], [1, 3]], 2, tau=0.0).cost == 0


@pytest.mark.parametrize(
    ("load", "nodes", "tau", "allow_empty", "message"),
    [
        ([1, 1, 4], 2, 0.2, True, r"task 2 alone has a load of 4.0, and the limit of a node is 3.6 .*tau of 0.3334"),
        ([2, 2, 2, 2, 2], 2, 0.1, True, r"end before task 4, whose load is 2.0; 3 are needed. Give a tau of 0.2"),
        ([1, 1], 3, 1.0, False, "3 nodes are to have one of 2 tasks each"),
    ],
)
def test_infeasible_problem_is_refused_with_task_and_limit(load, nodes, tau, allow_empty, message):
    with pytest.raises(Infeasible, match=message):
        single_step(load, load, [[0, len(load)]], nodes, tau, allow_empty)


def test_advised_tau_is_feasible():
    random = np.random.default_rng(7)
    for _ in range(20):
        load = random.lognormal(0, 1, 10)
        with pytest.raises(Infeasible) as error:
            single_step(load, load, [[0, 10]], 6, 0.0)
        advised = float(error.value.detail.split("Give a tau of ")[1].split(" or more")[0])
        single_step(load, load, [[0, 10]], 6, advised)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intervals": [[0, 3], [2, 4]]}, r"intervals overlap: nodes 0 and 1 both have task 2"),
        ({"intervals": [[2, 4], [0, 4]]}, r"intervals overlap: nodes 1 and 0 both have task 2"),
        ({"intervals": [[0, 1], [2, 4]]}, r"intervals leave a gap: no node has task 1"),
        ({"intervals": [[0, 3]]}, r"intervals leave a gap: no node has task 3"),
        ({"intervals": [[1, 4]]}, r"intervals leave a gap: no node has task 0"),
        ({"intervals": [[0, 5]]}, r"the interval of node 0 is \[0, 5\]"),
        ({"intervals": [[0, 4], [2, 1]]}, r"the interval of node 1 is \[2, 1\]"),
        ({"intervals": [0, 4]}, r"intervals has shape \(2,\)"),
        ({"intervals": [[0.0, 4.0]]}, r"type float64"),
        ({"load": [1, 1, 1]}, r"load is for 3 tasks, state_bytes for 4"),
        ({"load": [1, 1, -1, 1]}, r"load of task 2 is -1.0"),
        ({"state_bytes": [1, np.nan, 1, 1]}, r"state_bytes of task 1 is nan"),
        ({"load": [], "state_bytes": []}, r"load has shape \(0,\)"),
        ({"nodes": 0}, r"nodes is 0"),
        ({"nodes": 2.0}, r"nodes is 2.0"),
        ({"tau": -0.1}, r"tau is -0.1"),
        ({"tau": float("inf")}, r"tau is inf"),
        ({"tau": "0.2"}, r"tau is '0.2'"),
        ({"load": ["a"] * 4}, r"load is not an array of numbers"),
        ({"state_bytes": [[1, 1], [1]]}, r"state_bytes is not an array of numbers"),
        ({"intervals": [[0, 2], [2]]}, r"intervals is no array"),
    ],
)
def test_bad_input_is_refused_by_name(change, message):
    given = {"load": [1] * 4, "state_bytes": [1] * 4, "intervals": [[0, 2], [2, 4]], "nodes": 2, "tau": 0.2}
    with pytest.raises(PlanningError, match=message):
        single_step(**(given | change))


def test_interval_plan_is_checked_and_read_only():
    with pytest.raises(PlanningError, match="overlap"):
        IntervalPlan([[0, 2], [1, 3]], 0.0)
    with pytest.raises(PlanningError, match="cost is -1"):
        IntervalPlan([[0, 2]], -1.0)
    plan = IntervalPlan([[2, 3], [0, 2]], 1.0)
    assert not plan.intervals.flags.writeable
    assert plan.tasks_per_interval == (2, 1)
    assert moved_state(np.ones(3), plan.intervals, plan.intervals[::-1]) == 3
