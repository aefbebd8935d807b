"""Throughput of keyed running aggregates, compared with bare loops of the same steps.

The stream of `rows` has a count, a sum and a sum of payload lengths per integer key; the one of `words` has lines of
ten words, which are split and counted: its rows are words.

Prints one JSON line per layout: the engine's and the bare loop's rows per second (medians of the runs, which alternate)
and their ratio. The payload reaches the operator, the sources yield unhashed and unpartitioned rows, and nothing is
aggregated upstream.

The operator has the cores that the control loop gives it, which are all of the workers, or `--cores` of one worker, so
that its tasks and the source have fewer threads to share the interpreter with.

    python benchmarks/throughput.py [--rows 10000000] [--runs 5] [--batch 65536] [--layout threads|processes]
        [--stream rows|words] [--cores 1]
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _stream import batches, line_batches, started, stream, warm
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.state.index import make_index

AGGREGATES = {
    "rows": de.aggregate.Count(),
    "total": de.aggregate.Sum("value"),
    "bytes": de.aggregate.Sum(lambda batch: pc.binary_length(batch["payload"]), columns=["payload"]),
}


class BareState:
    """Count, sum and sum of lengths per key, in plain NumPy."""

    def __init__(self, keys: int = 10_000):
        self.index = make_index()
        self.sums = [np.zeros(keys * 2, dtype=t) for t in (np.int64, np.float64, np.int64)]

    def update(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add a batch."""
        slots = self.index.lookup(hashes)
        missing = np.unique(hashes[slots < 0])
        if len(missing):
            self.index.insert(missing, np.arange(len(self.index), len(self.index) + len(missing)))
            slots = self.index.lookup(hashes)
        size = len(self.sums[0])
        lengths = pc.binary_length(rows["payload"]).to_numpy()
        self.sums[0] += np.bincount(slots, minlength=size)
        self.sums[1] += np.bincount(slots, weights=rows["value"].to_numpy(), minlength=size)
        self.sums[2] += np.bincount(slots, weights=lengths, minlength=size).astype(np.int64)


class BareWords:
    """Count per word, in plain NumPy."""

    def __init__(self, words: int = 10_000):
        self.index = make_index()
        self.counts = np.zeros(words * 2, dtype=np.int64)

    def update(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add a batch."""
        slots = self.index.lookup(hashes)
        missing = np.unique(hashes[slots < 0])
        if len(missing):
            self.index.insert(missing, np.arange(len(self.index), len(self.index) + len(missing)))
            slots = self.index.lookup(hashes)
        self.counts += np.bincount(slots, minlength=len(self.counts))


def split_words(lines: pa.RecordBatch) -> pa.RecordBatch:
    """Return one row per word."""
    words = pc.list_flatten(pc.utf8_split_whitespace(lines["line"]))
    return pa.RecordBatch.from_arrays([words], names=["key"])


def unchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows."""
    return rows


class Stream(NamedTuple):
    """A stream, and what the bare loops do with it."""

    batches: Callable[[int, int], list[pa.RecordBatch]]
    mapped: Callable[[pa.RecordBatch], pa.RecordBatch]
    state: Callable[[], BareState | BareWords]
    aggregates: dict[str, de.aggregate.Aggregate]


STREAMS = {
    "rows": Stream(batches, unchanged, BareState, AGGREGATES),
    "words": Stream(line_batches, split_words, BareWords, {"rows": de.aggregate.Count()}),
}


def split_in_two(rows: pa.RecordBatch) -> list[tuple[pa.RecordBatch, np.ndarray]]:
    """Hash, sort by destination, take."""
    hashes = hash_columns(rows, ("key",))
    to = (hashes & np.uint64(1)).astype(np.uint8)
    order = np.argsort(to, kind="stable")
    first = len(to) - int(to.sum())
    rows, hashes = rows.take(pa.array(order)), hashes[order]
    return [(rows.slice(0, first), hashes[:first]), (rows.slice(first), hashes[first:])]


def bare_threads(total: int, rows: int, name: str = "rows") -> float:
    """Run two threads that each do every step for half of the stream; returns rows per second."""
    made = STREAMS[name]

    def run(seed: int) -> None:
        states = made.state(), made.state()
        for batch in stream(total // 2, rows, seed, made.batches):
            for state, (part, hashes) in zip(states, split_in_two(made.mapped(batch)), strict=True):
                state.update(part, hashes)

    for seed in (0, 1):
        made.batches(rows, seed)
    threads = [threading.Thread(target=run, args=(seed,)) for seed in (0, 1)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return total / (time.perf_counter() - began)


def _receive(link: socket.socket) -> bytearray | None:
    head = link.recv(8, socket.MSG_WAITALL)
    body = bytearray(int.from_bytes(head, "little"))
    view, got = memoryview(body), 0
    while got < len(body):
        got += link.recv_into(view[got:])
    return body or None


def _bare_process(total: int, rows: int, name: str, seed: int, control: Connection) -> None:
    """One of two peers: a thread reads, splits, sends; another receives; both update the state."""
    made = STREAMS[name]
    schema = made.mapped(made.batches(rows, seed)[0]).schema
    server = socket.create_server(("127.0.0.1", 0))
    control.send(server.getsockname()[1])
    out = socket.create_connection(("127.0.0.1", control.recv()))
    into, _ = server.accept()
    control.send("ready")
    control.recv()
    state, lock = made.state(), threading.Lock()

    def send() -> None:
        for batch in stream(total // 2, rows, seed, made.batches):
            parts = split_in_two(made.mapped(batch))
            mine, theirs = parts[seed], parts[1 - seed]
            body = theirs[0].serialize()
            out.sendall(len(body).to_bytes(8, "little"))
            out.sendall(body)
            with lock:
                state.update(*mine)
        out.sendall((0).to_bytes(8, "little"))

    sender = threading.Thread(target=send)
    sender.start()
    while (body := _receive(into)) is not None:
        received = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        hashes = hash_columns(received, ("key",))
        with lock:
            state.update(received, hashes)
    sender.join()
    control.send("done")


def bare_processes(total: int, rows: int, name: str = "rows") -> float:
    """Run two processes that exchange half of their rows as Arrow IPC over sockets; returns rows per second."""
    context = multiprocessing.get_context("spawn")
    controls = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=_bare_process, args=(total, rows, name, seed, controls[seed][1])) for seed in (0, 1)
    ]
    for process in processes:
        process.start()
    ports = [control.recv() for control, _ in controls]
    for (control, _), port in zip(controls, reversed(ports), strict=True):
        control.send(port)
    for control, _ in controls:
        control.recv()
    began = time.perf_counter()
    for control, _ in controls:
        control.send("go")
    for control, _ in controls:
        control.recv()
    took = time.perf_counter() - began
    for process in processes:
        process.join()
    return total / took


def engine(client: Client, total: int, rows: int, sources: int, name: str = "rows", cores: int | None = None) -> float:
    """Run the same with dask_elastic; returns rows per second from the first row to the end of the last."""
    made = STREAMS[name]
    topology = de.Topology("throughput")
    read = functools.partial(stream, total // sources, rows, made=made.batches)
    inputs = [
        topology.source(f"stream-{seed}", de.sources.Iterable(functools.partial(read, seed=seed)))
        for seed in range(sources)
    ]
    merged = inputs[0].union(*inputs[1:]) if sources > 1 else inputs[0]
    if made.mapped is not unchanged:
        merged = merged.map(made.mapped)
    merged.key_by("key").compute(made.aggregates, name="per_key")
    client.run(warm, rows, made.batches)
    pinned = {} if cores is None else {"cores": {"per_key": cores}}
    job = de.submit(topology, client, **pinned)
    job.wait(progress=False)
    began = min(first for first in client.run(started).values() if first)
    took = job._describe().ended - began
    state = job.state("per_key").to_pandas()
    assert state["rows"].sum() == total // sources // rows * rows * sources
    if "bytes" in state:
        assert state["bytes"].sum() == state["rows"].sum() * 128
    job.forget()
    return total / took


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--stream", choices=tuple(STREAMS), default="rows")
    parser.add_argument("--cores", type=int, help="of the operator; by default those that the control loop gives it")
    parser.add_argument("--layout", choices=("threads", "processes"), action="append")
    arguments = parser.parse_args()
    for layout in arguments.layout or ("threads", "processes"):
        workers, threads, sources = (1, 2, 1) if layout == "threads" else (2, 1, 2)
        bare = bare_threads if layout == "threads" else bare_processes
        measured: dict[str, list[float]] = {"engine": [], "bare": []}
        with (
            LocalCluster(n_workers=workers, threads_per_worker=threads, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            for _ in range(arguments.runs + 1):
                found = engine(client, arguments.rows, arguments.batch, sources, arguments.stream, arguments.cores)
                measured["engine"].append(found)
                measured["bare"].append(bare(arguments.rows, arguments.batch, arguments.stream))
        medians = {name: statistics.median(values[1:]) for name, values in measured.items()}
        line = {
            "benchmark": "throughput",
            "stream": arguments.stream,
            "layout": f"{workers} x {threads}",
            "cores": arguments.cores,
            "batch_rows": arguments.batch,
            "rows": arguments.rows,
            "runs": arguments.runs,
            "engine_rows_per_s": round(medians["engine"]),
            "bare_rows_per_s": round(medians["bare"]),
            "ratio": round(medians["engine"] / medians["bare"], 3),
            "all_engine": [round(v) for v in measured["engine"][1:]],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
