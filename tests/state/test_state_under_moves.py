"""Lists, maps, times to live and the three levels of logic, while shards move within and across nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.executor import events, function_logic
from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import Placement, World, WorldOptions
from dask_elastic.testing import run
from dask_elastic.topology import Sink, Topology, build_components
from dask_elastic.vocab.identity import ExecutorId

KEYS, BUCKETS, NODES = 9, 4, 3
TTL = 0.05
STATE = {
    "values": de.List(pa.int64()),
    "by_bucket": de.Map(pa.string(), pa.int64()),
    "last": pa.int64(),
    "recent": de.List(pa.int64(), ttl=TTL),
    "lately": de.Map(pa.int64(), pa.int64(), ttl=TTL),
    "fresh": de.Value(pa.int64(), ttl=TTL),
}
OUTPUT = {
    **{name: pa.int64() for name in ("key", "value", "total", "before")},
    **{"recent": pa.list_(pa.int64()), "lately": pa.list_(pa.int64()), "fresh": pa.int64(), "now": pa.float64()},
}


def by_batch(batch: pa.RecordBatch, state: Any) -> list[pa.RecordBatch]:
    """Vectorised logic: rows do not see changes of earlier rows in their batch, so repeated keys are counted here."""
    keys, values, buckets = (batch[name].to_pylist() for name in ("key", "value", "bucket"))
    totals = state.map("by_bucket").get(buckets)
    totals += pd.DataFrame({"key": keys, "bucket": buckets}).groupby(["key", "bucket"]).cumcount().to_numpy()
    state.list("values").append(values)
    state.map("by_bucket").put(buckets, totals + 1)
    state.set("last", np.array(values)[state.last])
    recent, lately = state.list("recent").get().to_pylist(), state.map("lately").entries().to_pylist()
    fresh = state.get("fresh", default=-1)
    state.list("recent").append(values)
    state.map("lately").put(buckets_as_numbers(buckets), values)
    state.set("fresh", np.array(values)[state.last])
    rows = [
        {
            "key": key, "value": value, "total": int(total), "before": -1, "now": state.now,
            "fresh": int(fresh[ordinal]), "recent": recent[ordinal],
            "lately": [x for entry in lately[ordinal] for x in entry],
        }
        for key, value, total, ordinal in zip(keys, values, totals, state.ordinals, strict=True)
    ]  # fmt: skip
    return [pa.RecordBatch.from_pylist(rows, schema=pa.schema(OUTPUT))]


@de.per_key(output=OUTPUT)
def by_key(key: int, batch: pa.RecordBatch, state: Any) -> list[dict[str, Any]]:
    return [by_row(row, state) for row in batch.to_pylist()]


@de.per_row(output=OUTPUT)
def by_row(row: dict[str, Any], state: Any) -> dict[str, Any]:
    bucket, value = row["bucket"], row["value"]
    total = state["by_bucket"].get(bucket, 0)
    output = {
        "key": row["key"], "value": value, "total": total, "before": state.get("last", -1), "now": state.now,
        "recent": list(state["recent"]), "lately": [x for entry in state["lately"].items() for x in entry],
        "fresh": state.get("fresh", -1),
    }  # fmt: skip
    state["values"].append(value)
    state["by_bucket"][bucket] = total + 1
    state["last"] = value
    state["recent"].append(value)
    state["lately"][ord(bucket)] = value
    state["fresh"] = value
    return output


def buckets_as_numbers(buckets: list[str]) -> list[int]:
    return [ord(bucket) for bucket in buckets]


class UnopenedSink(Sink):
    def open(self, context):
        raise AssertionError("a simulated sink is not opened")


def make_rows(random: np.random.Generator, rows: int) -> pa.Table:
    return pa.table(
        {
            "key": random.integers(0, KEYS, rows),
            "value": np.arange(rows),
            "bucket": np.array(list("abcd"))[random.integers(0, BUCKETS, rows)],
        }
    )


def simulated(logic: Any, seed: int, batch_rows: int, state: Any = None) -> tuple[World, pa.Table, Counter[str]]:
    random = np.random.default_rng(seed)
    table = make_rows(random, 160)
    topology = Topology("moved")
    rows = topology.source("rows", de.sources.Arrow(table, batch_rows=batch_rows))
    declared = None if isinstance(logic, dict) else state or STATE
    rows.key_by("key").compute(logic, state=declared, name="kept", shards=6).sink(UnopenedSink(), name="out")
    cores = dict(Counter(random.integers(0, NODES, 3).tolist()))
    placement = Placement(NODES, {"rows": (0,), "kept": (int(random.integers(NODES)),)}, {"kept": (cores,)})
    world = World(build_components(topology), placement, random, WorldOptions(check=True))
    happened: Counter[str] = Counter()
    executor = ExecutorId("kept", 0)

    def disturb(world: World) -> None:
        if world.schedule.draw() > 0.1:
            return
        if world.schedule.draw() < 0.2:
            world.flush_remote_tasks()
            return
        home = world.homes[executor].executor
        shard, task = int(random.integers(6)), int(random.choice([*home.routes.tasks]))
        if shard not in home.moves:
            world.command(executor, events.MoveShard(shard, task), lambda error: happened.update(["refused"]))

    world.run(disturb)
    moves = world.homes[executor].executor.moves
    happened.update({"moves": moves.finished, "across": moves.finished_across})
    return world, table, happened


def outputs(world: World) -> list[dict[str, Any]]:
    received = sorted((entry for sink in world.sinks.values() for entry in sink.received), key=lambda entry: entry[0])
    return [row for _, batch in received for row in batch.to_pylist()]


def state_at(world: World, now: float | None) -> dict[int, dict[str, Any]]:
    home = next(iter(world.homes.values()))
    table = read_state(home.component.operator, home.executor.store, now=now)
    return {row["key"]: row for row in table.to_pylist()}


class ExpectedState:
    """The expected state of one key, from its rows in order and the times of their batches."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.by_bucket: dict[str, int] = {}
        self.recent: list[tuple[int, float]] = []
        self.lately: dict[int, tuple[int, float]] = {}
        self.fresh: tuple[int, float] = (-1, np.inf)

    def expire(self, now: float) -> None:
        self.recent = [entry for entry in self.recent if entry[1] > now]
        self.lately = {key: entry for key, entry in self.lately.items() if entry[1] > now}
        if self.fresh[1] <= now:
            self.fresh = -1, np.inf

    def add(self, value: int, bucket: str, now: float) -> None:
        self.values.append(value)
        self.by_bucket[bucket] = self.by_bucket.get(bucket, 0) + 1
        self.recent.append((value, now + TTL))
        self.lately[ord(bucket)] = value, now + TTL
        self.fresh = value, now + TTL


def check(world: World, table: pa.Table, row_by_row: bool) -> Counter[str]:
    model: dict[int, ExpectedState] = {}
    bucket_of = dict(zip(table["value"].to_pylist(), table["bucket"].to_pylist(), strict=True))
    expired: Counter[str] = Counter()
    rows = outputs(world)
    assert sorted(row["value"] for row in rows) == table["value"].to_pylist()
    for row in rows:
        expected = model.setdefault(row["key"], ExpectedState())
        many = len(expected.recent)
        expected.expire(row["now"])
        expired["elements"] += many - len(expected.recent)
        if row_by_row:
            assert row["total"] == expected.by_bucket.get(bucket_of[row["value"]], 0)
            assert row["before"] == (expected.values[-1] if expected.values else -1)
            assert row["recent"] == [value for value, _ in expected.recent]
            assert row["lately"] == [x for key, (value, _) in expected.lately.items() for x in (key, value)]
            assert row["fresh"] == expected.fresh[0]
        expected.add(row["value"], bucket_of[row["value"]], row["now"])
    now = max(row["now"] for row in rows) + TTL / 2
    found = state_at(world, now)
    assert set(found) == set(model)
    for key, expected in model.items():
        expected.expire(now)
        assert found[key]["values"] == expected.values
        assert dict(found[key]["by_bucket"]) == expected.by_bucket
        assert found[key]["recent"] == [value for value, _ in expected.recent]
        assert found[key]["lately"] == [(own, value) for own, (value, _) in expected.lately.items()]
        assert found[key]["fresh"] == (None if expected.fresh[0] == -1 else expected.fresh[0])
    return expired


@pytest.mark.parametrize("logic", [by_row, by_key])
def test_row_logic_sees_changes_of_all_earlier_rows_under_moves(logic):
    happened: Counter[str] = Counter()
    for seed in range(10):
        world, table, moved = simulated(logic, seed, batch_rows=10)
        try:
            happened += moved + check(world, table, row_by_row=True)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    assert happened["moves"] - happened["across"] > 25
    assert happened["across"] > 25
    assert happened["elements"] > 100, "nothing expired, so nothing was tested"


def test_batch_logic_sees_changes_of_all_earlier_batches_under_moves():
    for seed in range(7):
        world, table, _ = simulated(by_batch, seed, batch_rows=10)
        check(world, table, row_by_row=False)
        check_last_state(world, table)


def check_last_state(world: World, table: pa.Table) -> None:
    found = state_at(world, None)
    for key in range(KEYS):
        rows = [row for row in table.to_pylist() if row["key"] == key]
        if rows:
            assert found[key]["values"] == [row["value"] for row in rows]
            assert found[key]["last"] == rows[-1]["value"]


@de.per_row(output={"key": pa.int64(), "value": pa.int64(), "recent": pa.list_(pa.int64()), "now": pa.float64()})
def only_recent(row: dict[str, Any], state: Any) -> dict[str, Any]:
    output = {"key": row["key"], "value": row["value"], "recent": list(state["recent"]), "now": state.now}
    state["recent"].append(row["value"])
    return output


@pytest.mark.usefixtures("storage")
def test_expired_keys_that_return_start_empty_under_moves(monkeypatch):
    monkeypatch.setattr(function_logic, "SWEPT_AFTER", 0.0)
    happened: Counter[str] = Counter()
    for seed in range(15):
        world, _, moved = simulated(only_recent, seed, 4, {"recent": de.List(pa.int64(), ttl=TTL / 2)})
        happened += moved
        model: dict[int, list[tuple[int, float]]] = {}
        for row in outputs(world):
            before = model.setdefault(row["key"], [])
            left = [entry for entry in before if entry[1] > row["now"]]
            happened["expired"] += bool(before) and not left
            assert row["recent"] == [value for value, _ in left], f"seed {seed}"
            model[row["key"]] = [*left, (row["value"], row["now"] + TTL / 2)]
        now = max(row["now"] for row in outputs(world))
        left = {key: [value for value, end in entries if end > now] for key, entries in model.items()}
        assert {key: row["recent"] for key, row in state_at(world, now).items()} == {k: v for k, v in left.items() if v}
        home = next(iter(world.homes.values())).executor
        happened["swept"] += len(model) - len(home.store)
    assert happened["across"] > 25
    assert happened["expired"] > 25
    assert happened["swept"] > 25, "the primary copy keeps expired keys"


def test_aggregates_of_text_see_all_rows_under_moves():
    across = 0
    aggregates = {"least": agg.Min("bucket"), "most": agg.Max("bucket"), "top": agg.TopK("bucket", 2)}
    for seed in range(8):
        world, table, moved = simulated(aggregates, seed, 4)
        across += moved["across"]
        expected: dict[int, list[str]] = {}
        for row in table.to_pylist():
            expected.setdefault(row["key"], []).append(row["bucket"])
        found = state_at(world, None)
        assert set(found) == set(expected), f"seed {seed}"
        for key, buckets in expected.items():
            kept = found[key]["least"], found[key]["most"], found[key]["top"]
            assert kept == (min(buckets), max(buckets), sorted(buckets, reverse=True)[:2]), f"seed {seed}"
    assert across > 25


def test_run_with_any_executors_and_seed_gives_the_same_state():
    table = make_rows(np.random.default_rng(3), 300)
    states = []
    for seed, executors in enumerate((1, 2, 3, 1)):
        topology = Topology("same")
        rows = topology.source("rows", de.sources.Arrow(table, batch_rows=17))
        state = {name: kind for name, kind in STATE.items() if name in ("values", "by_bucket", "last")}
        rows.key_by("key").compute(collect, state=state, name="kept")
        found = run(topology, executors=executors, seed=seed).state["kept"].sort_by("key")
        states.append([{**row, "by_bucket": sorted(row["by_bucket"])} for row in found.to_pylist()])
    assert states[0] == states[1] == states[2] == states[3]
    frame = table.to_pandas()
    assert {row["key"]: row["values"] for row in states[0]} == frame.groupby("key")["value"].apply(list).to_dict()
    for row in states[0]:
        own = frame[frame["key"] == row["key"]]
        assert dict(row["by_bucket"]) == own["bucket"].value_counts().to_dict()


@de.per_row
def collect(row: dict[str, Any], state: Any) -> None:
    state["values"].append(row["value"])
    state["by_bucket"][row["bucket"]] = state["by_bucket"].get(row["bucket"], 0) + 1
    state["last"] = row["value"]


def test_run_omits_expired_state():
    topology = Topology("short")
    rows = topology.source("rows", de.sources.Arrow(make_rows(np.random.default_rng(4), 200), batch_rows=1))
    rows.key_by("value").compute(note, state={"seen": de.Value(pa.int64(), ttl="20 ms")}, name="kept")
    left = run(topology).state["kept"].num_rows
    assert 0 <= left < 200


@de.per_row
def note(row: dict[str, Any], state: Any) -> None:
    state["seen"] = row["value"]
