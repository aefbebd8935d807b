"""Cost of sampling the traffic between key groups: processor time of a task, with samples and without.

Prints one JSON line per number of rows of a batch: the share that samples add, samples per second, and microseconds of
a batch with a sample and without. Each call is timed: what a sampled batch takes beyond the median of the others is
added by its sample, so that the drift of the machine, which is larger, does not count. The task counts rows by key and
emits every row, split and hashed for a second operator; sources, queues and channels would make the share smaller.

    python benchmarks/group_traffic.py [--rows 10 1000 30000] [--groups 64] [--seconds 20]
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 1_000, 30_000])
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    for rows in given.rows:
        random = np.random.default_rng(0)
        made = pa.record_batch({"key": random.integers(0, KEYS, rows), "value": random.normal(size=rows)})
        batch = Batch(made, hash_columns(made, ["key"]), 0.0)
        processor, flows = a_processor(given.groups), CountedFlows()
        processor.sample_traffic(flows, contextlib.nullcontext(), time.perf_counter)
        taken: dict[bool, list[float]] = {True: [], False: []}
        ends = time.perf_counter() + given.seconds
        while time.perf_counter() < ends:
            before, began = flows.samples, time.thread_time()
            processor.process(batch)
            taken[flows.samples > before].append(time.thread_time() - began)
        usual, sampled = statistics.median(taken[False]), taken[True]
        line = {
            "rows": rows,
            "groups": given.groups,
            "added": round((sum(sampled) - usual * len(sampled)) / sum(taken[False]), 5),
            "samples_per_second": round(len(sampled) / given.seconds, 1),
            "batch_us": round(1e6 * usual, 1),
            "sampled_batch_us": round(1e6 * statistics.median(sampled), 1),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
