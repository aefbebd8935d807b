from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.planning.placement.graph_partition import partition


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 30), st.integers(1, 35), st.integers(0, 2**32 - 1), st.booleans())
def test_partition_makes_the_requested_number_of_parts_and_none_is_empty(count, parts, seed, skewed):
    random = np.random.default_rng(seed)
    traffic = sp.random_array((40, 40), density=0.2, rng=random).tocsr() if seed % 3 else None
    weight = random.pareto(0.5, 40) if skewed else np.ones(40)
    members = random.permutation(40)[:count]
    found = partition(traffic, members, weight, parts, seed=seed)
    assert set(found.tolist()) == set(range(min(parts, count)))
    assert found.tolist() == partition(traffic, members, weight, parts, seed=seed).tolist()


@pytest.mark.parametrize("parts", [2, 3, 5, 8, 13])
def test_partition_balances_the_weight_of_parts(parts):
    random = np.random.default_rng(parts)
    traffic = sp.random_array((300, 300), density=0.05, rng=random).tocsr()
    weight = random.uniform(1, 2, 300)
    size = np.bincount(partition(traffic, np.arange(300), weight, parts, seed=1), weight)
    assert size.max() < 1.5 * size.mean()


def test_partition_keeps_communicating_groups_together():
    # Six cliques of five, and a little traffic between them.
    clique = np.repeat(np.arange(6), 5)
    traffic = np.where(clique[:, None] == clique[None, :], 10.0, 0.1)
    found = partition(sp.csr_matrix(traffic), np.arange(30), np.ones(30), 6, seed=0)
    assert len(set(zip(clique.tolist(), found.tolist(), strict=True))) == 6


def test_partition_prints_nothing(capfd):
    # One group outweighs all others, which would leave halves without groups.
    partition(None, np.arange(9), np.array([1e6] + [1.0] * 8), 7, seed=0)
    assert capfd.readouterr() == ("", "")
