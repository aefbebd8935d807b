"""The cost model agrees with counting, and chooses the cheaper layout within the latency limit."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.windows.consolidation import plan
from dask_elastic.windows.cost_model import ComponentLoad, LayoutCost, Sharing, choose_layout, combine, sharing, split
from dask_elastic.windows.window import Window

LOAD = ComponentLoad(
    tuples=3000,
    tuple_cost=1e-6,
    windows=2,
    partials=3,
    key_groups=50,
    migrations=2,
    group_cost=1e-3,
    group_latency=0.1,
)
NUMBERS = st.floats(0, 1000)
WINDOWS = st.lists(st.builds(Window, st.integers(-5, 5), st.integers(1, 8), st.integers(1, 6)), min_size=1, max_size=4)


def count_tuple_window_pairs(windows, horizon):
    """Count the pairs of tuple and window instance, for one tuple per unit of time."""
    return sum(
        (moment - window.start - age) % window.frequency == 0
        for window in set(windows)
        for moment in range(horizon)
        for age in range(window.length)
    )


@settings(max_examples=200, deadline=None)
@given(WINDOWS, st.integers(1, 5), NUMBERS, NUMBERS)
def test_sharing_cost_matches_counting(windows, rate, tuple_cost, merge_cost):
    periods = math.lcm(*(window.frequency for window in windows))
    found = plan(windows, 1, periods)
    cost = sharing(found, rate, tuple_cost, merge_cost)
    merges = sum(len(recipe.inputs) + sum(max(p.partials - 1, 0) for p in recipe.inputs) for recipe in found.recipes)
    assert cost.separate == pytest.approx(rate * tuple_cost * count_tuple_window_pairs(windows, periods))
    assert cost.shared == pytest.approx(rate * periods * tuple_cost + merges * merge_cost)
    assert cost.pays == (cost.shared < cost.separate)


def test_sharing_pays_above_a_number_of_tuples():
    hour = plan([Window.tumbling(minutes) for minutes in (5, 10, 15, 20)], 1, 60)
    # Each tuple is computed once or for four windows, so sharing saves 3 per tuple: 86 merges cost more than 28 tuples.
    few, many = sharing(hour, 28 / 60, 1.0, 1.0), sharing(hour, 29 / 60, 1.0, 1.0)
    assert (few.shared, few.separate) == (pytest.approx(28 + 86), pytest.approx(4 * 28))
    assert not few.pays
    assert many.pays


def test_sharing_at_equal_cost_does_not_pay():
    assert not Sharing(1.0, 1.0).pays


def test_sharing_for_a_single_tumbling_window_does_not_pay():
    assert not sharing(plan([Window.tumbling(10)], 10), 1e6, 1.0, 1e-9).pays


def test_sharing_with_a_plan_by_keys_counts_keys():
    keys = {1: 10, 5: 20, 10: 25, 15: 28, 20: 30}
    hour = plan([Window.tumbling(minutes) for minutes in (5, 10, 15, 20)], 1, 60, keys)
    cost = sharing(hour, 0, 1.0, 0.5)
    assert cost == Sharing(hour.cost / 2, 0)
    # 12 × 5 partials; 6 × 2 of 5 minutes; 4 times one of 5 and one of 10; 3 × 2 of 10, or one of 5 and one of 15.
    assert hour.cost == 12 * 5 * 10 + 6 * 2 * 20 + 4 * (20 + 25) + 2 * (20 + 28) + 2 * 25


def test_split_and_combine_match_the_paper():
    assert split(LOAD) == LayoutCost(pytest.approx(3000 * 1e-6 + 3 * 1e-3 * 50 + 2 * 1e-3), 0.0)
    assert combine(LOAD) == LayoutCost(pytest.approx(3000 * 2 * 1e-6 + 2 * 1e-3 * 3), pytest.approx(2 * 0.1))


@settings(max_examples=300, deadline=None)
@given(st.builds(ComponentLoad, **{field.name: NUMBERS for field in fields(ComponentLoad)}), st.floats(0, 1e6))
def test_layout_is_the_cheapest_within_the_latency_limit(load, limit):
    costs = {"split": split(load), "combine": combine(load)}
    allowed = {name: cost.cpu for name, cost in costs.items() if cost.latency <= limit}
    chosen = choose_layout(load, limit)
    assert chosen in allowed
    assert allowed[chosen] == min(allowed.values())


def test_layout_above_the_latency_limit_is_split():
    assert choose_layout(LOAD) == "combine"
    assert choose_layout(LOAD, latency_limit=0.2) == "combine"
    assert choose_layout(LOAD, latency_limit=0.19) == "split"
    assert choose_layout(replace(LOAD, migrations=0), latency_limit=0) == "combine"


def test_layout_for_many_tuples_is_split():
    assert choose_layout(replace(LOAD, tuples=1e6)) == "split"


def test_layout_at_equal_cost_is_split():
    assert choose_layout(replace(LOAD, tuples=0, group_cost=0)) == "split"


def test_component_load_is_derived_from_windows():
    windows = [Window.tumbling(10), Window(0, 30, 10), Window.tumbling(10)]
    load = ComponentLoad.of(
        windows, 5, rate=100, tuple_cost=1e-6, key_groups=50, migrations=2, group_cost=1e-3, group_latency=0.1
    )
    assert load == ComponentLoad(3000, 1e-6, 4, 6, 50, 2, 1e-3, 0.1)


def load_of(*windows, slice=2, **change):
    numbers = {"tuple_cost": 1, "key_groups": 1, "migrations": 1, "group_cost": 1, "group_latency": 1} | change
    return ComponentLoad.of(windows, slice, rate=1, **numbers)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sharing(plan([Window.tumbling(2)], 1), -1, 1, 1), "rate is -1"),
        (lambda: sharing(plan([Window.tumbling(2)], 1), 1, math.nan, 1), "tuple_cost is nan"),
        (lambda: sharing(plan([Window.tumbling(2)], 1), 1, 1, math.inf), "merge_cost is inf"),
        (lambda: replace(LOAD, migrations=-1), "migrations is -1"),
        (lambda: replace(LOAD, group_latency=math.nan), "group_latency is nan"),
        (lambda: choose_layout(LOAD, -1), "latency_limit is -1"),
        (lambda: choose_layout(LOAD, math.nan), "latency_limit is nan"),
        (lambda: load_of(), "list of windows is empty"),
        (lambda: load_of(Window(0, 4, 2), slice=0), "slice is 0"),
        (lambda: load_of(Window(0, 4, 2), slice=3), r"not for Window\(start=0, length=4, frequency=2\)"),
        (lambda: load_of(Window(0, 4, 2), key_groups=-2), "key_groups is -2"),
    ],
)
def test_cost_model_with_bad_input_raises_planning_error(call, message):
    with pytest.raises(PlanningError, match=message):
        call()
