"""Timers fire once and in order with the rows under moves, changes of cores, losses and checkpoints."""

from __future__ import annotations

from collections import Counter

import pytest
from timer_scenario import TimerScenario

SEEDS = 8


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_timers_fire_once_in_order_with_rows(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += TimerScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes"):
        assert happened[what] > SEEDS // 3, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_timers_fire_once_in_the_task_of_another_compute(place):
    happened = Counter()
    for seed in range(SEEDS // 2):
        happened += TimerScenario(seed, place=place).check().happened()
    assert happened["losses with replay"] > SEEDS // 6
