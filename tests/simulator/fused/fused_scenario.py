"""Seeded simulations of a job whose computes run in one task, under disturbances and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from checkpointed_scenario import CheckpointedScenario
from followed_job import (
    STATE,
    Numbers,
    UnopenedSink,
    count_rows,
    expected_per_bucket,
    expected_per_key,
    follow,
    last_outputs,
    state_of,
)
from scenario import Simulation

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import Disturber, Placement, World
from dask_elastic.topology import Component, Topology, aggregate, build_components

FUSED = [("per_key", "per_source"), ("per_source", "per_bucket")]


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def make_topology(batches: list[list[pa.RecordBatch]], shards: int) -> Topology:
    """Return three computes, by different keys that all have the bucket."""
    topology = Topology("fused")
    numbers = topology.source("numbers", Numbers(batches))
    keeps = ["bucket", "src"]
    per_key = numbers.key_by("key", "bucket").compute(follow, name="per_key", state=STATE, shards=shards, keeps=keeps)
    tidy = per_key.map(same, keeps=keeps)
    per_source = tidy.key_by("src", "bucket").compute(follow, name="per_source", state=STATE, keeps=keeps)
    aggregates = {
        "count": aggregate.Count(),
        "total": aggregate.Sum("value"),
        "least": aggregate.Min("value"),
        "mean": aggregate.Mean("value"),
        "last": aggregate.custom(["key", "src", "seq"], int, count_rows, int.__add__, int, pa.int64()),
    }
    per_bucket = per_source.key_by("bucket").compute(aggregates, name="per_bucket")
    per_bucket.sink(UnopenedSink(), name="results")
    return topology


@dataclass(frozen=True)
class FusedScenario(CheckpointedScenario):
    """A `CheckpointedScenario` of one component with three computes."""

    def _components(self, batches: list[list[pa.RecordBatch]], shards: int) -> tuple[Component, ...]:
        return build_components(make_topology(batches, shards), FUSED)

    def _simulation(self, world: World, batches: list[list[pa.RecordBatch]], disturber: Disturber) -> FusedSimulation:
        return FusedSimulation(world, batches, disturber)

    def _placement(self, random: np.random.Generator) -> Placement:
        placement = super()._placement(random)
        homes, cores = dict(placement.homes), dict(placement.cores)
        del homes["per_bucket"], cores["per_bucket"]
        return replace(placement, homes=homes, cores=cores)


@dataclass
class FusedSimulation(Simulation):
    """One simulation, in which all three computes have processed every row once and in order."""

    def check_flushes(self, world: World) -> None:
        """Check that a flush brings the rows of all computes."""
        for token, (executor, settled) in self.disturber.flush_requests.items():
            home = world.homes[executor]
            if token not in home.flushes or token in self.flushed:
                continue
            self.flushed.add(token)
            for compute in home.component.computes:
                store = home.executor.store
                table = read_state(compute, store if compute.name == "per_key" else store.behind(compute.name))
                counted = 0 if table is None else sum(table["count"].to_pylist())
                assert counted >= settled, f"{executor}: {compute.name!r} lacks rows after flush {token}"

    def check(self) -> None:
        rows = [row for batches in self.batches for batch in batches for row in batch.to_pylist()]
        buckets = {row["key"]: row["bucket"] for row in rows}
        followed = {key: {**row, "bucket": buckets[key]} for key, row in expected_per_key(rows).items()}
        assert state_of(self.world, "per_key", "key") == followed
        expected = expected_per_bucket(rows)
        assert state_of(self.world, "per_bucket", "bucket") == expected
        assert last_outputs(self.world) == expected
        self._check_sources(rows)
        self.check_flushes(self.world)
        assert self.flushed == self.disturber.flush_requests.keys(), "a requested flush was never completed"
        for home in self.world.homes.values():
            assert home.executor.recovery.rows == 0, "rows were never replayed"

    def _check_sources(self, rows: list[dict[str, object]]) -> None:
        found = {}
        for home in self.world.homes.values():
            compute = home.component.computes[1]
            table = read_state(compute, home.executor.store.behind(compute.name))
            for row in [] if table is None else table.to_pylist():
                assert found.setdefault((row["src"], row["bucket"]), row) is row, "two executors have a key"
        keyed = [{**row, "key": (row["src"], row["bucket"])} for row in rows]
        wanted = expected_per_key(keyed)
        assert found.keys() == wanted.keys()
        for pair, row in found.items():
            assert {name: row[name] for name in STATE} == {name: wanted[pair][name] for name in STATE}, pair
