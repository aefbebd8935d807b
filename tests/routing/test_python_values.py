"""Values for which Python has no object are refused by column, or skipped, in functions per row and per key."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.testing import run
from dask_elastic.vocab.errors import UserCodeError

AT = pa.array([1, 2, 3], pa.timestamp("s"))
BEYOND = {
    "duration": pa.array([1, 2**62, 2], pa.duration("s")),
    "timestamp": pa.array([1, 2**50, 2], pa.timestamp("s")),
    "date": pa.array([1, 2**30, 2], pa.date32()),
}


def per_row(row, state):
    return {"rows": 1}


def per_key(key, rows, state):
    return {"rows": rows.num_rows}


def topology_of(logic, key, values, window=None):
    topology = de.Topology("beyond")
    rows = pa.table({"plane": ["a", "b", "c"], "value": values, "at": AT})
    keyed = topology.source("rows", de.sources.Arrow(rows, event_time="at")).key_by(key)
    keyed = keyed.window(window) if window else keyed
    keyed.compute(logic, name="counted").sink(de.sinks.Collect(), name="out")
    return topology


@pytest.mark.parametrize("kind", BEYOND)
def test_value_without_a_python_object_names_the_column(kind):
    for logic, key, window in (
        (de.per_row(per_row), "plane", None),
        (de.per_row(per_row), "plane", "10s"),
        (de.per_key(per_key), "value", None),
    ):
        with pytest.raises(UserCodeError) as raised:
            run(topology_of(logic, key, BEYOND[kind], window))
        text = str(raised.value)
        assert f"column 'value': Python has no object for one of its values of type {BEYOND[kind].type}" in text
        assert "use a function of batches" in text


@pytest.mark.parametrize("kind", BEYOND)
def test_function_per_key_reads_such_values_as_arrow(kind):
    found = run(topology_of(de.per_key(per_key), "plane", BEYOND[kind]))
    assert found.outputs["out"]["rows"].to_pylist() == [1, 1, 1]


def test_rows_with_such_values_are_skipped():
    found = run(topology_of(de.per_row(per_row), "plane", BEYOND["duration"]), on_error="skip")
    assert found.outputs["out"].num_rows == 2
    (letters,) = found.dead_letters.values()
    assert letters["plane"].to_pylist() == ["b"]


def test_nanoseconds_of_times_of_day_are_refused_and_not_dropped():
    values = pa.array([1_000, 1_001, 1_002], pa.time64("ns"))
    for logic, key in ((de.per_row(per_row), "plane"), (de.per_key(per_key), "value")):
        with pytest.raises(UserCodeError, match=r"column 'value': Python has no object for one of its values of type "):
            run(topology_of(logic, key, values))
    whole = pa.array([1_000, 2_000, 3_000], pa.time64("ns"))
    assert run(topology_of(de.per_key(per_key), "value", whole)).outputs["out"].num_rows == 3
