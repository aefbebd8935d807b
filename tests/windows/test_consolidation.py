"""Consolidation plans are optimal, ordered by their dependencies, and yield correct windows when executed."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.windows.consolidation import MOST_WINDOWS, plan
from dask_elastic.windows.window import Window

TUMBLING = [Window.tumbling(minutes) for minutes in (5, 10, 15, 20)]


@st.composite
def windows_slices_and_horizons(draw, most_windows=4, longest=6):
    """Draw windows, the size of their slices, and a horizon."""
    size = draw(st.integers(1, 3))
    steps = st.integers(1, longest)
    windows = [
        Window(draw(st.integers(-4, 4)) * size, draw(steps) * size, draw(steps) * size)
        for _ in range(draw(st.integers(1, most_windows)))
    ]
    return windows, size, draw(st.integers(1, 12 * size))


def spans_of(windows, first, last):
    """Return every complete window from `first` to `last`, by enumerating all begins."""
    return {
        (begin, begin + window.length)
        for window in windows
        for begin in range(first, last - window.length + 1)
        if (begin - window.start) % window.frequency == 0
    }


def least_cost(span, spans, size, cost):
    """Return the least cost of covering a span with adjoining inputs, by enumerating all ways."""

    @cache
    def best(begin):
        if begin == span[1]:
            return 0
        inputs = [
            (begin, begin + size),
            *(one for one in spans if one[0] == begin and one[1] <= span[1] and one != span),
        ]
        return min(cost(*one) + best(one[1]) for one in inputs)

    return best(span[0])


def cost_by_hash(begin, end):
    return (begin * 7919 + end * 104_729) % 23


@settings(max_examples=250, deadline=None)
@given(windows_slices_and_horizons(), st.sampled_from([None, cost_by_hash]))
def test_plan_forms_every_window_at_minimum_cost(setting, keys):
    windows, size, horizon = setting
    found = plan(windows, size, horizon, keys)
    spans = spans_of(windows, -40, horizon)
    assert {(recipe.begin, recipe.end) for recipe in found.recipes} == {span for span in spans if span[1] > 0}
    for recipe in found.recipes:
        span = recipe.begin, recipe.end
        assert recipe.cost == least_cost(span, spans, size, keys or (lambda begin, end: 1))
    assert found.cost == sum(recipe.cost for recipe in found.recipes)


@settings(max_examples=150, deadline=None)
@given(windows_slices_and_horizons(), st.sampled_from([None, cost_by_hash]))
def test_executed_plan_yields_the_content_of_every_window(setting, keys):
    windows, size, horizon = setting
    found = plan(windows, size, horizon, keys)
    partial = {at: (at * 31) % 101 for at in range(-60, horizon + 60, size)}
    # Windows that end by time 0 are available; later ones must be formed before a recipe reads them.
    formed = {span: sum(partial[at] for at in range(*span, size)) for span in spans_of(windows, -60, 0) if span[1] <= 0}
    merged, cost = 0, 0
    for recipe in found.recipes:
        results = []
        for part in recipe.inputs:
            at = range(part.begin, part.end, size)
            results += [partial[one] for one in at] if part.partials else [formed[part.begin, part.end]]
            assert part.partials in (0, len(at))
            spans = [(one, one + size) for one in at] if part.partials else [(part.begin, part.end)]
            cost += sum(keys(*span) for span in spans) if keys else len(spans)
        formed[recipe.begin, recipe.end] = sum(results)
        merged += len(results)
        assert len(results) == recipe.merges
        assert sum(results) == sum(partial[at] for at in range(recipe.begin, recipe.end, size))
    assert (merged, cost) == (found.merges, found.cost)
    assert found.merges <= found.naive_merges or keys


@settings(max_examples=150, deadline=None)
@given(windows_slices_and_horizons())
def test_recipe_names_every_window_it_forms(setting):
    windows, size, horizon = setting
    found = plan(windows, size, horizon)
    found_spans = {(position, recipe.begin, recipe.end) for recipe in found.recipes for position in recipe.windows}
    assert found_spans == {
        (position, begin, end)
        for position, window in enumerate(windows)
        for begin, end in spans_of([window], -40, horizon)
        if end > 0
    }
    spans = [(recipe.begin, recipe.end) for recipe in found.recipes]
    assert len(spans) == len(set(spans))


@settings(max_examples=100, deadline=None)
@given(windows_slices_and_horizons(longest=4))
def test_default_horizon_is_the_period_of_the_windows(setting):
    windows, size, _ = setting
    period = math.lcm(*(window.frequency for window in windows))
    once = plan(windows, size)
    assert once.horizon == period
    assert plan(windows, size, 3 * period).merges == 3 * once.merges
    assert once.naive_merges == sum(period // window.frequency * window.length // size for window in set(windows))


def test_plan_by_keys_differs_from_plan_by_results():
    recipe = plan(TUMBLING, 1, 20).recipes[-1]
    assert [(part.begin, part.end) for part in recipe.inputs] == [(0, 10), (10, 20)]
    # Two results of 10 minutes have more keys than those of 5 and of 15 minutes together.
    keys = {1: 100, 5: 200, 10: 400, 15: 450, 20: 500}
    recipe = plan(TUMBLING, 1, 20, keys).recipes[-1]
    assert [(part.begin, part.end) for part in recipe.inputs] == [(0, 15), (15, 20)]
    assert recipe.cost == 650


def test_keys_as_function_of_time_change_the_cost():
    quiet = plan(TUMBLING, 1, 20, lambda begin, end: end - begin if begin >= 10 else 10 * (end - begin))
    by_length = plan(TUMBLING, 1, 20, {length: length for length in (1, 5, 10, 15, 20)})
    assert quiet.cost > by_length.cost
    assert by_length.cost == sum(recipe.end - recipe.begin for recipe in by_length.recipes)


def test_keys_function_is_called_within_the_horizon_only():
    ends = []
    plan([Window(0, 20, 5), Window.tumbling(10)], 5, 10, lambda begin, end: ends.append(end) or 1)
    assert max(ends) == 10


def test_plan_with_equal_costs_prefers_partials_to_windows():
    recipe = plan([Window.tumbling(1), Window.tumbling(3)], 1).recipes[-1]
    assert [(part.begin, part.end, part.partials) for part in recipe.inputs] == [(0, 3, 3)]


@settings(max_examples=100, deadline=None)
@given(windows_slices_and_horizons(), st.sampled_from([None, cost_by_hash]))
def test_adjoining_partials_become_one_input(setting, keys):
    for recipe in plan(*setting, keys).recipes:
        spans = [span for part in recipe.inputs for span in (part.begin, part.end)]
        assert spans == sorted(spans)
        assert not any(one.partials and other.partials for one, other in pairwise(recipe.inputs))


@settings(max_examples=100, deadline=None)
@given(windows_slices_and_horizons(), st.randoms(use_true_random=False))
def test_keys_by_length_and_as_function_give_equal_costs(setting, random):
    # With keys by length a recipe is reused for windows of the same phase; with a function every window is searched.
    windows, size, horizon = setting
    keys = {length: random.randint(0, 9) for length in sorted({size, *(window.length for window in windows)})}
    by_length, by_span = (plan(windows, size, horizon, one) for one in (keys, lambda begin, end: keys[end - begin]))
    costs = [[(one.begin, one.end, one.windows, one.cost) for one in found.recipes] for found in (by_length, by_span)]
    assert costs[0] == costs[1]


@settings(max_examples=100, deadline=None)
@given(windows_slices_and_horizons(), st.sampled_from([None, cost_by_hash]))
def test_recipes_of_a_pattern_are_shifted_copies(setting, keys):
    found = plan(*setting, keys)
    ends = [end for pattern in found.patterns for end in pattern.ends]
    assert found.formed == len(ends) == len(found.recipes)
    recipes = {(recipe.end - recipe.begin, recipe.end): recipe for recipe in found.recipes}
    for first, ends in found.patterns:
        assert first.end == ends[0]
        for end in ends:
            recipe = recipes[first.end - first.begin, end]
            assert (recipe.windows, recipe.cost) == (first.windows, first.cost)
            assert [(end - one.begin, end - one.end, one.partials) for one in recipe.inputs] == [
                (first.end - one.begin, first.end - one.end, one.partials) for one in first.inputs
            ]


def test_plan_of_thousands_of_windows_has_few_patterns():
    day = [Window.tumbling(minutes) for minutes in (1, 5, 15, 60, 360, 1440)]
    assert [(len(found.patterns), found.formed) for found in (plan(day, 1), plan(day, 1, 7200))] == [
        (6, 1853),
        (6, 9265),
    ]


def test_windows_with_the_same_span_are_formed_once():
    found = plan([Window.tumbling(4), Window.tumbling(4), Window(0, 4, 8)], 2)
    assert found.horizon == 8
    assert [(recipe.end, recipe.windows) for recipe in found.recipes] == [(4, (0, 1, 2)), (8, (0, 1))]
    assert found.merges == 4


def test_window_of_one_slice_merges_one_result():
    found = plan([Window.tumbling(3), Window.tumbling(6)], 3)
    assert [recipe.merges for recipe in found.recipes] == [1, 1, 2]


def test_windows_before_the_horizon_can_be_merged():
    # A window of ten minutes every five merges two halves, of which the first ended before the horizon begins.
    found = plan([Window.tumbling(5), Window(0, 10, 5)], 1, horizon=5)
    assert [(recipe.begin, recipe.end, recipe.merges) for recipe in found.recipes] == [(0, 5, 5), (-5, 5, 2)]


def test_horizon_shorter_than_every_window_gives_empty_plan():
    found = plan([Window.tumbling(10)], 5, horizon=9)
    assert (found.recipes, found.merges, found.cost, found.naive_merges) == ((), 0, 0, 0)


def test_numpy_integers_are_accepted_in_windows():
    window = Window(np.int64(0), np.int32(4), np.uint8(2))
    assert window == Window(0, 4, 2)
    assert plan([window], np.int64(2), np.int64(4)).merges == 4


@pytest.mark.parametrize("number", [np.uint8, np.int64, np.float16, np.float64])
@pytest.mark.parametrize("by", ["lengths", "spans"])
def test_numpy_key_counts_do_not_overflow(number, by):
    # The sum overflows float16 and uint8.
    most = number(200) if np.issubdtype(number, np.integer) else number(50_000)
    keys = {1: most, 6: most} if by == "lengths" else lambda begin, end: most
    assert plan([Window.tumbling(6)], 1, 6, keys).cost == 6 * int(most)


@settings(max_examples=200, deadline=None)
@given(st.integers(-9, 9), st.integers(1, 9), st.integers(1, 9), st.integers(-20, 20), st.integers(0, 30))
def test_window_ends_match_enumerated_instances(start, length, frequency, after, span):
    ends = list(Window(start, length, frequency).ends(after, after + span))
    assert ends == [end for end in range(after + 1, after + span + 1) if (end - start - length) % frequency == 0]


@settings(max_examples=100, deadline=None)
@given(windows_slices_and_horizons())
def test_bad_slice_error_proposes_the_largest_valid_slice(setting):
    windows = setting[0]
    fits = [size for size in range(1, 20) if all(size_fits(window, size) for window in windows)]
    for size in range(1, 20):
        if size in fits:
            plan(windows, size, 1)
        else:
            with pytest.raises(
                PlanningError, match=rf"must be multiples of the slice, {size}, .*slice of {fits[-1]}\."
            ):
                plan(windows, size, 1)


def size_fits(window, size):
    return window.start % size == window.length % size == window.frequency % size == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan([], 1), "list of windows is empty"),
        (lambda: plan([5], 1), "5 is not a window"),
        (lambda: plan(TUMBLING, 2), r"not for Window\(start=0, length=5, frequency=5\), .*length=15.* a slice of 5"),
        (lambda: plan([Window(3, 4, 4)], 2), r"not for Window\(start=3, .* a slice of 1"),
        (lambda: plan([Window(0, 4, 3)], 2), r"not for Window\(start=0, length=4, frequency=3\)"),
        (lambda: plan(TUMBLING, 0), "slice is 0"),
        (lambda: plan(TUMBLING, 0.5), r"slice is 0\.5"),
        (lambda: plan(TUMBLING, True), "slice is True"),
        (lambda: plan(TUMBLING, 1, 0), "horizon is 0"),
        (lambda: plan(TUMBLING, 1, 1.5), r"horizon is 1\.5"),
        (lambda: plan(TUMBLING, 1, 60, {1: 1, 5: 1, 10: 1, 20: 1}), "lacks results of length 15"),
        (lambda: plan(TUMBLING, 1, 60, lambda begin, end: begin - 30), "keys is -[0-9]+ for the span from "),
        (lambda: plan(TUMBLING, 1, 60, lambda begin, end: math.nan), "keys is nan"),
        (lambda: plan(TUMBLING, 1, 60, {1: 1, 5: "2", 10: 1, 15: 1, 20: 1}), "keys is '2' for the span from 0 to 5"),
        (lambda: plan(TUMBLING, 1, 60, lambda begin, end: None), "keys is None"),
        (lambda: plan(TUMBLING, 1, 60, 7), "keys is 7: give a mapping by length"),
        (lambda: Window(0, 0, 1), "length of the window is 0"),
        (lambda: Window(0, 1, -1), "frequency of the window is -1"),
        (lambda: Window(0.5, 1, 1), r"start of the window is 0\.5"),
        (lambda: Window(0, True, 1), "length of the window is True"),
    ],
)
def test_consolidation_with_bad_input_raises_planning_error(call, message):
    with pytest.raises(PlanningError, match=message):
        call()


def test_windows_with_a_long_period_need_a_horizon():
    windows = [Window.tumbling(5 * number) for number in range(1, 21)]
    with pytest.raises(
        PlanningError, match=rf"period of the windows is 1163962800, which gives \d+ windows, above {MOST_WINDOWS}"
    ):
        plan(windows, 5)
    with pytest.raises(PlanningError, match="horizon is 10000000"):
        plan(windows, 5, 10_000_000)
    found = plan(windows, 5, 300)
    assert len(found.recipes) == sum(300 // window.length for window in windows)
