from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.placement.bisection import FEW, Bisection
from dask_elastic.planning.placement.graph_partition import UNEVEN


def traffic(groups, seed):
    random = np.random.default_rng(seed)
    return sp.csr_matrix(random.uniform(0, 1, (groups, groups)) * (random.random((groups, groups)) < 0.4))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("groups", range(2, FEW + 1))
def test_few_groups_are_cut_with_least_traffic_of_all_even_cuts(groups, seed):
    graph, weight = traffic(groups, seed), np.random.default_rng(seed).uniform(1, 2, groups)
    [half] = Bisection(graph, weight, seed=0).halves([np.arange(groups)])
    pairs = (graph + graph.T).toarray()

    def cut(side):
        return float(pairs[np.ix_(side, ~side)].sum())

    def unevenness(side):
        return abs(float(weight[side].sum() / weight.sum()) - 0.5)

    sides = [np.array(one) for one in product([False, True], repeat=groups) if 0 < sum(one) < groups]
    even = [side for side in sides if unevenness(side) <= (UNEVEN - 1) / 2]
    if not even:
        assert unevenness(half) == pytest.approx(min(map(unevenness, sides)), abs=1e-3)
        return
    # Traffic and weights are rounded to ten thousandths of the greatest.
    assert unevenness(half) <= (UNEVEN - 1) / 2 + 1e-3
    assert cut(half) <= min(map(cut, even)) + 0.01


def test_parts_are_cut_together_as_they_are_one_by_one():
    groups = 120
    graph, weight = traffic(groups, 1), np.random.default_rng(1).uniform(1, 2, groups)
    parts = [np.arange(0, 60, 2), np.arange(1, 12, 2), np.arange(70, 120)]
    together = Bisection(graph, weight, seed=3).halves(parts)
    for part, half in zip(parts, together, strict=True):
        assert 0 < half.sum() < len(part)
        assert half.tolist() == Bisection(graph, weight, seed=3).halves([part])[0].tolist()


def test_edges_between_parts_are_forgotten_without_a_change_of_the_cuts():
    graph, weight = traffic(60, 2), np.ones(60)
    bisection, part = Bisection(graph, weight, seed=0), np.arange(60) % 2
    expected = bisection.halves([np.arange(0, 60, 2)])[0].tolist()
    bisection.keep(part)
    assert bisection.halves([np.arange(0, 60, 2)])[0].tolist() == expected
