"""Thin streams: what small, paced batches cost, and how long their rows take from their due time to the sink.

Measures, one JSON line per setting with medians of the runs; cores are CPU seconds of the workers per second:

- topology: three computes of own logic (per batch, per row, per key) over three source instances, with sinks that
  append to files, on one worker of two threads, and with a core each on a second worker. Time that the input took,
  divided by the time in which it was due; rows per sub-batch.
- one-row: 1,000 batches of one row per second from a source through a count to a sink.
- latency: from the due time of a row to the sink, of a stream in batches of a millisecond: on one node, read by an
  `Iterable` with a rate, read by an `Iterable` whose function waits until rows are due, or sent with `job.send`;
  each also through a remote task and back, and across, from a source to a home on another node. With a rate, a source
  reads the rows of a tick together, most of them before they are due.
- idle: cores of a cluster with an idle job of 20 executors beyond those of one without it, in windows of 10 seconds.

Beside them run a bare hand-over of the same batches from one Python thread to another and, if installed, Bytewax, each
in a process of its own; beside `job.send`, a further process sends them the batches through a pipe. docs/benchmarks.md
explains the lines.

    python benchmarks/thin.py [--measure topology one-row latency idle] [--rate 2000 20000] [--seconds 2] [--runs 3]
                              [--light-load 0] [--latency-rate 1000 10000 100000] [--way one-node remote across]
                              [--through iterable blocking send] [--limit 20]
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _bare_streams import bare_count, bare_logic, bare_sent
from _cpu import ClusterCpu
from _due_rows import (
    SCHEMA,
    WARM_SECONDS,
    Received,
    all_keys,
    due_batches,
    due_rows,
    forget_received,
    receive,
    received,
)
from _idle_clusters import IdleSetting, side_by_side
from _own_logic import LEVELS, batches_so_far, forget_batches, make_topology
from distributed import Client, LocalCluster

import dask_elastic as de

MEASURES = ("topology", "one-row", "latency", "idle")
WAYS = ("one-node", "remote", "across")
THROUGH = ("iterable", "blocking", "send")
ONE_ROW_RATE = 1_000.0
IDLE_EXECUTORS = 20
MOVING_SECONDS = 3.0
"""Warm-up of a stream whose shards first move to a remote task."""

SUSTAINED = 1.1
"""A stream is sustained if it takes at most this multiple of the time in which it is due; the last rows come late."""

MARK_SECONDS = 0.2
"""CPU time is read for the first time so long before the first counted row, so that reading does not delay it."""

Line = dict[str, Any]


@contextmanager
def cluster_of(workers: int, threads: int) -> Iterator[Client]:
    """Start a cluster and run a job on it, so that the workers have imported everything."""
    with (
        LocalCluster(n_workers=workers, threads_per_worker=threads, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        latency_run(client, 1_000.0, 0.5, "one-node", "iterable")
        yield client


class Others:
    """The bare hand-over and Bytewax, which run in a process of their own."""

    def __init__(self, pool: ProcessPoolExecutor, bytewax: bool):
        self._pool = pool
        self._bytewax = bytewax

    def count(self, rate: float, seconds: float, through: str = "iterable") -> Line:
        """Run the stream with due times: with `send`, another process sends it through a pipe."""
        found: Line = {}
        runs = (bare_sent, "bytewax_sent") if through == "send" else (bare_count, "bytewax_count")
        for name, run in self._runs(*runs):
            stream, cores = self._pool.submit(run, rate, seconds).result()
            found |= {f"{name}_{key}": value for key, value in quantiles(stream).items()} | {f"{name}_cores": cores}
        return found

    def logic(self, rate: float, seconds: float) -> Line:
        """Run the three computes of own logic."""
        found: Line = {}
        for name, run in self._runs(bare_logic, "bytewax_logic"):
            with tempfile.TemporaryDirectory() as folder:
                found[f"{name}_cores"] = self._pool.submit(run, rate, seconds, Path(folder)).result()
        return found

    def _runs(self, bare: Callable[..., Any], bytewax: str) -> Iterator[tuple[str, Callable[..., Any]]]:
        yield "bare", bare
        if self._bytewax:
            yield "bytewax", functools.partial(run_in_bytewax, bytewax)


def run_in_bytewax(name: str, *arguments: Any) -> Any:
    """Call a function of the module that imports Bytewax."""
    return getattr(importlib.import_module("_bytewax_streams"), name)(*arguments)


def quantiles(stream: Received) -> Line:
    """Return quantiles of the latencies in milliseconds."""
    found = stream.latencies.quantiles((0.5, 0.99, 0.999))
    names = ("p50_ms", "p99_ms", "p99_9_ms")
    return {name: float("nan") if value is None else value * 1e3 for name, value in zip(names, found, strict=True)}


def topology_run(client: Client, rate: float, seconds: float, limit: float, light_load: float | None = None) -> Line:
    """Run the three computes; with several workers, each executor has a core on each of them."""
    options = {} if light_load is None else {"light_load": light_load}
    client.run(forget_batches)
    with tempfile.TemporaryDirectory() as folder:
        topology, rows = make_topology(rate, seconds + WARM_SECONDS, Path(folder))
        job = de.submit(topology, client, latency_target=None, **options)
        if len(workers := client.nthreads()) > 1:
            for level in LEVELS:
                job.set_cores(f"per_{level}", dict.fromkeys(workers, 1))
        time.sleep(WARM_SECONDS)
        cpu = ClusterCpu(client)
        finished = ended_within(job, limit + (seconds + WARM_SECONDS))
        cores = cpu.cores()
        so_far = list(client.run(batches_so_far).values())
        took = job._describe().ended - min(start for start, *_ in so_far) if finished else float("inf")
        if finished:
            for level in LEVELS:
                assert job.state(f"per_{level}").to_arrow()["n"].to_numpy().sum() == rows, f"per_{level} lost rows"
        job.forget()
    sub_batches, sub_batch_rows, written, written_rows = (sum(part) for part in list(zip(*so_far, strict=True))[1:])
    return {
        "time_ratio": took / (rows / rate),
        "cores": cores,
        "rows_per_sub_batch": sub_batch_rows / max(sub_batches, 1),
        "rows_per_write": written_rows / max(written, 1),
    }


def ended_within(job: de.Job, seconds: float) -> bool:
    """Wait for the end of a job; returns whether it has ended."""
    try:
        job.wait(timeout=seconds, progress=False)
    except TimeoutError:
        return False
    return True


def latency_run(client: Client, rate: float, seconds: float, way: str, through: str, limit: float = 60.0) -> Line:
    """Run the stream with due times; returns latencies of the counted rows, and cores of workers and client."""
    client.run(forget_received)
    warm = MOVING_SECONDS if way == "remote" else WARM_SECONDS
    job = de.submit(
        latency_topology(rate, seconds, warm, way, through), client, cores={"per_key": 1}, latency_target=None
    )
    home = job.assignment()["home"][0]
    if way == "remote":
        job.set_cores("per_key", {next(worker for worker in client.nthreads() if worker != home): 1})
    began = time.time()
    if through == "send":
        cpu = send_stream(client, job, rate, seconds, warm)
    else:
        time.sleep(warm - MARK_SECONDS)
        cpu = ClusterCpu(client)
    finished = ended_within(job, limit + seconds + warm)
    found = {"finished": finished, "cores": cpu.cores(), "client_cores": cpu.own_cores()}
    parts = client.run(received)
    stream = Received()
    for part in parts.values():
        stream.merge(part)
    if through != "send":
        assert (parts[home].started > 0) == (way != "across"), "the source is on the wrong node"
    if way == "remote":
        assert job.assignment()["remote"].all(), "the task is not remote"
        found["settled"] = bool(job.moves()["ended"].max() < (stream.started or began) + warm)
    job.forget()
    counts = {"rows_per_write": stream.rows / stream.calls, "early": stream.early / stream.rows}
    return quantiles(stream) | found | counts


def latency_topology(rate: float, seconds: float, warm: float, way: str, through: str) -> de.Topology:
    """Return a count per key of the stream with due times, whose sink records latencies."""
    if through == "send":
        source: Any = de.sources.Push(SCHEMA)
    else:
        blocking = through == "blocking"
        rows = functools.partial(due_rows, rate, seconds, warm, blocking)
        source = de.sources.Iterable(rows, rate=None if blocking else rate)
    topology = de.Topology("thin")
    keys = de.sources.Arrow(all_keys())
    # The first source is placed on the first node, the home; the second one on the second node, if there is one.
    sources = {"keys": keys, "stream": source} if way == "across" else {"stream": source, "keys": keys}
    first, second = (topology.source(name, made) for name, made in sources.items())
    aggregates = {"rows": de.aggregate.Count(), "due": de.aggregate.Max("due")}
    counted = first.union(second).key_by("key").compute(aggregates, name="per_key", executors=1)
    counted.sink(de.sinks.Call(receive), name="out")
    return topology


def send_stream(client: Client, job: de.Job, rate: float, seconds: float, warm: float) -> ClusterCpu:
    """Send the rows that are due, again and again; a slow call makes the next one carry more rows."""
    waiting = [batch for _, batch in due_batches(rate, seconds, 0.0, warm)]
    size = waiting[0].num_rows
    keys, after = (np.concatenate([batch[name].to_numpy() for batch in waiting]) for name in ("key", "due"))
    began = time.time() + MARK_SECONDS
    batch = pa.record_batch([keys, np.where(after > 0, after + began, 0.0)], schema=SCHEMA)
    cpu: ClusterCpu | None = None
    sent = 0
    while sent < len(waiting):
        passed = time.time() - began
        if cpu is None and passed >= warm - MARK_SECONDS:
            cpu = ClusterCpu(client)
        ready = min(int(passed * rate / size) + 1, len(waiting)) if passed >= 0 else 0
        if ready > sent:
            job.send(batch.slice(sent * size, (ready - sent) * size), "stream")
            sent = ready
        else:
            time.sleep(max(0.0, began + sent * size / rate - time.time()))
    job.end_of_input("stream")
    assert cpu is not None, "the stream is longer than its warm-up"
    return cpu


def idle_runs(windows: int) -> list[Line]:
    """Measure a cluster with an idle job and one without a job in the same windows."""
    found = side_by_side(IdleSetting(executors=IDLE_EXECUTORS, windows=windows), ("without", "with"))
    return [
        {
            "cores_without": without.workers,
            "cores": having.workers,
            "beyond_cores": having.workers - without.workers,
            "beyond_scheduler_cores": having.scheduler - without.scheduler,
        }
        for without, having in zip(found["without"], found["with"], strict=True)
    ]


def medians(runs: list[Line]) -> Line:
    """Return the medians of the runs, rounded; for whether a run finished or settled, whether all did."""
    figures = {name: [run[name] for run in runs] for name in runs[0]}
    return {
        name: all(values) if isinstance(values[0], bool) else round(statistics.median(values), 4)
        for name, values in figures.items()
    }


def report(measure: str, setting: Line, runs: list[Line]) -> None:
    """Print a line."""
    line = {"benchmark": "thin", "measure": measure, **setting, "runs": len(runs), **medians(runs)}
    if "time_ratio" in line:
        ratio = line["time_ratio"]
        line |= {"sustained": ratio <= SUSTAINED, "time_ratio": None if ratio == float("inf") else ratio}
    print(json.dumps(line), flush=True)


def topology_lines(arguments: argparse.Namespace, others: Others) -> None:
    """Measure the topology on one worker, and with a core each on a second one."""
    for workers in (1, 2):
        with cluster_of(workers, 2) as client:
            for rate in arguments.rate:
                runs = []
                for _ in range(arguments.runs):
                    run = topology_run(client, rate, arguments.seconds, arguments.limit, arguments.light_load)
                    runs.append(run | (others.logic(rate, arguments.seconds) if workers == 1 else {}))
                report("topology", {"layout": f"{workers} x 2", "rate": rate}, runs)


def one_row_lines(arguments: argparse.Namespace, others: Others) -> None:
    """Measure one-row batches."""
    with cluster_of(1, 2) as client:
        runs = [
            latency_run(client, ONE_ROW_RATE, arguments.seconds, "one-node", "iterable", arguments.limit)
            | others.count(ONE_ROW_RATE, arguments.seconds)
            for _ in range(arguments.runs)
        ]
    report("one-row", {"rate": ONE_ROW_RATE}, runs)


def latency_lines(arguments: argparse.Namespace, others: Others) -> None:
    """Measure latencies; those of the others stand beside the first line of each rate, and beside what is sent."""
    for way in arguments.way:
        workers, threads = (1, 2) if way == "one-node" else (2, 1)
        with cluster_of(workers, threads) as client:
            for through in arguments.through:
                for rate in arguments.latency_rate:
                    runs = []
                    for _ in range(arguments.runs):
                        run = latency_run(client, rate, arguments.seconds, way, through, arguments.limit)
                        beside = way == "one-node" and (through == "send" or through == arguments.through[0])
                        runs.append(run | (others.count(rate, arguments.seconds, through) if beside else {}))
                    report("latency", {"way": way, "through": through, "rate": rate}, runs)


def idle_lines(arguments: argparse.Namespace, others: Others) -> None:
    """Measure an idle job."""
    report("idle", {"layout": "2 x 2", "executors": IDLE_EXECUTORS}, idle_runs(arguments.runs))


LINES = {"topology": topology_lines, "one-row": one_row_lines, "latency": latency_lines, "idle": idle_lines}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="+", choices=MEASURES, default=MEASURES)
    parser.add_argument("--rate", type=float, nargs="+", default=[2_000.0, 20_000.0], help="of the topology, rows/s")
    parser.add_argument("--light-load", type=float, help="of the topology; 0 uses all cores at any load")
    parser.add_argument("--latency-rate", type=float, nargs="+", default=[1_000.0, 10_000.0, 100_000.0])
    parser.add_argument("--way", nargs="+", choices=WAYS, default=WAYS, help="of latency")
    parser.add_argument(
        "--through", nargs="+", choices=THROUGH, default=["iterable", "send"], help="how rows reach the source"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run, beside a second of warm-up")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that a stream may lag before it is stopped")
    arguments = parser.parse_args()
    bytewax = importlib.util.find_spec("bytewax") is not None
    missing = "not installed, left out: pip install 'dask-elastic[benchmarks]'"
    found = importlib.metadata.version("bytewax") if bytewax else missing
    print(json.dumps({"benchmark": "thin", "bytewax": found}), flush=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for measure in arguments.measure:
            LINES[measure](arguments, Others(pool, bytewax))


if __name__ == "__main__":
    main()
