"""Seeded simulations of a job whose state expires in event time, with its expected outputs and state."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from expiry_job import Emitted, expected, make_batches, make_topology
from timer_job import pairs_of, timed_part
from timer_scenario import TimerScenario, TimerSimulation

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import Disturber, World
from dask_elastic.topology import Component, build_components


@dataclass(frozen=True)
class ExpiryScenario(TimerScenario):
    """A `Scenario` of the job whose state expires; logic per row or per batch."""

    @property
    def by_row(self) -> bool:
        return self.seed % 3 != 1

    def components_of(self, batches: list[pa.RecordBatch], shards: int) -> tuple[Component, ...]:
        return build_components(make_topology(batches, shards, self.by_row, self.place), pairs_of(self.place))

    def batches_of(self, random: np.random.Generator) -> list[pa.RecordBatch]:
        return make_batches(random, int(random.integers(5, 16)))

    @property
    def clocks(self) -> dict[str, Any]:
        """None: what is emitted has no time, and nothing is due in processing time."""
        return {}

    def simulated(
        self, world: World, batches: list[pa.RecordBatch], disturber: Disturber, shards: int
    ) -> ExpirySimulation:
        return ExpirySimulation(world, batches, disturber, shards, self.place, self.by_row)


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
            compute, store = timed_part(home, self.place)
            table = read_state(compute, store, now=self.world.now)
            if table is None:
                continue
            assert store.event_time == newest
            for row in table.to_pylist():
                places = str(sorted(row["places"] or []))
                found[row["key"]] = str(row["total"]), str(row["items"] or []), places
        assert found == left
        self.check_other()

    def happened(self) -> Counter[str]:
        """Return how often each relevant event occurred."""
        happened = super().happened()
        seen = {key for rows in self.batches for key in rows["key"].to_pylist()}
        happened["removed keys"] += len(seen) - sum(
            len(timed_part(home, self.place)[1]) for home in self.world.homes.values()
        )
        return happened
