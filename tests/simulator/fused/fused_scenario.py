"""Seeded simulations of a job whose computes run in one task, under disturbances and checkpoints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from checkpointed_scenario import CheckpointedScenario, Rows
from durable_scenario import SHARDS, DurableScenario
from durable_scenario import STATE as DURABLE_STATE
from durable_scenario import follow as follow_durably
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

from dask_elastic.executor import function_logic
from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import Disturber, Placement, World
from dask_elastic.simulator.durability.sink_target import SinkTarget
from dask_elastic.state.layout import EXPIRIES, KNOWN
from dask_elastic.topology import Component, Topology, aggregate, build_components
from dask_elastic.topology.state_kind import Value
from dask_elastic.vocab.identity import ExecutorId

FUSED = [("per_key", "per_source"), ("per_source", "turns"), ("turns", "per_bucket"), ("per_bucket", "peaks")]
TURN = 3
"""After so many rows of a key, its state in `turns` is deleted, once what expires has."""

TURNS = {"had": pa.int64(), "recent": Value(pa.int64(), ttl=0.05)}


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def turn(rows: pa.RecordBatch, state) -> pa.RecordBatch:
    """Keep how many rows of a turn a key has had, and nothing between two turns; return the rows."""
    had = (state.get("had") + state.grouping.sizes) % TURN
    state.set("had", pa.array(had, mask=had == 0))
    state.set("recent", had)
    return rows


def turns_of(rows: list[dict[str, object]], *key: str) -> dict[tuple[object, ...], int]:
    counts = Counter(tuple(row[name] for name in key) for row in rows)
    return {key: count % TURN for key, count in counts.items() if count % TURN}


def state_of_turns(world: World, *key: str) -> dict[tuple[object, ...], int]:
    found: dict[tuple[object, ...], int] = {}
    for home in world.homes.values():
        compute = next(compute for compute in home.component.computes if compute.name == "turns")
        table = read_state(compute, home.executor.store.behind("turns"))
        for row in [] if table is None else table.to_pylist():
            if row["had"] is not None:
                assert found.setdefault(tuple(row[name] for name in key), row["had"]) is row["had"]
    return found


def make_topology(batches: list[list[pa.RecordBatch]], shards: int) -> Topology:
    """Return five computes, by keys that all have the bucket."""
    topology = Topology("fused")
    numbers = topology.source("numbers", Numbers(batches))
    keeps = ["bucket", "src", "key"]
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
    turns = per_source.key_by("key", "bucket").compute(turn, name="turns", state=TURNS, keeps=keeps)
    per_bucket = turns.key_by("bucket").compute(aggregates, name="per_bucket")
    per_bucket.sink(UnopenedSink(), name="results")
    per_bucket.key_by("bucket").compute({"most": aggregate.Max("count"), "sum": aggregate.Max("total")}, name="peaks")
    return topology


@dataclass(frozen=True)
class FusedScenario(CheckpointedScenario):
    """A `CheckpointedScenario` of one component with five computes."""

    def run(self) -> Simulation:
        # Keys without state are removed while the job runs.
        with mock.patch.object(function_logic, "SWEPT_AFTER", 0.0):
            return super().run()

    def _components(self, batches: list[list[pa.RecordBatch]], shards: int) -> tuple[Component, ...]:
        return build_components(make_topology(batches, shards), FUSED)

    def _simulation(self, world: World, batches: list[list[pa.RecordBatch]], disturber: Disturber) -> FusedSimulation:
        return FusedSimulation(world, batches, disturber)

    def comparable(self, executor: ExecutorId, restored: Rows, copied: Rows, first: Simulation) -> Rows:
        """Drop expired values that the copied state lacks: a sweep drops them without a mark, as every reader does."""
        if executor.component != "turns":
            return restored
        return [_without_expired(*pair, first.world.now) for pair in zip(restored, copied, strict=True)]

    def _placement(self, random: np.random.Generator) -> Placement:
        placement = super()._placement(random)
        homes, cores = dict(placement.homes), dict(placement.cores)
        del homes["per_bucket"], cores["per_bucket"]
        return replace(placement, homes=homes, cores=cores)


def _without_expired(restored: dict[str, Any], copied: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the restored state of a key; its value with a time to live as copied, if it may have been swept."""
    value, known, expiry = (f"recent{suffix}" for suffix in ("", KNOWN, EXPIRIES))
    may_be_swept = restored[known] and restored[expiry] <= now and not copied[known]
    return restored | ({name: copied[name] for name in (value, known, expiry)} if may_be_swept else {})


@dataclass
class FusedSimulation(Simulation):
    """One simulation, in which all computes have processed every row once and in order."""

    def check_flushes(self, world: World) -> None:
        """Check that a flush brings the rows of all computes."""
        for token, (executor, settled) in self.disturber.flush_requests.items():
            home = world.homes[executor]
            if token not in home.flushes or token in self.flushed:
                continue
            self.flushed.add(token)
            for compute in home.component.computes:
                if compute.name in ("turns", "peaks"):
                    continue
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
        most = {bucket: row["most"] for bucket, row in state_of(self.world, "peaks", "bucket").items()}
        assert most == {bucket: row["count"] for bucket, row in expected.items()}
        self._check_sources(rows)
        assert state_of_turns(self.world, "key", "bucket") == turns_of(rows, "key", "bucket")
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


@dataclass(frozen=True)
class FusedDurableScenario(DurableScenario):
    """A `DurableScenario` whose component has two computes."""

    def _components(self, batches: list[list[pa.RecordBatch]]) -> tuple[Component, ...]:
        topology = Topology("durable")
        keyed = topology.source("numbers", Numbers(batches)).key_by("key")
        keeps = ["key", "src", "order"]
        per_key = keyed.compute(follow_durably, name="per_key", state=DURABLE_STATE, shards=SHARDS, keeps=keeps)
        turns = per_key.key_by("key", "src").compute(turn, name="turns", state=TURNS, keeps=keeps)
        turns.sink(UnopenedSink(), name="results")
        return build_components(topology, [("per_key", "turns")])

    @staticmethod
    def _check(world: World, target: SinkTarget, batches: list[list[pa.RecordBatch]]) -> None:
        DurableScenario._check(world, target, batches)
        rows = [row for given in batches for batch in given for row in batch.to_pylist()]
        assert state_of_turns(world, "key", "src") == turns_of(rows, "key", "src")
