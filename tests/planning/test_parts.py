from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.placement.parts import contracted, pairs, parts
from dask_elastic.planning.placement.problem import PlacementProblem


def job(seed, groups=40, bins=4, operators=4, **change):
    """A chain of operators with much traffic between some groups and a little between others."""
    random = np.random.default_rng(seed)
    operator = np.arange(groups) * operators // groups
    dense = random.exponential(1.0, (groups, groups)) * (random.random((groups, groups)) < 0.4)
    dense[operator[:, None] + 1 != operator[None, :]] = 0
    load, current = random.uniform(1, 3, groups), random.integers(0, bins, groups)
    state = random.integers(1, 50, groups)
    return PlacementProblem(load, current, bins, state, traffic=dense, operator=operator, **change)


def listing(problem, score):
    """Step 1 of Algorithm 2, line by line."""
    out, operator = problem.traffic.toarray(), problem.operator
    together, apart = set(), set()
    for group in range(problem.groups):
        downstream = {
            operator[j] for i in range(problem.groups) for j in np.flatnonzero(out[i]) if operator[i] == operator[group]
        }
        below = [j for j in range(problem.groups) if operator[j] in downstream]
        if not below:
            continue
        mean = sum(out[group, j] for j in below) / len(below)
        for j in below:
            if out[group, j] > mean * score:
                (together if problem.current[group] == problem.current[j] else apart).add((group, j))
    return together, apart


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("score", [1.0, 1.5, 3.0])
def test_pairs_are_those_of_the_listing(seed, score):
    problem = job(seed)
    together, apart = pairs(problem, score)
    assert (set(map(tuple, together.tolist())), set(map(tuple, apart.tolist()))) == listing(problem, score)
    sent = np.asarray(problem.traffic[apart[:, 0], apart[:, 1]]).ravel()
    assert (np.diff(sent) <= 0).all()


def test_groups_without_a_bin_are_in_no_pair():
    problem = PlacementProblem([1, 1, 1], [0, -1, 0], 1, traffic=[[0, 9, 0.1], [9, 0, 0], [0, 0, 0]])
    assert [found.tolist() for found in pairs(problem, 1.5)] == [[], []]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [{}, {"max_cost": 60.0}, {"max_moves": 2}])
def test_parts_are_sets_of_pairs_that_can_be_balanced_and_moved(seed, budget):
    problem = job(seed, **budget)
    together, _ = pairs(problem, 1.5)
    label = parts(problem, together, most=0.4, seed=seed)
    assert sorted(set(label.tolist())) == list(range(label.max() + 1))
    links = sp.coo_matrix((np.ones(len(together)), together.T), (problem.groups, problem.groups))
    component = sp.csgraph.connected_components(links, directed=False)[1]
    for part in range(label.max() + 1):
        members = np.flatnonzero(label == part)
        assert len(set(component[members].tolist())) == 1
        if len(members) > 1:
            assert problem.weight[members].sum() <= 0.4 * problem.weight.sum() / problem.bins * (1 + 1e-9)
            assert problem.state_bytes[members].sum() <= budget.get("max_cost", np.inf)
            assert len(members) <= budget.get("max_moves", np.inf)


def test_sets_are_not_cut_within_limits():
    problem = job(1)
    together, _ = pairs(problem, 1.5)
    label = parts(problem, together, most=100.0, seed=0)
    links = sp.coo_matrix((np.ones(len(together)), together.T), (problem.groups, problem.groups))
    assert label.max() + 1 == sp.csgraph.connected_components(links, directed=False)[0]


def test_parts_do_not_count_capacities_as_loads():
    # The unit of capacity plays no part: a bin of a hundred has as much of the load as a bin of one.
    problem = job(2)
    together, _ = pairs(problem, 1.5)
    strong = replace(problem, capacity=np.full(4, 1000.0))
    assert parts(strong, together, 0.4, 0).tolist() == parts(problem, together, 0.4, 0).tolist()


def test_part_is_merged_into_one_group():
    problem = replace(job(3), pinned=[0], max_moves=9)
    together, _ = pairs(problem, 1.5)
    label = parts(problem, together, most=1.0, seed=0)
    whole = contracted(problem, label)
    assert whole.groups == label.max() + 1 < problem.groups
    assert whole.totals(whole.current) == pytest.approx(problem.totals(problem.current))
    assert (whole.current[label] == problem.current).all()
    assert whole.size.sum() == problem.groups
    assert whole.pinned[label[0]]
    bin = (problem.current + 1) % problem.bins
    moved = whole.placement((whole.current + 1) % problem.bins)
    assert (moved.moves, moved.cost) == (problem.placement(bin).moves, problem.placement(bin).cost)
