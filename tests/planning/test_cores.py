from __future__ import annotations

import itertools
import math
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.planning.cores import CoreAssignment, assign_cores, migration_cost
from dask_elastic.planning.cores import exact as module
from dask_elastic.planning.cores.columns import CoreColumns
from dask_elastic.vocab.errors import Infeasible, PlanningError

THRESHOLD = 512 * 1024


def scattered(random, nodes, executors, most):
    """Executors with cores anywhere, random wants, a few of them data-intensive."""
    capacity = random.integers(1, most + 1, nodes)
    current = np.zeros((nodes, executors), dtype=np.int64)
    for turn in range(int(random.integers(executors, capacity.sum() + executors + 1))):
        vacant = np.flatnonzero(current.sum(axis=1) < capacity)
        if not vacant.size:
            break
        current[random.choice(vacant), turn if turn < executors else random.integers(executors)] += 1
    wanted = 1 + random.multinomial(
        random.integers(0, max(1, capacity.sum() - executors + 1)), [1 / executors] * executors
    )
    state = random.integers(0, 1000, executors).astype(float)
    intensity = random.choice([0.0, 3e5, 6e5, 2e6], executors)
    return current, wanted, capacity, state, random.integers(0, nodes, executors), intensity


def at_home(random, nodes, executors, capacity, remote, change):
    """A full cluster whose executors are mostly at home, and want a little more or less than they have."""
    limits, home = np.full(nodes, capacity), np.arange(executors) % nodes
    current = np.zeros((nodes, executors), dtype=np.int64)
    current[home, np.arange(executors)] = 1
    while (free := np.flatnonzero(current.sum(axis=1) < limits)).size:
        executor = random.integers(executors)
        here = home[executor]
        current[here if here in free and random.random() >= remote else random.choice(free), executor] += 1
    totals = current.sum(axis=0)
    wanted = np.maximum(1, totals + random.integers(-1, 2, executors) * (random.random(executors) < change))
    while wanted.sum() > limits.sum():
        wanted[wanted.argmax()] -= 1
    return (
        current,
        wanted,
        limits,
        random.lognormal(3, 1, executors) * 1e6,
        home,
        random.choice([0, 1e5, 1e6], executors),
    )


def needed(problem):
    return np.maximum(problem[1], np.minimum(problem[0].sum(axis=0), 1))


def check(problem, plan):
    current, _, capacity, state, home, intensity = problem
    totals = plan.assignment.sum(axis=0)
    assert (plan.assignment >= 0).all()
    assert (plan.assignment.sum(axis=1) <= capacity).all()
    assert (totals >= needed(problem)).all()
    for executor in np.flatnonzero(intensity > plan.threshold):
        assert plan.assignment[home[executor], executor] == totals[executor]
    assert plan.cost == pytest.approx(migration_cost(current, plan.assignment, state))


def brute_force(problem, threshold=THRESHOLD):
    """The least cost at the lowest threshold with any answer, by trying all columns; None without an answer."""
    current, _, capacity, state, home, intensity = problem
    executors = current.shape[1]
    grid = np.array(list(itertools.product(*(range(c + 1) for c in capacity)))).T
    totals = grid.sum(axis=0)
    if needed(problem).sum() > capacity.sum():
        return None
    while True:
        options = []
        for executor in range(executors):
            allowed = totals >= needed(problem)[executor]
            if intensity[executor] > threshold:
                allowed &= grid[home[executor]] == totals
            columns = grid[:, allowed]
            share = current[:, executor] / max(current[:, executor].sum(), 1)
            left = np.maximum(share[:, None] - columns / np.maximum(columns.sum(axis=0), 1), 0).sum(axis=0)
            order = np.argsort(left, kind="stable")
            options.append((columns[:, order], left[order] * state[executor]))
        best = search(options, capacity, 0.0, math.inf)
        if best < math.inf:
            return best, threshold
        threshold *= 2


def search(options, left, spent, best):
    if not options:
        return min(best, spent)
    (columns, costs), *others = options
    for place in np.flatnonzero((columns <= left[:, None]).all(axis=0)):
        if spent + costs[place] >= best - 1e-9:
            break
        best = search(others, left - columns[:, place], spent + costs[place], best)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_exact_core_assignment_matches_brute_force(seed):
    random = np.random.default_rng(seed)
    solved = 0
    for _ in range(25):
        problem = scattered(random, *random.integers(1, 5, 2), most=3)
        best = brute_force(problem)
        if best is None:
            with pytest.raises(Infeasible, match="cores are wanted"):
                assign_cores(*problem)
            continue
        plan = assign_cores(*problem)
        check(problem, plan)
        assert plan.cost == pytest.approx(best[0], abs=1e-9 * (1 + problem[3].sum()))
        assert plan.threshold == best[1]
        solved += 1
    assert solved > 10


def test_local_search_cost_is_near_the_optimum(monkeypatch):
    monkeypatch.setattr(module, "_TABLE", 0)
    random = np.random.default_rng(42)
    gaps = []
    for _ in range(100):
        problem = scattered(random, *random.integers(2, 5, 2), most=3)
        best = brute_force(problem)
        if best is not None:
            plan = assign_cores(*problem)
            check(problem, plan)
            gaps.append((plan.cost - best[0]) / max(problem[3].sum(), 1))
    assert np.mean(np.array(gaps) < 1e-9) > 0.95
    assert np.mean(gaps) < 0.005


@pytest.mark.parametrize(("nodes", "executors", "capacity"), [(3, 6, 8), (4, 8, 4), (4, 4, 8), (5, 10, 4)])
def test_local_search_is_near_the_exact_one_in_middling_problems(nodes, executors, capacity, monkeypatch):
    random = np.random.default_rng(7)
    problems = [at_home(random, nodes, executors, capacity, 0.3, 1.0) for _ in range(8)]
    exact = sum(assign_cores(*problem).cost / problem[3].sum() for problem in problems)
    monkeypatch.setattr(module, "_TABLE", 0)
    found = sum(assign_cores(*problem).cost / problem[3].sum() for problem in problems)
    assert exact - 1e-9 <= found <= exact * 1.1 + 1e-9


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 9), st.integers(1, 14), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans())
def test_core_assignment_keeps_constraints_and_is_stable(nodes, executors, most, seed, drained):
    random = np.random.default_rng(seed)
    problem = scattered(random, nodes, executors, most)
    if drained:
        problem[2][random.integers(nodes)] = 0
    try:
        plan = assign_cores(*problem)
    except Infeasible:
        assert needed(problem).sum() > problem[2].sum()
        return
    check(problem, plan)
    again = assign_cores(plan.assignment, *problem[1:])
    assert again.assignment.tolist() == plan.assignment.tolist()
    assert (again.cost, again.threshold) == (0.0, plan.threshold)
    same = assign_cores(*problem)
    assert same.assignment.tolist() == plan.assignment.tolist()


def test_core_assignment_does_not_modify_arguments():
    problem = scattered(np.random.default_rng(3), 4, 4, 4)
    copies = [part.copy() for part in problem]
    plan = assign_cores(*problem)
    assert all((part == copy).all() for part, copy in zip(problem, copies, strict=True))
    assert not np.shares_memory(plan.assignment, problem[0])


def test_assignment_within_constraints_is_unchanged():
    current = [[3, 0], [1, 2]]
    plan = assign_cores(current, [1, 1], [4, 4], [5.0, 5.0], [0, 1], [0.0, 1e9])
    assert plan.assignment.tolist() == current
    assert (plan.cost, plan.threshold) == (0.0, THRESHOLD)


def test_free_core_is_assigned_before_any_is_taken_away():
    plan = assign_cores([[2, 3], [0, 0]], [3, 1], [6, 1], [9.0, 9.0], [0, 0], [0.0, 0.0])
    assert plan.assignment.tolist() == [[3, 3], [0, 0]]


def test_surplus_core_is_taken_but_no_needed_core():
    plan = assign_cores([[1, 2, 1]], [2, 1, 1], [4], [1.0, 50.0, 1.0], [0, 0, 0], [0.0] * 3)
    assert plan.assignment.tolist() == [[2, 1, 1]]


def test_last_core_of_executor_is_never_taken():
    plan = assign_cores([[1, 1], [0, 1]], [2, 0], [2, 1], [1.0, 1.0], [0, 0], [1e6, 0.0])
    assert plan.assignment.tolist() == [[2, 0], [0, 1]]


def test_data_intensive_executor_displaces_others_from_its_home():
    current = [[1, 2], [1, 0]]
    plan = assign_cores(current, [2, 2], [3, 2], [100.0, 10.0], [0, 1], [1e6, 0.0])
    assert plan.assignment.tolist() == [[2, 1], [0, 1]]
    assert plan.cost == 55.0


def test_the_threshold_is_doubled_until_homes_suffice():
    plan = assign_cores([[1, 1], [0, 0]], [2, 2], [2, 2], [1.0, 1.0], [0, 0], [600_000.0, 3e6])
    assert plan.threshold == 2 * THRESHOLD
    assert plan.assignment.tolist() == [[0, 2], [2, 0]]


def test_draining_node_keeps_no_cores():
    plan = assign_cores([[2, 1], [0, 1]], [2, 2], [0, 4], [8.0, 8.0], [0, 1], [1e6, 1e6])
    assert plan.assignment.tolist() == [[0, 0], [2, 2]]
    assert plan.cost == 12.0
    assert plan.threshold == 1024 * 1024


def test_executors_without_cores_or_state_begin_at_home():
    plan = assign_cores(np.zeros((3, 3)), [2, 2, 2], [2, 2, 2], np.zeros(3), [2, 0, 1], np.zeros(3))
    assert plan.assignment.tolist() == [[0, 2, 0], [0, 0, 2], [2, 0, 0]]
    assert plan.cost == 0.0


def test_demand_above_all_cores_is_refused():
    with pytest.raises(Infeasible, match="5 cores are wanted, but 4 exist") as caught:
        assign_cores([[1, 1]], [3, 2], [4], [1.0, 1.0], [0, 0], [0.0, 0.0])
    assert caught.value.constraint == "(b) X >= k"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_exhausted_threshold_doubling_is_refused():
    problem = [[1, 1], [0, 0]], [2, 2], [2, 2], [1.0, 1.0], [0, 0], [600_000.0, 3e6]
    with pytest.raises(Infeasible, match="node 0 with an intensity above 524288 bytes/s want 4 cores there") as caught:
        assign_cores(*problem, doublings=0)
    assert caught.value.constraint == "(c) computation locality"
    assert assign_cores(*problem, doublings=1).threshold == 2 * THRESHOLD


def test_empty_core_problem_has_an_empty_assignment():
    plan = assign_cores(np.zeros((2, 0)), [], [1, 1], [], [], [])
    assert plan.assignment.shape == (2, 0)


GOOD = {
    "current": [[1, 1], [0, 1]],
    "wanted": [1, 2],
    "capacity": [2, 2],
    "state_bytes": [1.0, 2.0],
    "home": [0, 1],
    "intensity": [0.0, 0.0],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"current": [1, 1]}, r"current has shape \(2,\): give nodes x executors"),
        ({"current": [[1, -1], [0, 1]]}, "current contains -1"),
        ({"current": [[1, 0.5], [0, 1]]}, "current contains 0.5"),
        ({"current": [[1, math.nan], [0, 1]]}, "current contains nan"),
        ({"wanted": [1]}, r"wanted has shape \(1,\): give \(2,\)"),
        ({"wanted": [1, -2]}, "wanted contains -2"),
        ({"wanted": [1, math.inf]}, "wanted contains inf"),
        ({"wanted": [3, 3]}, "6 cores are wanted, but 4 exist"),
        ({"capacity": [2, 2, 2]}, r"capacity has shape \(3,\)"),
        ({"capacity": [2, -1]}, "capacity contains -1"),
        ({"state_bytes": [1.0, -1.0]}, "state_bytes contains -1.0"),
        ({"state_bytes": [1.0]}, r"state_bytes has shape \(1,\)"),
        ({"state_bytes": [1.0, math.nan]}, "state_bytes contains nan"),
        ({"home": [0, 2]}, "home contains 2, but the last of 2 nodes is 1"),
        ({"home": [0, -1]}, "home contains -1"),
        ({"intensity": [0.0, math.inf]}, "intensity contains inf"),
        ({"threshold": 0.0}, "threshold is 0.0"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"doublings": -1}, "doublings -1"),
    ],
)
def test_bad_input_is_refused_by_name(changes, message):
    with pytest.raises(PlanningError, match=message):
        assign_cores(**(GOOD | changes))


def test_bad_results_are_named():
    with pytest.raises(PlanningError, match="assignment contains -1"):
        CoreAssignment(np.array([[-1]]), 0.0, 1.0)
    with pytest.raises(PlanningError, match="cost is nan"):
        CoreAssignment(np.array([[1]]), math.nan, 1.0)


def test_cost_of_edges():
    assert migration_cost([[2], [0]], [[2], [0]], [7.0]) == 0.0
    assert migration_cost([[0], [0]], [[2], [1]], [7.0]) == 0.0
    assert migration_cost([[1], [1]], [[0], [0]], [7.0]) == 7.0
    assert migration_cost([[1, 4]], [[3, 1]], [7.0, 7.0]) == 0.0
    with pytest.raises(PlanningError, match=r"new has shape \(1, 1\)"):
        migration_cost([[1], [1]], [[1]], [7.0])


def test_core_assignment_at_paper_size_is_fast(slowness):
    problem = at_home(np.random.default_rng(0), 32, 96, 8, 0.1, 0.4)
    spent = []
    for _ in range(5):
        start = time.process_time()
        plan = assign_cores(*problem)
        spent.append(time.process_time() - start)
    check(problem, plan)
    assert min(spent) < 0.03 * slowness()


def random_columns(random, nodes, executors):
    matrix = random.integers(0, 4, (nodes, executors)) * (random.random((nodes, executors)) < 0.3)
    return CoreColumns.of(matrix).columns


@pytest.mark.parametrize("seed", range(10))
def test_sums_of_replaced_columns_are_those_of_all_columns(seed):
    random = np.random.default_rng(seed)
    nodes, executors = int(random.integers(1, 9)), int(random.integers(1, 12))
    before, after = (random_columns(random, nodes, executors) for _ in range(2))
    chosen = np.flatnonzero(random.random(executors) < 0.5).tolist()
    kept = CoreColumns(nodes, before)
    made = kept.replaced({executor: after[executor] for executor in chosen})
    expected = CoreColumns(nodes, [(after if j in chosen else before)[j] for j in range(executors)])
    assert made.columns == expected.columns
    assert made.totals.tolist() == expected.matrix.sum(axis=0).tolist() == expected.totals.tolist()
    assert made.per_node.tolist() == expected.matrix.sum(axis=1).tolist() == expected.per_node.tolist()
    assert kept.totals.tolist() == CoreColumns(nodes, before).totals.tolist()


def test_columns_without_executors_have_sums():
    none = CoreColumns(2, [])
    assert none.totals.tolist() == []
    assert none.per_node.tolist() == [0, 0]
    assert none.replaced({}) is none
