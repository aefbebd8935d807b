"""Shards that leave their home and return again and again, while nodes die and messages are repeated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from scenario import STEPS, Scenario, Simulation

from dask_elastic.executor.remote import RemotePart
from dask_elastic.planning.light_load import LightLoad
from dask_elastic.simulator import Balance

SEEDS = 18
LOOKS_EVERY = 40


class Alternating(LightLoad):
    """A load that is light at every other look."""

    def look(self, load, now, away=True):
        self.at_home = not self.at_home


@dataclass(frozen=True)
class LightScenario(Scenario):
    """The followed job, whose executors balance often."""

    def drawn(self) -> Scenario:
        if self.disturbances is not None:
            return self
        looks = [Balance(at + 5 * one, one) for one in range(8) for at in range(10, STEPS, LOOKS_EVERY)]
        drawn = sorted([*(super().drawn().disturbances or ()), *looks], key=lambda disturbance: disturbance.at)
        return replace(self, disturbances=drawn)

    def build(self) -> Simulation:
        simulation = super().build()
        for home in simulation.world.homes.values():
            home.executor.cores.light = Alternating(1.0, at_home=False)
        return simulation


def returns(simulation):
    """Count the moves from a remote task to one at home."""
    counted = Counter()
    for home in simulation.world.homes.values():
        tasks = home.executor.routes.tasks
        ended = [move for move in home.executor.finished_moves() if move.across_nodes and move.target in tasks]
        counted["returns"] += sum(tasks[move.target].at_home for move in ended)
    return counted


def test_invariants_hold_while_shards_return_under_outages():
    happened = Counter()
    for seed in range(SEEDS):
        simulation = LightScenario(seed).check()
        happened += simulation.happened() + returns(simulation)
    assert happened["returns"] > 2 * SEEDS
    assert happened["losses with replay"] > SEEDS // 4


def test_return_that_loses_the_last_changes_is_found(monkeypatch):
    real = RemotePart._label
    monkeypatch.setattr(RemotePart, "_label", lambda self, *label: replace(real(self, *label), state=None))
    # Nothing but looks: every move leaves home, or returns.
    looks = [Balance(at + 5 * one, one) for one in range(8) for at in range(10, STEPS, LOOKS_EVERY)]
    assert any(LightScenario(seed, outages=0.0, disturbances=looks).fails() for seed in range(20))
