"""The worked examples of Enorm, with the errata."""

from __future__ import annotations

import pytest

from dask_elastic.papers.random_jobs import random_job
from dask_elastic.topology.fusion import ALL, communication, cycle, fuse
from dask_elastic.windows.consolidation import plan
from dask_elastic.windows.cost_model import ComponentLoad, combine, split
from dask_elastic.windows.window import Window

FIGURE_7 = [Window.tumbling(minutes) for minutes in (5, 10, 15, 20)]

# Section 2 and example 2a: op1 accepts any partitioning, op2 and op3 are partitioned by area, op4 and op5 are global.
ATTRIBUTES = {"op1": ALL, "op2": {"area"}, "op3": {"area"}, "op4": set(), "op5": set()}
SCHEMA = {"user", "area", "date", "approval", "amount", "return", "lendingTime", "income"}
RATES = {("op1", "op2"): 1000, ("op1", "op3"): 1000, ("op2", "op4"): 50, ("op3", "op5"): 50}


def test_plan_of_figure_7_merges_86_results_and_figure_8_merges_240():
    hour = plan(FIGURE_7, slice=1)
    assert hour.horizon == 60
    assert (hour.merges, hour.naive_merges) == (86, 240)
    # Erratum 1: 12·5 + 6·2 + 4·2 + 3·2 against 12·5 + 6·10 + 4·15 + 3·20.
    by_length = {window.length: [0, 0] for window in FIGURE_7}
    for recipe in hour.recipes:
        by_length[recipe.end - recipe.begin][0] += 1
        by_length[recipe.end - recipe.begin][1] += recipe.merges
    assert by_length == {5: [12, 60], 10: [6, 12], 15: [4, 8], 20: [3, 6]}


def test_plan_of_unaligned_windows_merges_more_results():
    shifted = [Window.tumbling(5), Window.tumbling(10, start=3), *FIGURE_7[2:]]
    assert plan(shifted, slice=1).merges > 86


def test_plan_by_keys_merges_5_and_15_minutes_for_two_of_three_windows():
    # With these keys the alternative of section 6.1 is cheaper wherever it exists.
    keys = {1: 9, 5: 20, 10: 100, 15: 21, 20: 110}
    inputs = {
        recipe.begin: [part.end - part.begin for part in recipe.inputs]
        for recipe in plan(FIGURE_7, 1, 60, keys).recipes
        if recipe.end - recipe.begin == 20
    }
    assert inputs == {0: [15, 5], 20: [5, 5, 5, 5], 40: [5, 15]}


@pytest.mark.parametrize("attributes", [ATTRIBUTES, ATTRIBUTES | {"op1": SCHEMA}])
@pytest.mark.parametrize("score", ["communication", "attributes", "baseline"])
@pytest.mark.parametrize("allow_cycles", [False, True])
def test_motivating_job_fuses_into_three_components(attributes, score, allow_cycles):
    components = fuse(attributes, RATES, score, allow_cycles)
    assert components == [frozenset({"op1", "op2", "op3"}), frozenset({"op4"}), frozenset({"op5"})]
    assert communication(components, RATES) == pytest.approx(100 / 2100)


def test_word_and_letter_counts_fuse_into_one_component():
    # Example 1b.
    assert fuse({"words": {"word"}, "letters": {"word"}}, {("words", "letters"): 1}) == [{"words", "letters"}]


def test_printed_algorithm_makes_cycles_on_most_large_jobs_and_ours_on_none():
    jobs = [random_job(50, seed) for seed in range(30)]
    printed = [fuse(job.attributes, job.rates, allow_cycles=True) for job in jobs]
    acyclic = [fuse(job.attributes, job.rates) for job in jobs]
    cyclic = sum(cycle(found, job.rates) is not None for found, job in zip(printed, jobs, strict=True))
    assert cyclic > len(jobs) / 2
    assert all(cycle(found, job.rates) is None for found, job in zip(acyclic, jobs, strict=True))


def test_split_and_combine_of_the_motivating_windows_match_section_5_1_1():
    # The motivating windows over partials of ten minutes: 10 min, 30 min, 1 h, 6 h, 24 h.
    windows = [Window.tumbling(minutes) for minutes in (10, 30, 60, 360, 1440)]
    load = ComponentLoad.of(
        windows, 10, rate=6000, tuple_cost=1e-5, key_groups=100, migrations=20, group_cost=0.01, group_latency=0.5
    )
    tuples, partials = 6000 * 1440, 144
    assert split(load).cpu == pytest.approx(tuples * 1e-5 + partials * 0.01 * 100 + 20 * 0.01)
    assert split(load).latency == 0
    assert combine(load).cpu == pytest.approx(tuples * 5 * 1e-5 + 20 * 0.01 * partials)
    assert combine(load).latency == pytest.approx(20 * 0.5)
