"""Watermarks pass behind the tuples before them, whatever moves, ends or is lost meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest
from timed_scenario import TimedScenario

SEEDS = 40


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_no_tuple_is_older_than_the_watermark_before_it(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += TimedScenario(seed, outages).check().happened()
    for what in ("late rows", "late at a receiver", "moves across nodes"):
        assert happened[what] > SEEDS // 2, what
    assert not outages or happened["losses with rows to do again"] > SEEDS // 4
