"""Joins against pandas, whatever the batches, the columns and the order of events."""

from __future__ import annotations

import datetime
import decimal

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings

import dask_elastic as de
from dask_elastic.state.joins.layout import JoinLayout
from dask_elastic.state.joins.payload import payload_column
from dask_elastic.testing import run
from dask_elastic.topology.joins.joining import LEFT

SECOND = 1_000_000


def table(rows, value):
    """Return rows of keys and times, in the order of their times, each with its number."""
    rows = sorted(rows, key=lambda row: row[1])
    keys, times = ([row[place] for row in rows] for place in (0, 1))
    return pa.table(
        {
            "key": pa.array(keys, pa.string()),
            "at": pa.array([time * SECOND for time in times], pa.timestamp("us")),
            value: pa.array(range(len(rows)), pa.int64()),
            "text": pa.array([None if number % 3 == 0 else "é" * (number % 4) for number in range(len(rows))]),
        }
    )


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 30)), max_size=25)
SIDES = st.tuples(ROWS.map(lambda rows: table(rows, "a")), ROWS.map(lambda rows: table(rows, "b")))


def joined(sides, join, batch=4, **options):
    topology = de.Topology("joined")
    left, right = (
        topology.source(name, de.sources.Arrow(side, event_time="at", batch_rows=batch)).key_by("key")
        for name, side in zip(("left", "right"), sides, strict=True)
    )
    stream = join(left, right)
    stream.sink(de.sinks.Collect(), name="out")
    schema = topology.operator(stream.producers[0]).join.output
    found = run(topology, **options).outputs.get("out", schema.empty_table())
    assert found.schema.equals(schema)
    return found.to_pandas()


def results(frame, *columns):
    """Return the rows as a sorted list, with -1 for nulls."""
    return sorted(map(tuple, frame[[*columns]].astype("Float64").fillna(-1).astype("int64").values.tolist()))


def paired(sides, kept, how, on="key"):
    """Join all rows with pandas, keep the pairs that `kept` chooses, and add the rows without a match."""
    left, right = (side.to_pandas() for side in sides)
    pairs = left[left["key"].notna()].merge(right[right["key"].notna()], on=on, suffixes=("", "_right"))
    pairs = pairs[kept(pairs)] if len(pairs) else pairs
    found = list(zip(pairs["a"].tolist(), pairs["b"].tolist(), strict=True))
    if how in ("left", "outer"):
        found += [(a, -1) for a in sorted({*left["a"]} - {*pairs["a"]})]
    if how in ("right", "outer"):
        found += [(-1, b) for b in sorted({*right["b"]} - {*pairs["b"]})]
    return sorted(found)


@settings(max_examples=30, deadline=None)
@given(
    SIDES,
    st.tuples(st.integers(-15, 15), st.integers(0, 15)),
    st.sampled_from(["inner", "left", "right", "outer"]),
    st.integers(1, 9),
    st.integers(0, 5),
)
def test_interval_join_equals_that_of_pandas(sides, bounds, how, batch, seed):
    low, high = bounds[0], bounds[0] + bounds[1]

    def kept(pairs):
        return (pairs["at_right"] - pairs["at"]).dt.total_seconds().between(low, high)

    found = joined(sides, lambda left, right: left.join(right, within=(low, high), how=how), batch, seed=seed)
    assert results(found, "a", "b") == paired(sides, kept, how)
    texts = [side["text"].to_pylist() for side in sides]
    for row in found.astype(object).where(found.notna(), None).to_dict("records"):
        assert row["text"] == (None if row["a"] is None else texts[0][int(row["a"])])
        assert row["text_right"] == (None if row["b"] is None else texts[1][int(row["b"])])


@settings(max_examples=20, deadline=None)
@given(SIDES, st.sampled_from([None, 0, 3]), st.sampled_from(["left", "inner"]), st.integers(1, 9), st.integers(0, 5))
def test_join_asof_equals_that_of_pandas(sides, tolerance, how, batch, seed):
    found = joined(sides, lambda left, right: left.join_asof(right, tolerance=tolerance, how=how), batch, seed=seed)
    left, right = (side.to_pandas() for side in sides)
    limit = None if tolerance is None else pd.Timedelta(seconds=tolerance)
    known = [frame[frame["key"].notna()] for frame in (left, right)]
    expected = pd.merge_asof(*known, on="at", by="key", tolerance=limit) if len(known[0]) else left.assign(b=None)[:0]
    expected = pd.concat([expected[["a", "b"]], left[left["key"].isna()].assign(b=None)[["a", "b"]]])
    if how == "inner":
        expected = expected[expected["b"].notna()]
    assert results(found, "a", "b") == results(expected, "a", "b")


def test_join_asof_with_a_tolerance_keeps_no_row_at_the_end_of_the_input():
    topology = de.Topology("joined")
    left, right = (
        topology.source(name, de.sources.Arrow(table([("a", time)], name), event_time="at")).key_by("key")
        for name, time in (("a", 100), ("b", 5))
    )
    left.join_asof(right, tolerance=10, name="priced")
    assert run(topology).state["priced"].num_rows == 0


@pytest.mark.parametrize("how", ["inner", "outer"])
def test_window_join_equals_that_of_pandas(how):
    random = np.random.default_rng(0)
    sides = [
        table(list(zip(random.choice(["a", "b"], 60), random.integers(0, 90, 60).tolist(), strict=True)), value)
        for value in ("a", "b")
    ]
    window = de.topology.windowing.EventWindow(0, 20 * SECOND, 5 * SECOND)
    found = joined(sides, lambda left, right: left.join(right, window=window, how=how))
    found["begin"] = found["window_start"].dt.tz_localize(None).astype("datetime64[s]").astype("int64")
    assert ((found["window_end"] - found["window_start"]).dt.total_seconds() == 20).all()
    frames = []
    for side in sides:
        frame = side.to_pandas()
        last = frame["at"].astype("datetime64[s]").astype("int64") // 5 * 5
        frames.append(pd.concat([frame.assign(begin=last - 5 * back) for back in range(4)]))
    expected = frames[0].merge(frames[1], on=["key", "begin"], how=how, suffixes=("", "_right"))
    assert results(found, "a", "b", "begin") == results(expected, "a", "b", "begin")


def test_null_keys_join_if_asked_for():
    sides = table([(None, 1), ("a", 1)], "a"), table([(None, 2), (None, 3)], "b")
    found = joined(sides, lambda left, right: left.join(right, within=5, how="left", nulls_equal=True))
    assert results(found, "a", "b") == [(0, 0), (0, 1), (1, -1)]
    found = joined(sides, lambda left, right: left.join(right, within=5, how="outer"))
    assert results(found, "a", "b") == [(-1, 0), (-1, 1), (0, -1), (1, -1)]


def test_rows_without_a_time_match_none():
    sides = [table([("a", 1), ("a", 2)], value) for value in ("a", "b")]
    sides[0] = sides[0].set_column(1, "at", pa.array([None, 2 * SECOND], pa.timestamp("us")))
    found = joined(sides, lambda left, right: left.join(right, within=5, how="outer"))
    assert results(found, "a", "b") == [(0, -1), (1, 0), (1, 1)]
    found = joined(sides, lambda left, right: left.join_asof(right))
    assert results(found, "a", "b") == [(0, -1), (1, 1)]


def test_what_became_of_the_rows_of_a_join_is_counted():
    times = pa.array([0, 100 * SECOND, SECOND, None], pa.timestamp("us"))
    rows = pa.table({"key": ["a"] * 4, "at": times, "value": range(4)})
    topology = de.Topology("joined")
    left, right = (
        topology.source(name, de.sources.Arrow(rows, event_time="at", batch_rows=1)).key_by("key")
        for name in ("left", "right")
    )
    left.join(right, within="5s", name="pairs").sink(de.sinks.Collect(), name="out")
    counts = run(topology).windows["pairs"]
    assert (counts.on_time + counts.late, counts.untimed) == (6, 2)
    assert counts.late == 2


@pytest.mark.parametrize("nulls_equal", [False, True])
def test_rows_with_a_null_key_are_counted_as_any_row(nulls_equal):
    topology = de.Topology("joined")
    left, right = (
        topology.source(name, de.sources.Arrow(table([(None, 1), ("a", 2)], name), event_time="at")).key_by("key")
        for name in ("left", "right")
    )
    left.join(right, within="5s", nulls_equal=nulls_equal, name="pairs").sink(de.sinks.Collect(), name="out")
    assert run(topology).windows["pairs"] == (4, 0, 0, 0, 0)


def test_skewed_key_has_all_pairs():
    sides = table([("a", 0)] * 300, "a"), table([("a", 0)] * 200, "b")
    found = joined(sides, lambda left, right: left.join(right, within=0), batch=64)
    assert len(found) == 60_000
    assert not found.duplicated(["a", "b"]).any()


def test_stream_joined_with_itself_has_each_pair_twice():
    rows = table([("a", 0), ("a", 1), ("b", 1)], "a")
    topology = de.Topology("itself")
    source = topology.source("rows", de.sources.Arrow(rows, event_time="at")).key_by("key")
    source.join(source, within=1).sink(de.sinks.Collect(), name="out")
    found = run(topology).outputs["out"].to_pandas()
    assert results(found, "a", "a_right") == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]


def test_waiting_rows_are_in_the_state_until_the_watermark_passes():
    """Downstream of a join, a second join needs watermarks that are behind the times of its results."""
    rows = [table([("a", time) for time in range(0, 60, 3)], value) for value in ("a", "b", "c")]
    topology = de.Topology("chained")
    first, second, third = (
        topology.source(name, de.sources.Arrow(side, event_time="at", batch_rows=3)).key_by("key")
        for name, side in zip(("first", "second", "third"), rows, strict=True)
    )
    pairs = first.join(second, within=2, how="left", name="pairs")
    triples = pairs.key_by("key").join(third, within=2, how="outer", time="at", suffixes=("", "_3"))
    triples.sink(de.sinks.Collect(), name="out")
    found = run(topology).outputs["out"].to_pandas()
    assert results(found, "a", "b", "c") == [(number,) * 3 for number in range(20)]


VALUES = [
    (pa.int8(), [1, None, -3]),
    (pa.uint64(), [2**64 - 1, None, 0]),
    (pa.float32(), [1.5, None, float("inf")]),
    (pa.bool_(), [True, None, False]),
    (pa.date32(), [datetime.date(2020, 1, 1), None, datetime.date(1, 1, 1)]),
    (pa.date64(), [datetime.date(2020, 1, 1), None, datetime.date(1990, 1, 1)]),
    (pa.timestamp("ns", "Europe/Berlin"), [1, None, 2]),
    (pa.duration("ms"), [1, None, 2]),
    (pa.time64("us"), [datetime.time(1, 2), None, datetime.time(3, 4)]),
    (pa.time64("ns"), [1, None, 1_000_000_001]),
    (pa.time32("s"), [datetime.time(1, 2), None, datetime.time(3, 4)]),
    (pa.list_(pa.time64("ns")), [[1, None], None, [1_000_000_001]]),
    (pa.large_list(pa.timestamp("s")), [[2**40], None, []]),
    (pa.list_(pa.duration("s"), 1), [[2**60], None, [1]]),
    (pa.map_(pa.string(), pa.time64("ns")), [[("a", 1)], None, []]),
    (pa.struct({"x": pa.date32(), "y": pa.time64("ns")}), [{"x": 2**30, "y": 1}, None, {"x": None, "y": 2}]),
    (pa.decimal128(9, 2), [decimal.Decimal("1.25"), None, decimal.Decimal("-3.10")]),
    (pa.string(), ["a", None, ""]),
    (pa.large_binary(), [b"\0\xff", None, b""]),
    (pa.list_(pa.int64()), [[1, 2], None, []]),
    (pa.struct({"x": pa.int64()}), [{"x": 1}, None, {"x": None}]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
@pytest.mark.parametrize("offset", [0, 1])
def test_column_of_any_type_is_stored(kind, values, offset):
    column = pa.array(values, kind).slice(offset)
    storage = payload_column("x", kind)
    stored, known = storage.stored(column)
    chosen = np.array([1, 0])
    found = storage.column(stored.take(chosen), known.take(chosen))
    assert found.equals(column.take(pa.array(chosen)))
    # Numbers of times say what they count, so that no other type takes them over.
    has_times = any(word in str(kind) for word in ("time", "date", "duration"))
    text = str(kind) if pa.types.is_nested(kind) else str(kind).partition(",")[0].rstrip("]") + "]"
    assert [field.name for field in storage.fields] == [f"x ({text})" if has_times else "x", "x known"]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.duration("us")], ids=str)
def test_least_time_is_no_null(kind):
    storage = payload_column("x", kind)
    column = pa.array([-(2**63), 0, 2**63 - 1], pa.int64()).view(kind)
    stored, known = storage.stored(column)
    assert storage.column(stored, known).equals(column)


def test_columns_of_the_other_side_take_no_room():
    rows = table([("a", 0)], "a")
    topology = de.Topology("joined")
    source = topology.source("rows", de.sources.Arrow(rows, event_time="at")).key_by("key")
    source.join(source, within=1)
    join = topology.operator("join-1").join
    layout = JoinLayout(join)
    # Both sides share the columns at, a and text.
    assert len(join.shared) == 3
    assert len(layout.positions(LEFT)) == 6
