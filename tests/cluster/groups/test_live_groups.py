"""Planners of placements move key groups of running jobs; the state is that of one process."""

from __future__ import annotations

import threading
import time

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.vocab.errors import SubmitError

SCHEMA = pa.schema({"key": pa.int64(), "value": pa.int64()})
EXECUTORS, GROUPS = 4, 16
SLEPT = 0.001
SETTINGS = {
    "elastic.control-period": "200ms",
    "elastic.report-interval": "100ms",
    "elastic.placement-period": "300ms",
    "elastic.placement-patience": 1,
    "elastic.placement-cooldown": "0s",
}


@de.per_key
def slowly(key, rows, state):
    time.sleep(SLEPT * rows.num_rows)
    state["rows"] = state.get("rows", 0) + rows.num_rows
    state["total"] = state.get("total", 0) + sum(rows["value"].to_pylist())


def topology(name):
    made = de.Topology(name)
    rows = made.source("rows", de.sources.Push(SCHEMA))
    state = {"rows": pa.int64(), "total": pa.int64()}
    rows.key_by("key").compute(slowly, state=state, name="slow", executors=EXECUTORS, shards=GROUPS)
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


def state_of(job):
    state = job.state("slow").to_arrow().select(["key", "rows", "total"])
    return {key: (count, total) for key, count, total in zip(*(column.to_pylist() for column in state), strict=True)}


def owners(job):
    """The executor of each key group."""
    found = job.assignment()
    pairs = ((group, one) for one, own in zip(found["executor"], found["shards"], strict=True) for group in own)
    return dict(pairs)


def keys_of_groups(groups, count=4):
    """Keys of some groups."""
    from dask_elastic.routing.hashing import hash_columns

    keys = np.arange(400)
    hashes = hash_columns(pa.record_batch({"key": pa.array(keys)}), ["key"])
    return [int(key) for group in groups for key in keys[hashes % GROUPS == group][:count]]


@pytest.fixture(scope="module")
def pair():
    """A client of two worker processes with two threads each."""
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("placement", "migration", "made"),
    [
        ("flux", "auto", "(?:progressive|synchronised)"),
        ("eager", "synchronised", "synchronised"),
        ("milp", "progressive", "progressive"),
    ],
)
def test_planner_moves_groups_away_from_a_loaded_executor_and_state_is_exact(
    pair, wait_until, placement, migration, made
):
    if placement == "milp":
        pytest.importorskip("highspy")
    options = {"placement": placement, "paradigm": "resource-centric", "migration": migration}
    job = de.submit(topology(f"groups-{placement}"), pair, **options)
    before = owners(job)
    busy = [group for group, one in before.items() if one == 0]
    with Load(job, keys_of_groups(busy)) as load:
        wait_until(lambda: len({owners(job)[group] for group in busy}) > 1, "some groups have moved")

        def noted():
            reasons = job.decisions()["reason"]
            return [*reasons[reasons.str.contains(f"Placement '{placement}'.*have moved [(]{made}[)]")]]

        moved = pd.Series(wait_until(noted, "the move is noted"))
    job.end_of_input()
    job.wait(progress=False)
    assert state_of(job) == expected(load.sent)
    assert moved.str.contains(r"Rows wait for \S+ row-seconds if .*, \S+ if ").all()


def test_placements_of_consecutive_groups_are_refused(pair):
    with pytest.raises(SubmitError, match="placement='ssm' gives each node consecutive executors"):
        de.submit(topology("consecutive"), pair, placement="ssm", paradigm="resource-centric")
