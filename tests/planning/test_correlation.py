from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.papers.workloads.substreams import gaussian_counts, problems, topical_counts, zipf_counts
from dask_elastic.planning.placement.correlation import Correlation, match, split
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.vocab.errors import PlanningError


def waves(seed=0, groups=40, windows=30):
    """Loads that rise and fall in four phases."""
    random = np.random.default_rng(seed)
    phase = np.arange(groups) % 4 * np.pi / 2
    return 10 + 8 * np.sin(np.arange(windows)[:, None] / 3 + phase) + random.uniform(0, 1, (windows, groups))


@pytest.mark.parametrize("weights", ["printed", "exact"])
def test_correlation_lowers_the_variance_over_all_windows(weights):
    history = waves()
    problem = PlacementProblem(history[-1], np.arange(40) % 4, 4, history=history)
    planner = Correlation(weights=weights)
    before = planner.objective(problem, problem.current)
    after = planner.objective(problem, planner.plan(problem).bin)
    assert after[1] < before[1]


def test_the_objective_is_the_sum_of_variances():
    history = waves(groups=12)
    problem = PlacementProblem(history[-1], np.arange(12) % 3, 3, history=history)
    loads = np.stack([history[:, problem.current == bin].sum(axis=1) for bin in range(3)], axis=1)
    assert Correlation().objective(problem, problem.current)[1] == pytest.approx(loads.var(axis=1).sum())
    assert Correlation(windows=5).objective(problem, problem.current)[1] == pytest.approx(loads[-5:].var(axis=1).sum())


def test_split_makes_the_requested_number_of_sets():
    for sets in (1, 2, 5, 12):
        assert set(split(waves(groups=12), sets, 0.3)) == set(range(sets))
    assert set(split(waves(groups=3), 5, 0.3)) == {0, 1, 2}


@pytest.mark.parametrize("seed", range(3))
def test_sets_by_exact_weights_are_alike_in_load(seed):
    # All pairs of positive loads are related by their products: no set may be one group against all others.
    history = waves(seed)
    sets = split(history, 4, 0.3, exact=True)
    shares = np.bincount(sets, history.sum(axis=0)) / history.sum()
    assert 0.15 < shares.min() <= shares.max() < 0.35


@pytest.mark.parametrize("make", [zipf_counts, gaussian_counts, topical_counts])
def test_exact_weights_balance_over_windows_better_than_printed_ones(make):
    counts = make(1, 24)
    starts = [list(problems(counts, memory=24, seed=seed))[-1] for seed in range(4)]
    reached = {}
    for weights in ("printed", "exact"):
        planner = Correlation(weights=weights)
        reached[weights] = sum(planner.objective(start, planner.plan(start).bin)[1] for start in starts)
    assert reached["exact"] < 0.5 * reached["printed"]


def test_sets_are_matched_to_the_bins_with_most_of_their_state():
    problem = PlacementProblem([1] * 4, [0, 0, 1, 2], 3, state_bytes=[1, 1, 5, 1], draining=[2])
    assert match(problem, np.array([0, 0, 0, 1]), problem.current).tolist() == [1, 1, 1, 0]


def test_without_state_fewest_groups_move():
    problem = PlacementProblem([1] * 4, [1, 1, 0, 0], 2)
    assert match(problem, np.array([0, 0, 1, 1]), problem.current).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("option", "value"), [("threshold", 1.0), ("threshold", -0.1), ("weights", "new"), ("windows", 0)]
)
def test_options_are_checked(option, value):
    with pytest.raises(PlanningError, match=f"{option} is {value!r}"):
        Correlation(**{option: value})
