"""A job with windows, and what it must emit, computed row by row."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
from followed_job import UnopenedSink
from timer_job import Place, Steps, with_through

from dask_elastic.topology import Topology
from dask_elastic.topology.aggregate import Count, Max, Sum
from dask_elastic.topology.aggregates.user_aggregate import custom
from dask_elastic.topology.windowing import EventWindow, SessionWindow, Windowing

KEYS = 8
SLACK = 6
"""Microseconds by which rows may be older than those before them without being late."""

TIME = "window_end"
"""The column of times of the rows, named as that of results, so that watermarks are compared with results as well."""

WINDOWINGS = (
    Windowing((EventWindow(0, 20, 20),), (TIME,)),
    Windowing((EventWindow(3, 40, 10),), (TIME,)),
    Windowing((EventWindow(0, 10, 10), EventWindow(0, 30, 30), EventWindow(5, 20, 10)), (TIME,)),
    Windowing((EventWindow(0, 10, 25),), (TIME,)),
    Windowing((EventWindow(0, 20, 20),), (TIME,), allowed_lateness=15),
    Windowing((EventWindow(0, 30, 10),), (TIME,), allowed_lateness=10),
    Windowing((EventWindow(0, 30, 10),), (TIME,), emit="updates"),
    Windowing((EventWindow(0, 20, 20),), (TIME,), allowed_lateness=40, emit="updates"),
    Windowing((SessionWindow(12),), (TIME,)),
)

Instance = tuple[str, int, int]
"""Key, begin and end."""


def make_batches(random: np.random.Generator, batches: int) -> list[pa.RecordBatch]:
    """Return rows whose times rise with steps back, some of them later than the slack, some without a time."""
    made, time, number = [], 0, 0
    for size in random.integers(1, 9, size=batches).tolist():
        at = time + np.cumsum(random.integers(0, 7, size))
        time = int(at[-1])
        at = at - random.choice([0, 4, 15, 40], size, p=[0.6, 0.2, 0.1, 0.1])
        made.append(
            pa.record_batch(
                {
                    "key": pa.array([f"k{key}" for key in random.integers(0, KEYS, size).tolist()]),
                    TIME: pa.array(at, pa.timestamp("us"), mask=random.random(size) < 0.05),
                    "number": pa.array(np.arange(number, number + size)),
                    "value": pa.array(random.integers(1, 100, size)),
                }
            )
        )
        number += size
    return made


def _add(acc: list[int], rows: pa.RecordBatch) -> list[int]:
    return acc + rows["number"].to_pylist()


AGGREGATES = {
    "rows": Count(),
    "sum": Sum("value"),
    "most": Max("value"),
    "numbers": custom(["number"], list, _add, list.__add__, sorted, pa.list_(pa.int64())),
}


def make_topology(
    batches: list[pa.RecordBatch], shards: int, windowing: Windowing, logic: Any = None, place: Place = "alone"
) -> Topology:
    topology = Topology("windows")
    source = Steps(batches)
    source.event_time, source.slack = TIME, SLACK * 1e-6
    keyed = topology.source("steps", source).key_by("key")
    make = with_through(
        keyed, shards, place, lambda rows, name: rows.compute(logic or AGGREGATES, name=name, shards=shards)
    )
    make.sink(UnopenedSink(), name="results")
    name = "timed" if place == "behind" else "per_key"
    topology._operators[name] = dataclasses.replace(topology._operators[name], windowing=windowing)
    return topology


@dataclasses.dataclass
class Expected:
    """The numbers of the rows of each instance that came before it closed, and of all rows that count; and counts."""

    on_time: dict[Instance, list[int]]
    all: dict[Instance, list[int]]
    counts: Counter[str]


def expected(batches: list[pa.RecordBatch], windowing: Windowing) -> Expected:
    """Return what each instance contains. After each batch the watermark is the newest time less the slack."""
    found = Expected(defaultdict(list), defaultdict(list), Counter())
    sessions: dict[str, list[tuple[int, int]]] = defaultdict(list)
    newest: int | None = None
    watermark = -(10**9)
    for rows in batches:
        times = rows[TIME].cast(pa.int64()).to_pylist()
        for key, time, number in zip(rows["key"].to_pylist(), times, rows["number"].to_pylist(), strict=True):
            if time is None:
                found.counts["untimed"] += 1
                continue
            if isinstance(session := windowing.windows[0], SessionWindow):
                is_late = time + session.gap + windowing.allowed_lateness <= watermark
                is_closed = time + session.gap <= watermark
                found.counts["late" if is_late else "corrected" if is_closed else "on_time"] += 1
                if not is_late:
                    sessions[key].append((time, number))
                continue
            containing = [span for window in windowing.windows for span in spans_at(window, time)]
            found.counts["outside"] += not containing
            for begin, end in containing:
                if end + windowing.allowed_lateness <= watermark:
                    found.counts["late"] += 1
                    continue
                found.counts["on_time" if end > watermark else "corrected"] += 1
                found.all[key, begin, end].append(number)
                if end > watermark:
                    found.on_time[key, begin, end].append(number)
        newest = max([time for time in (newest, *times) if time is not None], default=None)
        watermark = watermark if newest is None else max(watermark, newest - SLACK)
        if isinstance(session := windowing.windows[0], SessionWindow):
            _close(sessions, session.gap, watermark - windowing.allowed_lateness, found)
    if isinstance(session := windowing.windows[0], SessionWindow):
        _close(sessions, session.gap, 10**12, found)
    return found


def _close(sessions: dict[str, list[tuple[int, int]]], gap: int, watermark: int, found: Expected) -> None:
    """Move the sessions that end at a watermark or before from the open rows to the results."""
    for key, rows in sessions.items():
        runs: list[list[tuple[int, int]]] = []
        for row in sorted(rows):
            if not runs or row[0] - runs[-1][-1][0] >= gap:
                runs.append([])
            runs[-1].append(row)
        for run in runs:
            if run[-1][0] + gap <= watermark:
                instance = key, run[0][0], run[-1][0] + gap
                numbers = [number for _, number in run]
                found.all[instance] += numbers
                found.on_time[instance] += numbers
                rows[:] = [row for row in rows if row not in run]


def spans_at(window: EventWindow, time: int) -> list[tuple[int, int]]:
    """Return the instances of a window that contain a time, found by trying all begins near it."""
    least = (time - window.start - window.length) // window.frequency - 1
    begins = range(window.start + least * window.frequency, time + 1, window.frequency)
    return [(begin, begin + window.length) for begin in begins if begin <= time < begin + window.length]
