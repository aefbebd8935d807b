"""Elasticutor, section 4.2: Algorithm 1 as printed, its failures, and the corrected algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.planning.cores import assign_cores, migration_cost

THRESHOLD = 512 * 1024


def listing(current, wanted, capacity, state, home, intensity, free_cores):
    """Run Algorithm 1 as printed, optionally with free cores as a donor; return None for its FAIL."""
    assignment = current.copy()
    if free_cores:
        # An additional executor without state or demand holds the free cores.
        free = (capacity - current.sum(axis=1))[:, None]
        assignment = np.hstack([assignment, free])
        wanted, state = np.append(wanted, 0), np.append(state, 0.0)
    count = current.shape[1]
    bound = np.append(intensity > THRESHOLD, [False] * (len(wanted) - count))
    short = [j for j in range(count) if assignment[:, j].sum() < wanted[j]]
    for j in sorted(short, key=lambda j: -intensity[j]):
        while (total := assignment[:, j].sum()) < wanted[j]:
            options = []
            for donor in range(len(wanted)):
                held = assignment[:, donor].sum()
                if donor == j or (held <= wanted[donor] if not bound[j] else donor in short and bound[donor]):
                    continue
                for node in np.flatnonzero(assignment[:, donor]):
                    if bound[j] and node != home[j]:
                        continue
                    cost = state[donor] * (held - assignment[node, donor]) / max(held * (held - 1), 1)
                    if not bound[j]:
                        cost += state[j] * (total - assignment[node, j]) / max(total * (total + 1), 1)
                    options.append((cost, node, donor))
            if not options:
                return None
            _, node, donor = min(options)
            assignment[node, donor] -= 1
            assignment[node, j] += 1
    return assignment[:, :count]


def valid(assignment, problem):
    _, wanted, capacity, _, home, intensity = problem
    totals = assignment.sum(axis=0)
    local = all(assignment[home[j], j] == totals[j] for j in np.flatnonzero(intensity > THRESHOLD))
    return bool((assignment.sum(axis=1) <= capacity).all() and (totals >= wanted).all() and local)


def instance(random):
    nodes, executors = (int(n) for n in random.integers(2, 5, 2))
    capacity = random.integers(2, 5, nodes)
    home = random.integers(0, nodes, executors)
    current = np.zeros((nodes, executors), dtype=np.int64)
    for turn in range(int(random.integers(executors, capacity.sum() + 1))):
        vacant = np.flatnonzero(current.sum(axis=1) < capacity)
        current[random.choice(vacant), turn % executors] += 1
    most = int(capacity.sum()) - executors
    wanted = 1 + random.multinomial(random.integers(0, most + 1), [1 / executors] * executors)
    state = random.uniform(1, 100, executors)
    return current, wanted, capacity, state, home, random.choice([1e5, 1e6], executors, p=[0.6, 0.4])


def test_core_assignment_is_always_valid_and_printed_listing_mostly_not():
    random = np.random.default_rng(9)
    feasible, printed, offered, best_of_offered = 0, 0, 0, 0
    for _ in range(300):
        problem = instance(random)
        plan = assign_cores(*problem)
        if plan.threshold > THRESHOLD:
            continue
        feasible += 1
        assert valid(plan.assignment, problem)
        literal = listing(*problem, free_cores=False)
        printed += literal is not None and valid(literal, problem)
        answer = listing(*problem, free_cores=True)
        if answer is not None and valid(answer, problem):
            offered += 1
            cost = migration_cost(problem[0], answer, problem[3])
            assert plan.cost <= cost + 1e-9
            best_of_offered += cost <= plan.cost + 1e-9
    assert feasible > 150
    assert printed < 0.5 * feasible
    assert printed < best_of_offered < offered < 0.9 * feasible


def test_core_assignment_uses_free_cores_as_donors():
    current, wanted, capacity = np.array([[1]]), np.array([2]), np.array([2])
    problem = current, wanted, capacity, np.array([5.0]), np.array([0]), np.array([0.0])
    assert listing(*problem, free_cores=False) is None
    assert assign_cores(*problem).assignment.tolist() == [[2]]


def test_core_assignment_brings_remote_cores_of_data_intensive_executor_home():
    problem = np.array([[1], [1]]), np.array([2]), np.array([2, 2]), np.array([8.0]), np.array([0]), np.array([1e6])
    assert listing(*problem, free_cores=True).tolist() == [[1], [1]]
    plan = assign_cores(*problem)
    assert plan.assignment.tolist() == [[2], [0]]
    assert plan.cost == 4.0


def test_printed_line_seven_takes_needed_core_and_ours_does_not():
    current = np.array([[1, 2], [0, 0]])
    problem = current, np.array([2, 2]), np.array([3, 1]), np.array([1.0, 1.0]), np.array([0, 1]), np.array([1e6, 0.0])
    assert listing(*problem, free_cores=True).sum(axis=0).tolist() == [2, 1]
    assert assign_cores(*problem).assignment.tolist() == [[2, 1], [0, 1]]


def test_core_assignment_keeps_surplus_cores():
    current = np.array([[4, 1]])
    plan = assign_cores(current, [1, 1], [8], [1.0, 1.0], [0, 0], [0.0, 0.0])
    assert plan.assignment.tolist() == current.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_printed_overheads_equal_cost_of_one_core_change(seed):
    # Compare C+ and C- of section 4.2 with the migration cost of a change of one core.
    random = np.random.default_rng(seed)
    column = random.integers(0, 4, (4, 1))
    column[random.integers(4)] += 2
    total, state, node = int(column.sum()), 60.0, int(random.choice(np.flatnonzero(column)))
    more, fewer = column.copy(), column.copy()
    more[node] += 1
    fewer[node] -= 1
    gained = migration_cost(column, more, [state])
    assert gained == pytest.approx(state * (total - column[node, 0]) / (total * (total + 1)))
    lost = migration_cost(column, fewer, [state])
    assert lost == pytest.approx(state * (total - column[node, 0]) / (total * (total - 1)))
