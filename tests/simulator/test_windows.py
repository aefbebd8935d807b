"""Windows close once, with all rows before the watermark, under moves, changes of cores, losses and checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
from window_scenario import WindowScenario

SEEDS = 16


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_each_instance_has_one_result_and_its_corrections(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += WindowScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes", "on_time", "corrected", "late", "outside", "untimed"):
        assert happened[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2
