"""Reference results for jobs under faults: per key, the result of one process that reads each row once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa

import dask_elastic as de

STATE = dict.fromkeys(("n", "sum", "low", "high", "last", "faults"), pa.int64())
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "seq": pa.int64()})


def numbered_rows(count, keys=200, hot=0.0, seed=11):
    """Rows of keys at random, of which key 0 has a share of its own; seq counts the rows of each key."""
    random = np.random.default_rng(seed)
    k = np.where(random.random(count) < hot, 0, random.integers(0, keys, count))
    seq = np.zeros(count, dtype=np.int64)
    order = np.argsort(k, kind="stable")
    starts = np.flatnonzero(np.diff(k[order], prepend=-1))
    lengths = np.diff(np.append(starts, count))
    seq[order] = np.arange(count) - np.repeat(starts, lengths)
    return pa.table({"k": k, "v": random.integers(-1000, 1000, count), "seq": seq}, schema=SCHEMA)


def following(service=0.0, poison=None):
    """Logic that keeps count, sum, bounds and last of each key, counts rows out of order, and emits every row.

    It takes some seconds of service per row, and ends its process at the key `poison`.
    """

    def follow(batch, state):
        import os

        if poison is not None and poison in batch["k"].to_pylist():
            os._exit(1)
        time.sleep(service * batch.num_rows)
        order = np.argsort(state.ordinals, kind="stable")
        keys, seq, v = state.ordinals[order], batch["seq"].to_numpy()[order], batch["v"].to_numpy()[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        before = np.concatenate([[-1], seq[:-1]])
        before[first] = state.get("last", default=-1)[keys[first]]
        wrong = np.bincount(keys, weights=seq != before + 1, minlength=len(state)).astype(np.int64)
        state.set("faults", state.get("faults", default=0) + wrong)
        state.set("n", state.get("n", default=0) + np.bincount(keys, minlength=len(state)))
        state.set("sum", state.get("sum", default=0) + np.add.reduceat(v, first))
        state.set("low", np.minimum(state.get("low", default=2**40), np.minimum.reduceat(v, first)))
        state.set("high", np.maximum(state.get("high", default=-(2**40)), np.maximum.reduceat(v, first)))
        state.set("last", seq[np.append(first[1:], len(seq)) - 1])
        return batch.select(["k", "seq"])

    return follow


def followed(name, service=0.0, poison=None, shards=16):
    """A topology of one executor that tracks the order of the rows of each key and emits them again."""
    topology = de.Topology(name)
    keyed = topology.source("rows", de.sources.Push(SCHEMA)).key_by("k")
    logic = following(service, poison)
    out = keyed.compute(logic, name="followed", state=STATE, executors=1, shards=shards)
    out.sink(de.sinks.Collect(), name="out")
    return topology


class Pump(threading.Thread):
    """Sends rows to a job, some at a time, until `stop` is called or all are sent."""

    def __init__(self, job, table, rows=300, pause=0.02):
        super().__init__(daemon=True)
        self.job, self.table, self.rows, self.pause = job, table, rows, pause
        self.sent = 0
        self.error = None
        self._stop_now = threading.Event()

    def run(self):
        """Send the rows; an error is kept for `stop`."""
        try:
            while self.sent < len(self.table) and not self._stop_now.wait(self.pause):
                part = self.table.slice(self.sent, self.rows)
                self.job.send(part)
                self.sent += len(part)
        except Exception as error:  # raised by `stop`
            self.error = error

    def stop(self):
        """Stop sending, and return the rows that were sent."""
        self._stop_now.set()
        self.join(100)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.table.slice(0, self.sent)


def assert_equal(job, sent):
    """Assert that state and outputs of a finished job equal those of one process: in order, each row once."""
    frame = sent.to_pandas()
    grouped = frame.groupby("k")
    wanted = grouped.agg(n=("v", "size"), sum=("v", "sum"), low=("v", "min"), high=("v", "max"), last=("seq", "max"))
    state = job.state("followed").to_pandas().set_index("k").sort_index()
    assert state["faults"].sum() == 0
    assert state.index.tolist() == wanted.index.tolist()
    for column in wanted:
        assert state[column].tolist() == wanted[column].tolist(), column
    out = job.collect("out").to_pandas()
    assert len(out) == len(frame)
    assert (out.groupby("k")["seq"].diff().dropna() == 1).all()
    assert out.groupby("k")["seq"].size().tolist() == wanted["n"].tolist()
