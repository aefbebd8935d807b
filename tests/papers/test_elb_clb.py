"""ELB/CLB, sections 3 and 4: the formulas, where text and listing contradict each other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dask_elastic.planning.placement.correlation import split
from dask_elastic.planning.placement.eager import Eager
from dask_elastic.planning.placement.problem import PlacementProblem


def sum_of_variances_of_loads(history, label, sets):
    loads = np.stack([history[:, label == one].sum(axis=1) for one in range(sets)], axis=1)
    return loads.var(axis=1).sum()


def sum_of_variances_of_sets(history, label, sets):
    return sum(history[:, label == one].sum(axis=1).var() for one in range(sets))


def test_split_separates_correlated_substreams():
    # By the sentence, s1 stays with the substreams correlated with it; by the formula, these move to the other set.
    wave = np.array([1.0, 5, 1, 5, 1, 5])
    history = np.stack([10 * wave, 9 * wave, 6 - wave, 5.5 - wave], axis=1)
    label = split(history, 2, threshold=0.3)
    assert label[0] != label[1]


def test_split_by_formula_has_greater_cross_covariance_than_by_sentence():
    random = np.random.default_rng(4)
    for _ in range(50):
        history = random.poisson(20, (12, 1)) * random.uniform(0, 1, (1, 8)) + random.poisson(5, (12, 8))
        label = split(history.astype(float), 2, threshold=0.2)
        correlation, covariance = np.corrcoef(history.T), np.cov(history.T, bias=True)
        related = (correlation >= 0.2) & ~np.eye(8, dtype=bool)
        # By the formula, the chosen substream stays with the unrelated ones; by the sentence, with the related ones.
        chosen = next(one for one in np.flatnonzero(label == 0) if (related[one] == (label == 1)).all())
        sentence = label.copy()
        sentence[chosen] = 1
        across = [covariance[one[:, None] != one[None, :]].sum() for one in (label, sentence)]
        assert across[0] > across[1]


def test_minimum_of_set_variances_does_not_minimise_load_variances():
    random = np.random.default_rng(0)
    differ = 0
    for _ in range(40):
        history = random.integers(0, 10, (3, 5)).astype(float)
        labels = [np.array(label) for label in itertools.product(range(2), repeat=5)]
        of_loads = [sum_of_variances_of_loads(history, label, 2) for label in labels]
        of_sets = [sum_of_variances_of_sets(history, label, 2) for label in labels]
        best_for_sets = labels[int(np.argmin(of_sets))]
        differ += sum_of_variances_of_loads(history, best_for_sets, 2) > min(of_loads) + 1e-9
    assert differ > 20


def test_exact_weights_add_up_to_objective():
    random = np.random.default_rng(1)
    history = random.integers(0, 10, (4, 6)).astype(float)
    product = history.T @ history
    values = []
    for label in itertools.product(range(2), repeat=6):
        bins = np.array(label)
        within = bins[:, None] == bins[None, :]
        values.append((sum_of_variances_of_loads(history, bins, 2), product[within].sum() / 2))
    of_loads, of_weights = np.array(values).T
    assert np.ptp(of_loads - of_weights) == pytest.approx(0, abs=1e-9)


def test_split_without_correlation_moves_largest_other_substream():
    # Constant loads have no covariance: s1 is chosen first, and of the others the one with load 7 moves.
    history = np.tile([5.0, 3, 7, 1], (4, 1))
    assert split(history, 2, threshold=0.0).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(("lower", "upper"), [(8, 12), (18, 22), (30, 50), (100, 150)])
def test_eager_range_determines_number_of_used_instances(lower, upper):
    problem = PlacementProblem(np.ones(120), np.arange(120) % 12, 12)
    used = len(set(Eager(lower, upper).plan(problem).bin.tolist()))
    assert used == math.ceil(2 * 120 / (lower + upper))
