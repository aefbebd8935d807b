"""A seeded simulation of a job with event time, in which every row is identified by its time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from followed_job import UnopenedSink
from scenario import Scenario

from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.simulator import Disturber, Placement, World, WorldOptions
from dask_elastic.topology import Source, Topology, build_components

KEYS = 12
COMPUTES = ("per_key", "per_bucket")
ORIGINS = ("north", "north", "south", "untimed")
"""The source of each instance: one source with two instances, two with one; the last has no event time."""


class Readings(Source):
    """Rows with event times out of order, sometimes by more than the slack."""

    def __init__(self, batches: list[list[pa.RecordBatch]], event_time: str | None, slack: float = 0.0):
        self.batches = batches
        self.parallel = len(batches)
        self.event_time = event_time
        self.slack = slack

    def read(self, context):
        for number, rows in enumerate(self.batches[context.instance]):
            yield rows, number


def make_batches(random: np.random.Generator) -> list[list[pa.RecordBatch]]:
    """Return the batches of each instance; no two rows have the same time."""
    made = []
    for origin, name in enumerate(ORIGINS):
        sizes = random.integers(1, 12, size=int(random.integers(2, 7)))
        speed = int(random.integers(1, 5))
        disorder = random.integers(-6, 7, size=int(sizes.sum()))
        at = np.unique((np.arange(sizes.sum()) * speed + disorder) * len(ORIGINS) + origin)
        # Each time once, in random order.
        times = at[np.argsort(np.arange(len(at)) + random.integers(-3, 4, len(at)), kind="stable")]
        keys = random.integers(0, KEYS, len(times))
        rows = pa.record_batch({"key": pa.array(keys), "bucket": pa.array(keys % 5), "id": pa.array(times)})
        if name != "untimed":
            rows = rows.append_column("at", pa.array(times, pa.timestamp("us")))
        else:
            rows = rows.append_column("at", pa.nulls(len(times), pa.timestamp("us")))
        ends = np.minimum(np.cumsum(sizes), len(times))
        starts = np.concatenate([[0], ends[:-1]])
        made.append([rows.slice(a, b - a) for a, b in zip(starts.tolist(), ends.tolist(), strict=True) if a < b])
    return made


def count(rows: pa.RecordBatch, state) -> pa.RecordBatch:
    """Count the rows of each key, and return them."""
    state.set("count", state.get("count") + np.bincount(state.ordinals, minlength=len(state)))
    return rows


def make_topology(batches: list[list[pa.RecordBatch]], slack: float, shards: int) -> Topology:
    topology = Topology("timed")
    by_name: dict[str, list[list[pa.RecordBatch]]] = {}
    for name, own in zip(ORIGINS, batches, strict=True):
        by_name.setdefault(name, []).append(own)
    north, south, untimed = (
        topology.source(name, Readings(own, None if name == "untimed" else "at", slack))
        for name, own in by_name.items()
    )
    state = {"count": pa.int64()}
    per_key = north.key_by("key").compute(count, name="per_key", state=state, shards=shards)
    joined = per_key.union(south, untimed)
    joined.key_by("bucket").compute(count, name="per_bucket", state=state, shards=8).sink(
        UnopenedSink(), name="results"
    )
    return topology


@dataclass(frozen=True)
class TimedScenario(Scenario):
    """A `Scenario` of the job with event time."""

    def build(self) -> TimedSimulation:
        random = np.random.default_rng(self.seed)
        batches = make_batches(random)
        slack = int(random.choice([0, 20]))
        components = build_components(make_topology(batches, slack / 1e6, int(random.integers(4, 17))))
        placement = self._placement(random)
        options = WorldOptions(
            window=int(random.choice([400, 3000, 2**20])),
            row_seconds=float(random.choice([0.0001, 0.001])),
            limits=ExecutorLimits(
                patience=0.01 if self.seed % 3 == 0 else 0.0, pending_bytes=int(random.choice([200, 2**20]))
            ),
            check=True,
            history=self.history,
            repeats=0.1 if self.outages else 0.0,
            event_time="at",
            rests=0.2 if self.seed % 2 else 0.0,
        )
        world = World(components, placement, random, self.adjusted(options))
        return TimedSimulation(world, batches, Disturber(world, self.drawn().disturbances or ()), slack)

    def _placement(self, random: np.random.Generator) -> Placement:
        homes, guests = (int(random.integers(1, 3)), int(random.integers(1, 3))) if self.outages else (3, 0)
        instances = {**Counter(ORIGINS), **{name: int(random.integers(1, 3)) for name in COMPUTES}}
        at_home = {name: tuple(random.integers(0, homes, number).tolist()) for name, number in instances.items()}
        cores = {
            name: tuple(
                dict(Counter(random.integers(0, homes + guests, int(random.integers(1, 4))).tolist()))
                for _ in at_home[name]
            )
            for name in COMPUTES
        }
        return Placement(homes + guests, at_home, cores)


@dataclass
class TimedSimulation:
    """One simulation; each row must leave once, and watermarks must reach the newest time."""

    world: World
    batches: list[list[pa.RecordBatch]]
    disturber: Disturber
    slack: int

    def run(self) -> None:
        self.world.run()
        self.check()

    def check(self) -> None:
        wrote = [row for sink in self.world.sinks.values() for _, rows in sink.received for row in ids(rows)]
        assert sorted(wrote) == sorted(row for own in self.batches for rows in own for row in ids(rows))
        newest = [max(row for rows in own for row in ids(rows)) for own in self.batches]
        north, everything = max(newest[:2]), max(newest[:3])
        for identity, home in self.world.homes.items():
            expected = north if identity.component == "per_key" else everything
            assert home.executor.watermarks.now == (expected, False), f"{identity} did not reach the newest time"
        for identity, sink in self.world.sinks.items():
            assert sink.inputs.time == everything, f"{identity} did not reach the newest time"
        late = [clock.late for _, clock in sorted(self.world.clocks.items())]
        assert late == [late_rows(own, self.slack) for own in self.batches[:3]]

    def happened(self) -> Counter[str]:
        """Return how often each relevant event occurred."""
        happened = Counter({"late rows": sum(clock.late for clock in self.world.clocks.values())})
        happened["late at a receiver"] = len(self.world.event_times.excused)
        for home in self.world.homes.values():
            happened["losses with replay"] += sum(r.rows > 0 for r in home.executor.recoveries())
            happened["moves across nodes"] += home.executor.moves.finished_across
        return happened


def ids(rows: pa.RecordBatch) -> list[int]:
    return rows.column("id").to_pylist()


def late_rows(batches: list[pa.RecordBatch], slack: int) -> int:
    """Count the rows that are late with respect to earlier batches, one by one."""
    late, newest = 0, None
    for rows in batches:
        late += sum(newest is not None and row < newest - slack for row in ids(rows))
        newest = max([*ids(rows), *([] if newest is None else [newest])])
    return late
