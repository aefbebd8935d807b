"""Windows of a number of rows have the results of the oracle, whatever the batches, executors and order of events."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_oracle import expected, records

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic import windows
from dask_elastic.testing import run
from dask_elastic.topology.windowing import CountWindow
from dask_elastic.vocab.errors import TopologyError, UserCodeError
from dask_elastic.vocab.row_counts import RowCounts

LOGIC = {"rows": agg.Count(), "known": agg.Count("value"), "sum": agg.Sum("value"), "most": agg.Max("value")}
ORACLE = {"rows": ("size", None), "known": ("count", "value"), "sum": ("sum", "value"), "most": ("max", "value")}


def readings(seed, rows=300, keys=5, nulls=0.0):
    rng = np.random.default_rng(seed)
    names = np.array([f"k{number}" for number in range(keys)])
    return pa.table(
        {
            "key": pa.array(rng.choice(names, rows), mask=rng.random(rows) < 0.1),
            "at": pa.array(rng.integers(0, 500, rows), pa.timestamp("s"), mask=rng.random(rows) < nulls),
            "until": pa.array(rng.integers(500, 600, rows), pa.timestamp("s")),
            "value": pa.array(rng.integers(-50, 50, rows), mask=rng.random(rows) < 0.2),
        }
    )


def counted_stream(rows, window, event_time=None, batch_rows=37, logic=LOGIC, time=None, **options):
    arrow = de.sources.Arrow(rows, batch_rows=batch_rows, event_time=event_time)
    keyed = de.Topology("counts").source("rows", arrow).key_by("key")
    stream = keyed.window(window, time=time).compute(logic, name="counted", **options)
    stream.sink(de.sinks.Collect(), name="out")
    return stream


def counted(*args, **options):
    return counted_stream(*args, **options).topology


def truth(topology, rows):
    return expected(rows, ["key"], topology.operator("counted").windowing, ORACLE)


def check(topology, rows, **options):
    found, whole = run(topology, executors=2, **options), truth(topology, rows)
    assert records(found.outputs.get("out", pa.table({}))) == records(whole.results)
    assert found.windows["counted"] == RowCounts(whole.pairs, 0, 0, whole.outside, whole.untimed)


@pytest.mark.parametrize("event_time", [None, "at"])
@pytest.mark.parametrize("window", [(5, 5), (5, 2), (6, 4), (40, 3), (1, 1), (400, 400)], ids=str)
def test_results_are_those_of_the_whole_input(window, event_time):
    rows = readings(1, nulls=0.1)
    check(counted(rows, windows.count(*window), event_time), rows)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 120), st.booleans(), st.integers(0, 2**31))
def test_any_count_window_has_the_results_of_the_whole_input(length, frequency, batch_rows, timed, seed):
    rows = readings(seed, rows=120, nulls=0.05)
    check(counted(rows, CountWindow(length, frequency), "at" if timed else None, batch_rows), rows, seed=seed)


def test_results_are_bounded_by_the_times_of_the_first_and_the_last_row():
    rows = pa.table({"key": ["a"] * 3, "at": pa.array([20, 10, 30], pa.timestamp("s", "UTC")), "value": [1, 2, 3]})
    found = run(counted(rows, windows.count(2), "at")).outputs["out"]
    assert found.schema.field("window_end").type == pa.timestamp("us", "UTC")
    bounds = [found[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
    assert bounds == [[10_000_000], [20_000_001]]


def test_spans_bound_results_by_their_ends():
    rows = readings(2)
    check(counted(rows, windows.count(6, 3), time=("at", "until")), rows)


def test_numbers_of_rows_bound_results_if_no_time_is_wanted():
    rows = readings(2)
    topology = counted(rows, windows.count(6, 3), "at", time=())
    check(topology, rows)
    assert run(topology).outputs["out"].schema.field("window_start").type == pa.int64()


def test_rows_of_an_incomplete_instance_stay_in_the_state():
    rows = pa.table({"key": ["a"] * 7 + ["b"] * 4, "value": range(11)})
    found = run(counted(rows, windows.count(4, 2)))
    assert [row["window_start"] for row in found.outputs["out"].to_pylist() if row["key"] == "a"] == [0, 2]
    state = found.state["counted"].sort_by([("key", "ascending"), ("window_start", "ascending")])
    assert [tuple(row.values())[:4] for row in state.to_pylist()] == [("a", 4, 6, 2), ("a", 6, 7, 1), ("b", 2, 4, 2)]


def test_windows_over_all_rows_need_no_column():
    rows = readings(3)
    stream = de.Topology("counts").source("rows", de.sources.Arrow(rows, batch_rows=7)).window(windows.count(50))
    stream.compute({"rows": agg.Count()}, name="counted").sink(de.sinks.Collect(), name="out")
    found = run(stream.topology).outputs["out"]
    assert found.to_pylist() == [{"window_start": n, "window_end": n + 50, "rows": 50} for n in range(0, 300, 50)]


def test_results_are_windowed_by_their_times():
    rows = readings(4).sort_by("at")
    stream = counted_stream(rows, windows.count(3), "at")
    tens = stream.key_by("key").window("100s")
    assert tens.windowing.time == ("window_start", "window_end")
    tens.compute({"rows": agg.Sum("rows")}, name="long").sink(de.sinks.Collect(), name="tens")
    found = run(stream.topology, executors=2)
    short = found.outputs["out"].to_pandas()
    first, last = (short[name].astype("int64") // 100_000_000 for name in ("window_start", "window_end"))
    wanted = short[first == last].groupby("key", dropna=False)["rows"].sum()
    got = found.outputs["tens"].to_pandas().groupby("key", dropna=False)["rows"].sum()
    assert records(got.reset_index()) == records(wanted.reset_index())
    assert found.windows["long"].late == 0


def test_results_of_count_windows_are_counted_again():
    rows = readings(5)
    stream = de.Topology("counts").source("rows", de.sources.Arrow(rows, batch_rows=37)).key_by("key")
    first = stream.window(windows.count(3)).compute({"rows": agg.Count()}, name="short")
    first.key_by("key").window(windows.count(4)).compute({"rows": agg.Sum("rows")}, name="long").sink(
        de.sinks.Collect(), name="out"
    )
    found = run(first.topology, executors=2).outputs["out"]
    sizes = rows.group_by("key").aggregate([([], "count_all")])["count_all"].to_pylist()
    assert found["rows"].to_pylist() == [12] * sum(size // 12 for size in sizes)


SPREAD = agg.custom(
    columns=["value"],
    init=list,
    add=lambda seen, rows: seen + rows["value"].to_pylist(),
    merge=list.__add__,
    result=list,
    type=pa.list_(pa.int64()),
)


@pytest.mark.parametrize("window", [(4, 4), (7, 2), (13, 1)], ids=str)
def test_aggregates_of_several_values_are_merged_in_order(window):
    rows = readings(6).set_column(3, "value", pa.array(range(300)))
    logic = {"values": SPREAD, "top": agg.TopK("value", 2), "distinct": agg.DistinctCount("value")}
    found = run(counted(rows, windows.count(*window), logic=logic), executors=2).outputs["out"]
    length, frequency = window
    values = defaultdict(list)
    for row in rows.to_pylist():
        values[row["key"]].append(row["value"])
    wanted = {
        (key, begin): own[begin : begin + length]
        for key, own in values.items()
        for begin in range(0, len(own) - length + 1, frequency)
    }
    got = {(row["key"], row["window_start"]): row for row in found.to_pylist()}
    assert {one: row["values"] for one, row in got.items()} == wanted
    assert all(row["top"] == row["values"][-2:][::-1] and row["distinct"] == length for row in got.values())


def test_row_that_raises_is_not_counted():
    def doubled(batch):
        if 13 in batch["value"].to_pylist():
            raise ValueError("no 13")
        return pc.multiply(batch["value"], 2)

    rows = pa.table({"key": ["a"] * 20, "value": range(20)})
    logic = {"rows": agg.Count(), "sum": agg.Sum(doubled, columns=["value"])}
    topology = counted(rows, windows.count(5), logic=logic)
    found = run(topology, on_error="skip")
    without = [2 * number for number in range(20) if number != 13]
    assert found.outputs["out"]["sum"].to_pylist() == [sum(without[n : n + 5]) for n in range(0, 15, 5)]
    assert found.windows["counted"].on_time == 19
    with pytest.raises(UserCodeError, match="no 13"):
        run(topology)


def test_row_without_a_time_can_fail_the_job():
    topology = counted(readings(7, nulls=0.1), windows.count(3), "at", null_time="refuse")
    with pytest.raises(UserCodeError, match=r"the time 'at' is null; filter such rows, or choose null_time='drop'\. "):
        run(topology)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_lateness": "5s"}, "count windows have no late rows; omit allowed_lateness"),
        ({"late": "stream"}, "count windows have no late rows"),
        ({"late": "stream", "null_time": "late"}, "count windows have no late rows"),
        ({"emit": "updates"}, "appears with the row that completes it; omit emit"),
    ],
    ids=str,
)
def test_options_of_event_time_are_refused(options, message):
    with pytest.raises(TopologyError, match=f"compute 'counted': .*{message}"):
        counted(readings(8), windows.count(5), **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "length is 0"),
        ((2.5,), "length is 2.5"),
        (("10s",), "length is '10s'"),
        ((5, 0), "frequency is 0"),
        ((5, 6), "frequency is 6, above the length, 5"),
    ],
    ids=str,
)
def test_numbers_that_are_not_valid_are_named(arguments, message):
    with pytest.raises(TopologyError, match=f"count: .*{message}|count: {message}"):
        windows.count(*arguments)
