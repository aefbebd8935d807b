"""Shards that gather on one task of each node and spread again, while nodes die and messages are repeated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from scenario import STEPS, Scenario, Simulation

from dask_elastic.executor.routes import Routes
from dask_elastic.planning.gathering import Gathering
from dask_elastic.simulator import Balance, WorldOptions

SEEDS = 18
LOOKS_EVERY = 40


class Alternating(Gathering):
    """Gathers on one task of each node, on two, or on all, another number at each look."""

    def look(self, seen):
        self.most = {None: 1, 1: 2, 2: None}[self.most]


@dataclass(frozen=True)
class GatheringScenario(Scenario):
    """The followed job, whose executors balance often."""

    def drawn(self) -> Scenario:
        if self.disturbances is not None:
            return self
        looks = [Balance(at + 5 * one, one) for one in range(8) for at in range(10, STEPS, LOOKS_EVERY)]
        drawn = sorted([*(super().drawn().disturbances or ()), *looks], key=lambda disturbance: disturbance.at)
        return replace(self, disturbances=drawn)

    def adjusted(self, options: WorldOptions) -> WorldOptions:
        most = 1 if self.seed % 2 else None
        return replace(options, limits=replace(options.limits, gathers=True, first_takers=most))

    def build(self) -> Simulation:
        simulation = super().build()
        for home in simulation.world.homes.values():
            home.executor.cores.gathering = Alternating(home.executor.limits.first_takers)
        return simulation


def gathered(simulation):
    """Count the moves between tasks of one node."""
    homes = simulation.world.homes.values()
    moves = [move for home in homes for move in home.executor.finished_moves()]
    return Counter({"within a node": sum(not move.across_nodes for move in moves)})


def test_invariants_hold_while_shards_gather_and_spread_under_outages():
    happened = Counter()
    for seed in range(SEEDS):
        simulation = GatheringScenario(seed).check()
        happened += simulation.happened() + gathered(simulation)
    assert happened["within a node"] > 2 * SEEDS
    assert happened["losses with replay"] > SEEDS // 4


def test_shards_that_move_without_their_waiting_rows_are_found(monkeypatch):
    real = Routes.resume

    def resume(self, shard, target):
        self.waiting[shard].clear()
        return real(self, shard, target)

    monkeypatch.setattr(Routes, "resume", resume)
    assert any(GatheringScenario(seed, outages=0.0).fails() for seed in range(10))
