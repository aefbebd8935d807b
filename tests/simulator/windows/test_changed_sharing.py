"""Whether windows share slices changes for the same instances at all executors, under moves, losses and checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
from sharing_scenario import SharingScenario

SEEDS = 8


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_results_do_not_depend_on_changes(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += SharingScenario(seed, outages).check().happened()
    for what in ("rows of instances", "closes of both", "checkpoints", "moves across nodes", "on_time", "late"):
        assert happened[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2
