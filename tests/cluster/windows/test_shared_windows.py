"""On a real cluster, windows cease to share slices and begin to again, and open ones have updates."""

from __future__ import annotations

import itertools
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_elastic as de
from dask_elastic.vocab.errors import PlanningError, StateError, UnknownOperator

SCHEMA = pa.schema({"key": pa.string(), "at": pa.timestamp("s")})
SECOND = 1_000_000
LENGTH, FREQUENCY = 30, 10


def rows(first, last):
    """Two rows per second of event time, of different keys."""
    times = [second for second in range(first, last) for _ in range(2)]
    keys = [f"k{number % 7}" for number in range(2 * first, 2 * last)]
    return pa.table({"key": keys, "at": times}, schema=SCHEMA)


def expected(last):
    """The rows of each key and instance, found by trying all of them."""
    found = Counter()
    for row in rows(0, last).cast(pa.schema({"key": pa.string(), "at": pa.int64()})).to_pylist():
        for begin in range(-LENGTH, last, FREQUENCY):
            if begin <= row["at"] < begin + LENGTH:
                found[row["key"], begin] += 1
    return found


@pytest.fixture
def submit(client):
    def start(*, share="auto", emit="closed", lateness=0, **options):
        topology = de.Topology("shared")
        source = topology.source("rows", de.sources.Push(SCHEMA, event_time="at"))
        window = de.windows.hopping(f"{LENGTH}s", f"{FREQUENCY}s")
        counts = source.key_by("key").window(window)
        policies = {"share": share, "emit": emit, "allowed_lateness": lateness}
        counts = counts.compute({"rows": de.aggregate.Count()}, name="counts", executors=2, **policies)
        counts.sink(de.sinks.Collect(), name="out")
        options = {"report_interval": "50ms", "watermark_interval": "10ms", **options}
        return de.submit(topology, client, cores={"counts": 2}, **options)

    return start


def lengths(job):
    """The lengths of the parts of event time for which the job has partial results, in seconds."""
    state = job.state("counts").to_arrow()
    spans = pc.subtract(state["window_end"].cast(pa.int64()), state["window_start"].cast(pa.int64()))
    return {span // SECOND for span in spans.to_pylist()}


def test_results_are_those_of_the_rows_after_two_changes(submit, client, wait_until):
    seen = len(client.get_events("dask_elastic"))
    job = submit()

    def send(first, last):
        job.send(rows(first, last), "rows")
        wait_until(lambda: job.metrics()["event_time"].min() >= at(last - 1), f"event time advances to {last - 1}")

    send(0, 100)
    assert lengths(job) == {FREQUENCY}
    job.share("counts", "instances")
    measured = "measured, except closing instances"
    wait_until(lambda: measured in str(job.explain("counts")), "only slices have run")
    explained = str(job.explain("counts"))
    assert "while it runs: set to instances" in explained
    assert "last change: to instances" in explained
    assert "a user has set it" in explained
    # A batch is added to what its executor has been told to when it arrives: the first one advances event time.
    send(100, 130)
    send(130, 250)
    assert lengths(job) == {LENGTH}
    # The instances that were open at the change had partials of both kinds.
    send(250, 350)
    wait_until(lambda: "; measured\n" in str(job.explain("counts")), "both plans are measured")
    job.share("counts", "slices")
    send(350, 380)
    send(380, 500)
    assert lengths(job) == {FREQUENCY}
    # From now on, the cost model chooses.
    events = [event for _, event in client.get_events("dask_elastic")[seen:] if event.get("event") == "sharing"]
    job.share("counts")
    assert "while it runs: the cost model chooses" in str(job.explain("counts"))
    job.drain(timeout=100)
    results = job.collect("out").to_pylist()
    found = {(row["key"], (row["window_start"] - at(0)).total_seconds()): row["rows"] for row in results}
    assert len(found) == len(results)
    assert found == expected(500)
    # A change is repeated for executors whose reports come late.
    own = itertools.groupby(event["partials"] for event in events if event["job"] == job.name)
    assert [partials for partials, _ in own] == ["instances", "slices"]


def test_open_windows_have_updates_while_the_plan_changes_and_shards_move(submit, client, wait_until):
    job = submit(emit="updates", lateness=2 * FREQUENCY, light_load=0)
    corrections = Counter()
    for step, cores in enumerate(({}, dict.fromkeys(client.nthreads(), 1), {})):
        job.send(rows(100 * step, 100 * step + 100), "rows")
        wait_until(lambda step=step: job.metrics()["event_time"].min() >= at(100 * step + 99), "event time advances")
        if step == 0:
            assert lengths(job) == {FREQUENCY}
        # Instances that have ended at 80 and at 90 are corrected; it is too late for those that ended before.
        late = rows(100 * step + 60, 100 * step + 70)
        job.send(late, "rows")
        for begin in (50, 60):
            corrections.update((key, 100 * step + begin) for key in late["key"].to_pylist())
        pairs = 2 * 20 * (step + 1)
        wait_until(lambda n=pairs: job.metrics()["corrected"].sum() >= n, "late rows are counted")
        job.share("counts", "slices" if step else "instances")
        if cores:
            job.set_cores("counts", cores)
    assert "lookups per row" in str(job.explain("counts"))
    wait_until(lambda: job.moves()["across_nodes"].any(), "shards have moved between nodes")
    job.drain(timeout=100)
    found, closed, corrected = {}, Counter(), Counter()
    for row in job.collect("out").to_pylist():
        instance = row["key"], (row["window_start"] - at(0)).total_seconds()
        if row["revision"]:
            corrected[instance] = row["rows"] - found[instance]
        elif row["revision"] is None:
            assert row["rows"] > found.get(instance, 0)
            found[instance] = row["rows"]
        else:
            closed[instance] += 1
            assert row["rows"] == found[instance], "the last update has all rows"
    assert found == expected(300)
    assert closed == dict.fromkeys(found, 1)
    assert corrected == corrections


def test_refused_changes_name_the_reason(submit):
    job = submit(share=True)
    with pytest.raises(PlanningError, match="share=True"):
        job.share("counts", "instances")
    with pytest.raises(UnknownOperator, match="counts"):
        job.share("count", "instances")


def at(seconds):
    import pandas as pd

    return pd.Timestamp(seconds, unit="s")


@pytest.mark.parametrize("share", [True, False])
def test_lookup_of_a_key_with_several_windows_is_refused(submit, share, wait_until):
    job = submit(share=share)
    job.send(rows(0, 100))
    job.send(rows(199, 200).slice(0, 1))
    wait_until(lambda: job.metrics()["open_windows"].sum() == (1 if share else 3), "the windows before have closed")
    job.send(rows(200, 240))
    state = job.state("counts")
    wait_until(lambda: state.to_arrow().num_rows > 7, "the rows are counted")
    parts = state.to_arrow().filter(pc.field("key") == "k1").num_rows
    assert parts > 1
    with pytest.raises(StateError, match=rf"'counts' of job 'shared' has {parts} rows for the key 'k1'.* to_arrow\(\)"):
        state.get("k1")
    assert state.get("k9") is None
    job.stop()
