"""Seeded simulations of the followed job that take checkpoints, from each of which another simulation continues."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from followed_job import make_batches
from scenario import Scenario, Simulation

from dask_elastic.simulator import CheckpointCommands, Disturber, Placement, SimulatedCheckpoint, World
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.identity import ExecutorId

Rows: TypeAlias = list[dict[str, Any]]
"""The state of an executor: one row for each key, in the order of their hashes."""

BETWEEN = 100
ATTEMPTS = 12
"""The most steps between two attempts to begin a checkpoint, and how many there are."""

OVERTAKEN = 0.08
HASTY = 0.9
"""The share of attempts that begin a checkpoint although another one is in progress: mostly, and for every 4th seed."""

GIVEN_UP = 0.15
"""The share of checkpoints that are given up after some steps, unless they are complete by then."""

EARLIER = 10**9
"""Subtracted from the steps of what a sink had received before the job was restored."""


@dataclass(frozen=True)
class CheckpointedScenario(Scenario):
    """A simulation with many small batches that takes checkpoints at random moments."""

    def _batches(self, random: np.random.Generator) -> list[list[pa.RecordBatch]]:
        return make_batches(random, most_rows=6, batches=int(random.integers(4, 14)))

    def build(self) -> Simulation:
        """Return the simulation before its first step."""
        simulation = super().build()
        commands = CheckpointCommands(simulation.world)
        random = np.random.default_rng([self.seed, 2])
        checkpoints = simulation.world.checkpoints

        def begin() -> None:
            if checkpoints.progress is None or random.random() < (OVERTAKEN if self.seed % 4 else HASTY):
                commands.begin()

        for at in np.cumsum(random.integers(1, BETWEEN, ATTEMPTS)).tolist():
            simulation.world.schedule.at(at, begin)
            if random.random() < GIVEN_UP:
                simulation.world.schedule.at(at + int(random.integers(1, BETWEEN)), commands.give_up)
        return simulation

    def continued(self, first: Simulation, checkpoint: SimulatedCheckpoint) -> Simulation:
        """Return a simulation that continues from a checkpoint of the first one, with other cores."""
        random = np.random.default_rng([self.seed, 3, checkpoint.number])
        world = first.world
        shards = world.spaces["per_key"].shards
        components = self._components(first.batches, shards)
        placement = self._with_other_cores(world.placement, random)
        sinks = {
            identity: tuple((step - EARLIER, rows) for step, rows in received)
            for identity, received in checkpoint.sinks.items()
        }
        restored = World(components, placement, random, world.options, dataclasses.replace(checkpoint, sinks=sinks))
        return self._simulation(restored, first.batches, Disturber(restored, ()))

    @staticmethod
    def _with_other_cores(placement: Placement, random: np.random.Generator) -> Placement:
        cores = {
            name: tuple(
                dict(Counter(random.integers(0, placement.nodes, int(random.integers(1, 4))).tolist())) for _ in parts
            )
            for name, parts in placement.cores.items()
        }
        return dataclasses.replace(placement, cores=cores)

    def run(self) -> Simulation:
        """Run it to the end, continue from each complete checkpoint, and compare all results with the expected ones."""
        first = super().run()
        checkpoints = first.world.checkpoints
        if (progress := checkpoints.progress) is not None:
            raise AssertionError(f"checkpoint {progress.number} is neither complete nor given up: {progress.missing}")
        assert len(checkpoints.complete) + len(checkpoints.given_up) == checkpoints.begun
        for executor, restored, copied in self._restored_by_changes(first):
            given = self.comparable(executor, restored, copied, first)
            assert given == copied, f"{executor}: the changes of all cuts do not give its state"
        for checkpoint in checkpoints.complete:
            try:
                self.continued(first, checkpoint).run()
            except Exception as error:
                error.add_note(f"{self}, continued from checkpoint {checkpoint.number}")
                raise
        return first

    def comparable(self, executor: ExecutorId, restored: Rows, copied: Rows, first: Simulation) -> Rows:
        """Return the state that changes give, without what may be left of it that the copied state lacks."""
        return restored

    @staticmethod
    def _restored_by_changes(first: Simulation) -> Iterator[tuple[ExecutorId, Rows, Rows]]:
        """Yield the state of each executor at its last cut: by the changes of all of its cuts, and as it was copied."""
        spaces = {
            compute.name: first.world.spaces[name]
            for name, component in first.world.components.items()
            for compute in component.computes
        }
        for executor, cuts in first.world.checkpoints.cuts.items():
            space = spaces[executor.component]
            changed, copied = (KeyedStore(space.shards, space.shard_of) for _ in "ab")
            for _, cut in cuts:
                if cut.changes is not None:
                    changed.install(cut.changes)
            if cuts[-1][1].state is not None:
                copied.install(cuts[-1][1].state)
                yield executor, _rows(changed, first.world.now), _rows(copied, first.world.now)


def _rows(store: KeyedStore, now: float) -> Rows:
    """Return the rows without values that have expired: a task that removes them does not mark the rows as changed."""
    state = store.extract()
    assert state is not None
    rows = state.to_pylist()
    for name in [name for name in state.schema.names if {f"{name}?", f"{name}@"} <= {*state.schema.names}]:
        for row in rows:
            if not row[f"{name}?"] or row[f"{name}@"] <= now:
                row |= {name: None, f"{name}?": False, f"{name}@": None}
    return sorted(rows, key=lambda row: row["__hash"])
