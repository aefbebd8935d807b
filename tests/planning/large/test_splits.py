from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dask_elastic.planning.placement.splits import Splits


def weights(kind, groups, random):
    return {
        "even": np.ones(groups),
        "uniform": random.uniform(0.1, 0.9, groups),
        "skewed": random.pareto(1.0, groups),
        "some zero": random.uniform(0, 1, groups) * (random.random(groups) < 0.5),
        "all zero": np.zeros(groups),
    }[kind]


@pytest.mark.parametrize("kind", ["even", "uniform", "skewed", "some zero", "all zero"])
@pytest.mark.parametrize("groups", [1, 2, 9, 40, 300])
def test_each_split_halves_the_heaviest_part_of_several_groups(kind, groups):
    random = np.random.default_rng(groups)
    weight = weights(kind, groups, random)
    traffic = sp.random(groups, groups, density=min(8 / groups, 1), random_state=groups)
    splits = Splits(traffic, weight, seed=0)
    label, _ = splits.parts(1)
    for count in range(2, groups + 1):
        before, (label, size) = label, splits.parts(count)
        assert size == pytest.approx(np.bincount(label, weight, minlength=count))
        assert sorted(set(label.tolist())) == list(range(count))
        pairs = np.unique(np.stack([before, label]), axis=1)
        [split] = np.flatnonzero(np.bincount(pairs[0]) == 2)
        several = np.bincount(before) > 1
        assert np.bincount(before, weight)[split] >= np.bincount(before, weight)[several].max() * (1 - 1e-9)


def test_parts_do_not_depend_on_the_numbers_of_parts_asked_before():
    random = np.random.default_rng(0)
    traffic, weight = sp.random(200, 200, density=0.05, random_state=0), random.uniform(1, 2, 200)
    asked = Splits(traffic, weight, seed=1)
    asked.parts(150)
    label, size = asked.parts(60)
    again, same = asked.parts(60)
    assert (label.tolist(), size.tolist()) == (again.tolist(), same.tolist())


def test_no_groups_have_no_parts():
    label, size = Splits(None, np.zeros(0), seed=0).parts(0)
    assert (label.tolist(), size.tolist()) == ([], [])
