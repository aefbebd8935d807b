"""Windows close once, with all rows before the watermark, under moves, changes of cores, losses and checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
from count_scenario import CountScenario
from session_scenario import SessionScenario
from window_scenario import WindowScenario

from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles

SEEDS = 16


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_each_instance_has_one_result_and_its_corrections(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += WindowScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes", "on_time", "corrected", "late", "outside", "untimed"):
        assert happened[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


def test_windows_close_once_with_state_on_disk(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path, resident=lambda: 1, most=-1)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    for seed in range(4):
        WindowScenario(seed).check()


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_windows_close_once_in_the_task_of_another_compute(place):
    happened = Counter()
    for seed in range(SEEDS // 2):
        happened += WindowScenario(seed, place=place).check().happened()
    assert happened["losses with replay"] > SEEDS // 4


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_sessions_and_counted_windows_close_once_in_the_task_of_another_compute(place):
    for seed in range(SEEDS // 4):
        SessionScenario(seed, place=place).check()
        CountScenario(seed, place=place).check()
