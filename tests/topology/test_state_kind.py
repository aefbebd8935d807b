from __future__ import annotations

import datetime as dt
import pickle

import dask.utils
import pyarrow as pa
import pytest

import dask_elastic as de
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
