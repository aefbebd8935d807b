"""Seeded simulations of a job with windows under disturbances and checkpoints, each with its expected results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from checkpointed_scenario import EARLIER
from timer_job import pairs_of, timed_part
from timer_scenario import TimerScenario, TimerSimulation
from window_job import TIME, WINDOWINGS, Expected, Instance, expected, make_batches, make_topology

from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.simulator import Disturber, SimulatedCheckpoint, World, WorldOptions
from dask_elastic.topology import Component, build_components
from dask_elastic.topology.windowing import Windowing
from dask_elastic.vocab.row_counts import RowCounts


@dataclass(frozen=True)
class WindowScenario(TimerScenario):
    """A `Scenario` of the job with windows."""

    @property
    def windowing(self) -> Windowing:
        return WINDOWINGS[self.seed % len(WINDOWINGS)]

    @property
    def logic(self) -> Any:
        """The logic of the compute; None for aggregates."""
        return None

    def components_of(self, batches: list[pa.RecordBatch], shards: int) -> tuple[Component, ...]:
        topology = make_topology(batches, shards, self.windowing, self.logic, self.place)
        return build_components(topology, pairs_of(self.place))

    def build(self) -> WindowSimulation:
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
            # Corrections are older than watermarks before them.
            event_time="" if self.windowing.allowed_lateness or self.windowing.emit == "updates" else TIME,
        )
        return self._simulation(batches, shards, random, self.adjusted(options))

    def _simulation(self, batches, shards, random, options) -> WindowSimulation:
        world = World(self.components_of(batches, shards), self._placement(random), random, options)
        self._take_checkpoints(world)
        disturber = Disturber(world, self.drawn().disturbances or ())
        return WindowSimulation(world, batches, disturber, shards, self.place, self.windowing)

    def continued(self, first: WindowSimulation, checkpoint: SimulatedCheckpoint) -> WindowSimulation:
        """Return a simulation that continues from a checkpoint of the first one."""
        random = np.random.default_rng([self.seed, 3, checkpoint.number])
        world = first.world
        components = self.components_of(first.batches, first.shards)
        sinks = {
            identity: tuple((step - EARLIER, rows) for step, rows in received)
            for identity, received in checkpoint.sinks.items()
        }

        restore = SimulatedCheckpoint(checkpoint.number, checkpoint.sources, checkpoint.executors, sinks)
        restored = World(components, world.placement, random, world.options, restore)
        restored.schedule.now = world.now
        disturber = Disturber(restored, ())
        return WindowSimulation(restored, first.batches, disturber, first.shards, self.place, self.windowing)


@dataclass
class WindowSimulation(TimerSimulation):
    """One simulation; each instance of each key has one result, and as many corrections as it needs."""

    windowing: Windowing

    def check(self) -> None:
        wanted = expected(self.batches, self.windowing)
        emitted = self._emitted()
        self._check_results(emitted, wanted)
        values = {int(row["number"]): row for rows in self.batches for row in rows.to_pylist()}
        for results in emitted.values():
            for row in [row for row in results if not row.get("withdrawn")]:
                of_rows = [values[number]["value"] for number in row["numbers"]]
                assert (row["rows"], row["sum"], row["most"]) == (len(of_rows), sum(of_rows), max(of_rows))
        if not self.world.restore.executors:
            counted = RowCounts()
            for home in self.world.homes.values():
                counted = counted.plus(self._counted(home.executor.store, timed_part(home, self.place)[0].name))
            assert counted == RowCounts(**wanted.counts)
        for home in self.world.homes.values():
            assert len(timed_part(home, self.place)[1]) == 0, "slices are left behind the end"
        self.check_other()

    def _counted(self, store: PrimaryState, operator: str) -> tuple[int, ...]:
        """Return what became of the rows of the compute with windows."""
        if self.place == "alone":
            return store.counted() or ()
        measured = {one.operator: one for one in store.compute_measures("per_key", defaultdict(int))}
        assert len(measured) == 2
        assert [one.windows for one in measured.values() if one.operator != operator] == [None]
        return measured[operator].windows or ()

    def _check_results(self, emitted: dict[Instance, list[dict]], wanted: Expected) -> None:
        assert emitted.keys() == wanted.all.keys()
        for instance, results in emitted.items():
            self._check_instance(instance, results, wanted)

    def _check_instance(self, instance: Instance, results: list[dict], wanted: Expected) -> None:
        revisions = [row.get("revision", 0) for row in results]
        closed = [row for row in results if row.get("revision", 0) is not None]
        assert revisions == [None] * (len(results) - len(closed)) + [*range(len(closed))], (instance, revisions)
        assert closed[-1]["numbers"] == sorted(wanted.all[instance]), instance
        if on_time := wanted.on_time.get(instance):
            assert closed[0]["numbers"] == sorted(on_time), instance
        for before, after in pairwise(results):
            assert set(before["numbers"]) <= set(after["numbers"]), instance
        if not self.windowing.revised:
            assert len(results) == 1

    def _emitted(self) -> dict[Instance, list[dict]]:
        emitted: dict[Instance, list[dict]] = defaultdict(list)
        for instance, row in self._received():
            emitted[instance].append(row)
        return emitted

    def _received(self) -> Iterator[tuple[Instance, dict]]:
        """Yield the results in the order in which they were received."""
        received = [entry for sink in self.world.sinks.values() for entry in sink.received]
        for _, rows in sorted(received, key=lambda entry: entry[0]):
            starts, ends = (rows[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end"))
            for row, start, end in zip(rows.to_pylist(), starts, ends, strict=True):
                yield (row["key"], start, end), row

    def happened(self) -> Counter[str]:
        """Return how often each relevant event occurred."""
        happened = Counter({"records": self.world.record_ledger.records})
        happened["checkpoints"] += len(self.world.checkpoints.complete)
        happened.update(expected(self.batches, self.windowing).counts)
        for home in self.world.homes.values():
            happened["losses with replay"] += sum(r.rows > 0 for r in home.executor.recoveries())
            happened["moves across nodes"] += home.executor.moves.finished_across
        return happened
