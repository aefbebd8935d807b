from __future__ import annotations

import datetime as dt
import functools
import pickle
import re

import dask.utils
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_elastic as de
from dask_elastic.testing import run
from dask_elastic.topology.duration import seconds_of
from dask_elastic.topology.state_kind import List, Map, Value, kind_of
from dask_elastic.vocab.errors import TopologyError


@pytest.mark.parametrize(
    "text",
    [
        "1s",
        "300ms",
        "10 minutes",
        "10m",
        "2 hours",
        "1.5h",
        "3 days",
        "1 week",
        "5 us",
        "7ns",
        "0.25",
        "hour",
        "2 H",
        "1e3 s",
        "1e-3s",
    ],
)
def test_seconds_of_matches_dask(text):
    assert seconds_of(text, "ttl") == pytest.approx(dask.utils.parse_timedelta(text))


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("10 min", 600), ("30 sec", 30), (".5s", 0.5), (90, 90), (0.5, 0.5), (dt.timedelta(minutes=2), 120)],
)
def test_seconds_of_accepts_more_durations_than_dask(duration, seconds):
    assert seconds_of(duration, "ttl") == seconds


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        ("10 parsecs", "unit of time is unknown"),
        ("ten minutes", "is not a duration"),
        ("", "is not a duration"),
        ("-1s", "above 0"),
        ("- 1 min", "above 0"),
        ("--1s", "is not a duration"),
        ("-", "is not a duration"),
        (0, "above 0"),
        (-3, "above 0"),
        (float("inf"), "above 0"),
        (float("nan"), "above 0"),
        (True, "of type bool"),
        ([1], "of type list"),
        (dt.timedelta(0), "above 0"),
    ],
)
def test_invalid_duration_is_refused(duration, message):
    with pytest.raises(TopologyError, match=f"List: ttl .*{message}"):
        List(pa.int64(), ttl=duration)


def test_state_kinds_compare_by_value():
    assert List(pa.int64(), ttl="1 min") == List(pa.int64(), ttl=60)
    assert List(pa.int64()) != Value(pa.int64())
    assert Map(pa.string(), object) == pickle.loads(pickle.dumps(Map(pa.string(), object)))
    assert len({Map(pa.string(), pa.int64()), Map(pa.string(), pa.int64()), Map(pa.int8(), pa.int64())}) == 2
    assert kind_of(pa.int64()) == Value(pa.int64())
    assert kind_of(object) == Value(object)
    assert repr(Map(pa.date32(), object, ttl="2h")) == "Map(date32[day], object, ttl=7200)"


@pytest.mark.parametrize("key", [pa.float64(), pa.list_(pa.int64()), object, "string", pa.decimal128(10, 2)])
def test_map_refuses_key_types_without_exact_equality(key):
    with pytest.raises(TopologyError, match="Map: key"):
        Map(key, pa.int64())


@pytest.mark.parametrize("kind", [Value, List])
def test_state_types_that_are_not_arrow_types_are_refused(kind):
    with pytest.raises(TopologyError, match="give a pyarrow type"):
        kind(int)


def stream():
    return de.Topology("t").source("rows", de.sources.Arrow(pa.table({"key": [1], "n": [2]}))).key_by("key")


UNION = pa.dense_union([pa.field("number", pa.int64()), pa.field("text", pa.string())])


LISTED_RUNS = pa.list_view(pa.run_end_encoded(pa.int32(), pa.int64()))


@pytest.mark.parametrize("kind", [UNION, pa.list_(UNION), pa.list_view(UNION), pa.struct({"one": UNION}), LISTED_RUNS])
def test_state_types_that_cannot_be_kept_are_refused(kind):
    refused = re.escape(f"type is {kind}, of which state cannot be kept; declare object")
    for declare in (Value, List, functools.partial(Map, pa.string())):
        with pytest.raises(TopologyError, match=refused):
            declare(kind)


VIEWS = pa.array(["one", "two", "one"]).cast(pa.string_view())


@pytest.mark.parametrize(
    "values",
    [
        VIEWS,
        pa.array([b"one", b"two", b"one"]).cast(pa.binary_view()),
        pc.run_end_encode(pa.array([1, 2, 1])),
        pa.array([["one"], [], ["two", "one"]]).cast(pa.list_(pa.string_view())),
        pa.StructArray.from_arrays([VIEWS], ["text"]),
        pa.array([["one"], [], ["two", "one"]], pa.list_view(pa.string_view())),
        pa.array([[["one"]], [], [["two"], []]], pa.list_(pa.list_view(pa.string_view()))),
    ],
    ids=lambda values: str(values.type),
)
def test_state_of_views_and_runs_keeps_their_values(values):
    plain = values.to_pylist()

    @de.per_row
    def remember(row, state):
        value = plain[row["place"]]
        state["last"] = value
        state["all"].append(value)
        state["named"]["last"] = value

    rows = pa.table({"key": ["a", "b", "a"], "place": range(3)})
    declared = {"last": values.type, "all": List(values.type), "named": Map(pa.string_view(), values.type)}
    topology = de.Topology("kept")
    stream = topology.source("rows", de.sources.Arrow(rows, batch_rows=1)).key_by("key")
    stream.compute(remember, state=declared, name="kept")
    assert run(topology).state["kept"].sort_by("key").select(list(declared)).to_pylist() == [
        {"last": plain[2], "all": [plain[0], plain[2]], "named": [("last", plain[2])]},
        {"last": plain[1], "all": [plain[1]], "named": [("last", plain[1])]},
    ]


def test_state_declared_by_a_class_is_refused():
    with pytest.raises(TopologyError, match="List is a class; give an instance"):
        stream().compute(lambda batch, state: None, state={"recent": List})


def test_state_name_with_reserved_suffix_is_refused():
    with pytest.raises(TopologyError, match="ends in '@'"):
        stream().compute(lambda batch, state: None, state={"recent@": pa.int64()})


def test_decorated_functions_are_checked():
    @de.per_row
    def three(key, batch, state): ...

    with pytest.raises(TopologyError, match=r"per_row: .*three.*cannot be called as function\(row, state\)"):
        stream().compute(three)
    with pytest.raises(TopologyError, match=r"Write @de.per_key above it to have it called as function\(key, batch"):
        stream().compute(lambda key, batch, state: None)
    with pytest.raises(TopologyError, match="3 is not a function"):
        de.per_key(3)
    with pytest.raises(TopologyError, match="output is 'change'"):
        de.per_row(output="change")(lambda row, state: None)
    with pytest.raises(TopologyError, match=r"@de\.per_row is for compute"):
        de.Topology("t").source("rows", de.sources.Arrow(pa.table({"n": [1]}))).map(de.per_row(lambda row, state: None))


def test_decorated_function_can_be_called():
    @de.per_row(output={"n": pa.int64()})
    def double(row, state):
        return {"n": 2 * row["n"]}

    assert double({"n": 4}, {}) == {"n": 8}
    assert repr(stream().compute(double)) == "Stream('double' of topology 't')"
