"""A job of two stateful operators that is disturbed all the time, and the truth about its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from dask_elastic.executor import events
from dask_elastic.executor.executor import ExecutorLimits
from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import Placement, World, WorldOptions
from dask_elastic.topology import Compute, Sink, Source, Topology, aggregate, fuse
from dask_elastic.vocab.errors import ElasticError
from dask_elastic.vocab.identity import ExecutorId

KEYS = 12
BUCKETS = 5
SOURCES = 2
MOST_MOVES = 4
MODULUS = 2**31 - 1
STATE = {name: pa.int64() for name in ("count", "total", "least", "greatest", "last0", "last1", "digest0", "digest1")}


class Numbers(Source):
    """Batches of rows that carry their key, their instance and a number that rises within the instance."""

    parallel = SOURCES

    def __init__(self, batches: list[list[pa.RecordBatch]]):
        self.batches = batches

    def read(self, context):
        for number, rows in enumerate(self.batches[context.instance]):
            yield rows, number


class Nowhere(Sink):
    def open(self, context):
        raise AssertionError("a simulated sink is not opened")


def follow(rows: pa.RecordBatch, state) -> pa.RecordBatch:
    """Keep of each key what tells whether a row was lost, doubled, or overtaken; pass the rows on."""
    values = {name: state.get(name) for name in STATE}
    fresh = values["count"] == 0
    for group, src, seq, value in zip(
        state.ordinals.tolist(), *(rows.column(name).to_pylist() for name in ("src", "seq", "value")), strict=True
    ):
        values["count"][group] += 1
        values["total"][group] += value
        values["least"][group] = value if fresh[group] else min(value, values["least"][group])
        values["greatest"][group] = value if fresh[group] else max(value, values["greatest"][group])
        values[f"last{src}"][group] = seq
        values[f"digest{src}"][group] = (int(values[f"digest{src}"][group]) * 31 + seq) % MODULUS
        fresh[group] = False
    for name in STATE:
        state.set(name, values[name])
    return rows


def make_batches(random: np.random.Generator) -> list[list[pa.RecordBatch]]:
    return [[*make_rows(random, source)] for source in range(SOURCES)]


def make_rows(random: np.random.Generator, source: int) -> Iterator[pa.RecordBatch]:
    seq = 1
    for size in random.integers(1, 25, size=int(random.integers(3, 6))).tolist():
        key = (random.integers(0, KEYS, size) * random.random(size)).astype(np.int64)
        yield pa.record_batch(
            {
                "key": pa.array([f"k{number}" for number in key.tolist()]),
                "bucket": pa.array(key % BUCKETS),
                "src": pa.array(np.full(size, source)),
                "seq": pa.array(np.arange(seq, seq + size)),
                "value": pa.array(random.integers(-100, 100, size)),
            }
        )
        seq += size


def make_topology(batches: list[list[pa.RecordBatch]], shards: int) -> Topology:
    topology = Topology("followed")
    numbers = topology.source("numbers", Numbers(batches))
    per_key = numbers.key_by("key").compute(follow, name="per_key", state=STATE, shards=shards)
    aggregates = {
        "count": aggregate.Count(),
        "total": aggregate.Sum("value"),
        "least": aggregate.Min("value"),
        "mean": aggregate.Mean("value"),
        # Only there so that the rows keep the columns by which their order is followed.
        "last": aggregate.custom(["key", "src", "seq"], int, count_rows, int.__add__, int, pa.int64()),
    }
    per_bucket = per_key.key_by("bucket").compute(aggregates, name="per_bucket", shards=8)
    per_bucket.sink(Nowhere(), name="results")
    return topology


def count_rows(count: int, rows: pa.RecordBatch) -> int:
    return count + rows.num_rows


@dataclass
class Disturber:
    """Gives commands at random."""

    random: np.random.Generator
    share: float
    nodes: int
    executors: list[ExecutorId]
    refused: int = 0
    tokens: int = 0
    flushing: dict[int, tuple[ExecutorId, int]] = field(default_factory=dict)

    def __call__(self, world: World) -> None:
        self.check_flushes(world)
        if world.schedule.draw() >= self.share:
            return
        if sum(len(home.executor.moves.active) for home in world.homes.values()) > MOST_MOVES:
            return
        executor = self.executors[int(self.random.integers(len(self.executors)))]
        kind = world.schedule.draw()
        if kind < 0.45:
            tasks = [*world.homes[executor].executor.routes.tasks]
            shard = int(self.random.integers(world.spaces[executor.component].shards))
            world.command(executor, events.MoveShard(shard, int(self.random.choice(tasks))), self.note)
        elif kind < 0.65:
            cores = Counter(self.random.integers(0, self.nodes, int(self.random.integers(1, 4))).tolist())
            world.command(executor, events.SetCores(dict(cores)), self.note)
        elif kind < 0.8:
            world.command(executor, events.BalanceDue())
        elif kind < 0.9:
            self.tokens += 1
            self.flushing[self.tokens] = executor, world.ledger.processed_rows(executor)
            world.command(executor, events.FlushDue(self.tokens))
        else:
            world.flush_remote_tasks()

    def check_flushes(self, world: World) -> None:
        """A primary copy that was brought up to date has at least what was processed when that was asked for."""
        for token in [
            token for token, (executor, _) in self.flushing.items() if token in world.homes[executor].flushed
        ]:
            executor, processed = self.flushing.pop(token)
            home = world.homes[executor]
            table = read_state(home.component.operator, home.executor.store)
            counted = 0 if table is None else sum(table["count"].to_pylist())
            assert counted >= processed, f"{executor}: flush {token} left rows out of the primary copy"

    def note(self, error: ElasticError) -> None:
        self.refused += 1


@dataclass
class Simulation:
    """One seeded run."""

    seed: int
    world: World
    batches: list[list[pa.RecordBatch]]
    disturber: Disturber

    def run(self) -> None:
        """Run to the end and compare to the truth; what goes wrong tells the seed and the history."""
        try:
            self.world.run(self.disturber)
            self.check()
        except Exception as error:
            error.add_note(f"seed {self.seed}; the end of its history:\n{self.world.schedule.history()}")
            raise

    def check(self) -> None:
        rows = pa.Table.from_batches([batch for batches in self.batches for batch in batches]).to_pylist()
        assert self.state("per_key", "key") == truth_per_key(rows)
        expected = truth_per_bucket(rows)
        assert self.state("per_bucket", "bucket") == expected
        assert self.last_outputs() == expected
        self.disturber.check_flushes(self.world)
        assert not self.disturber.flushing, "a flush was never complete"

    def state(self, operator: str, key: str) -> dict[object, dict[str, object]]:
        found: dict[object, dict[str, object]] = {}
        for identity, home in self.world.homes.items():
            compute = home.component.operator
            if identity.component != operator:
                continue
            assert isinstance(compute, Compute)
            table = read_state(compute, home.executor.store)
            for row in [] if table is None else table.to_pylist():
                assert row[key] not in found, "a key is in the state of two executors"
                found[row[key]] = row
        return found

    def last_outputs(self) -> dict[object, dict[str, object]]:
        """The last value of each bucket that reached the sink; each of its counts is above the one before."""
        last: dict[object, dict[str, object]] = {}
        received = [entry for sink in self.world.sinks.values() for entry in sink.received]
        for _, batch in sorted(received, key=lambda entry: entry[0]):
            for row in batch.to_pylist():
                before = last.get(row["bucket"])
                assert before is None or before["count"] < row["count"], f"an output overtook another: {row}"
                last[row["bucket"]] = row
        return last


def truth_per_key(rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    truth: dict[object, dict[str, object]] = {}
    for row in rows:
        known = truth.setdefault(row["key"], {"key": row["key"], **dict.fromkeys(STATE, 0)})
        value, src, seq = row["value"], row["src"], row["seq"]
        known["least"] = min(value, known["least"]) if known["count"] else value
        known["greatest"] = max(value, known["greatest"]) if known["count"] else value
        known["count"] += 1
        known["total"] += value
        known[f"last{src}"] = seq
        known[f"digest{src}"] = (known[f"digest{src}"] * 31 + seq) % MODULUS
    return truth


def truth_per_bucket(rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    values: dict[object, list[int]] = {}
    for row in rows:
        values.setdefault(row["bucket"], []).append(row["value"])
    return {
        bucket: {
            "bucket": bucket,
            "count": len(all_),
            "total": sum(all_),
            "least": min(all_),
            "mean": sum(all_) / len(all_),
            "last": len(all_),
        }
        for bucket, all_ in values.items()
    }


def random_placement(random: np.random.Generator, nodes: int) -> Placement:
    homes = {"numbers": tuple(random.integers(0, nodes, SOURCES).tolist())}
    cores = {}
    for name in ("per_key", "per_bucket"):
        homes[name] = tuple(random.integers(0, nodes, int(random.integers(1, 3))).tolist())
        cores[name] = tuple(
            dict(Counter(random.integers(0, nodes, int(random.integers(1, 4))).tolist())) for _ in homes[name]
        )
    return Placement(nodes, homes, cores)


@pytest.fixture
def simulate() -> Callable[..., Simulation]:
    """Return a function from a seed to a simulation."""

    def make(seed: int, disturbed: float = 0.03, **options) -> Simulation:
        random = np.random.default_rng(seed)
        nodes = int(random.integers(2, 5))
        batches = make_batches(random)
        components = fuse(make_topology(batches, shards=int(random.integers(4, 17))))
        placement = random_placement(random, nodes)
        chosen = WorldOptions(
            window=int(random.choice([400, 3000, 2**20])),
            row_seconds=float(random.choice([0.0001, 0.001])),
            limits=ExecutorLimits(inbox_time=0.005, patience=0.01 if seed % 3 == 0 else 0.0),
            check=True,
            order=("key", "src", "seq"),
            **options,
        )
        world = World(components, placement, random, chosen)
        return Simulation(seed, world, batches, Disturber(random, disturbed, nodes, [*world.homes]))

    return make
