"""Processor time of one batch by its rows, from the source's emitter to the emitted results, stage by stage.

Prints one JSON line per setting: microseconds per batch of each stage and in sum, in the fastest of many short rounds,
since whatever else runs on the machine only ever adds time. One thread runs the engine's own objects without a cluster:
the source's emitter hashes and splits the rows, the executor routes them to its tasks, a task takes them, its processor
runs the logic and routes the results, the results are delivered, and the executor settles them. Waiting, waking
threads, credit and connections are not included.

    python benchmarks/small_batches.py [--rows 1 4 16 256 4096 65536] [--logic count several batch row key]
        [--key int string] [--tasks 1 4] [--rounds 20] [--seconds 0.02] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import pstats
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.executor import instructions as do
from dask_elastic.executor.emitter import Emitter
from dask_elastic.executor.error_policy import ErrorPolicy
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.task_queue import Work
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.topology.component import build_components
from dask_elastic.vocab.identity import ExecutorId

KEYS = 1_000
SHARDS = 256
MOST_BATCHES = 256
SLOW_ROWS = 4_096
"""The most rows of a batch for logic that runs Python per row or per key."""

STAGES = ("emit", "accept", "take", "process", "deliver", "settle")
KEY_TYPES = {"int": pa.int64(), "string": pa.string()}
SOURCE = ExecutorId("rows", 0)
OUTPUT = {"number": pa.int64(), "count": pa.int64()}


def by_batch(batch: pa.RecordBatch, state: Any) -> pa.RecordBatch:
    """Count each key's rows and add its numbers, on whole columns."""
    numbers = batch["number"].to_numpy()
    state.set("count", state.get("count") + np.bincount(state.ordinals, minlength=len(state)))
    total = state.get("total")
    np.add.at(total, state.ordinals, numbers)
    state.set("total", total)
    return pa.record_batch({"number": numbers, "count": state.get("count")[state.ordinals]})


@de.per_row(output=OUTPUT)
def by_row(row: dict[str, Any], state: Any) -> dict[str, Any]:
    """Count a row and add its number."""
    count = state.get("count", 0) + 1
    state["count"], state["total"] = count, state.get("total", 0) + row["number"]
    return {"number": row["number"], "count": count}


@de.per_key(output=OUTPUT)
def by_key(key: object, batch: pa.RecordBatch, state: Any) -> list[dict[str, Any]]:
    """Count a key's rows and add their numbers."""
    made = []
    for number in batch["number"].to_pylist():
        count = state.get("count", 0) + 1
        state["count"], state["total"] = count, state.get("total", 0) + number
        made.append({"number": number, "count": count})
    return made


LOGIC: dict[str, Any] = {
    "count": {"count": agg.Count()},
    "several": {
        "count": agg.Count(),
        "total": agg.Sum("number"),
        "mean": agg.Mean("value"),
        "least": agg.Min("value"),
        "most": agg.Max("number"),
    },
    "batch": by_batch,
    "row": by_row,
    "key": by_key,
}


def make_batches(rows: int, key: str) -> list[pa.RecordBatch]:
    """Return different batches, each with buffers of its own."""
    random = np.random.default_rng(rows)
    schema = pa.schema({"key": KEY_TYPES[key], "number": pa.int64(), "value": pa.float64(), "note": pa.string()})
    made = []
    for _ in range(max(4, min(MOST_BATCHES, 2**18 // rows))):
        drawn = random.integers(0, KEYS, rows)
        keys = drawn if key == "int" else [f"key-{number:08d}" for number in drawn]
        columns = [keys, random.integers(0, 1_000, rows), random.normal(size=rows), ["-"] * rows]
        made.append(pa.record_batch([pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema))
    return made


class Pipeline:
    """A source, one executor and a sink, run by the calling thread.

    Parameters
    ----------
    logic : str
        One of `LOGIC`.
    tasks : int
        Tasks of the executor.
    batches : list of RecordBatch
        What the source reads, repeatedly.
    """

    def __init__(self, logic: str, tasks: int, batches: list[pa.RecordBatch]):
        declared = None if isinstance(LOGIC[logic], dict) else {"count": pa.int64(), "total": pa.int64()}
        topology = de.Topology("small")
        stream = topology.source("rows", de.sources.Arrow(pa.Table.from_batches(batches[:1]))).key_by("key")
        stream.compute(LOGIC[logic], state=declared, name="per_key").sink(de.sinks.Call(len), name="out")
        source, compute, _ = build_components(topology)
        space = KeySpace(1, SHARDS)
        policy = ErrorPolicy("fail", lambda letter: None)
        spaces = {"per_key": space}
        self.source = Emitter("rows", source.outputs, spaces, policy, 0)
        self.executor = ElasticExecutor(ExecutorId("per_key", 0), space, 0, {0: tasks}, [SOURCE], threading.Lock)
        store = self.executor.store
        self.processors = [Processor(compute, task, store, spaces, policy, 0) for task in range(tasks)]
        for task in range(tasks):
            assert self.executor.take(task) is None
        self._batches = itertools.cycle(batches)
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def run(self, count: int) -> None:
        """Pass some batches from the source to the sink, and add the seconds of each stage."""
        clock, seconds, executor = time.perf_counter, self.seconds, self.executor
        for rows in itertools.islice(self._batches, count):
            now = time.time()
            began = clock()
            emitted = self.source.emit([rows], now)
            made = clock()
            seconds["emit"] += made - began
            tasks: list[do.Wake | do.Run] = []
            for _, batch in emitted:
                nbytes = batch.nbytes
                for instruction in executor.accept(executor.split(batch), SOURCE, batch, nbytes, now):
                    assert isinstance(instruction, do.Wake | do.Run)
                    tasks.append(instruction)
            seconds["accept"] += clock() - made
            for instruction in tasks:
                if isinstance(instruction, do.Run):
                    self._run_inline(instruction.task, now)
                else:
                    while self._run_next(instruction.task, now):
                        pass

    def _run_inline(self, task: int, now: float) -> None:
        """Run a task as the thread does that brings it a batch."""
        began = time.perf_counter()
        taken = self.executor.begin_run(task, now)
        if taken is None:
            # It would take too long for that thread, since more rows wait than when it was told to run the task.
            self.seconds["take"] += time.perf_counter() - began
        else:
            self._process(task, *taken, now, began)
        if self.executor.end_run(task):
            while self._run_next(task, now):
                pass

    def _run_next(self, task: int, now: float) -> bool:
        """Run what waits for a task as its own thread does; returns whether anything did."""
        began = time.perf_counter()
        taken = self.executor.take(task, now)
        if taken is None:
            self.seconds["take"] += time.perf_counter() - began
            return False
        number, work = taken
        assert isinstance(work, Work)
        self._process(task, number, work, now, began)
        return True

    def _process(self, task: int, number: int, work: Work, now: float, began: float) -> None:
        clock, seconds, executor = time.perf_counter, self.seconds, self.executor
        batch = work.batch()
        was_taken = clock()
        outputs = self.processors[task].process(batch)
        processed = clock()
        executor.emitted(sum(output.batch.nbytes for output in outputs), now)
        delivered = clock()
        executor.done(task, number, processed - was_taken, now)
        settled = clock()
        seconds["take"] += was_taken - began
        seconds["process"] += processed - was_taken
        seconds["deliver"] += delivered - processed
        seconds["settle"] += settled - delivered


def measured(pipeline: Pipeline, distinct: int, seconds: float, rounds: int) -> Iterator[dict[str, float]]:
    """Yield microseconds per batch by stage, once per round; no key is new then, since all batches passed before."""
    pipeline.run(2 * distinct)
    began = time.perf_counter()
    pipeline.run(4)
    count = max(4, int(4 * seconds / (time.perf_counter() - began)))
    for _ in range(rounds):
        pipeline.seconds = dict.fromkeys(STAGES, 0.0)
        pipeline.run(count)
        yield {stage: took / count * 1e6 for stage, took in pipeline.seconds.items()}


def print_profile(pipeline: Pipeline, count: int) -> None:
    """Pass some batches, and print the functions with the most time of their own."""
    profile = cProfile.Profile()
    profile.runcall(pipeline.run, count)
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 256, 4_096, 65_536])
    parser.add_argument("--logic", nargs="*", default=[*LOGIC], choices=[*LOGIC])
    parser.add_argument("--key", nargs="*", default=[*KEY_TYPES], choices=[*KEY_TYPES])
    parser.add_argument("--tasks", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--profile", action="store_true", help="print a profile instead of times")
    chosen = parser.parse_args()
    for key, rows in itertools.product(chosen.key, chosen.rows):
        batches = make_batches(rows, key)
        for logic, tasks in itertools.product(chosen.logic, chosen.tasks):
            if logic in ("row", "key") and rows > SLOW_ROWS:
                continue
            pipeline = Pipeline(logic, tasks, batches)
            if chosen.profile:
                pipeline.run(2 * len(batches))
                print_profile(pipeline, 20_000 // rows + 10)
                continue
            rounds = measured(pipeline, len(batches), chosen.seconds, chosen.rounds)
            fastest = min(rounds, key=lambda found: sum(found.values()))
            stages = {stage: round(took, 2) for stage, took in fastest.items()}
            total = sum(fastest.values())
            setting = {"benchmark": "small batches", "logic": logic, "key": key, "rows": rows, "tasks": tasks}
            print(json.dumps({**setting, "us": round(total, 1), "us_per_row": round(total / rows, 3), **stages}))


if __name__ == "__main__":
    main()
