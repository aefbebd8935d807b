"""Functions with a merge have the results of aggregates, under moves of all kinds, losses and checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
from merged_scenario import SCENARIOS, MergedInstantScenario, MergedScenario

from dask_elastic.topology.windows import merged_function
from dask_elastic.topology.windows.partial_columns import PartialColumns

SEEDS = 4
MOST_SEEDS = 20


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_results_are_those_of_all_rows(scenario):
    happened = Counter()
    for seed in range(SEEDS):
        happened += scenario(seed, 0.25 * (seed % 2)).check().happened()
    assert happened["moves across nodes"] > 0
    assert happened["checkpoints"] > 0


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_results_are_those_of_all_rows_in_the_task_of_another_compute(place):
    for seed in range(2):
        MergedScenario(seed, place=place).check()


def merged_state_is_that_of_one_owner(monkeypatch):
    bound = merged_function._BoundMergedFunction
    monkeypatch.setattr(bound, "_merged", lambda self, left, right: list(right))


def merged_columns_change_places(monkeypatch):
    """Sums are stored as maxima."""
    real = PartialColumns.stored

    def stored(self, rows):
        values = real(self, rows)
        values[2], values[4] = values[4], values[2]
        return values

    monkeypatch.setattr(PartialColumns, "stored", stored)


def new_partial_replaces_the_one_before(monkeypatch):
    """Rows of a later batch take the place of earlier ones."""
    bound = merged_function._BoundMergedFunction
    monkeypatch.setattr(bound, "merge", lambda self, left, right: list(right))


MUTANTS = [merged_state_is_that_of_one_owner, merged_columns_change_places, new_partial_replaces_the_one_before]


@pytest.mark.parametrize("scenario", [MergedScenario, MergedInstantScenario], ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, scenario, monkeypatch):
    mutant(monkeypatch)
    for seed in range(MOST_SEEDS):
        if scenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
