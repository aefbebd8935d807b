"""Seeded simulations in which homes move, besides all that happens in the other ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from checkpointed_scenario import CheckpointedScenario
from scenario import COMMANDS, Scenario, Simulation
from timed_scenario import TimedScenario
from timer_scenario import TimerScenario

from dask_elastic.simulator import Disturbance, MoveHome, random_disturbances

MOVES = 8
"""Requests to move a home; one that comes during another move is refused."""

STEPS = 450


class WithMoves(Scenario):
    """Adds moves of homes to the disturbances of a scenario."""

    def drawn(self) -> Scenario:
        if self.disturbances is not None:
            return self
        random = np.random.default_rng([self.seed, 1])
        others = random_disturbances(random, COMMANDS, STEPS, self.outages)
        random = np.random.default_rng([self.seed, 7])
        drawn: Sequence[Disturbance] = [
            MoveHome(at, int(random.integers(8)), int(random.integers(16)))
            for at in random.integers(1, STEPS, MOVES).tolist()
        ]
        return replace(self, disturbances=sorted([*others, *drawn], key=lambda one: one.at))


@dataclass(frozen=True)
class HomeScenario(WithMoves, Scenario):
    """The followed job."""


@dataclass(frozen=True)
class CheckpointedHomeScenario(WithMoves, CheckpointedScenario):
    """The followed job with checkpoints, from each of which another simulation continues."""


@dataclass(frozen=True)
class TimedHomeScenario(WithMoves, TimedScenario):
    """The job with event time."""


@dataclass(frozen=True)
class TimerHomeScenario(WithMoves, TimerScenario):
    """The job with timers and checkpoints."""


KINDS = (HomeScenario, CheckpointedHomeScenario, TimedHomeScenario, TimerHomeScenario)


def first_failure(seeds: range) -> Exception | None:
    """Return the error of the first seed that fails in any kind of scenario; None if all pass."""
    for seed in seeds:
        for kind in KINDS:
            if error := kind(seed, outages=0.0 if seed % 2 else 0.25, pauses=0.05 if seed % 4 < 2 else 0.0).failure():
                return error
    return None


def happened(simulation: Simulation) -> Counter[str]:
    """Return what the moves of homes did, besides the rest."""
    moves = simulation.world.moves
    return simulation.happened() + moves.happened + moves.copies.happened
