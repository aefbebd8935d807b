"""Joins emit each result once under moves, changes of cores, losses and restarts from checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
from join_job import KINDS
from join_scenario import JoinScenario

from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles

SEEDS = 8


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_join_emits_each_result_once(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += JoinScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes", "late", *KINDS):
        assert happened[what] > SEEDS // 3, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


def test_join_with_state_on_disk_emits_each_result_once(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    happened = Counter()
    for seed in range(3):
        happened += JoinScenario(seed).check().happened()
    assert all(happened[kind] for kind in KINDS)
