from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.placement.bisection import FEW, MANY, Bisection, depths
from dask_elastic.planning.placement.graph_partition import UNEVEN


def traffic(groups, seed):
    random = np.random.default_rng(seed)
    return sp.csr_matrix(random.uniform(0, 1, (groups, groups)) * (random.random((groups, groups)) < 0.4))


def halves(bisection, parts):
    """Return which groups of each part are in its second half."""
    sizes = np.array([len(part) for part in parts])
    piece = bisection.pieces(np.concatenate(parts), sizes, np.ones(len(parts), dtype=np.int64))
    return np.split(piece == 1, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("groups", range(2, FEW + 1))
def test_few_groups_are_cut_with_least_traffic_of_all_even_cuts(groups, seed):
    graph, weight = traffic(groups, seed), np.random.default_rng(seed).uniform(1, 2, groups)
    [half] = halves(Bisection(graph, weight, seed=0), [np.arange(groups)])
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
    together = halves(Bisection(graph, weight, seed=3), parts)
    for part, half in zip(parts, together, strict=True):
        assert 0 < half.sum() < len(part)
        assert half.tolist() == halves(Bisection(graph, weight, seed=3), [part])[0].tolist()


def test_edges_between_parts_are_forgotten_without_a_change_of_the_cuts():
    graph, weight = traffic(60, 2), np.ones(60)
    bisection, part = Bisection(graph, weight, seed=0), np.arange(60) % 2
    expected = halves(bisection, [np.arange(0, 60, 2)])[0].tolist()
    bisection.keep(part)
    assert halves(bisection, [np.arange(0, 60, 2)])[0].tolist() == expected


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_one_call_cut_as_little_traffic_as_repeated_halves(seed):
    groups = 800
    graph = sp.random(groups, groups, density=0.01, random_state=seed).tocsr()
    weight = np.random.default_rng(seed).uniform(1, 2, groups)
    repeated, label = Bisection(graph, weight, seed=0), np.zeros(groups, dtype=np.int64)
    for _ in range(4):
        parts = [np.flatnonzero(label == part) for part in range(label.max() + 1)]
        for part, half in zip(parts, halves(repeated, parts), strict=True):
            label[part] = 2 * label[part] + half
    at_once = Bisection(graph, weight, seed=0)
    piece = at_once.pieces(np.arange(groups), np.array([groups]), np.array([4]))
    assert (repeated.cuts, at_once.cuts) == (15, 1)
    assert sorted(set(piece.tolist())) == list(range(16))
    row, column = graph.nonzero()
    within = [float(graph.data[one[row] == one[column]].sum()) for one in (label, piece)]
    assert within[1] > 0.9 * within[0]


@pytest.mark.parametrize("spread", [0.2, 1.0, 2.0])
def test_partitioner_cuts_no_piece_without_groups(spread):
    random = np.random.default_rng(0)
    for groups in (MANY, 3_000):
        weight = random.lognormal(0, spread, groups)
        depth = depths(np.array([groups]), weight.sum()[None], weight.max()[None], least=weight.min())
        graph = sp.random(groups, groups, density=8 / groups, random_state=0)
        piece = Bisection(graph, weight, seed=0).pieces(np.arange(groups), np.array([groups]), depth)
        # METIS prints a warning where it is to cut a piece without groups.
        assert len(set(piece.tolist())) == 1 << int(depth[0])


def test_piece_of_all_groups_is_avoided():
    # One group outweighs all others, so METIS may leave a half without groups.
    weight = np.array([1e9] + [1.0] * 20)
    [half] = halves(Bisection(None, weight, seed=0), [np.arange(21)])
    assert 0 < half.sum() < 21
