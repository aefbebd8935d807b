"""Late rows have the same corrections whether instances share slices or have a state each."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from window_oracle import records
from window_rows import EVENT, SECOND, readings, source

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic import windows
from dask_elastic.testing import run
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.vocab.errors import TopologyError

LOGIC = {"rows": agg.Count(), "sum": agg.Sum("value"), "most": agg.Max("value"), "top": agg.TopK("value", k=3)}


def found(rows, given_, share, keyed=True, **options):
    stream = source(rows).key_by("key") if keyed else source(rows)
    results = stream.window(given_).compute(LOGIC, name="windowed", share=share, late="stream", **options)
    results.sink(de.sinks.Collect(), name="out")
    results.late.sink(de.sinks.Collect(), name="late")
    return run(results.topology, executors=2)


def rows_of(outputs, name):
    return records(outputs.get(name, pa.table({})))


@settings(max_examples=6, deadline=None)
@given(
    st.lists(EVENT, min_size=1, max_size=3),
    st.integers(0, 2**31),
    st.sampled_from([20, 60, 200]),
    st.sampled_from([1, 30, 400]),
    st.booleans(),
)
def test_slices_are_corrected_as_instances(given_, seed, disorder, lateness, keyed):
    in_seconds = [EventWindow(*(number * SECOND for number in vars(window).values())) for window in given_]
    rows = readings(seed, rows=200, disorder=disorder, nulls=0.02)
    try:
        one = found(rows, in_seconds, True, keyed, allowed_lateness=lateness)
    except TopologyError:
        assume(False)
    other = found(rows, in_seconds, False, keyed, allowed_lateness=lateness)
    for name in ("out", "late"):
        assert rows_of(one.outputs, name) == rows_of(other.outputs, name)
    assert one.windows == other.windows
    assert one.state["windowed"].num_rows == other.state["windowed"].num_rows == 0


def test_row_that_is_late_for_some_instances_is_added_to_the_others():
    at = pa.array([5, 45, 31, 90], pa.timestamp("s"))
    rows = pa.table({"key": ["a"] * 4, "at": at, "value": [1, 2, 4, 8]})
    stream = de.Topology("late").source("rows", de.sources.Arrow(rows, event_time="at", batch_rows=1))
    hopping = windows.hopping("40s", "20s")
    results = stream.key_by("key").window(hopping).compute(LOGIC, name="windowed", allowed_lateness="60s", share=True)
    results.sink(de.sinks.Collect(), name="out")
    table = run(results.topology).outputs["out"]
    shown = [
        (row["window_start"].timestamp(), row["revision"], row["sum"])
        for row in table.select(["window_start", "revision", "sum"]).to_pylist()
    ]
    zone = shown[0][0] + 20
    assert [(start - zone, *rest) for start, *rest in shown] == [
        *[(-20, 0, 1), (0, 0, 1), (0, 1, 5)],
        *[(20, 0, 6), (40, 0, 2), (60, 0, 8), (80, 0, 8)],
    ]


def test_row_raises_before_anything_is_written():
    """The row that fails is skipped; the others of its batch count once in slices and in corrected instances."""

    def failing(key, part):
        if 13 in part["value"].to_pylist():
            raise ValueError("thirteen")
        return {"sum": sum(part["value"].to_pylist())}

    at = pa.array([5, 45, 31, 32, 33, 90], pa.timestamp("s"))
    rows = pa.table({"key": ["a"] * 6, "at": at, "value": [1, 2, 4, 13, 8, 16]})
    stream = de.Topology("late").source("rows", de.sources.Arrow(rows, event_time="at", batch_rows=3, slack=0))
    results = (
        stream.key_by("key")
        .window(windows.hopping("40s", "20s"))
        .compute(
            de.per_key(output={"sum": pa.int64()})(failing),
            merge=lambda one, other: {"sum": one["sum"] + other["sum"]},
            name="windowed",
            allowed_lateness="60s",
        )
    )
    results.sink(de.sinks.Collect(), name="out")
    found = run(results.topology, on_error="skip")
    assert found.dead_letters["windowed"]["value"].to_pylist() == [13]
    last = {row["window_start"]: row["sum"] for row in found.outputs["out"].to_pylist()}
    assert [last[start] for start in sorted(last)] == [1, 13, 14, 2, 16, 16]
