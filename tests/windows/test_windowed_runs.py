"""Windows that the engine runs have the results of the oracle, whatever the batches, executors and order of events."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from window_oracle import expected, records
from window_rows import EVENT, SECOND, readings, source

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic import windows
from dask_elastic.testing import run
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError, UserCodeError
from dask_elastic.vocab.row_counts import RowCounts

LOGIC = {
    "rows": agg.Count(),
    "known": agg.Count("value"),
    "sum": agg.Sum("value"),
    "mean": agg.Mean("value"),
    "most": agg.Max("value"),
}
ORACLE = {
    "rows": ("size", None),
    "known": ("count", "value"),
    "sum": ("sum", "value"),
    "mean": ("mean", "value"),
    "most": ("max", "value"),
}


def windowed(rows, given, time=None, slack=None, parallel=1, spans="within", **options):
    divided = source(rows, slack, parallel).key_by("key").window(given, time=time, spans=spans)
    stream = divided.compute(LOGIC, name="windowed", **options)
    stream.sink(de.sinks.Collect(), name="out")
    return stream.topology


def results(topology, seed=0):
    return run(topology, executors=2, seed=seed).outputs.get("out", pa.table({}))


def truth(topology, rows, keys=("key",)):
    return expected(rows, list(keys), topology.operator("windowed").windowing, ORACLE)


WINDOWS = [
    windows.tumbling("10s"),
    windows.hopping("60s", "10s"),
    windows.hopping("25s", "10s", start="3s"),
    windows.sliding("1s", "5s", "20s"),
    ["10s", "30s", "60s"],
    [windows.hopping("30s", "20s"), windows.tumbling("50s", start="7s")],
]


@pytest.mark.parametrize("given", WINDOWS, ids=str)
@pytest.mark.parametrize("disorder", [0, 40])
def test_results_are_those_of_the_whole_input(given, disorder):
    rows = readings(1, disorder=disorder, nulls=0.05)
    topology = windowed(rows, given, slack=disorder + 1)
    found, whole = run(topology, executors=2), truth(topology, rows)
    assert records(found.outputs["out"]) == records(whole.results)
    assert found.windows["windowed"] == RowCounts(whole.pairs, 0, 0, whole.outside, whole.untimed)


@pytest.mark.parametrize("share", [True, False])
def test_results_do_not_depend_on_sharing(share):
    rows = readings(4, disorder=20)
    topology = windowed(rows, ["10s", "30s", "60s"], slack=21, share=share)
    assert records(results(topology)) == records(truth(topology, rows).results)


@settings(max_examples=16, deadline=None)
@given(st.lists(EVENT, min_size=1, max_size=2), st.integers(0, 2**31), st.integers(0, 60), st.integers(1, 3))
def test_any_windows_have_the_results_of_the_whole_input(given_, seed, disorder, parallel):
    rows = readings(seed, rows=120, disorder=disorder)
    in_seconds = [EventWindow(*(number * SECOND for number in vars(window).values())) for window in given_]
    try:
        topology = windowed(rows, in_seconds, slack=disorder + 1, parallel=parallel)
    except TopologyError:
        assume(False)
    assert records(results(topology, seed)) == records(truth(topology, rows).results)


@pytest.mark.parametrize("given", [windows.tumbling("60s"), windows.hopping("60s", "20s")], ids=str)
@pytest.mark.parametrize("spans", ["within", "overlapping"])
def test_spans_are_in_the_instances_that_contain_them_or_a_part(given, spans):
    rows = readings(2)
    topology = windowed(rows, given, time=("at", "until"), spans=spans, slack="30s")
    found, whole = run(topology), truth(topology, rows)
    assert records(found.outputs["out"]) == records(whole.results)
    assert found.windows["windowed"] == RowCounts(whole.pairs, 0, 0, whole.outside, whole.untimed)


@pytest.mark.parametrize("spans", ["within", "overlapping"])
@pytest.mark.parametrize("logic", [{"rows": agg.Count()}, lambda rows, instances: instances.table])
def test_span_that_ends_before_it_begins_is_in_no_instance_and_counted(spans, logic):
    at, until = (pa.array(times, pa.timestamp("s")) for times in ([5, 7200, 90], [20, 0, 60]))
    rows = pa.table({"key": [1, 1, 1], "at": at, "until": until})
    topology = de.Topology("spans")
    keyed = topology.source("rows", de.sources.Arrow(rows, event_time="at", slack="3h")).key_by("key")
    keyed.window("1min", time=("at", "until"), spans=spans).compute(logic, name="windowed").sink(
        de.sinks.Collect(), name="out"
    )
    found = run(topology)
    assert found.outputs["out"]["window_start"].cast(pa.int64()).to_pylist() == [0]
    assert found.windows["windowed"] == RowCounts(on_time=1, outside=2)


def test_results_of_windows_are_windowed_by_their_span():
    rows = readings(3)
    first = source(rows).key_by("key").window("10s").compute({"rows": agg.Count()}, name="short")
    second = first.key_by("key").window("60s").compute({"rows": agg.Sum("rows")}, name="long")
    second.sink(de.sinks.Collect(), name="out")
    long = replace(second.topology.operator("short").windowing, windows=(windows.tumbling("60s"),))
    whole = expected(rows, ["key"], long, {"rows": ("size", None)})
    assert records(results(second.topology)) == records(whole.results)


def test_windows_over_all_rows_have_no_key():
    rows = readings(4)
    stream = source(rows).window("30s").compute(LOGIC, name="windowed")
    stream.sink(de.sinks.Collect(), name="out")
    result = run(stream.topology)
    found = result.outputs["out"]
    assert found.schema.names == result.state["windowed"].schema.names == ["window_start", "window_end", *LOGIC]
    whole = truth(stream.topology, rows.set_column(0, "key", pa.array([0] * len(rows))))
    assert records(found) == records(whole.results.drop(columns="key"))


@pytest.mark.parametrize("share", ["auto", True])
def test_updates_end_with_the_results_of_the_whole_input(share):
    rows = readings(5)
    topology = windowed(rows, ["10s", "30s"], emit="updates", slack="1s", share=share)
    found = results(topology)
    closed = found.filter(pc.is_valid(found["revision"]))
    assert set(closed["revision"].to_pylist()) == {0}
    assert len(found) > len(closed)
    assert records(closed.drop_columns("revision")) == records(truth(topology, rows).results)


def test_late_rows_correct_results_within_the_allowed_lateness():
    rows = readings(6, rows=600, disorder=45)
    topology = windowed(rows, ["10s", "30s"], allowed_lateness="60s")
    found = results(topology).to_pandas()
    last = found.sort_values("revision").groupby(["key", "window_start", "window_end"], dropna=False).last()
    assert found["revision"].max() > 0
    corrected = pa.Table.from_pandas(last.drop(columns="revision").reset_index(), preserve_index=False)
    whole = truth(topology, rows).results
    assert records(corrected.select([*whole.columns])) == records(whole)


def test_revisions_of_an_instance_are_numbered_without_gaps():
    rows = readings(6, rows=600, disorder=45)
    found = results(windowed(rows, "30s", allowed_lateness="60s")).to_pandas()
    numbers = found.groupby(["key", "window_start"], dropna=False)["revision"].agg(["min", "max", "size"])
    assert (numbers["min"] == 0).all()
    assert (numbers["max"] + 1 == numbers["size"]).all()


def test_late_rows_are_dropped_without_allowed_lateness():
    rows = readings(7, rows=600, disorder=45)
    topology = windowed(rows, "10s")
    found = results(topology)
    assert 0 < pc.sum(found["rows"]).as_py() < truth(topology, rows).pairs


@pytest.mark.parametrize("lateness", [0, "5s", "15s"])
@pytest.mark.parametrize("given", [["10s", "30s"], windows.sliding(0, "5s", "20s")], ids=str)
def test_each_row_is_counted_for_each_instance_that_contains_it(given, lateness):
    rows = readings(9, rows=600, disorder=45, nulls=0.1)
    topology = windowed(rows, given, allowed_lateness=lateness)
    whole, found = truth(topology, rows), run(topology, executors=2).windows["windowed"]
    assert found.late > 0
    assert (found.corrected > 0) == (lateness != 0)
    assert found.on_time + found.corrected + found.late == whole.pairs
    assert (found.outside, found.untimed) == (whole.outside, whole.untimed)


def test_late_rows_and_rows_without_a_time_are_a_stream():
    rows = readings(10, rows=600, disorder=45, nulls=0.1)
    rows = rows.append_column("number", pa.array(range(len(rows))))
    stream = source(rows).key_by("key").window("10s").compute(LOGIC, name="windowed", late="stream", null_time="late")
    stream.sink(de.sinks.Collect(), name="out")
    stream.late.sink(de.sinks.Collect(), name="late")
    found = run(stream.topology, executors=2)
    counts, late = found.windows["windowed"], found.outputs["late"]
    assert late.schema.names == rows.schema.names
    assert 0 < counts.untimed < len(late) == counts.untimed + counts.late
    on_time = rows.filter(pc.invert(pc.is_in(rows["number"], late["number"].combine_chunks())))
    assert len(on_time) + len(late) == len(rows)
    assert records(found.outputs["out"]) == records(truth(stream.topology, on_time).results)


@pytest.mark.parametrize("disorder", [0, 40])
@pytest.mark.parametrize("gap", ["5s", "20s"])
def test_sessions_are_those_of_the_whole_input(gap, disorder):
    rows = readings(11, disorder=disorder, nulls=0.05)
    topology = windowed(rows, windows.session(gap), slack=disorder + 1)
    found, whole = run(topology, executors=2), truth(topology, rows)
    assert records(found.outputs["out"]) == records(whole.results)
    assert found.windows["windowed"] == RowCounts(whole.pairs, untimed=whole.untimed)


@pytest.mark.parametrize("given", ["10s", ["10s", "30s"], windows.session("5s")])
@pytest.mark.parametrize("logic", [LOGIC, lambda rows, instances: rows])
def test_time_of_a_map_that_is_no_time_is_named(given, logic):
    stream = source(readings(12)).map(lambda rows: rows, name="tidy")
    stream.key_by("key").window(given, time="value").compute(logic, name="windowed")
    with pytest.raises(TopologyError, match="compute 'windowed': column 'value', the time of its windows, has type"):
        run(stream.topology)


@pytest.mark.parametrize("late", ["drop", "stream"])
def test_map_that_drops_the_time_is_named(late):
    stream = source(readings(12)).map(lambda rows: rows.drop_columns(["at"]), name="tidy")
    counts = stream.key_by("key").window("10s").compute(LOGIC, name="windowed", late=late)
    if late == "stream":
        counts.late.sink(de.sinks.Collect())
    with pytest.raises(SchemaMismatch, match="operator 'windowed' reads column 'at', which its input lacks"):
        run(counts.topology)


def test_late_rows_of_windows_over_all_rows_have_all_columns():
    rows = readings(13, rows=600, disorder=45)
    counts = source(rows).window("10s").compute({"rows": agg.Count()}, name="all", late="stream")
    counts.sink(de.sinks.Collect(), name="out")
    counts.late.sink(de.sinks.Collect(), name="late")
    found = run(counts.topology).outputs
    assert found["late"].schema.names == rows.schema.names
    assert pc.sum(found["out"]["rows"]).as_py() + len(found["late"]) == len(rows)


def test_row_without_a_time_can_fail_the_job():
    with pytest.raises(UserCodeError, match="the time 'at' is null; filter such rows, or choose null_time='drop'"):
        results(windowed(readings(8, nulls=0.1), "10s", null_time="refuse"))


SPREAD = agg.custom(
    columns=["value"],
    init=list,
    add=lambda seen, rows: seen + rows["value"].to_pylist(),
    merge=list.__add__,
    result=lambda seen: max(seen) - min(seen),
    type=pa.int64(),
)


@pytest.mark.parametrize("given", [windows.hopping("60s", "20s"), windows.session("10s")], ids=str)
def test_aggregates_of_several_values_are_merged(given):
    rows = readings(14)
    rows = rows.filter(pc.is_valid(rows["value"]))
    logic = {
        "top": agg.TopK("value", 2),
        "distinct": agg.DistinctCount("value"),
        "first": agg.Min(lambda batch: batch["value"].cast(pa.string()), columns=["value"]),
        "spread": SPREAD,
    }
    stream = source(rows, slack="1s").key_by("key").window(given).compute(logic, name="windowed")
    stream.sink(de.sinks.Collect(), name="out")
    found = run(stream.topology, executors=2).outputs["out"]
    shown = found.set_column(3, "top", pc.list_element(found["top"], 0))
    oracle = {
        "top": ("max", "value"),
        "distinct": ("nunique", "value"),
        "first": (lambda values: min(map(str, values)), "value"),
        "spread": (lambda values: values.max() - values.min(), "value"),
    }
    whole = expected(rows, ["key"], stream.topology.operator("windowed").windowing, oracle)
    assert records(shown) == records(whole.results)


@pytest.mark.parametrize("kind", [pa.timestamp("s", "UTC"), pa.timestamp("ns"), pa.date32()])
def test_bounds_have_the_known_type(kind):
    days = pa.array([0, 1, 5], pa.int32()).cast(pa.date32()).cast(kind)
    rows = pa.table({"key": ["a", "a", "b"], "at": days, "value": [1, 2, 3]})
    topology = windowed(rows, "2d")
    found = results(topology)
    expected_type = pa.timestamp("ns" if kind == pa.timestamp("ns") else "us", getattr(kind, "tz", None))
    assert found.schema.field("window_start").type == expected_type
    assert records(found) == records(truth(topology, rows).results)


def collected(rows, slack=None, on_error="fail"):
    """Return sorted values per hopping window; the value 13 raises."""

    def add(values, part):
        assert 13 not in part["value"].to_pylist()
        return values + part["value"].to_pylist()

    logic = {"values": agg.custom(["value"], list, add, list.__add__, sorted, pa.list_(pa.int64()))}
    stream = source(rows, slack).key_by("key").window(windows.hopping("4s", "1s")).compute(logic, name="windowed")
    stream.sink(de.sinks.Collect(), name="out")
    found = run(stream.topology, on_error=on_error).outputs["out"]
    return dict(zip(found["window_end"].cast(pa.int64()).to_pylist(), found["values"].to_pylist(), strict=True))


def test_rows_far_ahead_count_once_beside_one_that_raises():
    seconds, values = [0, 1, 8, 0, 2, 9], [1, 2, 3, 4, 13, 5]
    at = pa.array([second * SECOND for second in seconds], pa.timestamp("us"))
    found = collected(pa.table({"key": ["a"] * 6, "at": at, "value": values}), "100s", "skip")
    for end, numbers in found.items():
        inside = [v for s, v in zip(seconds, values, strict=True) if end - 4 * SECOND <= s * SECOND < end and v != 13]
        assert numbers == sorted(inside), end


def test_rows_of_one_batch_may_be_centuries_apart():
    at = pa.array([0, SECOND, 200_000_000_003 * SECOND], pa.timestamp("us"))
    found = collected(pa.table({"key": ["a"] * 3, "at": at, "value": [1, 2, 3]}))
    assert sorted(found.values()) == [[1], [1, 2], [1, 2], [1, 2], [2], [3], [3], [3], [3]]


@pytest.mark.parametrize("given", [windows.tumbling("10s"), windows.session("10s")], ids=str)
@pytest.mark.parametrize("logic", [LOGIC, de.per_key(lambda key, rows, window: None)], ids=["aggregates", "function"])
@pytest.mark.parametrize("far", [2**63 - 1, 2**62, -(2**62), 1 - 2**63])
def test_rows_too_far_from_1970_are_refused_not_lost(given, logic, far):
    # Rows without a time are left out, and counted.
    rows = pa.table({"key": ["a"] * 3, "at": pa.array([None, 0, far], pa.timestamp("us")), "value": [0, 1, 2]})
    divided = source(rows).key_by("key").window(given)
    divided.compute(logic, name="result").sink(de.sinks.Collect(), name="out")
    with pytest.raises(UserCodeError, match=rf"row 2: ValueError: the time 'at' is {far} us since 1970") as raised:
        run(divided.topology)
    assert raised.value.operator == "result"
