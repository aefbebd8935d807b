"""Latency from the due time of a tuple to the end of its processing, compared with a bare queue between threads.

Three paths: on one node (source thread, task thread); from a source's node to the home on another; and from the home
to a remote task and back. On one node, a bare queue between the same number of threads, with the same pacing and the
same state update, runs alternately. Prints one JSON line per path and rate; medians of the runs.

    python benchmarks/latency.py [--seconds 15] [--runs 5] [--rate 1000 10000 100000]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import threading
import time
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
from _stream import batches
from distributed import Client, LocalCluster
from throughput import AGGREGATES, BareState

import dask_elastic as de
from dask_elastic.meters import LatencyHistogram
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.topology.pace import Pace

ROWS = 10_000


def paced(seconds: float, rate: float) -> Any:
    """Return enough rows for the given seconds."""
    made = batches(ROWS)
    left = int(seconds * rate)
    number = 0
    while left > 0:
        yield made[number % len(made)].slice(0, min(left, ROWS))
        left -= ROWS
        number += 1


def bare(seconds: float, rate: float) -> LatencyHistogram:
    """One thread paces and hashes rows and puts them into a queue; another updates the state."""
    queue: SimpleQueue[tuple[pa.RecordBatch, Any, float] | None] = SimpleQueue()
    histogram = LatencyHistogram()

    def consume() -> None:
        state = BareState()
        while (taken := queue.get()) is not None:
            rows, hashes, due = taken
            state.update(rows, hashes)
            histogram.record(time.time() - due, rows.num_rows)

    thread = threading.Thread(target=consume)
    thread.start()
    pace = Pace(rate, time.time())
    stop = threading.Event()
    for rows in paced(seconds, rate):
        for part, due in pace.slice(rows):
            stop.wait(max(0.0, (due or 0.0) - time.time()))
            queue.put((part, hash_columns(part, ("key",)), due or 0.0))
    queue.put(None)
    thread.join()
    return histogram


def engine(client: Client, seconds: float, rate: float, way: str) -> tuple[float, float]:
    """Return p50 and p99 in seconds, over the last seconds of a run."""
    topology = de.Topology(f"latency-{way}")
    elsewhere = way == "source -> home"
    inputs = []
    if elsewhere:
        # The first source is placed on the first node, the home; the measured source on the second.
        inputs.append(topology.source("first", de.sources.Arrow(batches(ROWS)[0].slice(0, 1))))
    source = de.sources.Iterable(functools.partial(paced, seconds, rate), rate=rate)
    inputs.append(topology.source("stream", source))
    merged = inputs[0].union(*inputs[1:]) if len(inputs) > 1 else inputs[0]
    merged.key_by("key").compute(AGGREGATES, name="per_key", executors=1)
    client.run(functools.partial(_warm))
    job = de.submit(topology, client, cores={"per_key": 1})
    if way == "home -> remote -> home":
        placed = job.assignment()
        other = next(n for n in client.nthreads() if n != placed["home"][0])
        job.set_cores("per_key", {other: 1})
    job.wait(progress=False)
    measured = job.metrics().iloc[0]
    if way == "home -> remote -> home":
        assert job.assignment()["remote"].all()
    job.forget()
    return measured["latency_p50"], measured["latency_p99"]


def _warm() -> None:
    batches(ROWS)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rate", type=float, nargs="+", default=[1_000, 10_000, 100_000])
    arguments = parser.parse_args()
    batches(ROWS)
    for way in ("one node", "source -> home", "home -> remote -> home"):
        workers, threads = (1, 2) if way == "one node" else (2, 1)
        with (
            LocalCluster(n_workers=workers, threads_per_worker=threads, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            engine(client, 1.0, 1_000, way)
            for rate in arguments.rate:
                print(json.dumps(_measure(client, arguments, rate, way)), flush=True)


def _measure(client: Client, arguments: argparse.Namespace, rate: float, way: str) -> dict[str, Any]:
    ours, plain = [], []
    for _ in range(arguments.runs):
        ours.append(engine(client, arguments.seconds, rate, way))
        if way == "one node":
            histogram = bare(arguments.seconds, rate)
            plain.append((histogram.quantile(0.5) or 0.0, histogram.quantile(0.99) or 0.0))
    line = {"benchmark": "latency", "way": way, "rate": rate, "runs": arguments.runs}
    line |= {"p50_ms": _median(ours, 0), "p99_ms": _median(ours, 1)}
    if plain:
        line |= {"bare_p50_ms": _median(plain, 0), "bare_p99_ms": _median(plain, 1)}
        line["p99_ratio"] = round(line["p99_ms"] / line["bare_p99_ms"], 2)
    return line


def _median(pairs: list[tuple[float, float]], position: int) -> float:
    return round(statistics.median(pair[position] for pair in pairs) * 1e3, 3)


if __name__ == "__main__":
    main()
