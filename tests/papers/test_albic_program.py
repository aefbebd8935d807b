"""ALBIC, section 4.3.1: cases in which the program as printed fails and `Milp` does not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.milp import Milp
from dask_elastic.planning.placement.problem import PlacementProblem
from dask_elastic.planning.placement.quality import load_distance


def every_placement(problem, to_draining):
    for bins in itertools.product(range(problem.bins), repeat=problem.groups):
        bin = np.array(bins)
        moved = bin != problem.current
        if problem.max_moves is not None and moved.sum() > problem.max_moves:
            continue
        if to_draining or not (moved & problem.draining[bin]).any():
            yield bin


def as_printed(problem, bin):
    """Least d, then least spread: the load on draining nodes is no part of the objective."""
    away = problem.shares(bin)[problem.live] - problem.mean
    return round(np.abs(away).max(), 9), round(away.max() - away.min(), 9)


def tiny(seed, groups, bins, max_moves):
    random = np.random.default_rng(seed)
    load, current = random.integers(1, 9, groups), random.integers(0, bins, groups)
    return PlacementProblem(load, current, bins, draining=[bins - 1], max_moves=max_moves)


def test_printed_optimum_violates_lemma_1_and_milp_plan_is_valid():
    failures = 0
    for seed in range(40):
        problem = tiny(seed, groups=6, bins=4, max_moves=2)
        best = min(as_printed(problem, bin) for bin in every_placement(problem, to_draining=True))
        inside = min(as_printed(problem, bin) for bin in every_placement(problem, to_draining=False))
        failures += best < inside
        if best < inside:
            validate(problem, Milp().plan(problem))
    assert failures


def test_printed_program_stops_before_nodes_are_drained_and_milp_drains_them():
    stuck = 0
    for seed in range(15):
        first = tiny(seed, groups=5, bins=3, max_moves=1)
        problem = first
        for _ in range(12):
            best = min(every_placement(problem, to_draining=True), key=lambda bin: as_printed(problem, bin))
            if as_printed(problem, best) >= as_printed(problem, problem.current):
                stuck += problem.to_drain(problem.current) > 0
                break
            problem = replace(problem, current=best)
        problem = first
        for _ in range(12):
            problem = replace(problem, current=Milp().plan(problem).bin)
        assert problem.to_drain(problem.current) == 0
    assert stuck


@pytest.mark.parametrize("max_moves", [0, 1])
def test_milp_with_skewed_loads_and_small_budget_finds_optimum(max_moves):
    # The printed constraint (5), d ≤ mean, has no solution: d is at least 20, the mean is 10.
    problem = PlacementProblem([15, 15], [0, 0], 3, max_moves=max_moves)
    placement = Milp().plan(problem)
    validate(problem, placement)
    assert placement.proven
    assert load_distance(problem, placement.bin) == (20 if max_moves == 0 else 10)


def test_mean_load_of_uneven_division_is_not_rounded():
    # With the mean 10/3 rounded up to 4, the loads 4, 3, 3 would be farther below the mean than above it.
    problem = PlacementProblem([1] * 10, [0] * 10, 3)
    assert problem.mean == pytest.approx(10 / 3)
    assert sorted(np.bincount(Milp().plan(problem).bin)) == [3, 3, 4]


def section_5_1(seed, max_moves):
    random = np.random.default_rng(seed)
    load = 2.5 * (1 + random.uniform(-0.05, 0.05, 400))
    current = np.repeat(np.arange(20), 20)
    for number, node in enumerate(random.permutation(20)[:4]):
        load[current == node] += (1 if number % 2 else -1) * 20 / 20
    return PlacementProblem(load, current, 20, max_moves=max_moves)


def test_flux_repeated_halves_load_distance_of_single_pass():
    problem = section_5_1(0, max_moves=20)
    once, often = (load_distance(problem, Flux(passes=passes).plan(problem).bin) for passes in (1, None))
    assert often < 0.5 * once


def test_milp_is_no_worse_than_flux_and_far_better_without_budget():
    for max_moves, margin in ((10, 1.0), (None, 0.2)):
        problem = section_5_1(0, max_moves)
        flux, ours = Flux().plan(problem), Milp(time_limit=0.5).plan(problem)
        assert load_distance(problem, ours.bin) <= margin * load_distance(problem, flux.bin)
