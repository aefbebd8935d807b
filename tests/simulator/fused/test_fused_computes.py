"""Fused computes keep their state and results under moves, core changes, losses and restarts."""

from __future__ import annotations

from collections import Counter

import pytest
from fused_scenario import FusedDurableScenario, FusedScenario

from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles

SEEDS = 8
DURABLE_SEEDS = 16


def test_fused_computes_process_every_row_once_under_disturbances_and_restarts():
    happened = Counter()
    for seed in range(SEEDS):
        simulation = FusedScenario(seed).run()
        happened["complete"] += len(simulation.world.checkpoints.complete)
        happened += simulation.happened()
    assert happened["complete"] > SEEDS / 2
    assert happened["losses with replay"] > SEEDS / 10
    assert happened["moves across nodes"] > SEEDS / 2


@pytest.mark.parametrize("seed", [48, 54])
def test_values_that_expire_before_a_cut_may_be_left_in_what_changes_give(seed):
    FusedScenario(seed, outages=0.25).run()


def test_fused_computes_lose_and_repeat_no_row_through_crashes():
    happened = Counter()
    for seed in range(DURABLE_SEEDS):
        happened += FusedDurableScenario(seed).check().happened
    for what in ("home", "scheduler", "generations from a checkpoint"):
        assert happened[what] > DURABLE_SEEDS // 10, what


def test_fused_computes_keep_their_state_on_disk(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path, resident=lambda: 1, most=-1)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    for seed in range(3):
        FusedScenario(seed).check()
