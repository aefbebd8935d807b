"""Event time on a real cluster: from two sources through executors with remote tasks to a sink."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.testing import run

SCHEMA = pa.schema({"key": pa.string(), "at": pa.timestamp("s", tz="UTC")})


def rows(*seconds):
    return pa.table({"key": [f"k{number % 7}" for number in seconds], "at": list(seconds)}, schema=SCHEMA)


@pytest.fixture
def submit(client):
    """Return a function that starts a job of two sources that are pushed to, and two operators."""

    def start(**options):
        topology = de.Topology("timed")
        north = topology.source("north", de.sources.Push(SCHEMA, event_time="at", slack="10s"))
        south = topology.source("south", de.sources.Push(SCHEMA, event_time="at"))
        latest = de.aggregate.Max("at")
        per_key = north.union(south).key_by("key").compute({"at": latest}, name="per_key", executors=1)
        per_key.key_by("at").compute({"n": de.aggregate.Count()}, name="per_time", executors=2).sink(
            de.sinks.Collect(), name="out"
        )
        options = {"report_interval": "50ms", "watermark_interval": "10ms", **options}
        return de.submit(topology, client, cores={"per_key": 4, "per_time": 2}, **options)

    return start


def seconds(job, operator):
    """Where the event time of each instance of an operator is, seconds since the epoch; None where it is not known."""
    times = job.event_times()
    own = times.loc[times["operator"] == operator, "event_time"]
    return [None if pd.isna(at) else at.timestamp() for at in own]


def processed(job, operator):
    """How many rows an operator has processed."""
    metrics = job.metrics()
    return metrics.loc[metrics["operator"] == operator, "rows"].sum()


def test_event_time_follows_slowest_source(submit, wait_until):
    job = submit(idle_timeout=None)
    assert job.assignment()["remote"].any()
    job.send(rows(*range(100)), "north")
    wait_until(lambda: seconds(job, "north") == [89], "the north source has sent a watermark")
    wait_until(lambda: processed(job, "per_key") == 100, "all rows are processed")
    assert seconds(job, "per_key") == [None], "the south may have anything"
    job.send(rows(5, 40), "south")
    wait_until(lambda: seconds(job, "per_time") == [40, 40], "both sources have sent a watermark")
    wait_until(lambda: set(seconds(job, "out")) == {40}, "the last watermark has arrived")
    job.send(rows(95, 20, 60), "north")
    wait_until(lambda: processed(job, "per_key") == 105, "late rows are processed")
    wait_until(lambda: job.event_times()["late"].sum() == 2, "late rows are counted")
    assert "2 late rows" in repr(job)
    job.drain(timeout=100)
    assert set(seconds(job, "per_key") + seconds(job, "per_time") + seconds(job, "out")) == {99}
    assert job.metrics()["event_time"].eq(pd.Timestamp(99, unit="s")).all()


def test_idle_source_does_not_hold_back_watermark(submit, wait_until):
    job = submit(idle_timeout="50ms")
    job.send(rows(100), "north")
    wait_until(lambda: set(seconds(job, "per_time") + seconds(job, "out")) == {90}, "the south is idle")
    job.send(rows(20), "south")
    job.send(rows(120), "north")
    wait_until(lambda: set(seconds(job, "per_time")) == {110}, "the south is idle again")
    job.drain(timeout=100)
    assert job.metrics()["rows"].sum() == 6


def expiring(source):
    """A job that counts the rows of each key, and forgets a key 100 seconds of event time after its last row."""

    @de.per_row(output={"key": pa.string(), "count": pa.int64()})
    def count(row, state):
        state["count"] = state.get("count", 0) + 1
        return {"key": row["key"], "count": state["count"]}

    topology = de.Topology("expiring")
    keyed = topology.source("rows", source).key_by("key")
    state = {"count": de.Value(pa.int64(), ttl="100s", ttl_clock="event")}
    keyed.compute(count, name="count", state=state, executors=1).sink(de.sinks.Collect(), name="out")
    return topology


def by_key(table):
    return sorted(table.to_pylist(), key=lambda row: (row["key"], row["count"]))


def test_state_expires_by_the_watermark_as_in_a_virtual_run(client, wait_until):
    times = [("a", 0), ("b", 50), ("a", 60), ("c", 155), ("b", 156), ("a", 157), ("a", 300)]
    table = pa.table([*map(list, zip(*times, strict=True))], schema=SCHEMA)
    job = de.submit(
        expiring(de.sources.Push(SCHEMA, event_time="at")),
        client,
        cores={"count": 4},
        report_interval="50ms",
        watermark_interval="10ms",
        idle_timeout=None,
    )
    shown = {}
    for number, (_, at) in enumerate(times):
        job.send(table.slice(number, 1), "rows")
        wait_until(lambda at=at: seconds(job, "count") == [at], f"the watermark has reached {at}")
        shown[at] = {row["key"]: row["count"] for row in job.state("count").to_arrow().to_pylist()}
    assert shown[156] == {"a": 2, "b": 1, "c": 1}, "b has expired at 150, and begins anew"
    assert shown[300] == {"a": 1}, "c has expired, and is not shown, though no row has come for it"
    job.drain(timeout=100)
    virtual = run(expiring(de.sources.Arrow(table, event_time="at", batch_rows=1)))
    assert by_key(job.collect("out")) == by_key(virtual.outputs["out"])
    assert by_key(job.state("count").to_arrow()) == by_key(virtual.state["count"]) == [{"key": "a", "count": 1}]
