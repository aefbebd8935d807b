from __future__ import annotations

import itertools
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.planning.intervals.transition import (
    ProjectedCosts,
    projected_costs,
    single_step_aware,
    transition_matrix,
)
from dask_elastic.vocab.errors import Infeasible, PlanningError

TABLE_4 = {2: {2: 0.3, 3: 0.6, 4: 0.1}, 3: {2: 0.3, 3: 0.4, 4: 0.3}, 4: {2: 0.1, 3: 0.5, 4: 0.4}}


def states_of(load, matrix, tau, allow_empty):
    """Every number of nodes with every bounds that keep its limit."""
    tasks, found = len(load), set()
    for nodes in set(matrix).union(*matrix.values()):
        limit = (1 + tau) * sum(load) / nodes + 1e-9
        for cuts in itertools.combinations_with_replacement(range(tasks + 1), nodes - 1):
            bounds = sorted({0, *cuts, tasks})
            full = len(bounds) == nodes + 1 or allow_empty
            if full and all(sum(load[a:b]) <= limit for a, b in itertools.pairwise(bounds)):
                found.add((nodes, tuple(bounds)))
    return sorted(found)


def least_move(state, before, after):
    kept = [
        [sum(state[max(a, c) : max(min(b, d), a, c)]) for c, d in itertools.pairwise(after)]
        for a, b in itertools.pairwise(before)
    ]
    rows, columns = linear_sum_assignment(kept, maximize=True)
    return sum(state) - np.array(kept)[rows, columns].sum()


def plain_value_iteration(load, state, matrix, tau, discount, allow_empty):
    """Figure 9 with the minimum, all pairs, until nothing changes."""
    states = states_of(load, matrix, tau, allow_empty)
    bounds = sorted({one for _, one in states})
    moves = {(a, b): least_move(state, a, b) for a in bounds for b in bounds}
    values = dict.fromkeys(states, 0.0)
    while True:
        renewed = {
            (nodes, before): sum(
                share
                * min(
                    moves[before, after] + discount * values[count, after]
                    for count, after in states
                    if count == following
                )
                for following, share in matrix.get(nodes, {}).items()
            )
            for nodes, before in states
        }
        if max(abs(renewed[one] - values[one]) for one in states) < 1e-10:
            return renewed
        values = renewed


def lengths(nodes, bounds):
    return [*np.diff(bounds).tolist(), *[0] * (nodes + 1 - len(bounds))]


@st.composite
def chains(draw):
    tasks = draw(st.integers(4, 6))
    load = draw(st.lists(st.integers(1, 3), min_size=tasks, max_size=tasks))
    state = draw(st.lists(st.integers(0, 6), min_size=tasks, max_size=tasks))
    counts = sorted(draw(st.sets(st.integers(1, 4), min_size=2, max_size=3)))
    matrix = {}
    for nodes in counts[: len(counts) if draw(st.booleans()) else -1]:
        weights = draw(st.lists(st.integers(0, 3), min_size=len(counts), max_size=len(counts)).filter(any))
        matrix[nodes] = {after: weight / sum(weights) for after, weight in zip(counts, weights, strict=True) if weight}
    occurring = set(matrix).union(*matrix.values())
    tau = max(least_tau(load, nodes) for nodes in occurring) + draw(st.sampled_from([0.0, 0.3]))
    return load, state, matrix, tau, draw(st.sampled_from([0.0, 0.5, 0.8])), draw(st.booleans())


@given(problem=chains())
@settings(max_examples=40, deadline=None)
def test_every_cost_is_that_of_plain_value_iteration(problem):
    allow_empty, nodes = problem[-1], max(set(problem[2]).union(*problem[2].values()))
    if not allow_empty and nodes > len(problem[0]):
        with pytest.raises(Infeasible):
            projected_costs(*problem)
        return
    expected = plain_value_iteration(*problem)
    costs = projected_costs(*problem)
    assert len(costs) == len(expected)
    for (nodes, bounds), value in expected.items():
        assert costs.cost(lengths(nodes, bounds)) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("discount", [0.5, 0.95, 0.999])
def test_costs_are_exact_to_a_millionth_by_their_own_equation(discount):
    # C[P] = Σ M · min (c + γ C[P']): what is off by ε breaks it by (1 − γ) ε at least somewhere.
    random = np.random.default_rng(3)
    load, state = random.lognormal(0, 0.3, 9), random.lognormal(0, 1, 9) * 100
    costs = projected_costs(load, state, TABLE_4, 0.5, discount)
    states = states_of(load, TABLE_4, 0.5, False)
    values = {one: costs.cost(lengths(*one)) for one in states}
    for nodes, before in states:
        renewed = sum(
            share
            * min(
                least_move(state, before, after) + discount * values[count, after]
                for count, after in states
                if count == following
            )
            for following, share in TABLE_4[nodes].items()
        )
        assert abs(renewed - values[nodes, before]) <= 2e-6 * (1 - discount) + 1e-12 * renewed


def policy_iteration(load, state, matrix, tau, discount):
    """The cost of every partitioning under the best policy, each policy's costs by solving its linear equations."""
    states = states_of(load, matrix, tau, False)
    at = {one: place for place, one in enumerate(states)}
    options = {nodes: [one for one in states if one[0] == nodes] for nodes in matrix}
    moves = {(a, b): least_move(state, a, b) for a in {one for _, one in states} for b in {one for _, one in states}}
    policy = {(one, after): options[after][0] for one in states for after in matrix[one[0]]}
    while True:
        system, paid = np.eye(len(states)), np.zeros(len(states))
        for (one, after), target in policy.items():
            system[at[one], at[target]] -= discount * matrix[one[0]][after]
            paid[at[one]] += matrix[one[0]][after] * moves[one[1], target[1]]
        values = np.linalg.solve(system, paid)

        def cost(one, target, values=values):
            return moves[one[1], target[1]] + discount * values[at[target]]

        better = {
            (one, after): min(options[after], key=lambda target, one=one: cost(one, target)) for one, after in policy
        }
        gains = [cost(one, policy[one, after]) - cost(one, target) for (one, after), target in better.items()]
        if max(gains) <= 1e-12 * values.max():
            return dict(zip(states, values, strict=True))
        policy = better


@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("discount", [0.0, 0.8, 0.99])
def test_costs_are_those_of_the_best_policy_to_a_millionth(size, discount):
    random = np.random.default_rng(6)
    load, state = random.lognormal(0, 0.2, 8), random.lognormal(0, 1, 8) * size
    matrix = {2: {3: 0.7, 4: 0.3}, 3: {2: 0.5, 4: 0.5}, 4: {2: 0.2, 3: 0.8}}
    expected = policy_iteration(load, state, matrix, 0.5, discount)
    costs = projected_costs(load, state, matrix, 0.5, discount)
    assert len(costs) == len(expected) >= 20
    assert max(abs(costs.cost(lengths(*one)) - value) for one, value in expected.items()) <= 1e-6


def solved(system, right):
    """The solution of linear equations to 60 digits, by elimination; these need no pivoting."""
    rows = [[*row, paid] for row, paid in zip(system, right, strict=True)]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1 :]:
            if row[k]:
                factor = row[k] / pivot[k]
                row[k:] = [x - factor * y for x, y in zip(row[k:], pivot[k:], strict=True)]
    found = [Decimal(0)] * len(rows)
    for k in reversed(range(len(rows))):
        found[k] = (rows[k][-1] - sum(rows[k][j] * found[j] for j in range(k + 1, len(rows)))) / rows[k][k]
    return found


@pytest.mark.parametrize("discount", [0.8, 0.99])
@pytest.mark.parametrize("largest", [10**6, 10**8])
def test_costs_of_large_states_are_exact_to_a_millionth(largest, discount):
    # The best policy's costs in 60 digits; that it is the best one is seen from their equation.
    load, state = [1] * 8, np.random.default_rng(5).integers(largest // 2, largest, 8).tolist()
    matrix = {2: {3: 0.75, 4: 0.25}, 3: {2: 0.5, 4: 0.5}, 4: {2: 0.25, 3: 0.75}}
    costs = projected_costs(load, state, matrix, 0.5, discount)
    states = states_of(load, matrix, 0.5, False)
    at = {one: place for place, one in enumerate(states)}
    with localcontext() as context:
        context.prec = 60

        def best(one, after, values):
            options = [(_move(state, one, other) + weight * values[at[other]], other) for other in states]
            return min(option for option in options if option[1][0] == after)

        weight, values = Decimal(discount), [Decimal(costs.cost(lengths(*one))) for one in states]
        system, paid = [[Decimal(int(row == column)) for column in at] for row in at], [Decimal(0)] * len(states)
        for one, place in at.items():
            for after, share in matrix[one[0]].items():
                target = best(one, after, values)[1]
                system[place][at[target]] -= weight * Decimal(share)
                paid[place] += Decimal(share) * _move(state, one, target)
        exact = solved(system, paid)
        for one, place in at.items():
            renewed = sum(Decimal(share) * best(one, after, exact)[0] for after, share in matrix[one[0]].items())
            assert abs(renewed - exact[place]) < Decimal("1e-30")
        assert max(abs(x - y) for x, y in zip(exact, values, strict=True)) <= Decimal("1e-6")
        assert max(exact) > 4 * largest


@cache
def _moved(state, before, after):
    return Decimal(int(least_move(state, before, after)))


def _move(state, one, other):
    return _moved(tuple(state), one[1], other[1])


def test_costs_of_sizes_that_no_double_holds_to_a_millionth_end_all_the_same():
    random = np.random.default_rng(8)
    load, state = random.lognormal(0, 0.2, 8), random.lognormal(0, 1, 8)
    small = projected_costs(load, state, TABLE_4, 0.5, 0.999)
    large = projected_costs(load, state * 2.0**50, TABLE_4, 0.5, 0.999)
    for one in states_of(load, TABLE_4, 0.5, False):
        assert large.cost(lengths(*one)) == pytest.approx(2.0**50 * small.cost(lengths(*one)), rel=1e-8)


def test_discount_zero_is_the_next_step_alone():
    load, state = np.ones(12), np.arange(12.0)
    costs = projected_costs(load, state, {2: {3: 0.5, 4: 0.5}}, 0.3, 0.0)
    before = [[0, 5], [5, 12]]
    steps = [single_step(load, state, before, nodes, 0.3, allow_empty=False).cost for nodes in (3, 4)]
    assert costs.cost([5, 7]) == pytest.approx(sum(steps) / 2, abs=1e-6)


def test_final_node_count_has_no_projected_cost():
    costs = projected_costs([1] * 6, [1] * 6, {1: {2: 1.0}}, 0.0, 0.9)
    assert costs.node_counts == (1, 2)
    assert costs.cost([3, 3]) == pytest.approx(0, abs=1e-6)
    assert costs.cost([6]) == pytest.approx(3, abs=1e-6)


def test_projected_costs_report_progress_up_to_the_total():
    seen = []
    costs = projected_costs(
        [1] * 16, [1] * 16, TABLE_4, 0.5, 0.5, progress=lambda done, whole: seen.append((done, whole))
    )
    assert seen[-1] == (len(costs), len(costs))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 1


@given(seed=st.integers(0, 2**32), allow_empty=st.booleans(), discount=st.sampled_from([0.0, 0.6, 0.9]))
@settings(max_examples=25, deadline=None)
def test_mtm_aware_step_has_least_cost_of_all_states(seed, allow_empty, discount):
    random = np.random.default_rng(seed)
    load, state = random.lognormal(0, 0.2, 8), random.integers(0, 9, 8).astype(float)
    tau = max(least_tau(load, nodes) for nodes in TABLE_4) + 0.2
    costs = projected_costs(load, state, TABLE_4, tau, discount, allow_empty)
    bounds = np.sort(random.integers(0, 9, 2))
    intervals = np.array(list(itertools.pairwise([0, *bounds, 8])))[random.permutation(3)]
    nodes = int(random.integers(2, 5))
    plan = single_step_aware(load, state, intervals, nodes, tau, costs)
    before = sorted({0, *bounds.tolist(), 8})
    options = [
        least_move(state, before, after) + discount * costs.cost(lengths(count, after))
        for count, after in states_of(load, TABLE_4, tau, allow_empty)
        if count == nodes
    ]
    chosen = [*plan.tasks_per_interval, *[0] * (nodes - len(plan.tasks_per_interval))]
    assert plan.cost + discount * costs.cost(chosen) == pytest.approx(min(options))
    if discount == 0:
        assert plan.cost == pytest.approx(single_step(load, state, intervals, nodes, tau, allow_empty).cost)


def test_mtm_aware_planning_costs_less_than_single_steps():
    # A long run of the chain that the costs were projected for.
    random = np.random.default_rng(1)
    load, state = random.lognormal(0, 0.3, 24), random.lognormal(0, 0.3, 24)
    matrix = {2: {3: 1.0}, 3: {2: 0.5, 4: 0.5}, 4: {3: 0.5, 5: 0.5}, 5: {4: 1.0}}
    costs = projected_costs(load, state, matrix, 0.4, 0.8)
    start = single_step(load, state, [[0, 24]], 3, 0.4).intervals
    greedy, aware, totals = start, start, np.zeros(2)
    nodes = 3
    for _ in range(200):
        nodes = int(random.choice(list(matrix[nodes]), p=list(matrix[nodes].values())))
        plans = (
            single_step(load, state, greedy, nodes, 0.4, allow_empty=False),
            single_step_aware(load, state, aware, nodes, 0.4, costs),
        )
        totals += [plan.cost for plan in plans]
        greedy, aware = (plan.intervals for plan in plans)
    assert totals[1] < 0.97 * totals[0]


def test_saved_and_loaded_costs_are_equal(tmp_path):
    random = np.random.default_rng(2)
    for number, allow_empty in enumerate((False, True)):
        costs = projected_costs(random.lognormal(0, 0.2, 10), np.arange(10), TABLE_4, 0.6, 0.7, allow_empty)
        path = tmp_path / f"{number}.parquet"
        costs.save(path)
        loaded = ProjectedCosts.load(str(path))
        assert (loaded.tasks, loaded.tau, loaded.discount, loaded.allow_empty) == (10, 0.6, 0.7, allow_empty)
        assert len(loaded.groups) == len(costs.groups)
        for one, other in zip(costs.groups, loaded.groups, strict=True):
            assert one.nodes == other.nodes
            assert (one.partitionings.bounds == other.partitionings.bounds).all()
            assert (one.costs == other.costs).all()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(PlanningError, match=r"other.parquet' holds no projected costs"):
        ProjectedCosts.load(tmp_path / "other.parquet")
    (tmp_path / "other.txt").write_text("2 nodes cost 3")
    with pytest.raises(PlanningError, match=r"other.txt' holds no projected costs"):
        ProjectedCosts.load(tmp_path / "other.txt")


@pytest.mark.parametrize("drop_self", [True, False])
def test_matrix_counts_transitions(drop_self):
    random = np.random.default_rng(4)
    counts = random.integers(8, 12, 500)
    matrix = transition_matrix(counts, drop_self)
    pairs = [(a, b) for a, b in itertools.pairwise(counts.tolist()) if a != b or not drop_self]
    for nodes, row in matrix.items():
        assert sum(row.values()) == pytest.approx(1)
        for after, share in row.items():
            assert share == pytest.approx(pairs.count((nodes, after)) / sum(a == nodes for a, _ in pairs))
    assert {(a, b) for a, row in matrix.items() for b in row} == set(pairs)


def test_matrix_of_an_empty_trace_is_empty():
    assert transition_matrix([]) == transition_matrix([3]) == transition_matrix([3, 3]) == {}
    assert transition_matrix([3, 3], drop_self=False) == {3: {3: 1.0}}


@pytest.mark.parametrize("counts", [[2, 0], [2.0, 3.0], [[2, 3]], [[2, 3], [2]], ["2", "3"]])
def test_invalid_transition_counts_are_refused(counts):
    with pytest.raises(PlanningError, match=r"nodes is 0|node_counts has shape|node_counts is no array"):
        transition_matrix(counts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matrix": {2: {2: 0.5, 3: 0.4}}}, "row 2 of the matrix sums to 0.9"),
        ({"matrix": {2: {3: 1.0}, 3: {2: 0.7, 3: 0.4}}}, "row 3 of the matrix sums to 1.1"),
        ({"matrix": {2: {}}}, "row 2 of the matrix sums to 0"),
        ({"matrix": {}}, "matrix is {}"),
        ({"matrix": {2: {3: -0.5, 2: 1.5}}}, "the probability of 3 nodes after 2 is -0.5"),
        ({"matrix": {0: {2: 1.0}}}, "nodes is 0"),
        ({"matrix": {2: {"3": 1.0}}}, "nodes is '3'"),
        ({"matrix": {2: 1.0}}, "row 2 of the matrix is 1.0"),
        ({"discount": 1.0}, "discount is 1.0"),
        ({"discount": -0.1}, "discount is -0.1"),
        ({"tolerance": 0}, "tolerance is 0"),
        ({"tolerance": None}, "tolerance is None"),
        ({"discount": "0.5"}, "discount is '0.5'"),
        ({"matrix": {2: {3: "1.0"}}}, "the probability of 3 nodes after 2 is '1.0'"),
        ({"tau": -1}, "tau is -1"),
        ({"load": [1, 1, 9, 1]}, "task 2 alone has a load of 9.0, and the limit of a node is 7.2"),
        ({"matrix": {2: {5: 1.0}}, "tau": 9.0}, "5 nodes are to have one of 4 tasks each"),
    ],
)
def test_bad_input_is_refused_by_name(change, message):
    given = {"load": [1] * 4, "state_bytes": [1] * 4, "matrix": {2: {2: 1.0}}, "tau": 0.2, "discount": 0.5}
    with pytest.raises(PlanningError, match=message):
        projected_costs(**(given | change))


def test_step_to_unprojected_node_count_is_refused():
    load = np.ones(6)
    costs = projected_costs(load, load, {2: {3: 1.0}}, 0.2, 0.5)
    for wanted, message in (
        ([6], "nothing is projected for 1 nodes, only for 2, 3"),
        ([5, 1], r"intervals of \[5, 1\] tasks: with tau 0.2 they exceed the load limit"),
        ([3, 3, 0], "Empty intervals were not allowed"),
        ([3, 2], r"lengths that sum to 6"),
        ([], r"lengths that sum to 6"),
    ):
        with pytest.raises(PlanningError, match=message):
            costs.cost(wanted)
    with pytest.raises(PlanningError, match="nothing is projected for 4 nodes"):
        single_step_aware(load, load, [[0, 6]], 4, 0.2, costs)
    with pytest.raises(PlanningError, match="load is for 5 tasks, the projected costs for 6"):
        single_step_aware(load[:5], load[:5], [[0, 5]], 3, 0.2, costs)
    with pytest.raises(PlanningError, match="overlap"):
        single_step_aware(load, load, [[0, 6], [1, 2]], 3, 0.2, costs)
    with pytest.raises(Infeasible, match="loads have changed too much"):
        single_step_aware([1, 1, 1, 1, 1, 9], load, [[0, 6]], 2, 0.3, costs)
