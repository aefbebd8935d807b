"""Functions over windows get each row once per instance, under moves, changes of cores, losses and checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
from function_scenario import FunctionScenario

from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles

SEEDS = 8


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_each_instance_gets_its_rows_and_its_corrections(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += FunctionScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes", "on_time", "corrected", "late", "outside", "untimed"):
        assert happened[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


def test_functions_get_their_rows_with_state_on_disk(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path, resident=lambda: 1, most=-1)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    for seed in (1, 4, 8):
        FunctionScenario(seed).check()
