"""Scenarios of two windowed computes whose partial results are consolidated; their results are those of one compute."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from checkpointed_scenario import EARLIER
from followed_job import UnopenedSink
from timer_job import Steps
from window_job import AGGREGATES, SLACK, TIME, WINDOWINGS, expected
from window_scenario import WindowScenario, WindowSimulation

import dask_elastic as de
from dask_elastic.simulator import Disturber, Placement, SimulatedCheckpoint, World
from dask_elastic.topology import build_components

BRANCHES = {"few": pc.field("value") < 40, "many": pc.field("value") >= 40}


def make_topology(batches, shards, windowing):
    topology = de.Topology("windows")
    source = Steps(batches)
    source.event_time, source.slack = TIME, SLACK * 1e-6
    steps = topology.source("steps", source)
    parts = []
    for name, rows in BRANCHES.items():
        windowed = steps.filter(rows).key_by("key").window(list(windowing.windows), time=TIME)
        parts.append(windowed.compute(AGGREGATES, name=name, partials=True, shards=shards))
    de.consolidate(parts, by="key", name="both", shards=shards).sink(UnopenedSink(), name="results")
    return topology


class ConsolidateScenario(WindowScenario):
    """A `WindowScenario` of two computes and an operator that merges their partial results."""

    @property
    def windowing(self):
        # Those whose results appear once, of a fixed length.
        return WINDOWINGS[self.seed % 4]

    def _placement(self, random):
        homes, guests = (int(random.integers(1, 3)), int(random.integers(1, 3))) if self.outages else (3, 0)
        nodes = homes + guests
        at_home = {"steps": (0,), **{name: (int(random.integers(0, homes)),) for name in (*BRANCHES, "both")}}
        cores = {
            name: (dict(Counter(random.integers(0, nodes, int(random.integers(1, 4))).tolist())),)
            for name in (*BRANCHES, "both")
        }
        return Placement(nodes, at_home, cores)

    def _simulation(self, batches, shards, random, options):
        components = build_components(make_topology(batches, shards, self.windowing))
        world = World(components, self._placement(random), random, options)
        self._take_checkpoints(world)
        disturber = Disturber(world, self.drawn().disturbances or ())
        return ConsolidateSimulation(world, batches, disturber, shards, self.place, self.windowing)

    def continued(self, first, checkpoint):
        random = np.random.default_rng([self.seed, 3, checkpoint.number])
        world = first.world
        components = build_components(make_topology(first.batches, first.shards, self.windowing))
        sinks = {
            identity: tuple((step - EARLIER, rows) for step, rows in received)
            for identity, received in checkpoint.sinks.items()
        }
        restore = SimulatedCheckpoint(checkpoint.number, checkpoint.sources, checkpoint.executors, sinks)
        restored = World(components, world.placement, random, world.options, restore)
        restored.schedule.now = world.now
        return ConsolidateSimulation(
            restored, first.batches, Disturber(restored, ()), first.shards, self.place, self.windowing
        )


@dataclass
class ConsolidateSimulation(WindowSimulation):
    """One simulation; each instance of each key has one result, of the rows of both computes."""

    def check(self):
        wanted = expected(self.batches, self.windowing)
        emitted = self._emitted()
        assert emitted.keys() == wanted.all.keys()
        values = {int(row["number"]): row["value"] for rows in self.batches for row in rows.to_pylist()}
        for instance, (row,) in emitted.items():
            assert row["numbers"] == sorted(wanted.all[instance]), instance
            of_rows = [values[number] for number in row["numbers"]]
            assert (row["rows"], row["sum"], row["most"]) == (len(of_rows), sum(of_rows), max(of_rows))
        for home in self.world.homes.values():
            assert len(home.executor.store) == 0, "partial results are left behind the end"
            counted = home.executor.store.counted()
            if home.component.name == "both" and counted is not None:
                assert (counted.late, counted.outside, counted.untimed) == (0, 0, 0)
