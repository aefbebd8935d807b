"""A job with checkpoints that tracks the order of the rows of each key and writes each row, and what it must yield."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pyarrow.dataset as ds

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import STATE, following, numbered_rows

sys.path.pop(0)

ROWS = numbered_rows(40_000, keys=100)
RATE = 10_000
HELD = 4_000
"""Rows that a gated source holds back, about."""

# Workers cannot import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Gated(de.sources.Arrow):
    """A table whose last rows wait until a file exists, so that its job is running until then on any machine.

    Parameters
    ----------
    rows : Table
        The rows.
    gate : Path
        The file.
    """

    blocks = True

    def __init__(self, rows, gate, **options):
        super().__init__(rows, **options)
        self.gate = gate

    def read(self, context):
        """Yield the rows, the last ones when the gate is open."""
        for rows, position in super().read(context):
            while position > len(self.table) - HELD and not (self.gate.exists() or context.stopping()):
                time.sleep(0.01)
            if context.stopping():
                return
            yield rows, position


def followed(folder, rows=ROWS, rate=RATE, parallel=2, gate=None, **compute):
    """A topology that tracks the order of the rows of each key, and writes each row; with a gate, see `Gated`."""
    topology = de.Topology("durable")
    options = {"rate": rate, "parallel": parallel, "batch_rows": 700}
    source = de.sources.Arrow(rows, **options) if gate is None else Gated(rows, gate, **options)
    out = (
        topology.source("rows", source)
        .key_by("k")
        .compute(following(), name="followed", state=STATE, **{"executors": 2, "shards": 16, **compute})
    )
    out.sink(de.sinks.Parquet(folder), name="out")
    return topology


def followed_pushes(folder, name="durable", executors=2, shards=16):
    """A topology that does the same with rows that are sent to it."""
    topology = de.Topology(name)
    rows = topology.source("rows", de.sources.Push(ROWS.schema))
    options = {"executors": executors, "shards": shards}
    out = rows.key_by("k").compute(following(), name="followed", state=STATE, **options)
    out.sink(de.sinks.Parquet(folder), name="out")
    return topology


class Sender(threading.Thread):
    """Sends a job twenty rows at a time while its block is executed; each send waits until the rows are accepted."""

    def __init__(self, job):
        super().__init__()
        self.job, self.sent = job, []
        self._error = None
        self._stops = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._stops.set()
        self.join()
        if self._error is not None:
            raise self._error

    def run(self):
        """Send; an error is raised at the end of the block."""
        try:
            while not self._stops.is_set():
                self.sent.append(ROWS.slice(len(self.sent) * 20 % ROWS.num_rows, 20))
                self.job.send(self.sent[-1], wait=True)
        except Exception as error:  # raised in the thread of the test
            self._error = error


def expected(rows=ROWS):
    """Count, sum, least and greatest value by key."""
    grouped = rows.group_by("k").aggregate([("v", "count"), ("v", "sum"), ("v", "min"), ("v", "max")])
    return {row["k"]: (row["v_count"], row["v_sum"], row["v_min"], row["v_max"]) for row in grouped.to_pylist()}


def counted(job):
    """The same of a job's state."""
    table = job.state("followed").to_arrow().to_pylist()
    return {row["k"]: (row["n"], row["sum"], row["low"], row["high"]) for row in table}


def written(folder):
    """Key and number of all visible rows, sorted."""
    table = ds.dataset(folder, format="parquet").to_table(columns=["k", "seq"])
    return table.sort_by([("k", "ascending"), ("seq", "ascending")])


def assert_each_row_once(folder, rows=ROWS):
    """Assert that the sink shows each row once."""
    wanted = rows.select(["k", "seq"]).sort_by([("k", "ascending"), ("seq", "ascending")])
    assert written(folder).equals(wanted)


def newest(job):
    """The newest complete checkpoint of a job."""
    taken = job.checkpoints()
    return int(taken[taken["error"].isna()]["number"].max()) if len(taken) else 0
