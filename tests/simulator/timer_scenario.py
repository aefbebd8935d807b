"""Seeded simulations of a job with timers under disturbances and checkpoints, each with its expected outputs."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from checkpointed_scenario import ATTEMPTS, BETWEEN, EARLIER, GIVEN_UP, HASTY, OVERTAKEN
from scenario import Scenario
from timer_job import Place, expected, make_batches, make_topology, pairs_of, seen_by_other, timed_part

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.simulator import CheckpointCommands, Disturber, Placement, SimulatedCheckpoint, World, WorldOptions
from dask_elastic.topology import Component, build_components


@dataclass(frozen=True)
class TimerScenario(Scenario):
    """A `Scenario` of the job with timers.

    Parameters
    ----------
    place : str
        Where the compute with timers is in its component.
    """

    place: Place = "alone"

    def components_of(self, batches: list[pa.RecordBatch], shards: int) -> tuple[Component, ...]:
        return build_components(make_topology(batches, shards, self.place), pairs_of(self.place))

    def batches_of(self, random: np.random.Generator) -> list[pa.RecordBatch]:
        return make_batches(random, int(random.integers(4, 14)))

    def options(self, random: np.random.Generator) -> WorldOptions:
        """Return the options of the world, all that its own draws decide, and the columns with which it is compared."""
        return WorldOptions(
            window=int(random.choice([400, 3000, 2**20])),
            row_seconds=float(random.choice([0.0001, 0.001])),
            limits=ExecutorLimits(
                patience=0.01 if self.seed % 3 == 0 else 0.0, pending_bytes=int(random.choice([200, 2**20]))
            ),
            check=True,
            order=("key", "number"),
            repeats=0.1 if self.outages else 0.0,
            **self.clocks,
        )

    @property
    def clocks(self) -> dict[str, Any]:
        """The column with the event time of outputs, and the seconds between ticks of processing time."""
        return {"event_time": "due", "tick": 0.05}

    def simulated(
        self, world: World, batches: list[pa.RecordBatch], disturber: Disturber, shards: int
    ) -> TimerSimulation:
        return TimerSimulation(world, batches, disturber, shards, self.place)

    def build(self) -> TimerSimulation:
        random = np.random.default_rng(self.seed)
        batches = self.batches_of(random)[: self.batches]
        shards = int(random.integers(4, 17))
        options = self.adjusted(self.options(random))
        world = World(self.components_of(batches, shards), self._placement(random), random, options)
        self._take_checkpoints(world)
        return self.simulated(world, batches, Disturber(world, self.drawn().disturbances or ()), shards)

    def _placement(self, random: np.random.Generator) -> Placement:
        homes, guests = (int(random.integers(1, 3)), int(random.integers(1, 3))) if self.outages else (3, 0)
        instances = int(random.integers(1, 3))
        at_home = {"steps": (0,), "per_key": tuple(random.integers(0, homes, instances).tolist())}
        cores = tuple(
            dict(Counter(random.integers(0, homes + guests, int(random.integers(1, 4))).tolist()))
            for _ in at_home["per_key"]
        )
        return Placement(homes + guests, at_home, {"per_key": cores})

    def _take_checkpoints(self, world: World) -> None:
        commands = CheckpointCommands(world)
        random = np.random.default_rng([self.seed, 2])

        def begin() -> None:
            if world.checkpoints.progress is None or random.random() < (OVERTAKEN if self.seed % 4 else HASTY):
                commands.begin()

        for at in np.cumsum(random.integers(1, BETWEEN, ATTEMPTS)).tolist():
            world.schedule.at(at, begin)
            if random.random() < GIVEN_UP:
                world.schedule.at(at + int(random.integers(1, BETWEEN)), commands.give_up)

    def continued(self, first: TimerSimulation, checkpoint: SimulatedCheckpoint) -> TimerSimulation:
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
        return self.simulated(restored, first.batches, Disturber(restored, ()), first.shards)

    def run(self) -> TimerSimulation:
        """Run it to the end, and continue from each complete checkpoint."""
        first = super().run()
        assert isinstance(first, TimerSimulation)
        for checkpoint in first.world.checkpoints.complete:
            try:
                self.continued(first, checkpoint).run()
            except Exception as error:
                error.add_note(f"{self}, continued from checkpoint {checkpoint.number}")
                raise
        return first


@dataclass
class TimerSimulation:
    """One simulation; timers must fire once, in order, with all rows before them and none behind."""

    world: World
    batches: list[pa.RecordBatch]
    disturber: Disturber
    shards: int
    place: Place

    def run(self) -> None:
        self.world.run()
        self.check()

    def check(self) -> None:
        emitted: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        received = [entry for sink in self.world.sinks.values() for entry in sink.received]
        for _, rows in sorted(received, key=lambda entry: entry[0]):
            times = rows["due"].cast(pa.int64()).to_pylist()
            names = (rows[name].to_pylist() for name in ("key", "timer", "sum"))
            for time, key, timer, total in zip(times, *names, strict=True):
                emitted[key].append((time, timer, total))
        polled = {key: [row for row in rows if row[1] == "poll"] for key, rows in emitted.items()}
        others = {key: own for key, rows in emitted.items() if (own := [row for row in rows if row[1] != "poll"])}
        assert others == expected(self.batches)
        for key, rows in polled.items():
            assert [total for _, _, total in rows] == [*range(1, len(rows) + 1)], f"{key} was polled twice or never"
            assert [time for time, _, _ in rows] == sorted(time for time, _, _ in rows)
        for home in self.world.homes.values():
            compute, store = timed_part(home, self.place)
            if store.key_schema is None:
                continue
            _, values = store.rows()
            hidden = [values[number] for number, field in enumerate(store.fields) if field.name.endswith("!?")]
            assert len(hidden) == 3
            assert not any(known.any() for known in hidden), "timers are left behind the end"
            table = read_state(compute, store)
            for row in [] if table is None else table.to_pylist():
                assert (row["set"] or 0) == (row["polled"] or 0) == len(polled.get(row["key"], ())), row

        self.check_other()

    def check_other(self) -> None:
        """Check that the other compute of the component has processed every row once."""
        if self.place == "behind":
            assert seen_by_other(self.world, self.place) == sum(rows.num_rows for rows in self.batches)
        elif self.place == "in front":
            received = [rows for sink in self.world.sinks.values() for _, rows in sink.received]
            assert seen_by_other(self.world, self.place) == sum(rows.num_rows for rows in received)

    def happened(self) -> Counter[str]:
        """Return how often each relevant event occurred."""
        happened = Counter({"records": self.world.record_ledger.records})
        happened["checkpoints"] += len(self.world.checkpoints.complete)
        for home in self.world.homes.values():
            happened["losses with replay"] += sum(r.rows > 0 for r in home.executor.recoveries())
            happened["moves across nodes"] += home.executor.moves.finished_across
        return happened
