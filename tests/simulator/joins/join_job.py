"""A job that joins two sources, and what it must emit, found by comparing all rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from followed_job import UnopenedSink

from dask_elastic.topology import Source, Topology
from dask_elastic.topology.windowing import EventWindow

KEYS = 6
KINDS = ("interval", "window", "asof")
BOUNDS = ((-12, 20), (0, 15), (-25, -5), (3, 3))
WINDOWS = (EventWindow(0, 20, 20), EventWindow(3, 20, 7))


class Readings(Source):
    """Rows of one instance with event times."""

    event_time = "at"

    def __init__(self, batches: list[pa.RecordBatch], slack: float):
        self.batches = batches
        self.slack = slack

    def known_schema(self):
        return self.batches[0].schema

    def read(self, context):
        for number, rows in enumerate(self.batches[context.offset or 0 :], (context.offset or 0) + 1):
            yield rows, number


def make_batches(random: np.random.Generator, number: str, disorder: int) -> list[pa.RecordBatch]:
    """Return rows of one side; some have the same time."""
    sizes = random.integers(1, 9, size=int(random.integers(4, 12))).tolist()
    count = sum(sizes)
    times = np.cumsum(random.integers(0, 10, count))
    times = times[np.argsort(np.arange(count) + random.integers(0, disorder + 1, count), kind="stable")]
    keys = [None if random.random() < 0.05 else f"k{key}" for key in random.integers(0, KEYS, count).tolist()]
    rows = pa.record_batch(
        {
            "key": pa.array(keys, pa.string()),
            "at": pa.array(times, pa.timestamp("us")),
            number: pa.array(np.arange(count)),
            "text": pa.array([None if n % 5 == 0 else "x" * (n % 4) for n in range(count)]),
        }
    )
    starts = np.cumsum([0, *sizes]).tolist()
    return [rows.slice(start, size) for start, size in zip(starts, sizes, strict=False)]


def make_topology(kind: str, how: str, choice: int, batches, slack: float, shards: int, store: str | None = None):
    topology = Topology("joined")
    left, right = (
        topology.source(name, Readings(own, slack)).key_by("key")
        for name, own in zip(("left", "right"), batches, strict=True)
    )
    options = {"how": how, "name": "joined", "shards": shards, "store": store}
    if kind == "asof":
        limit = (None, 10, 40)[choice % 3]
        joined = left.join_asof(right, tolerance=None if limit is None else limit / 1e6, **options)
    elif kind == "window":
        joined = left.join(right, window=WINDOWS[choice % len(WINDOWS)], **options)
    else:
        low, high = BOUNDS[choice % len(BOUNDS)]
        joined = left.join(right, within=(low / 1e6, high / 1e6), **options)
    joined.sink(UnopenedSink(), name="results")
    return topology


Pair = tuple[int | None, int | None, int | None]
"""The numbers of the left and the right row, and the begin of their window."""


def expected(kind: str, how: str, choice: int, left: list[dict], right: list[dict]) -> Counter[Pair]:
    """Return the results for rows with the items key, at, and number; `at` in microseconds."""
    found: Counter[Pair] = Counter()
    if kind == "asof":
        limit = (None, 10, 40)[choice % 3]
        for row in left:
            before = [
                (other["at"], other["number"])
                for other in right
                if row["key"] is not None
                and other["key"] == row["key"]
                and other["at"] <= row["at"]
                and (limit is None or row["at"] - other["at"] <= limit)
            ]
            match = max(before)[1] if before else None
            if match is not None or how == "left":
                found[row["number"], match, None] += 1
        return found
    sides = [[(row, begin) for row in rows for begin in _begins(kind, choice, row["at"])] for rows in (left, right)]
    matched: tuple[set, set] = (set(), set())
    low, high = BOUNDS[choice % len(BOUNDS)]
    for one, begin in sides[0]:
        for other, other_begin in sides[1]:
            within = begin == other_begin if kind == "window" else low <= other["at"] - one["at"] <= high
            if one["key"] is not None and one["key"] == other["key"] and within:
                found[one["number"], other["number"], begin] += 1
                matched[0].add((one["number"], begin))
                matched[1].add((other["number"], begin))
    for side, name in enumerate(("left", "right")):
        for row, begin in sides[side] if how in (name, "outer") else ():
            if (row["number"], begin) not in matched[side]:
                found[(row["number"], None, begin) if side == 0 else (None, row["number"], begin)] += 1
    return found


def _begins(kind: str, choice: int, at: int) -> list[int | None]:
    if kind != "window":
        return [None]
    window = WINDOWS[choice % len(WINDOWS)]
    last = at - (at - window.start) % window.frequency
    return [begin for begin in range(last, at - window.length, -window.frequency) if begin + window.length > at]
