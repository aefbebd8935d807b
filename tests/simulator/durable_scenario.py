"""Seeded simulations of a job that restarts from its checkpoints, with sinks that commit in two phases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from followed_job import MODULUS, SOURCES, Numbers, UnopenedSink, state_of

from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.simulator import Disturber, Placement, World, WorldOptions, random_disturbances, shrink
from dask_elastic.simulator.durability import Crash, DurableJob, random_crashes
from dask_elastic.simulator.durability.sink_target import SinkTarget
from dask_elastic.topology import Topology, build_components
from dask_elastic.topology.component import Component

STEPS = 800
"""Crashes that do not come at a request come before this step."""

STATE = {name: pa.int64() for name in ("count", "digest0", "digest1")}
SHARDS = 4
KEYS = 5
COMMANDS = 2
MOST_BATCHES = 4
MOST_ROWS = 3


def follow(rows: pa.RecordBatch, state) -> pa.RecordBatch:
    """Keep per key how many rows there were, and a digest of the order of each source; return the rows."""
    values = {name: state.get(name) for name in STATE}
    sources, numbers = (rows.column(name).to_pylist() for name in ("src", "order"))
    for group, src, number in zip(state.ordinals.tolist(), sources, numbers, strict=True):
        values["count"][group] += 1
        digest = values[f"digest{src}"]
        digest[group] = (int(digest[group]) * 31 + number) % MODULUS
    for name in STATE:
        state.set(name, values[name])
    return rows


def expected_state(batches: list[list[pa.RecordBatch]]) -> dict[object, dict[str, object]]:
    expected: dict[object, dict[str, object]] = {}
    for row in (row for given in batches for batch in given for row in batch.to_pylist()):
        known = expected.setdefault(row["key"], {"key": row["key"], **dict.fromkeys(STATE, 0)})
        known["count"] += 1
        known[f"digest{row['src']}"] = (known[f"digest{row['src']}"] * 31 + row["order"]) % MODULUS
    return expected


def make_durable_topology(batches: list[list[pa.RecordBatch]]) -> Topology:
    topology = Topology("durable")
    numbers = topology.source("numbers", Numbers(batches))
    per_key = numbers.key_by("key").compute(follow, name="per_key", state=STATE, shards=SHARDS)
    per_key.sink(UnopenedSink(), name="results")
    return topology


def make_batches(random: np.random.Generator) -> list[list[pa.RecordBatch]]:
    """Rows with the number of each among those of its source and key: they become visible in order, without gaps."""
    numbered = []
    count = int(random.integers(2, MOST_BATCHES + 1))
    for source in range(SOURCES):
        seen: Counter[int] = Counter()
        rows = []
        for size in random.integers(1, MOST_ROWS + 1, count).tolist():
            keys = random.integers(0, KEYS, size).tolist()
            order = []
            for key in keys:
                seen[key] += 1
                order.append(seen[key])
            rows.append(pa.record_batch({"key": keys, "src": [source] * size, "order": order}))
        numbered.append(rows)
    return numbered


@dataclass(frozen=True)
class DurableScenario:
    """A simulation that is the same each time.

    Parameters
    ----------
    seed : int
        Determines the rows, the placements, the interleaving, and whatever is not given.
    crashes : sequence of Crash or None
        The crashes; drawn from the seed if None.
    """

    seed: int
    crashes: Sequence[Crash] | None = None
    keep_history: bool = field(default=False, compare=False, repr=False)

    def drawn(self) -> DurableScenario:
        if self.crashes is not None:
            return self
        random = np.random.default_rng([self.seed, 5])
        return replace(self, crashes=random_crashes(random, int(random.integers(0, 5)), STEPS))

    def run(self) -> DurableJob:
        """Run it to the end and compare with the expected result."""
        random = np.random.default_rng([self.seed, 6])
        batches = make_batches(random)
        components = self._components(batches)
        executors = int(random.integers(1, 3))
        target = SinkTarget(("key", "src"), "order")

        def make_world(part, restored):
            return self._world(random, components, executors, part, restored)

        faults = float(random.choice([0.0, 0.02, 0.08]))
        job = DurableJob(random, make_world, target, self.drawn().crashes, faults, self.keep_history)
        try:
            self._check(job.run(), target, batches)
        except Exception as error:
            error.add_note(f"{self}; the end of its history:\n{job.control.history()}")
            raise
        return job

    def _components(self, batches: list[list[pa.RecordBatch]]) -> tuple[Component, ...]:
        return build_components(make_durable_topology(batches))

    def _world(self, random, components: Sequence[Component], executors: int, part, restored) -> World:
        homes = int(random.integers(1, 4))
        nodes = homes + int(random.integers(0, 2))
        at_home = {
            "numbers": tuple(random.integers(0, homes, SOURCES).tolist()),
            "per_key": tuple(random.integers(0, homes, executors).tolist()),
        }
        cores = tuple(
            dict(Counter(random.integers(0, nodes, int(random.integers(1, 3))).tolist())) for _ in range(executors)
        )
        options = WorldOptions(
            window=int(random.choice([400, 2**20])),
            limits=ExecutorLimits(inbox_time=0.005, inline_time=0.0, hurried_time=0.0, brief_time=0.0),
            check=self.keep_history,
            history=self.keep_history,
            order=("key", "src", "order"),
            repeats=0.1,
        )
        world = World(components, Placement(nodes, at_home, {"per_key": cores}), random, options, restored, part)
        Disturber(world, random_disturbances(random, COMMANDS, 200, 0.25 if nodes > homes else 0.0))
        return world

    @staticmethod
    def _check(world: World, target: SinkTarget, batches: list[list[pa.RecordBatch]]) -> None:
        missing = sum(batch.num_rows for given in batches for batch in given) - target.rows
        assert missing == 0, f"{missing} rows never became visible"
        assert state_of(world, "per_key", "key") == expected_state(batches)

    def failure(self) -> Exception | None:
        """Run it, and return its error; None if it passes."""
        try:
            self.run()
        except Exception as error:
            return error
        return None

    def fails(self) -> bool:
        """Run it, and return whether it fails."""
        return self.failure() is not None

    def check(self) -> DurableJob:
        """Run it; if it fails, raise with the history and the crashes that are needed for the failure."""
        try:
            return self.run()
        except Exception:
            drawn = self.drawn().crashes or ()
        crashes = shrink(drawn, lambda some: replace(self, crashes=some).fails(), 60)
        error = replace(self, crashes=crashes, keep_history=True).failure()
        assert error is not None
        error.add_note(f"shrunk from seed {self.seed}; to repeat it:\n    {replace(self, crashes=crashes)}.check()")
        raise error
