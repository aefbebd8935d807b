"""Partial results are merged once, under moves, changes of cores, losses and checkpoints; and faults are found."""

from __future__ import annotations

from collections import Counter

import pytest
from consolidate_scenario import ConsolidateScenario

from dask_elastic.executor.windows import cells, window_logic
from dask_elastic.topology.aggregates import partial_results

SEEDS = 5
MOST_SEEDS = 40


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_each_instance_has_one_result_of_all_computes(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += ConsolidateScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes", "on_time", "late"):
        assert happened[what], what
    assert not outages or happened["losses with replay"]


def partial_result_is_in_longer_windows_as_well(monkeypatch):
    """A result of ten microseconds counts in the window of thirty, too."""
    monkeypatch.setattr(cells._Spans, "exactly", lambda self, lengths: self)


def partial_result_replaces_the_one_before(monkeypatch):
    """State and new partial results are not merged."""
    real = partial_results._BoundMerged.update

    def update(self, current, rows, grouping):
        return real(self, self.initial(grouping.count), rows, grouping)

    monkeypatch.setattr(partial_results._BoundMerged, "update", update)


def instance_closes_with_the_first_stream(monkeypatch):
    """Instances close before their ends, when one stream may still send partial results."""
    real = window_logic.WindowLogic.fire

    def fire(self, batch, policy):
        record = batch.record
        early = min(record.event + 12, 2**63 - 1) if self.windowing.exact else record.event
        return real(self, batch._replace(record=record._replace(event=early)), policy)

    monkeypatch.setattr(window_logic.WindowLogic, "fire", fire)


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith(("_", "test_"))
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in range(MOST_SEEDS):
        if ConsolidateScenario(seed, 0.25 * (seed % 2)).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
