"""Nodes that die, hang or are given up by mistake, beside all that moves; messages that come twice, and late."""

from __future__ import annotations

from collections import Counter

import pytest
from scenario import Scenario

from dask_elastic.executor import piece
from dask_elastic.simulator import Balance, Flush, Move, Outage

PARTS = 15
SEEDS_OF_A_PART = 100

KEPT = [
    Scenario(
        seed=17,
        disturbances=(
            Outage(at=71, guest=0, kind="hang", noticed=(39, 26), lasts=136),
            Flush(at=77, executor=None),
            Balance(at=100, executor=2),
            Move(at=190, executor=7, shard=48971, task=49322),
            Outage(at=223, guest=3, kind="death", noticed=(52, 12), lasts=76),
        ),
        batches=3,
    ),
]
"""Scenarios that failed once, or that a fault put in on purpose was found by; as `Scenario.check` tells them."""


@pytest.mark.parametrize("part", range(PARTS))
def test_what_always_holds_holds_under_fire(part, monkeypatch):
    if part % 2:
        # Small blocks are sorted by their tasks then, as large ones are.
        monkeypatch.setattr(piece, "SMALL_BLOCK", 4)
    happened = Counter()
    for seed in range(part * SEEDS_OF_A_PART, (part + 1) * SEEDS_OF_A_PART):
        happened += Scenario(seed).check().happened()
    for what in (
        "deaths",
        "hangs",
        "given up",
        "losses of tasks",
        "losses with rows to do again",
        "messages of another life",
        "messages that came twice",
        "moves across nodes",
    ):
        assert happened[what] > SEEDS_OF_A_PART // 2, what


@pytest.mark.parametrize("scenario", KEPT, ids=lambda scenario: f"seed {scenario.seed}")
def test_what_failed_once_holds(scenario):
    scenario.run()
