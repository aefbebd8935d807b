"""Simulations of a job that loses homes and schedulers while its homes move."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from durable_scenario import DurableScenario

from dask_elastic.simulator import Disturber, MoveHome, World
from dask_elastic.simulator.durability import Crash

REQUESTS = 6
"""Requests to move a home, in each generation."""

STEPS = 250


@dataclass(frozen=True)
class DurableHomeScenario(DurableScenario):
    """A simulation of a job with checkpoints and crashes whose homes move."""

    worlds: list[World] = field(default_factory=list, compare=False, repr=False)

    def _world(self, random, components, executors, part, restored) -> World:
        world = super()._world(random, components, executors, part, restored)
        drawn = np.random.default_rng([self.seed, 7, len(self.worlds)])
        Disturber(
            world,
            [
                MoveHome(at, int(drawn.integers(8)), int(drawn.integers(8)))
                for at in sorted(drawn.integers(1, STEPS, REQUESTS).tolist())
            ],
        )
        self.worlds.append(world)
        return world


def lost_at_each_step(seed: int, steps: range) -> Counter[str]:
    """Lose a job's homes before each of some steps, in a run for each; return the phases of the move at that moment.

    In every other run the old homes go on, most of them after a while, and do not know that they were replaced.
    """
    phases: Counter[str] = Counter()
    for at in steps:
        scenario = DurableHomeScenario(seed, crashes=(Crash("home", at, survive=float(at // steps.step % 2)),))
        job = scenario.run()
        lost = scenario.worlds[0].moves.current
        if job.happened["home"] and lost is not None:
            phases[lost.phase.value] += 1
    return phases
