"""Joins emit each result once under moves, changes of cores, losses and restarts from checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
from join_job import KINDS
from join_scenario import JoinScenario

SEEDS = 12


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_join_emits_each_result_once(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += JoinScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes", "late", *KINDS):
        assert happened[what] > SEEDS // 3, what
    assert not outages or happened["losses with replay"] > SEEDS // 2
