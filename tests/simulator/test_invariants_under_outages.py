"""Outages during moves: nodes that die, hang or are declared lost by mistake; repeated and late messages."""

from __future__ import annotations

from collections import Counter

import pytest
from scenario import Scenario

from dask_elastic.executor import piece
from dask_elastic.simulator import Balance, Flush, Move, Outage

PARTS = 8
SEEDS_OF_A_PART = 26

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
"""Scenarios that failed once, or that found an injected fault, as `Scenario.check` prints them."""


@pytest.mark.parametrize("part", range(PARTS))
def test_invariants_hold_under_outages(part, monkeypatch):
    if part % 2:
        # Small blocks are then sorted by task, as large ones are.
        monkeypatch.setattr(piece, "SMALL_BLOCK", 4)
    happened = Counter()
    for seed in range(part * SEEDS_OF_A_PART, (part + 1) * SEEDS_OF_A_PART):
        happened += Scenario(seed).check().happened()
    for what in (
        "deaths",
        "hangs",
        "declared lost",
        "losses of tasks",
        "losses with replay",
        "stale messages",
        "repeated messages",
        "moves across nodes",
    ):
        assert happened[what] > SEEDS_OF_A_PART // 2, what


@pytest.mark.parametrize("scenario", KEPT, ids=lambda scenario: f"seed {scenario.seed}")
def test_kept_scenario_passes(scenario):
    scenario.run()
