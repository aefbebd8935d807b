"""Watermarks stay behind earlier tuples under moves, changes of cores and losses."""

from __future__ import annotations

from collections import Counter

import pytest
from timed_scenario import TimedScenario

SEEDS = 24


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_watermarks_stay_behind_earlier_tuples(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += TimedScenario(seed, outages).check().happened()
    for what in ("late rows", "late at a receiver", "moves across nodes"):
        assert happened[what] > SEEDS // 2, what
    assert not outages or happened["losses with replay"] > SEEDS // 4
