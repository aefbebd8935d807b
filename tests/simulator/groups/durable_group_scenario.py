"""Simulations of a job that loses homes and schedulers while its key groups move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from durable_scenario import SOURCES, DurableScenario
from group_scenario import drawn_moves

from dask_elastic.simulator import Disturber, Placement, World, WorldOptions
from dask_elastic.simulator.durability import Crash
from dask_elastic.topology import Component

REQUESTS = 8
"""Requests to move groups, in each generation."""

STEPS = 250
NODES = 3


@dataclass(frozen=True)
class DurableGroupScenario(DurableScenario):
    """A simulation of a job with checkpoints and crashes whose key groups move."""

    worlds: list[World] = field(default_factory=list, compare=False, repr=False)

    def _world(self, random, components: Sequence[Component], executors: int, part, restored) -> World:
        # Generations may be on other nodes; the number of executors stays.
        executors += 1
        homes = {
            "numbers": tuple(random.integers(0, NODES, SOURCES).tolist()),
            # Of sinks on several nodes each commits for itself, without an order among them.
            "per_key": (int(random.integers(NODES)),) * executors,
        }
        cores = tuple({node: 1} for node in homes["per_key"])
        options = WorldOptions(
            window=int(random.choice([400, 2**20])),
            check=True,
            order=("key", "src", "order"),
            resource_centric=True,
        )
        options = replace(options, limits=replace(options.limits, inline_time=0.0))
        world = World(components, Placement(NODES, homes, {"per_key": cores}), random, options, restored, part)
        drawn = np.random.default_rng([self.seed, 8, len(self.worlds)])
        Disturber(world, drawn_moves(drawn, REQUESTS, STEPS))
        self.worlds.append(world)
        return world


def lost_at_each_step(seed: int, steps: range) -> Counter[str]:
    """Lose a job's homes before each of some steps, in a run for each; return the phases of the move at that moment."""
    phases: Counter[str] = Counter()
    for at in steps:
        scenario = DurableGroupScenario(seed, crashes=(Crash("home", at, survive=float(at // steps.step % 2)),))
        job = scenario.run()
        lost = scenario.worlds[0].groups.current
        if job.happened["home"] and lost is not None:
            phases[f"{lost.strategy} {lost.phase.value}"] += 1
    return phases
