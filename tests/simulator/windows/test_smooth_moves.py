"""Smooth moves, and moves by a chosen strategy: each instance has one result with all of its rows."""

from __future__ import annotations

import pytest
from instant_scenario import actions_of
from smooth_scenario import FOUND, OVERTAKEN, AutoScenario, SmoothScenario, chosen_in_turn

from dask_elastic.executor.routes import Routes

SEEDS = 13


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_results_are_those_of_all_rows(outages, monkeypatch):
    taken = actions_of(monkeypatch)
    for seed in range(SEEDS):
        SmoothScenario(seed, outages).check()
    for what in ("OPENED_BESIDE STAY", "WINDOWS_CLOSED TAKE_LEAVE", "TASK_DRAINS TAKE_LEAVE", "CUT_DUE TAKE_LEAVE"):
        assert taken[what] > 0, what
    if outages:
        assert taken["SOURCE_LOST MERGE"] > 0
        assert taken["TARGET_LOST RECALL"] > 0


@pytest.mark.parametrize("scenario", FOUND, ids=lambda scenario: str(scenario.seed))
def test_results_are_those_of_all_rows_where_they_were_not(scenario):
    scenario.check()


def test_results_are_those_of_all_rows_while_strategies_alternate(monkeypatch):
    chosen = chosen_in_turn(monkeypatch)
    for seed in range(8):
        AutoScenario(seed, outages=0.25 if seed % 2 else 0.0).check()
    assert min(chosen[strategy] for strategy in ("labelled", "instant", "smooth")) > 5


def test_rows_do_not_overtake_a_record_that_a_lost_source_had_taken(monkeypatch):
    chosen = chosen_in_turn(monkeypatch)
    OVERTAKEN.check()
    monkeypatch.setattr(Routes, "is_closing", lambda self, task, shard: False)
    chosen.clear()
    assert OVERTAKEN.fails(), "the scenario does not find later rows in what the record closes"
