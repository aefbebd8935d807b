"""State expires in event time as if all rows were processed one by one, under moves, losses and restarts."""

from __future__ import annotations

from collections import Counter

import pytest
from expiry_scenario import ExpiryScenario

SEEDS = 6
FUSED_SEEDS = 4


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_rows_and_timers_see_what_has_not_expired_by_the_watermark(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += ExpiryScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes", "removed keys"):
        assert happened[what] > SEEDS // 3, what
    assert not outages or happened["losses with replay"] > SEEDS // 3


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_state_of_fused_computes_expires_in_event_time(place):
    happened = Counter()
    for seed in range(FUSED_SEEDS):
        happened += ExpiryScenario(seed, 0.25, place=place).check().happened()
    for what in ("removed keys", "losses with replay", "moves across nodes"):
        assert happened[what] > 0, what
