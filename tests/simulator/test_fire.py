"""Nodes that die, hang or are given up by mistake, beside all that moves; messages that come twice, and late."""

from __future__ import annotations

from collections import Counter

import pytest
from scenario import Scenario

from dask_elastic.executor import piece

PARTS = 15
SEEDS_OF_A_PART = 100

FOUND_BEFORE: list[Scenario] = []
"""Scenarios that failed once."""


@pytest.mark.parametrize("part", range(PARTS))
def test_what_always_holds_holds_under_fire(part, monkeypatch):
    if part % 2:
        # Small blocks are sorted by their tasks then, as large ones are.
        monkeypatch.setattr(piece, "SMALL_BLOCK", 4)
    happened = Counter()
    for seed in range(part * SEEDS_OF_A_PART, (part + 1) * SEEDS_OF_A_PART):
        happened += Scenario(seed).check().happened()
    assert happened["deaths"] > SEEDS_OF_A_PART
    assert happened["hangs"] > SEEDS_OF_A_PART
    assert happened["given up"] > 2 * SEEDS_OF_A_PART
    assert happened["losses of tasks"] > SEEDS_OF_A_PART
    assert happened["losses with rows to do again"] > SEEDS_OF_A_PART // 2
    assert happened["messages of another life"] > SEEDS_OF_A_PART
    assert happened["messages that came twice"] > SEEDS_OF_A_PART
    assert happened["moves across nodes"] > SEEDS_OF_A_PART


@pytest.mark.parametrize("scenario", FOUND_BEFORE, ids=lambda scenario: f"seed {scenario.seed}")
def test_what_failed_once_holds(scenario):
    scenario.run()
