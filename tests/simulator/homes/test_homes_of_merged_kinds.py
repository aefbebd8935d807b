"""Homes move in jobs whose computes are fused, share slices, join, or hand partials over: results stay the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from fused_scenario import FusedScenario
from home_scenario import WithMoves, happened
from instant_scenario import InstantScenario
from join_scenario import JoinScenario
from sharing_scenario import SharingScenario

SEEDS = 6
"""Of each kind of scenario."""


@dataclass(frozen=True)
class FusedHomes(WithMoves, FusedScenario):
    """Several computes in each task."""


@dataclass(frozen=True)
class SharingHomes(WithMoves, SharingScenario):
    """Windows that cease to share slices and begin to again."""


@dataclass(frozen=True)
class InstantHomes(WithMoves, InstantScenario):
    """Windows whose partials follow their shards."""


@dataclass(frozen=True)
class JoinHomes(WithMoves, JoinScenario):
    """Joins."""


@pytest.mark.parametrize("kind", [FusedHomes, SharingHomes, InstantHomes, JoinHomes], ids=lambda kind: kind.__name__)
def test_homes_move_whatever_their_executors_hold(kind):
    seen = Counter()
    for seed in range(SEEDS):
        seen += happened(kind(seed, outages=0.0 if seed % 2 else 0.25).run())
    assert seen["moved"] > SEEDS / 4
    assert seen["moves across nodes"] > SEEDS


def test_portion_that_comes_after_its_copy_was_dropped_is_refused():
    # The other node is given up and heals while a portion is on its way.
    assert happened(FusedHomes(1016, outages=0.25).run())["cancelled"]
