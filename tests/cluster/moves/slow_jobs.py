"""A job whose rows take a millisecond each, so that planners find work to move, and workers for it."""

from __future__ import annotations

import contextlib
import threading
import time

import dask
import numpy as np
import pyarrow as pa
from distributed import Client, LocalCluster

import dask_elastic as de

SCHEMA = pa.schema({"key": pa.int64(), "value": pa.int64()})
STATE = {"rows": pa.int64(), "total": pa.int64()}
SETTINGS = {
    "elastic.control-period": "200ms",
    "elastic.report-interval": "100ms",
    "elastic.placement-period": "300ms",
    "elastic.placement-patience": 1,
    "elastic.placement-cooldown": "0s",
}


def slowly(seconds=0.001, emits=False):
    """Logic that takes some seconds for each row, keeps the rows and their total, and perhaps emits the rows."""

    @de.per_key
    def process(key, rows, state):
        time.sleep(seconds * rows.num_rows)
        state["rows"] = state.get("rows", 0) + rows.num_rows
        state["total"] = state.get("total", 0) + sum(rows["value"].to_pylist())
        return rows if emits else None

    return process


def slow_topology(name, executors):
    """A topology of such an operator, of 16 key groups."""
    made = de.Topology(name)
    rows = made.source("rows", de.sources.Push(SCHEMA))
    rows.key_by("key").compute(slowly(), state=STATE, name="slow", executors=executors, shards=16)
    return made


def slow_chain(name, executors):
    """A topology of two such operators; each of the 16 key groups of the first sends to one of the second."""
    made = de.Topology(name)
    rows = made.source("rows", de.sources.Push(SCHEMA)).key_by("key")
    options = {"state": STATE, "executors": executors, "shards": 16}
    rows.compute(slowly(emits=True), name="ahead", **options).key_by("key").compute(slowly(), name="behind", **options)
    return made


class Load:
    """Sends rows of some keys, six hundred per second, until it is stopped."""

    def __init__(self, job, keys):
        self.job, self.keys, self.sent = job, keys, []
        self._random = np.random.default_rng(7)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stopped.set()
        self._thread.join()

    def _run(self):
        while not self._stopped.wait(0.05):
            columns = [self._random.choice(self.keys, 30), self._random.integers(-9, 9, 30)]
            table = pa.table(columns, schema=SCHEMA)
            self.job.send(table, wait=True)
            self.sent.append(table)


def expected(tables):
    """Return rows and totals by key, as one process computes them."""
    rows = pa.concat_tables(tables).group_by("key").aggregate([("value", "count"), ("value", "sum")])
    return {key: (count, total) for key, count, total in zip(*(column.to_pylist() for column in rows), strict=True)}


def state_of(job, operator="slow"):
    """Return the same of a job's state."""
    state = job.state(operator).to_arrow().select(["key", "rows", "total"])
    return {key: (count, total) for key, count, total in zip(*(column.to_pylist() for column in state), strict=True)}


@contextlib.contextmanager
def planning_pair(**settings):
    """Yield a client of two worker processes with two threads each, whose planners decide often."""
    with (
        dask.config.set({**SETTINGS, **settings}),
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
