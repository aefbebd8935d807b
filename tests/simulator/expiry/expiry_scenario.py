"""Seeded simulations of a job whose state expires in event time, with its expected outputs and state."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from checkpointed_scenario import EARLIER
from expiry_job import Emitted, expected, make_batches, make_topology
from timer_scenario import TimerScenario, TimerSimulation

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.simulator import Disturber, SimulatedCheckpoint, World, WorldOptions
from dask_elastic.topology import build_components


@dataclass(frozen=True)
class ExpiryScenario(TimerScenario):
    """A `Scenario` of the job whose state expires; logic per row or per batch."""

    @property
    def by_row(self) -> bool:
        return self.seed % 3 != 1

    def build(self) -> ExpirySimulation:
        random = np.random.default_rng(self.seed)
        batches = make_batches(random, int(random.integers(5, 16)))[: self.batches]
        shards = int(random.integers(4, 17))
        options = WorldOptions(
            window=int(random.choice([400, 3000, 2**20])),
            row_seconds=float(random.choice([0.0001, 0.001])),
            limits=ExecutorLimits(
                patience=0.01 if self.seed % 3 == 0 else 0.0, pending_bytes=int(random.choice([200, 2**20]))
            ),
            check=True,
            order=("key", "number"),
            repeats=0.1 if self.outages else 0.0,
        )
        world = World(
            build_components(make_topology(batches, shards, self.by_row)), self._placement(random), random, options
        )
        self._take_checkpoints(world)
        return ExpirySimulation(
            world, batches, Disturber(world, self.drawn().disturbances or ()), shards, self.place, self.by_row
        )

    def continued(self, first: TimerSimulation, checkpoint: SimulatedCheckpoint) -> ExpirySimulation:
        """Return a simulation that continues from a checkpoint of the first one."""
        random = np.random.default_rng([self.seed, 3, checkpoint.number])
        components = build_components(make_topology(first.batches, first.shards, self.by_row))
        sinks = {
            identity: tuple((step - EARLIER, rows) for step, rows in received)
            for identity, received in checkpoint.sinks.items()
        }
        restore = SimulatedCheckpoint(checkpoint.number, checkpoint.sources, checkpoint.executors, sinks)
        restored = World(components, first.world.placement, random, first.world.options, restore)
        restored.schedule.now = first.world.now
        return ExpirySimulation(restored, first.batches, Disturber(restored, ()), first.shards, self.place, self.by_row)


@dataclass
class ExpirySimulation(TimerSimulation):
    """One simulation; rows and timers must see what has not expired by the watermark before them."""

    by_row: bool

    def check(self) -> None:
        emitted: dict[str, list[Emitted]] = defaultdict(list)
        received = [entry for sink in self.world.sinks.values() for entry in sink.received]
        for _, rows in sorted(received, key=lambda entry: entry[0]):
            for key, *seen in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                emitted[key].append(tuple(seen))
        outputs, left, newest = expected(self.batches, self.by_row)
        assert dict(emitted) == outputs
        found: dict[str, tuple[str, str, str]] = {}
        for home in self.world.homes.values():
            store = home.executor.store
            table = read_state(home.component.operator, store, now=self.world.now)
            if table is None:
                continue
            assert store.event_time == newest
            for row in table.to_pylist():
                places = str(sorted(row["places"] or []))
                found[row["key"]] = str(row["total"]), str(row["items"] or []), places
        assert found == left

    def happened(self) -> Counter[str]:
        """Return how often each relevant event occurred."""
        happened = super().happened()
        seen = {key for rows in self.batches for key in rows["key"].to_pylist()}
        happened["removed keys"] += len(seen) - sum(len(home.executor.store) for home in self.world.homes.values())
        return happened
