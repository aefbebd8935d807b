"""Homes that move: rows, state, event time and timers are as if no home had moved."""

from __future__ import annotations

from collections import Counter

import pytest
from home_scenario import KINDS, TimerHomeScenario, happened

SEEDS = 8
"""Of each kind of scenario."""

MOVED = SEEDS // 4

LOST = (16,)
"""Seeds of such losses."""


@pytest.mark.parametrize("outages", [0.0, 0.25])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_homes_move_under_moves_of_shards_checkpoints_and_outages(kind, outages):
    seen = Counter()
    for seed in range(SEEDS):
        scenario = kind(seed, outages=outages, pauses=0.02 if seed % 5 == 0 else 0.0)
        seen += happened(scenario.run())
    assert seen["moved"] > MOVED
    assert seen["held"] > MOVED
    assert min(seen["copied first"], seen["copied last"]) > 0


def test_move_is_cancelled_when_its_target_is_lost_while_state_is_copied():
    seen = Counter()
    for seed in LOST:
        seen += happened(TimerHomeScenario(seed, outages=0.25, pauses=0.05 if seed % 4 < 2 else 0.0).run())
    assert seen["lost while copying"] > 0
