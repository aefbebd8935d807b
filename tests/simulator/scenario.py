"""A seeded simulation of the followed job under disturbances, which can be repeated, shrunk and kept as a test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from followed_job import (
    SOURCES,
    expected_per_bucket,
    expected_per_key,
    last_outputs,
    make_batches,
    make_topology,
    state_of,
)

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.meters.inline_cost import FEWEST
from dask_elastic.simulator import (
    Disturbance,
    Disturber,
    Placement,
    World,
    WorldOptions,
    random_disturbances,
    shrink,
)
from dask_elastic.topology import Component, build_components

COMMANDS = 20
STEPS = 450


@dataclass(frozen=True)
class Scenario:
    """A simulation that is the same each time.

    Parameters
    ----------
    seed : int
        Determines the rows, the placement, the interleaving, and whatever is not given.
    outages : float
        The share of outages among the disturbances; with 0, every node may host homes.
    disturbances : sequence of Disturbance or None
        The disturbances; drawn from the seed if None.
    batches : int or None
        Maximum number of batches of each source.
    torn : bool
        See `WorldOptions`.
    leaves : float
        See `WorldOptions`.
    pauses : float
        See `WorldOptions`.
    history : bool
        Whether to remember every step; a seed that fails is run again with it.
    explained : bool
        Whether to run a seed that fails again, for its history.
    """

    seed: int
    outages: float = 0.25
    disturbances: Sequence[Disturbance] | None = None
    batches: int | None = None
    torn: bool = False
    leaves: float = 0.0
    pauses: float = 0.0
    history: bool = field(default=False, compare=False, repr=False)
    explained: bool = field(default=True, compare=False, repr=False)

    def drawn(self) -> Scenario:
        """Return the same scenario with its disturbances drawn."""
        if self.disturbances is not None:
            return self
        random = np.random.default_rng([self.seed, 1])
        return replace(self, disturbances=random_disturbances(random, COMMANDS, STEPS, self.outages))

    def build(self) -> Simulation:
        """Return the simulation before its first step."""
        random = np.random.default_rng(self.seed)
        batches = [given[: self.batches] for given in self._batches(random)]
        components = self._components(batches, int(random.integers(4, 17)))
        placement = self._placement(random)
        options = WorldOptions(
            window=int(random.choice([400, 3000, 2**20])),
            row_seconds=float(random.choice([0.0001, 0.001])),
            limits=ExecutorLimits(
                inbox_time=0.005,
                patience=0.01 if self.seed % 3 == 0 else 0.0,
                inline_time=math.inf if self.inline else 0.0,
                hurried_time=0.0005 if self.inline else 0.0,
                brief_time=math.inf if self.inline else 0.0,
                pending_bytes=int(random.choice([200, 1500, 2**20])),
            ),
            check=True,
            history=self.history,
            order=("key", "src", "seq"),
            torn=self.torn,
            leaves=self.leaves,
            pauses=self.pauses,
            repeats=0.1 if self.outages else 0.0,
        )
        world = World(components, placement, random, self.adjusted(options))
        for home in world.homes.values() if self.inline else ():
            # As after some batches, so that the first one may be run by the thread that brings it.
            for _ in range(FEWEST):
                home.executor.measures.inline.add(1, 0.0)
        return self._simulation(world, batches, Disturber(world, self.drawn().disturbances or ()))

    @property
    def inline(self) -> bool:
        """Whether the threads that bring batches run idle tasks, however long that takes."""
        return self.seed % 4 < 2

    def adjusted(self, options: WorldOptions) -> WorldOptions:
        """Return the options with what a kind of scenario changes."""
        return options

    def _components(self, batches: list[list[pa.RecordBatch]], shards: int) -> tuple[Component, ...]:
        return build_components(make_topology(batches, shards))

    def _simulation(self, world: World, batches: list[list[pa.RecordBatch]], disturber: Disturber) -> Simulation:
        return Simulation(world, batches, disturber)

    def _batches(self, random: np.random.Generator) -> list[list[pa.RecordBatch]]:
        return make_batches(random)

    def _placement(self, random: np.random.Generator) -> Placement:
        homes, guests = (int(random.integers(1, 3)), int(random.integers(1, 4))) if self.outages else (3, 0)
        nodes = homes + guests
        at_home = {"numbers": tuple(random.integers(0, homes, SOURCES).tolist())}
        cores = {}
        for name in ("per_key", "per_bucket"):
            at_home[name] = tuple(random.integers(0, homes, int(random.integers(1, 3))).tolist())
            cores[name] = tuple(
                dict(Counter(random.integers(0, nodes, int(random.integers(1, 4))).tolist())) for _ in at_home[name]
            )
        return Placement(nodes, at_home, cores)

    def failure(self) -> Exception | None:
        """Run it, and return its error, which has the end of the history as a note; None if it passes."""
        try:
            self.run()
        except Exception as error:
            return error
        return None

    def fails(self) -> bool:
        """Run it, once also if it fails, and return whether it fails."""
        return replace(self, explained=False).failure() is not None

    def run(self) -> Simulation:
        """Run it to the end and compare with the expected result."""
        simulation = self.build()
        try:
            simulation.run()
        except Exception as error:
            if self.explained and not self.history:
                replace(self, history=True).run()
            error.add_note(f"{self}; the end of its history:\n{simulation.world.schedule.history()}")
            raise
        return simulation

    def shrunk(self) -> Scenario:
        """Return a scenario that still fails, with fewer disturbances and batches."""
        assert self.fails(), f"{self} does not fail"
        smallest = self.drawn()
        for batches in (1, 2, 3, 4):
            if (candidate := replace(smallest, batches=batches)).fails():
                smallest = candidate
                break
        left = shrink(smallest.disturbances or (), lambda some: replace(smallest, disturbances=some).fails())
        return replace(smallest, disturbances=left)

    def check(self) -> Simulation:
        """Run it; if it fails, shrink it and raise with a note that can be kept as a test."""
        try:
            return self.run()
        except Exception:
            smallest = self.shrunk()
        error = smallest.failure()
        assert error is not None
        error.add_note(f"shrunk from seed {self.seed}; to be kept as a test:\n    {smallest}")
        raise error


def first_failure(seeds: int, tried_first: Sequence[int] = (), **given: object) -> Exception | None:
    """Return the error of the first seed that fails; None if all pass."""
    tried = (*tried_first, *range(seeds))
    return next((error for seed in tried if (error := Scenario(seed, **given).failure())), None)


@dataclass
class Simulation:
    """One simulation."""

    world: World
    batches: list[list[pa.RecordBatch]]
    disturber: Disturber
    flushed: set[int] = field(default_factory=set)

    def run(self) -> None:
        self.world.run(self.check_flushes)
        self.check()

    def check_flushes(self, world: World) -> None:
        """Check that a completed flush has brought every row to the primary copy that was settled at its request."""
        for token, (executor, settled) in self.disturber.flush_requests.items():
            home = world.homes[executor]
            if token in home.flushes and token not in self.flushed:
                self.flushed.add(token)
                table = read_state(home.component.operator, home.executor.store)
                counted = 0 if table is None else sum(table["count"].to_pylist())
                assert counted >= settled, f"{executor}: the primary copy lacks rows after flush {token}"

    def check(self) -> None:
        rows = [row for batches in self.batches for batch in batches for row in batch.to_pylist()]
        assert state_of(self.world, "per_key", "key") == expected_per_key(rows)
        expected = expected_per_bucket(rows)
        assert state_of(self.world, "per_bucket", "bucket") == expected
        assert self.last_outputs() == expected
        self.check_flushes(self.world)
        assert self.flushed == self.disturber.flush_requests.keys(), "a requested flush was never completed"
        for home in self.world.homes.values():
            executor = home.executor
            assert executor.recovery.rows == 0, "rows were never replayed"
            assert all(record.ended is not None for record in executor.recoveries())

    def last_outputs(self) -> dict[object, dict[str, object]]:
        """Return the last value of each bucket at the sink."""
        return last_outputs(self.world)

    def happened(self) -> Counter[str]:
        """Return how often each relevant event occurred."""
        outages = self.disturber.outages
        happened = Counter({"deaths": outages.deaths, "hangs": outages.hangs, "declared lost": outages.given_up})
        for home in self.world.homes.values():
            executor = home.executor
            records = executor.recoveries()
            happened["losses of tasks"] += len(records)
            happened["losses with replay"] += sum(record.rows > 0 for record in records)
            happened["stale messages"] += executor.links.stale
            happened["repeated messages"] += executor.links.repeated
            happened["moves across nodes"] += executor.moves.finished_across
        return happened
