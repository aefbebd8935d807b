from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.plan import moved_state
from dask_elastic.planning.intervals.sequence import sequence
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.vocab.errors import Infeasible, PlanningError


def every_partitioning(load, nodes, tau, allow_empty):
    """All bounds that keep the limit, without empty intervals."""
    limit, tasks, found = (1 + tau) * sum(load) / nodes + 1e-9, len(load), set()
    for cuts in itertools.combinations_with_replacement(range(tasks + 1), nodes - 1):
        bounds = sorted({0, *cuts, tasks})
        full = len(bounds) == nodes + 1 or allow_empty
        if full and all(sum(load[a:b]) <= limit for a, b in itertools.pairwise(bounds)):
            found.add(tuple(bounds))
    return found


def least_move(state, before, after):
    """Cost of the best matching of two partitionings."""
    kept = [
        [sum(state[max(a, c) : max(min(b, d), a, c)]) for c, d in itertools.pairwise(after)]
        for a, b in itertools.pairwise(before)
    ]
    rows, columns = linear_sum_assignment(kept, maximize=True)
    return sum(state) - np.array(kept)[rows, columns].sum()


def least_total(loads, states, bounds, counts, taus, allow_empty):
    """Least total cost by trying every partitioning of every step; None if a step has none."""
    costs = {tuple(sorted(set(bounds))): 0.0}
    for load, state, nodes, tau in zip(loads, states, counts, taus, strict=True):
        costs = {
            after: min(cost + least_move(state, before, after) for before, cost in costs.items())
            for after in every_partitioning(load, nodes, tau, allow_empty)
        }
        if not costs:
            return None
    return min(costs.values())


@st.composite
def sequences(draw):
    tasks, steps = draw(st.integers(2, 7)), draw(st.integers(1, 4))

    def numbers(least, most):
        same = draw(st.booleans())
        row = st.lists(st.integers(least, most), min_size=tasks, max_size=tasks)
        return [draw(row)] * steps if same else [draw(row) for _ in range(steps)]

    loads, states = numbers(1, 4), numbers(0, 6)
    bounds = sorted([0, tasks, *draw(st.lists(st.integers(0, tasks), max_size=3))])
    counts = draw(st.lists(st.integers(1, 4), min_size=steps, max_size=steps))
    taus = draw(st.lists(st.sampled_from([0.2, 0.5, 1.0]), min_size=steps, max_size=steps))
    return loads, states, bounds, counts, taus, draw(st.booleans())


@given(problem=sequences())
@settings(max_examples=120, deadline=None)
def test_sequence_cost_is_minimal(problem):
    loads, states, bounds, counts, taus, allow_empty = problem
    intervals = list(itertools.pairwise(bounds))
    best = least_total(*problem)
    if best is None:
        with pytest.raises(Infeasible, match=r"step \d"):
            sequence(loads, states, intervals, counts, taus, allow_empty)
        return
    plans = sequence(loads, states, intervals, counts, taus, allow_empty)
    assert sum(plan.cost for plan in plans) == best
    before = np.array(intervals)
    for plan, load, state, nodes, tau in zip(plans, loads, states, counts, taus, strict=True):
        assert len(plan.intervals) == max(len(before), nodes)
        assert moved_state(np.array(state, dtype=float), before, plan.intervals) == plan.cost
        used = [0, *np.cumsum(plan.tasks_per_interval)]
        assert tuple(used) in every_partitioning(load, nodes, tau, allow_empty)
        before = plan.intervals


@given(seed=st.integers(0, 2**32), tau=st.sampled_from([0.2, 0.4]))
@settings(max_examples=15, deadline=None)
def test_never_worse_than_single_steps(seed, tau):
    random = np.random.default_rng(seed)
    load, state = random.lognormal(0, 0.3, 30), random.lognormal(0, 1, 30)
    counts = random.integers(2, 6, 6).tolist()
    tau = max(tau, max(least_tau(load, nodes) for nodes in counts))
    before, total = single_step(load, state, [[0, 30]], 3, 1.0).intervals, 0.0
    start = before
    for nodes in counts:
        plan = single_step(load, state, before, nodes, tau)
        before, total = plan.intervals, total + plan.cost
    plans = sequence(load, state, start, counts, tau)
    assert sum(plan.cost for plan in plans) <= total + 1e-9


@pytest.mark.parametrize("allow_empty", [True, False])
def test_one_step_is_a_single_step(allow_empty):
    random = np.random.default_rng(11)
    for _ in range(20):
        load, state = random.lognormal(0, 0.3, 20), random.lognormal(0, 1, 20)
        nodes = int(random.integers(1, 6))
        problem = load, state, [[0, 7], [7, 20]]
        tau = least_tau(load, nodes) + 0.2
        plans = sequence(*problem, [nodes], tau, allow_empty)
        assert plans[0].cost == pytest.approx(single_step(*problem, nodes, tau, allow_empty).cost)


def test_ten_steps_of_sixty_four_tasks():
    # The optimum by an integer program over intervals and matchings, solved by HiGHS.
    eight = np.arange(65)[::8]
    counts = [9, 10, 9, 8, 9, 10, 11, 12, 11, 10]
    plans = sequence(np.ones(64), np.ones(64), np.stack([eight[:-1], eight[1:]], axis=1), counts, 0.2)
    assert sum(plan.cost for plan in plans) == 50


def test_sequence_without_steps_has_no_plan():
    assert sequence([1, 1], [1, 1], [[0, 2]], [], 0.2) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intervals": [[0, 3], [2, 4]]}, "intervals overlap: nodes 0 and 1 both have task 2"),
        ({"load": [[1] * 4] * 2}, "load is for 2 steps: nodes_sequence has 3"),
        ({"state_bytes": [[[1] * 4]] * 3}, r"state_bytes has shape \(3, 1, 4\)"),
        ({"tau": [0.2, 0.2]}, r"tau has shape \(2,\)"),
        ({"tau": -1}, "tau is -1"),
        ({"tau": "loose"}, "tau is not an array of numbers"),
        ({"load": [[1, 1, 1, 1], [1]]}, "load is not an array of numbers"),
        ({"nodes_sequence": [2, 0, 2]}, "nodes is 0"),
        ({"load": [1, 1, 1, -1]}, "load of task 3 is -1.0"),
        ({"load": [1, 1, 1, 9]}, "step 0: task 3 alone has a load of 9.0, and the limit of a node is 7.2"),
        ({"load": [2, 1, 1, 1], "nodes_sequence": [1, 1, 4]}, "step 2: task 0 alone"),
    ],
)
def test_bad_input_is_refused_by_name(change, message):
    given = {
        "load": [1] * 4,
        "state_bytes": [1] * 4,
        "intervals": [[0, 2], [2, 4]],
        "nodes_sequence": [2, 2, 2],
        "tau": 0.2,
    }
    with pytest.raises(PlanningError, match=message):
        sequence(**(given | change))


def test_more_partitionings_than_can_be_listed_are_refused():
    bounds = np.arange(0, 65, 4)
    with pytest.raises(PlanningError, match=r"64 tasks have .* partitionings for 15 nodes with tau 1.2"):
        sequence(np.ones(64), np.ones(64), np.stack([bounds[:-1], bounds[1:]], axis=1), [15, 16], 1.2)
