"""The strategy of a move: chosen by state, windows and load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.migration.choice import MoveMeasures, explained, strategy_costs

USUAL = MoveMeasures(
    state_bytes=50e6,
    rows=10_000,
    seconds_per_row=1e-6,
    batch_seconds=1e-3,
    source_load=0.5,
    target_load=0.4,
    bytes_per_second=1e8,
    pause=0.001,
    merge_bytes_per_second=1e8,
    merge_part=0.005,
    close_interval=10.0,
    window_left=5.0,
)

positive = st.floats(1e-6, 1e6)
load = st.floats(0, 3)
measures = st.builds(
    MoveMeasures,
    state_bytes=st.floats(0, 1e10),
    rows=st.floats(0, 1e7),
    seconds_per_row=st.just(0.0) | st.floats(1e-9, 1e-2),
    batch_seconds=st.floats(0, 1),
    source_load=load,
    target_load=load,
    bytes_per_second=st.floats(1e3, 1e10),
    pause=st.floats(0, 1),
    merge_bytes_per_second=st.floats(1e3, 1e10),
    merge_part=st.floats(0, 1),
    close_interval=st.none() | positive,
    window_left=st.none() | positive,
    in_both=st.floats(0, 1),
)


def waiting(of, strategy):
    return next(cost.waiting for cost in strategy_costs(of) if cost.strategy == strategy)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({"state_bytes": 0}, "labelled"),
        ({}, "smooth"),
        ({"window_left": None}, "instant"),
        ({"source_load": 1.5}, "instant"),
        ({"window_left": 3600.0, "source_load": 0.95}, "instant"),
        ({"window_left": None, "target_load": 0.95}, "labelled"),
        ({"merge_bytes_per_second": 1e3, "merge_part": 10.0, "window_left": None}, "labelled"),
    ],
)
def test_choice_follows_state_windows_and_load(changes, chosen):
    assert strategy_costs(replace(USUAL, **changes))[0].strategy == chosen


@given(measures)
def test_costs_are_of_all_strategies_the_cheapest_first(of):
    costs = strategy_costs(of)
    assert sorted(cost.strategy for cost in costs) == ["instant", "labelled", "smooth"]
    assert [cost.waiting for cost in costs] == sorted(cost.waiting for cost in costs)
    assert all(cost.waiting >= 0 for cost in costs)
    assert costs == strategy_costs(of)


@given(measures, st.floats(1, 100))
def test_more_state_makes_labelled_moves_dearer_and_smooth_ones_not(of, factor):
    more = replace(of, state_bytes=of.state_bytes * factor)
    assert waiting(more, "labelled") >= waiting(of, "labelled")
    assert waiting(more, "smooth") == waiting(of, "smooth")


@given(measures, st.floats(1, 100))
def test_more_load_of_the_target_makes_instant_moves_dearer_and_labelled_ones_not(of, factor):
    more = replace(of, target_load=of.target_load * factor)
    assert waiting(more, "instant") >= waiting(of, "instant") * (1 - 1e-9)
    assert waiting(more, "labelled") == waiting(of, "labelled")


@given(measures, st.floats(1, 100))
def test_longer_windows_make_no_smooth_move_cheaper(of, factor):
    if of.window_left is not None:
        longer = replace(of, window_left=of.window_left * factor)
        assert waiting(longer, "smooth") >= waiting(of, "smooth") * (1 - 1e-9)


def test_explanation_names_the_costs_of_all():
    text = explained(strategy_costs(USUAL))
    assert text.startswith("expected: smooth")
    assert "not instant" in text
    assert "labelled" in text
    assert "47.7 MiB" in text
