"""Seeded simulations of windows whose earlier owner keeps those that have begun, and of moves that are chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from instant_scenario import InstantScenario
from scenario import STEPS

from dask_elastic.executor import move_choice
from dask_elastic.executor.move_choice import MoveChoice
from dask_elastic.simulator import World
from dask_elastic.simulator.disturbances import Flush, Move

MOVES = 40


@dataclass(frozen=True)
class SmoothScenario(InstantScenario):
    """An `InstantScenario` with many smooth moves, most of them without checkpoints, for which sources leave early."""

    strategy: str = "smooth"

    def drawn(self) -> SmoothScenario:
        found = super().drawn()
        if self.disturbances is not None:
            return found
        random = np.random.default_rng([self.seed, 5])
        moves = [
            Move(at, *(int(number) for number in random.integers(0, 1 << 16, 3)))
            for at in random.integers(1, STEPS, MOVES).tolist()
        ]
        flushes = [Flush(at, int(random.integers(8))) for at in random.integers(1, STEPS, MOVES // 2).tolist()]
        every = [*found.disturbances, *moves, *flushes]
        return replace(found, disturbances=sorted(every, key=lambda disturbance: disturbance.at))

    def _take_checkpoints(self, world: World) -> None:
        if self.seed % 4 == 0:
            super()._take_checkpoints(world)


@dataclass(frozen=True)
class AutoScenario(InstantScenario):
    """An `InstantScenario` in which each move has another strategy."""

    strategy: str = "auto"


def chosen_in_turn(monkeypatch) -> Counter[str]:
    """Let each strategy be the cheapest one in turn; returns a counter of the chosen ones."""
    chosen: Counter[str] = Counter()
    real_costs, real_init = move_choice.strategy_costs, MoveChoice.__init__

    def costs(measures):
        found = sorted(real_costs(measures), key=lambda cost: cost.strategy)
        first = found[chosen.total() % len(found)]
        chosen[first.strategy] += 1
        return [replace(first, waiting=0.0), *(cost for cost in found if cost is not first)]

    def measured(self, strategy, shared):
        real_init(self, strategy, shared)
        self.shard_bytes = np.full(64, 1_000)

    monkeypatch.setattr(move_choice, "strategy_costs", costs)
    monkeypatch.setattr(MoveChoice, "__init__", measured)
    return chosen
