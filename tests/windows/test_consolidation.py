"""Consolidation plans: the cheapest there are, in an order that works, and right when they are carried out."""

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
def settings_of_windows(draw, most_windows=4, longest=6):
    """Windows over slices of some size, and a horizon."""
    size = draw(st.integers(1, 3))
    steps = st.integers(1, longest)
    windows = [
        Window(draw(st.integers(-4, 4)) * size, draw(steps) * size, draw(steps) * size)
        for _ in range(draw(st.integers(1, most_windows)))
    ]
    return windows, size, draw(st.integers(1, 12 * size))


def spans_of(windows, first, last):
    """Return every complete window within a stretch of time, found by going through all moments."""
    return {
        (begin, begin + window.length)
        for window in windows
        for begin in range(first, last - window.length + 1)
        if (begin - window.start) % window.frequency == 0
    }


def least_cost(span, spans, size, price):
    """Return the least cost of any way to lay pieces end to end over a span, by going through all ways."""

    @cache
    def best(begin):
        if begin == span[1]:
            return 0
        pieces = [
            (begin, begin + size),
            *(one for one in spans if one[0] == begin and one[1] <= span[1] and one != span),
        ]
        return min(price(*piece) + best(piece[1]) for piece in pieces)

    return best(span[0])


def price_by_hash(begin, end):
    return (begin * 7919 + end * 104_729) % 23


@settings(max_examples=250, deadline=None)
@given(settings_of_windows(), st.sampled_from([None, price_by_hash]))
def test_every_window_is_formed_at_the_least_cost_there_is(setting, keys):
    windows, size, horizon = setting
    found = plan(windows, size, horizon, keys)
    spans = spans_of(windows, -40, horizon)
    assert {(recipe.begin, recipe.end) for recipe in found.recipes} == {span for span in spans if span[1] > 0}
    for recipe in found.recipes:
        span = recipe.begin, recipe.end
        assert recipe.cost == least_cost(span, spans, size, keys or (lambda begin, end: 1))
    assert found.cost == sum(recipe.cost for recipe in found.recipes)


@settings(max_examples=150, deadline=None)
@given(settings_of_windows(), st.sampled_from([None, price_by_hash]))
def test_a_plan_that_is_carried_out_forms_what_is_in_the_windows(setting, keys):
    windows, size, horizon = setting
    found = plan(windows, size, horizon, keys)
    partial = {at: (at * 31) % 101 for at in range(-60, horizon + 60, size)}
    # Windows that ended before the horizon are there already; those within it must be formed before they are read.
    formed = {span: sum(partial[at] for at in range(*span, size)) for span in spans_of(windows, -60, 0) if span[1] <= 0}
    merged, cost = 0, 0
    for recipe in found.recipes:
        results = []
        for piece in recipe.pieces:
            at = range(piece.begin, piece.end, size)
            results += [partial[one] for one in at] if piece.partials else [formed[piece.begin, piece.end]]
            assert piece.partials in (0, len(at))
            spans = [(one, one + size) for one in at] if piece.partials else [(piece.begin, piece.end)]
            cost += sum(keys(*span) for span in spans) if keys else len(spans)
        formed[recipe.begin, recipe.end] = sum(results)
        merged += len(results)
        assert len(results) == recipe.merges
        assert sum(results) == sum(partial[at] for at in range(recipe.begin, recipe.end, size))
    assert (merged, cost) == (found.merges, found.cost)
    assert found.merges <= found.naive_merges or keys


@settings(max_examples=150, deadline=None)
@given(settings_of_windows())
def test_recipes_tell_whose_windows_they_form(setting):
    windows, size, horizon = setting
    found = plan(windows, size, horizon)
    told = {(position, recipe.begin, recipe.end) for recipe in found.recipes for position in recipe.windows}
    assert told == {
        (position, begin, end)
        for position, window in enumerate(windows)
        for begin, end in spans_of([window], -40, horizon)
        if end > 0
    }
    spans = [(recipe.begin, recipe.end) for recipe in found.recipes]
    assert len(spans) == len(set(spans))


@settings(max_examples=100, deadline=None)
@given(settings_of_windows(longest=4))
def test_the_pattern_repeats_after_the_horizon_that_is_left_out(setting):
    windows, size, _ = setting
    period = math.lcm(*(window.frequency for window in windows))
    once = plan(windows, size)
    assert once.horizon == period
    assert plan(windows, size, 3 * period).merges == 3 * once.merges
    assert once.naive_merges == sum(period // window.frequency * window.length // size for window in set(windows))


def test_by_keys_another_way_is_chosen_than_by_count():
    recipe = plan(TUMBLING, 1, 20).recipes[-1]
    assert [(piece.begin, piece.end) for piece in recipe.pieces] == [(0, 10), (10, 20)]
    # Twice the keys of 10 minutes are more than those of 5 and of 15.
    keys = {1: 100, 5: 200, 10: 400, 15: 450, 20: 500}
    recipe = plan(TUMBLING, 1, 20, keys).recipes[-1]
    assert [(piece.begin, piece.end) for piece in recipe.pieces] == [(0, 15), (15, 20)]
    assert recipe.cost == 650


def test_keys_may_depend_on_the_time():
    quiet = plan(TUMBLING, 1, 20, lambda begin, end: end - begin if begin >= 10 else 10 * (end - begin))
    by_length = plan(TUMBLING, 1, 20, {length: length for length in (1, 5, 10, 15, 20)})
    assert quiet.cost > by_length.cost
    assert by_length.cost == sum(recipe.end - recipe.begin for recipe in by_length.recipes)


def test_keys_are_asked_for_within_the_horizon_only():
    asked = []
    plan([Window(0, 20, 5), Window.tumbling(10)], 5, 10, lambda begin, end: asked.append(end) or 1)
    assert max(asked) == 10


def test_of_equal_costs_partials_are_merged_rather_than_windows_of_a_slice():
    recipe = plan([Window.tumbling(1), Window.tumbling(3)], 1).recipes[-1]
    assert [(piece.begin, piece.end, piece.partials) for piece in recipe.pieces] == [(0, 3, 3)]


@settings(max_examples=100, deadline=None)
@given(settings_of_windows(), st.sampled_from([None, price_by_hash]))
def test_partials_in_a_row_are_one_piece(setting, keys):
    for recipe in plan(*setting, keys).recipes:
        spans = [span for piece in recipe.pieces for span in (piece.begin, piece.end)]
        assert spans == sorted(spans)
        assert not any(one.partials and other.partials for one, other in pairwise(recipe.pieces))


@settings(max_examples=100, deadline=None)
@given(settings_of_windows(), st.randoms(use_true_random=False))
def test_keys_by_length_are_those_of_spans_of_that_length(setting, random):
    # By length what was found for one window is taken for others, in which the same lies; by span each is searched.
    windows, size, horizon = setting
    keys = {length: random.randint(0, 9) for length in sorted({size, *(window.length for window in windows)})}
    by_length, by_span = (plan(windows, size, horizon, one) for one in (keys, lambda begin, end: keys[end - begin]))
    costs = [[(one.begin, one.end, one.windows, one.cost) for one in found.recipes] for found in (by_length, by_span)]
    assert costs[0] == costs[1]


@settings(max_examples=100, deadline=None)
@given(settings_of_windows(), st.sampled_from([None, price_by_hash]))
def test_the_recipes_of_a_pattern_differ_in_their_time_only(setting, keys):
    found = plan(*setting, keys)
    ends = [end for pattern in found.patterns for end in pattern.ends]
    assert found.formed == len(ends) == len(found.recipes)
    recipes = {(recipe.end - recipe.begin, recipe.end): recipe for recipe in found.recipes}
    for first, ends in found.patterns:
        assert first.end == ends[0]
        for end in ends:
            recipe = recipes[first.end - first.begin, end]
            assert (recipe.windows, recipe.cost) == (first.windows, first.cost)
            assert [(end - one.begin, end - one.end, one.partials) for one in recipe.pieces] == [
                (first.end - one.begin, first.end - one.end, one.partials) for one in first.pieces
            ]


def test_a_plan_for_thousands_of_windows_is_a_few_patterns():
    day = [Window.tumbling(minutes) for minutes in (1, 5, 15, 60, 360, 1440)]
    assert [(len(found.patterns), found.formed) for found in (plan(day, 1), plan(day, 1, 7200))] == [
        (6, 1853),
        (6, 9265),
    ]


def test_windows_of_one_span_are_formed_once():
    found = plan([Window.tumbling(4), Window.tumbling(4), Window(0, 4, 8)], 2)
    assert found.horizon == 8
    assert [(recipe.end, recipe.windows) for recipe in found.recipes] == [(4, (0, 1, 2)), (8, (0, 1))]
    assert found.merges == 4


def test_a_window_of_one_slice_takes_one_result():
    found = plan([Window.tumbling(3), Window.tumbling(6)], 3)
    assert [recipe.merges for recipe in found.recipes] == [1, 1, 2]


def test_earlier_windows_are_there_to_merge():
    # Ten minutes that end each five: of two halves, of which the first ended before the horizon begins.
    found = plan([Window.tumbling(5), Window(0, 10, 5)], 1, horizon=5)
    assert [(recipe.begin, recipe.end, recipe.merges) for recipe in found.recipes] == [(0, 5, 5), (-5, 5, 2)]


def test_no_window_ends_within_a_short_horizon():
    found = plan([Window.tumbling(10)], 5, horizon=9)
    assert (found.recipes, found.merges, found.cost, found.naive_merges) == ((), 0, 0, 0)


def test_numbers_of_numpy_are_numbers():
    window = Window(np.int64(0), np.int32(4), np.uint8(2))
    assert window == Window(0, 4, 2)
    assert plan([window], np.int64(2), np.int64(4)).merges == 4


@pytest.mark.parametrize("number", [np.uint8, np.int64, np.float16, np.float64])
@pytest.mark.parametrize("by", ["lengths", "spans"])
def test_keys_may_be_counted_by_numpy(number, by):
    # Three hundred thousand are beyond half floats, as 300 are beyond small integers.
    most = number(200) if np.issubdtype(number, np.integer) else number(50_000)
    keys = {1: most, 6: most} if by == "lengths" else lambda begin, end: most
    assert plan([Window.tumbling(6)], 1, 6, keys).cost == 6 * int(most)


@settings(max_examples=200, deadline=None)
@given(st.integers(-9, 9), st.integers(1, 9), st.integers(1, 9), st.integers(-20, 20), st.integers(0, 30))
def test_ends_are_those_of_all_instances(start, length, frequency, after, span):
    ends = list(Window(start, length, frequency).ends(after, after + span))
    assert ends == [end for end in range(after + 1, after + span + 1) if (end - start - length) % frequency == 0]


@settings(max_examples=100, deadline=None)
@given(settings_of_windows())
def test_the_slice_that_is_proposed_is_the_largest_that_fits(setting):
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
        (lambda: plan([], 1), "no window"),
        (lambda: plan([5], 1), "5 is no window"),
        (lambda: plan(TUMBLING, 2), r"not for Window\(start=0, length=5, frequency=5\), .*length=15.* a slice of 5"),
        (lambda: plan([Window(3, 4, 4)], 2), r"not for Window\(start=3, .* a slice of 1"),
        (lambda: plan([Window(0, 4, 3)], 2), r"not for Window\(start=0, length=4, frequency=3\)"),
        (lambda: plan(TUMBLING, 0), "slice is 0"),
        (lambda: plan(TUMBLING, 0.5), r"slice is 0\.5"),
        (lambda: plan(TUMBLING, True), "slice is True"),
        (lambda: plan(TUMBLING, 1, 0), "horizon is 0"),
        (lambda: plan(TUMBLING, 1, 1.5), r"horizon is 1\.5"),
        (lambda: plan(TUMBLING, 1, 60, {1: 1, 5: 1, 10: 1, 20: 1}), "no number for results of length 15"),
        (lambda: plan(TUMBLING, 1, 60, lambda begin, end: begin - 30), "keys is -[0-9]+ for the span from "),
        (lambda: plan(TUMBLING, 1, 60, lambda begin, end: math.nan), "keys is nan"),
        (lambda: plan(TUMBLING, 1, 60, {1: 1, 5: "2", 10: 1, 15: 1, 20: 1}), "keys is '2' for the span from 0 to 5"),
        (lambda: plan(TUMBLING, 1, 60, lambda begin, end: None), "keys is None"),
        (lambda: plan(TUMBLING, 1, 60, 7), "keys is 7: give numbers by length"),
        (lambda: Window(0, 0, 1), "length of the window is 0"),
        (lambda: Window(0, 1, -1), "frequency of the window is -1"),
        (lambda: Window(0.5, 1, 1), r"start of the window is 0\.5"),
        (lambda: Window(0, True, 1), "length of the window is True"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(PlanningError, match=message):
        call()


def test_a_pattern_that_hardly_ever_repeats_wants_a_horizon():
    windows = [Window.tumbling(5 * number) for number in range(1, 21)]
    with pytest.raises(PlanningError, match=rf"repeats after 1163962800, with \d+ windows .* above {MOST_WINDOWS}"):
        plan(windows, 5)
    with pytest.raises(PlanningError, match="horizon is 10000000"):
        plan(windows, 5, 10_000_000)
    found = plan(windows, 5, 300)
    assert len(found.recipes) == sum(300 // window.length for window in windows)
