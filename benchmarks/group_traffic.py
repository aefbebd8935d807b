"""Cost of sampling the traffic between key groups: processor time of a task per row, with samples and without.

Prints one JSON line per number of rows of a batch: nanoseconds per row with samples and without, the share that samples
add, as the median of the ratios of many slices that take turns, and samples per second. The task counts rows by key and
emits every row, split and hashed for a second operator; sources, queues and channels would make the share smaller.

    python benchmarks/group_traffic.py [--rows 10 1000 30000] [--groups 64] [--slices 60] [--seconds 0.2]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa

import dask_elastic as de
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.processor import Processor
from dask_elastic.meters.group_flows import GroupFlows
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.topology.component import build_components
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

KEYS = 10_000


class CountedFlows(GroupFlows):
    """Counts the samples."""

    samples = 0

    def note(self, *sample: Any) -> None:
        """Add a sample."""
        self.samples += 1
        super().note(*sample)


class SliceClock:
    """Time that passes only in the slices with samples, since samples take a share of the time."""

    def __init__(self) -> None:
        self.paused, self._since = 0.0, time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self.paused

    def pause(self) -> None:
        """Let no time pass until the clock goes on."""
        self._since = time.perf_counter()

    def go_on(self) -> None:
        """Let time pass again."""
        self.paused += time.perf_counter() - self._since


def count_rows(batch: pa.RecordBatch, state: Any) -> pa.RecordBatch:
    """Count the rows of each key, and pass them on."""
    state.set("rows", state.get("rows", default=0) + np.bincount(state.ordinals, minlength=len(state)))
    return batch


def a_processor(groups: int) -> Processor:
    """Return the logic of a task that owns all groups of its operator."""
    schema = pa.schema({"key": pa.int64(), "value": pa.float64()})
    topology = de.Topology("counted")
    rows = topology.source("rows", de.sources.Push(schema)).key_by("key")
    passed = rows.compute(count_rows, state={"rows": pa.int64()}, name="first").key_by("key")
    passed.compute({"rows": de.aggregate.Count()}, name="second")
    component = next(one for one in build_components(topology) if one.name == "first")
    spaces = {name: KeySpace(1, groups) for name in ("first", "second")}
    executor = GroupExecutor(
        ExecutorId("first", 0), spaces["first"], 0, {0: 1}, [ExecutorId("rows", 0)], groups=range(groups)
    )
    for task in executor.routes.tasks:
        executor.take(task, 0.0)
    return Processor(component, 0, executor.store, spaces, ErrorPolicy("fail", lambda letter: None), 0)


def a_slice(processor: Processor, batch: Batch, seconds: float) -> float:
    """Return the seconds of processor time for one row, in one slice."""
    ends, count, began = time.perf_counter() + seconds, 0, time.thread_time()
    while time.perf_counter() < ends:
        processor.process(batch)
        count += batch.rows.num_rows
    return (time.thread_time() - began) / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 1_000, 30_000])
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--slices", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.2)
    given = parser.parse_args()
    for rows in given.rows:
        random = np.random.default_rng(0)
        made = pa.record_batch({"key": random.integers(0, KEYS, rows), "value": random.normal(size=rows)})
        batch = Batch(made, hash_columns(made, ["key"]), 0.0)
        plain, sampling, flows = a_processor(given.groups), a_processor(given.groups), CountedFlows()
        clock = SliceClock()
        sampling.sample_traffic(flows, contextlib.nullcontext(), clock)
        for processor in (plain, sampling):
            a_slice(processor, batch, given.seconds)
        clock.pause()
        ratios, spent = [], {True: 0.0, False: 0.0}
        flows.samples, sampled_for = 0, 0.0
        for turn in range(given.slices):
            found = {}
            for sampled in (True, False) if turn % 2 else (False, True):
                if sampled:
                    clock.go_on()
                found[sampled] = a_slice(sampling if sampled else plain, batch, given.seconds)
                if sampled:
                    clock.pause()
                sampled_for += given.seconds if sampled else 0.0
                spent[sampled] += found[sampled] / given.slices
            ratios.append(found[True] / found[False] - 1)
        line = {
            "rows": rows,
            "groups": given.groups,
            "sampled_ns": round(1e9 * spent[True], 1),
            "not_sampled_ns": round(1e9 * spent[False], 1),
            "added": round(statistics.median(ratios), 4),
            "samples_per_second": round(flows.samples / sampled_for, 1),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
