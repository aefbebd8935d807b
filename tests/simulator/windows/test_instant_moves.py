"""Instant moves: each instance has one result with all of its rows, under losses and checkpoints."""

from __future__ import annotations

import pytest
from instant_scenario import InstantScenario, actions_of

from dask_elastic.executor.moving import handed_over, merging
from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles

SEEDS = 10


@pytest.mark.parametrize(("outages", "at_once"), [(0.0, 8192), (0.25, 1)])
def test_results_are_those_of_all_rows(outages, at_once, monkeypatch):
    monkeypatch.setattr(merging, "MERGED_ROWS", at_once)
    monkeypatch.setattr(handed_over, "PORTION_BYTES", at_once)
    taken = actions_of(monkeypatch)
    for seed in range(SEEDS):
        InstantScenario(seed, outages).check()
    for what in ("OPENED LEAVE", "RECORD_ENTERED HOLD", "LABEL_RETURNED MERGE"):
        assert taken[what] > 0, what
    if outages:
        assert taken["SOURCE_LOST MERGE"] > 0
        assert taken["TARGET_LOST WAIT"] > 0


def test_results_are_those_of_all_rows_with_state_on_disk(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path, resident=lambda: 1, most=-1)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    for seed in range(3):
        InstantScenario(seed).check()


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_results_are_those_of_all_rows_with_disruptive_moves(outages):
    across = 0
    for seed in range(6):
        across += InstantScenario(seed, outages, strategy="disruptive").check().happened()["moves across nodes"]
    assert across > 6
