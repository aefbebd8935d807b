"""A job whose logic sets timers, and what it must emit, computed row by row."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import numpy as np
import pyarrow as pa
from followed_job import UnopenedSink

from dask_elastic.executor.keyed_state import read_state
from dask_elastic.topology import Source, Topology
from dask_elastic.topology.timer import Timer

Place = Literal["alone", "behind", "in front"]
"""Where the compute with timers or windows is among the computes of its component."""

KEYS = 8
SPAN = 40
"""Timers are set for up to so many microseconds after the row that sets them."""

STATE = {"sum": pa.int64(), "fired": pa.int64(), "set": pa.int64(), "polled": pa.int64()}
POLLED = {"k0", "k1", "k2"}
"""Keys that set a timer in processing time as well; the others are deleted now and then."""


class Steps(Source):
    """Rows of one instance whose event times increase."""

    def __init__(self, batches: list[pa.RecordBatch]):
        self.batches = batches
        self.event_time = "due"

    def read(self, context):
        for number, rows in enumerate(self.batches[context.offset or 0 :], (context.offset or 0) + 1):
            yield rows, number


def make_batches(random: np.random.Generator, batches: int) -> list[pa.RecordBatch]:
    """Return rows that add a value, and that may set one of two timers, or delete the first one.

    Their event time has the name of the time of a timer, so that watermarks are compared with outputs as well.
    """
    made, time, number = [], 0, 0
    for size in random.integers(1, 9, size=batches).tolist():
        at = time + np.cumsum(random.integers(1, 12, size))
        time = int(at[-1])
        made.append(
            pa.record_batch(
                {
                    "key": pa.array([f"k{key}" for key in random.integers(0, KEYS, size).tolist()]),
                    "due": pa.array(at, pa.timestamp("us")),
                    "number": pa.array(np.arange(number, number + size)),
                    "value": pa.array(random.integers(1, 100, size)),
                    # 0: no timer; 1: set the first; 2: set the second; 3: delete the first.
                    "what": pa.array(random.choice(4, size, p=[0.3, 0.4, 0.15, 0.15])),
                    "wait": pa.array(random.integers(1, SPAN, size)),
                }
            )
        )
        number += size
    return made


def process(rows: pa.RecordBatch, state) -> None:
    """Add the values of each key, and set its timers."""
    total = state.get("sum").copy()
    first, second = state.timers.get("first"), state.timers.get("second")
    for key, at, value, what, wait in zip(
        state.ordinals.tolist(),
        rows["due"].to_numpy(),
        *(rows[name].to_pylist() for name in ("value", "what", "wait")),
        strict=True,
    ):
        total[key] += value
        if what == 1:
            first[key] = at + np.timedelta64(wait, "us")
        elif what == 2:
            second[key] = at + np.timedelta64(wait, "us")
        elif what == 3:
            first[key] = np.datetime64("NaT", "us")
    polls = np.isin(state.keys["key"].to_pylist(), [*POLLED]) & np.isnat(state.timers.get("poll"))
    state.timers.set("poll", np.full(len(state), state.now + 0.02), where=polls)
    state.set("set", state.get("set") + 1, where=polls)
    state.set("sum", total)
    state.timers.set("first", first)
    state.timers.set("second", second)


def fire(name: str):
    """Return the function of a timer: it emits the sum, clears it, and the first one sets the second one sometimes."""

    def fired(batch: pa.RecordBatch, state) -> pa.RecordBatch:
        times, total, count = batch["due"].to_numpy(), state.get("sum"), state.get("fired") + 1
        state.set("sum", np.zeros(len(state), np.int64))
        state.set("fired", count)
        if name == "first":
            chained = total % 3 == 0
            state.timers.set("second", times + np.timedelta64(5, "us"), where=chained)
        # A key that has fired often enough is deleted with all of its state.
        for value in ("sum", "fired"):
            state.set(value, pa.nulls(len(state), pa.int64()), where=count % 4 == 0)
        return batch.append_column("timer", pa.array([name] * len(state))).append_column("sum", pa.array(total))

    return fired


def poll(batch: pa.RecordBatch, state) -> pa.RecordBatch:
    """Count how often the timer in processing time has fired."""
    polled = state.get("polled") + 1
    state.set("polled", polled)
    return batch.append_column("timer", pa.array(["poll"] * len(state))).append_column("sum", pa.array(polled))


def through(rows: pa.RecordBatch, state) -> pa.RecordBatch:
    """Count the rows of each key; return them."""
    state.set("seen", state.get("seen") + state.grouping.sizes)
    return rows


def with_through(keyed, shards: int, place: Place, compute):
    """Return a stream whose rows `compute` makes, with another compute before or behind it in the same task, or alone.

    The component is always named "per_key".
    """
    counting = {"state": {"seen": pa.int64()}, "shards": shards, "keeps": ["key"]}
    if place == "behind":
        return compute(keyed.compute(through, name="per_key", **counting).key_by("key"), "timed")
    made = compute(keyed, "per_key")
    return made.key_by("key").compute(through, name="through", **counting) if place == "in front" else made


def pairs_of(place: Place) -> list[tuple[str, str]]:
    return {"behind": [("per_key", "timed")], "in front": [("per_key", "through")], "alone": []}[place]


def timed_part(home, place: Place):
    """Return the compute with timers or windows of an executor, and its store."""
    if place != "behind":
        return home.component.operator, home.executor.store
    return home.component.computes[1], home.executor.store.behind("timed")


def seen_by_other(world, place: Place) -> int:
    """Return the rows that the compute before or behind it has processed."""
    seen = 0
    for home in world.homes.values():
        first = home.executor.store
        name = "per_key" if place == "behind" else "through"
        compute = next(compute for compute in home.component.computes if compute.name == name)
        table = read_state(compute, first if place == "behind" else first.behind(name))
        seen += 0 if table is None else sum(table["seen"].to_pylist())
    return seen


def make_topology(batches: list[pa.RecordBatch], shards: int, place: Place = "alone") -> Topology:
    topology = Topology("timers")
    keyed = topology.source("steps", Steps(batches)).key_by("key")
    timers = {name: Timer(fire(name)) for name in ("first", "second")} | {"poll": Timer(poll, clock="processing")}
    options = {"state": STATE, "timers": timers, "shards": shards, "keeps": ["key"]}
    fired = with_through(keyed, shards, place, lambda rows, name: rows.compute(process, name=name, **options))
    fired.sink(UnopenedSink(), name="results")
    return topology


def expected(batches: list[pa.RecordBatch]) -> dict[str, list[tuple[int, str, int]]]:
    """Return what is emitted for each key, in order: the time, the timer, and the sum.

    After each batch the watermark is the newest time.
    """
    emitted: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    sums: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    timers: dict[str, dict[str, int]] = defaultdict(dict)

    def advance(watermark: float) -> None:
        last = watermark == np.inf
        for key, own in timers.items():
            done: set[str] = set()
            while due := [(at, name) for name, at in own.items() if at <= watermark and name not in done]:
                at, name = min(due)
                del own[name]
                emitted[key].append((at, name, sums[key]))
                if last:
                    done.add(name)
                if name == "first" and sums[key] % 3 == 0:
                    own["second"] = at + 5
                sums[key] = 0
                counts[key] += 1
                if counts[key] % 4 == 0:
                    counts[key] = 0
            if last:
                own.clear()

    for rows in batches:
        for row in rows.to_pylist():
            key, at = row["key"], int(pa.scalar(row["due"], pa.timestamp("us")).value)
            sums[key] += row["value"]
            if row["what"] in (1, 2):
                timers[key]["first" if row["what"] == 1 else "second"] = at + row["wait"]
            elif row["what"] == 3:
                timers[key].pop("first", None)
        advance(int(pa.compute.max(rows["due"]).value))
    advance(np.inf)
    return dict(emitted)
