"""A job of two operators that follow the order of the rows of each key, and its rows, which are numbered by key."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import STATE, following

del sys.path[0]

KEYS = 97
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "seq": pa.int64(), "at": pa.timestamp("us", tz="UTC")})


def numbered_topology(name, first, second, shards):
    """Two operators, one behind the other, with so many executors each."""
    made = de.Topology(name)
    rows = made.source("rows", de.sources.Push(SCHEMA, event_time="at"))
    ahead = rows.key_by("k").compute(following(), name="first", state=STATE, executors=first, shards=shards)
    again = ahead.map(lambda batch: batch.append_column("v", batch["seq"]), name="again")
    behind = again.key_by("k").compute(following(), name="second", state=STATE, executors=second, shards=shards)
    behind.sink(de.sinks.Collect(), name="out")
    return made


class Rows:
    """Sends rows of a job until it is told to stop; each key's rows are numbered."""

    def __init__(self, job):
        self.job = job
        self.stops = False
        self.sent = np.zeros(KEYS, np.int64)
        self.newest = 0
        self._random = np.random.default_rng(3)

    def run(self):
        """Send."""
        while not self.stops:
            self.send()

    def send(self, rows=500):
        """Send some rows."""
        k = self._random.integers(0, KEYS, rows)
        seq = pd.Series(k).groupby(k).cumcount().to_numpy() + self.sent[k]
        at = self.newest + np.arange(1, rows + 1)
        table = pa.table({"k": k, "v": self._random.integers(-9, 9, rows), "seq": seq, "at": at})
        self.job.send(table.cast(pa.schema({**{f.name: f.type for f in SCHEMA}, "at": pa.int64()})).cast(SCHEMA))
        self.sent += np.bincount(k, minlength=KEYS)
        self.newest = int(at[-1])

    def assert_followed(self):
        """Assert that both operators of the finished job have processed each row once and in order, and shown it."""
        for operator in ("first", "second"):
            state = self.job.state(operator).to_pandas().sort_values("k")
            assert state["n"].tolist() == self.sent.tolist()
            assert state["last"].tolist() == (self.sent - 1).tolist()
            assert state["faults"].sum() == 0
        assert self.job.collect("out").to_pandas().groupby("k").size().tolist() == self.sent.tolist()
        assert self.job.metrics()["rows"].sum() == 2 * self.sent.sum()


def event_times(job, operator):
    """The event times of an operator's executors."""
    times = job.event_times()
    return times[times["operator"] == operator]["event_time"]


def credit_in_use(client, name):
    """Bytes and batches that the instances of a job count as not processed by their receivers."""

    def used(dask_worker):
        exchange = dask_worker.plugins["dask-elastic-worker"].runtime.job_parts[name].exchange
        gates = [gate for targets in list(exchange._gates.values()) for gate in list(targets.values())]
        return [(gate.used, gate.batches) for gate in gates if not gate._left]

    return [gate for gates in client.run(used).values() for gate in gates]
