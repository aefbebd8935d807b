"""A job whose state expires in event time, and what it must emit and keep, computed row by row."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from followed_job import UnopenedSink
from timer_job import Place, Steps, with_through

from dask_elastic.state.expiry.times import LEAST
from dask_elastic.topology import Topology
from dask_elastic.topology.logic_level import per_row
from dask_elastic.topology.state_kind import List, Map, Value
from dask_elastic.topology.timer import Timer

KEYS = 8
TTL = {"total": 35, "items": 20, "places": 50}
"""Microseconds of event time."""

STATE = {
    "total": Value(pa.int64(), ttl=TTL["total"] / 1e6, ttl_clock="event"),
    "items": List(pa.int64(), ttl=TTL["items"] / 1e6, ttl_clock="event"),
    "places": Map(pa.int64(), pa.int64(), ttl=TTL["places"] / 1e6, ttl_clock="event"),
}
OUTPUT = {name: pa.string() for name in ("key", "what", "total", "items", "places")}
EPOCH = datetime.datetime(1970, 1, 1)

Emitted = tuple[str, str, str, str]


def make_batches(random: np.random.Generator, batches: int) -> list[pa.RecordBatch]:
    """Return rows of which some are older than rows before them, or have no time."""
    made, time, number = [], 0, 0
    for size in random.integers(1, 9, size=batches).tolist():
        at = time + np.cumsum(random.integers(1, 9, size))
        time = int(at[-1])
        late = random.random(size) < 0.25
        at = np.maximum(at - np.where(late, random.integers(1, 40, size), 0), 0)
        made.append(
            pa.record_batch(
                {
                    "key": pa.array([f"k{key}" for key in random.integers(0, KEYS, size).tolist()]),
                    "due": pa.array(at, pa.timestamp("us"), mask=random.random(size) < 0.05),
                    "number": pa.array(np.arange(number, number + size)),
                    "value": pa.array(random.integers(1, 100, size)),
                    "place": pa.array(random.integers(0, 3, size)),
                    # 0: add; 1: delete the total; 2: remove the place; 3: set the timer.
                    "what": pa.array(random.choice(4, size, p=[0.5, 0.15, 0.15, 0.2])),
                    "wait": pa.array(random.integers(1, 60, size)),
                }
            )
        )
        number += size
    return made


def _shown(key: Any, what: str, state: Any) -> dict[str, str]:
    seen = str(state.get("total")), str([*state["items"]]), str(sorted(state["places"].items()))
    return dict(zip(OUTPUT, (key, what, *seen), strict=True))


@per_row(output=OUTPUT)
def process(row: dict[str, Any], state: Any) -> dict[str, str]:
    """Change all state of a key, and emit it."""
    if row["what"] == 1:
        del state["total"]
    else:
        state["total"] = state.get("total", 0) + row["value"]
    state["items"].append(row["number"])
    state["places"][row["place"]] = row["number"]
    if row["what"] == 2:
        del state["places"][row["place"]]
    if row["what"] == 3 and row["due"] is not None:
        state.timers.set("later", row["due"] + datetime.timedelta(microseconds=row["wait"]))
    return _shown(row["key"], str(row["number"]), state)


def fire(key: str, time: datetime.datetime, state: Any) -> dict[str, str]:
    """Emit what a timer sees, then add to the total."""
    shown = _shown(key, f"due {(time - EPOCH) // datetime.timedelta(microseconds=1)}", state)
    state["total"] = state.get("total", 0) + 1
    return shown


def process_batch(rows: pa.RecordBatch, state: Any) -> None:
    """As `process`, but nothing is deleted, so that it does not matter how rows are divided into batches."""
    values, places, numbers = (rows[name].to_numpy() for name in ("value", "place", "number"))
    sums = np.zeros(len(state), np.int64)
    np.add.at(sums, state.ordinals, values)
    state.set("total", state.get("total") + sums)
    state.list("items").append(numbers, where=numbers >= 0)
    state.map("places").put(places, numbers, where=numbers >= 0)
    later = state.timers.get("later")
    columns = state.ordinals.tolist(), rows["due"].to_numpy(False), rows["what"].to_pylist(), rows["wait"].to_pylist()
    for key, due, what, wait in zip(*columns, strict=True):
        if what == 3 and not np.isnat(due):
            later[key] = due + np.timedelta64(wait, "us")
    state.timers.set("later", later)


def fire_batch(batch: pa.RecordBatch, state: Any) -> pa.RecordBatch:
    """As `fire`, for all keys."""
    lists, maps = state.list("items").get().to_pylist(), state.map("places").entries().to_pylist()
    totals = state.get("total")
    seen = [
        (str(total) if total else "None", str(items), str(sorted(places)))
        for total, items, places in zip(totals.tolist(), lists, maps, strict=True)
    ]
    what = [f"due {time}" for time in batch["due"].cast(pa.int64()).to_pylist()]
    state.set("total", totals + 1)
    columns = [batch["key"].to_pylist(), what, *map(list, zip(*seen, strict=True))]
    return pa.record_batch([pa.array(column, pa.string()) for column in columns], names=[*OUTPUT])


def make_topology(batches: list[pa.RecordBatch], shards: int, by_row: bool, place: Place = "alone") -> Topology:
    topology = Topology("expiry")
    keyed = topology.source("steps", Steps(batches)).key_by("key")
    logic, timer = (process, Timer(fire)) if by_row else (process_batch, Timer(fire_batch))
    options = {"state": STATE, "timers": {"later": timer}, "time": "due", "shards": shards, "keeps": ["key"]}
    results = with_through(keyed, shards, place, lambda rows, name: rows.compute(logic, name=name, **options))
    results.sink(UnopenedSink(), name="results")
    return topology


@dataclass
class Key:
    """The state of one key: values with their expiry times."""

    total: tuple[int, float] | None = None
    items: list[tuple[int, float]] = field(default_factory=list)
    places: dict[int, tuple[int, float]] = field(default_factory=dict)
    timer: int | None = None

    def forget(self, reached: float) -> None:
        if self.total is not None and self.total[1] <= reached:
            self.total = None
        self.items = [(item, until) for item, until in self.items if until > reached]
        self.places = {place: kept for place, kept in self.places.items() if kept[1] > reached}

    def add(self, value: int, time: float, seen: float) -> None:
        before, until = self.total or (0, time)
        # What has expired at the time that logic sees is not added to.
        self.total = (before if until > seen else 0) + value, max(until, time + TTL["total"])

    def shown(self, time: float) -> tuple[str, str, str]:
        total = None if self.total is None or self.total[1] <= time else self.total[0]
        places = sorted((place, number) for place, (number, until) in self.places.items() if until > time)
        return str(total), str([item for item, until in self.items if until > time]), str(places)


def expected(
    batches: list[pa.RecordBatch], by_row: bool
) -> tuple[dict[str, list[Emitted]], dict[str, tuple[str, str, str]], int | None]:
    """Return what is emitted for each key, what is left of the state in the end, and the last watermark.

    After each batch the watermark is the newest time.
    """
    emitted: dict[str, list[Emitted]] = defaultdict(list)
    keys: dict[str, Key] = defaultdict(Key)
    reached: float = LEAST

    def fire_until(time: float) -> None:
        for name, key in keys.items():
            if key.timer is not None and key.timer <= time:
                due, key.timer = key.timer, None
                emitted[name].append((f"due {due}", *key.shown(max(due, reached) if by_row else reached)))
                key.add(1, max(due, reached), max(due, reached) if by_row else reached)

    newest: int | None = None
    for rows in batches:
        for row in rows.to_pylist():
            key = keys[row["key"]]
            at = None if row["due"] is None else (row["due"] - EPOCH) // datetime.timedelta(microseconds=1)
            newest = at if newest is None else newest if at is None else max(newest, at)
            time = reached if at is None else max(at, reached)
            if by_row and row["what"] == 1:
                key.total = None
            else:
                key.add(row["value"], time, time if by_row else reached)
            key.items.append((row["number"], time + TTL["items"]))
            before = key.places.get(row["place"], (0, time))[1]
            key.places[row["place"]] = row["number"], max(before, time + TTL["places"])
            if by_row and row["what"] == 2:
                del key.places[row["place"]]
            if row["what"] == 3 and at is not None:
                key.timer = at + row["wait"]
            if by_row:
                emitted[row["key"]].append((str(row["number"]), *key.shown(time)))
        if newest is not None and newest > reached:
            fire_until(newest)
            reached = newest
            for key in keys.values():
                key.forget(reached)
    fire_until(math.inf)
    for key in keys.values():
        key.forget(reached)
    left = {name: key.shown(reached) for name, key in keys.items()}
    return dict(emitted), {name: shown for name, shown in left.items() if shown != ("None", "[]", "[]")}, newest
