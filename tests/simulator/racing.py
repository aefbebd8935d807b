"""Scenarios in which threads of a node race: shards leave it and return all the time, and slow threads pause."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from followed_job import SOURCES, make_batches
from scenario import Scenario, Simulation

from dask_elastic.executor import events
from dask_elastic.simulator import Flush, Placement, World, random_disturbances
from dask_elastic.vocab.errors import ElasticError

PAUSES = 0.4
BATCHES = 20
STEPS = 1_000
BOUNCING = 3
"""Shards of each executor that move between home and guest."""
EVERY = 8
"""Steps from one command to the next."""


@dataclass(frozen=True)
class Race(Scenario):
    """One home and one guest with several tasks each; a shard that has arrived at one of them moves to the other."""

    outages: float = 0.0
    pauses: float = PAUSES

    def drawn(self) -> Race:
        if self.disturbances is not None:
            return self
        random = np.random.default_rng([self.seed, 2])
        drawn = random_disturbances(random, 10, STEPS, self.outages) if self.outages else []
        drawn += [Flush(at, None) for at in range(5, STEPS, 50)]
        return replace(self, disturbances=sorted(drawn, key=lambda disturbance: disturbance.at))

    def build(self) -> Bouncing:
        return Bouncing(**vars(super().build()))

    def _batches(self, random: np.random.Generator) -> list[list[pa.RecordBatch]]:
        return make_batches(random, most_rows=4, batches=BATCHES)

    def _placement(self, random: np.random.Generator) -> Placement:
        at_home = {"numbers": (0,) * SOURCES, "per_key": (0,), "per_bucket": (0,)}
        cores = {name: ({0: 1, 1: int(random.integers(2, 4))},) for name in ("per_key", "per_bucket")}
        return Placement(2, at_home, cores)


class Bouncing(Simulation):
    """Moves shards to the other node as soon as they have arrived at one."""

    def check_flushes(self, world: World) -> None:
        super().check_flushes(world)
        if not world.finished and world.schedule.steps % EVERY == 0:
            self.bounce(world)

    def bounce(self, world: World) -> None:
        for identity, home in world.homes.items():
            executor = home.executor
            shard = int(BOUNCING * world.schedule.draw())
            if shard in executor.moves.targets():
                continue
            tasks = executor.routes.tasks
            owner = tasks[int(executor.routes.table.owner[shard])]
            others = [task.number for task in tasks.values() if task.at_home != owner.at_home]
            if others:
                target = others[int(len(others) * world.schedule.draw())]
                world.command(identity, events.MoveShard(shard, target), self.ignore)

    def ignore(self, error: ElasticError) -> None:
        """The shard has begun to move, or the task to stop, since the command was given."""


def first_failed_race(seeds: int, **given: object) -> Exception | None:
    """Return the error of the first seed that fails; None if all pass."""
    return next((error for seed in range(seeds) if (error := Race(seed, **given).failure())), None)
