"""A backlog of a thin stream is processed in larger batches, whatever the sizes of the batches before."""

from __future__ import annotations

import functools
import time

import numpy as np
import pyarrow as pa
from distributed import Client

import dask_elastic as de

RATE = 2_000
THIN_ROWS = 1_200
BACKLOG_ROWS = 4_800
ITEM_ROWS = 60

LEAST_MEAN_ROWS = 4
"""A slice of the stream, five rows at most, is divided among two executors of two tasks each: 1.3 rows for a task."""

STATE = {"n": pa.int64(), "last": pa.int64()}
OUTPUT = {"key": pa.int64(), "n": pa.int64()}


def per_batch(batch, state):
    last = np.zeros(len(state.keys), np.int64)
    last[state.ordinals] = batch["seq"].to_numpy()
    state.set("n", state.get("n", default=0) + np.bincount(state.ordinals, minlength=len(last)))
    state.set("last", last)
    return pa.record_batch({"key": batch["key"], "n": state.get("n")[state.ordinals]})


def count(state, seq):
    state["n"], state["last"] = (state["n"] or 0) + 1, seq
    return state["n"]


@de.per_row(output=OUTPUT)
def per_row(row, state):
    return {"key": row["key"], "n": count(state, row["seq"])}


@de.per_key(output=OUTPUT)
def per_key(key, batch, state):
    return [{"key": key, "n": count(state, seq)} for seq in batch["seq"].to_pylist()]


LOGIC = {"per_batch": per_batch, "per_row": per_row, "per_key": per_key}


def items(gate, number, share):
    """One source instance's share of the rows; those of the backlog are read when the gate is open."""
    keys = 100 * number + np.arange(ITEM_ROWS)
    thin = int(THIN_ROWS * share)
    for seq in range(0, int((THIN_ROWS + BACKLOG_ROWS) * share), ITEM_ROWS):
        while seq >= thin and not gate.exists():
            time.sleep(0.01)
        yield {"key": keys, "seq": np.arange(seq, seq + ITEM_ROWS)}


def quarter(gate, instance, instances):
    return items(gate, 1 + instance, 0.25)


def note_size(file, rows):
    with file.open("a") as opened:
        opened.write(f"{rows.num_rows}\n")
    return rows


def sizes(file):
    """The rows of each sub-batch so far."""
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def append_keys(file, rows):
    with file.open("ab") as opened:
        opened.write(rows["key"].to_numpy().tobytes())


def thin_topology(folder, gate):
    """Three computes of own logic over three source instances; each notes the sizes of its sub-batches in a file."""
    topology = de.Topology("thin")
    half = de.sources.Iterable(functools.partial(items, gate, 0, 0.5), rate=RATE / 2)
    quarters = de.sources.Iterable(functools.partial(quarter, gate), parallel=2, rate=RATE / 2)
    rows = topology.source("half", half).union(topology.source("quarters", quarters)).key_by("key")
    for name, logic in LOGIC.items():
        counted = rows.compute(logic, state=STATE, name=name, executors=2, shards=32)
        noted = counted.map(functools.partial(note_size, folder / name), name=f"{name}_sizes")
        noted.sink(de.sinks.Call(functools.partial(append_keys, folder / f"{name}_rows")), name=f"{name}_out")
    return topology


def test_backlog_of_thin_stream_is_processed_in_large_batches(small_cluster, wait_until, tmp_path):
    gate = tmp_path / "gate"
    with Client(small_cluster(n_workers=2, threads_per_worker=2)) as client:
        job = de.submit(thin_topology(tmp_path, gate), client, latency_target=None)
        for name in LOGIC:
            # A task at home and a remote one: even slices are then divided among four tasks.
            job.set_cores(name, dict.fromkeys(client.nthreads(), 1))
        wait_until(
            lambda: all(sum(sizes(tmp_path / name)) == THIN_ROWS for name in LOGIC), "the thin rows are processed"
        )
        # The last of them was due by now, whenever the sources began.
        due = time.time() + BACKLOG_ROWS / RATE
        wait_until(lambda: time.time() > due, "all rows of the backlog are due")
        before = {name: len(sizes(tmp_path / name)) for name in LOGIC}
        gate.touch()
        job.wait(timeout=100, progress=False)
        found = {name: sizes(tmp_path / name)[before[name] :] for name in LOGIC}
        assert {name: sum(rows) for name, rows in found.items()} == dict.fromkeys(LOGIC, BACKLOG_ROWS)
        assert {name: np.mean(rows) for name, rows in found.items() if np.mean(rows) < LEAST_MEAN_ROWS} == {}
        for name in LOGIC:
            assert job.state(name).to_pandas()["n"].sum() == THIN_ROWS + BACKLOG_ROWS
            assert len((tmp_path / f"{name}_rows").read_bytes()) == 8 * (THIN_ROWS + BACKLOG_ROWS)
