"""Rows on which user code raises are skipped: their changes are undone, all other rows are processed, in few calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_elastic as de
from dask_elastic.testing import run
from dask_elastic.vocab.errors import StateError, UserCodeError

STATE = {
    "last": pa.int64(),
    "thing": object,
    "recent": de.List(pa.int64()),
    "seen": de.Map(pa.int64(), pa.int64()),
}
OUTPUT = {"key": pa.string(), "value": pa.int64(), "size": pa.int64()}


def change(value, state):
    """Change the state by each operation in turn, and fail in the midst if the value is negative."""
    kind, number = abs(value) % 7, abs(value) // 7 % 5
    state["last"] = value
    state["thing"] = {"value": value}
    recent, seen = state["recent"], state["seen"]
    recent.append(number)
    if kind == 1:
        recent.keep_newest(2)
    elif kind == 2:
        del state["last"]
        state["recent"] = [number, number]
    elif kind == 3:
        recent.clear()
    elif kind == 4:
        seen.pop(number, None)
        seen[number + 5] = value
    elif kind == 5:
        state["seen"] = {number: value}
    seen[number] = value
    recent.append(value)
    if value < 0:
        fail(value, state)
    return len(recent) + len(seen)


def fail(value, state):
    """Raise, or give the state a value that does not fit."""
    match -value % 5:
        case 1:
            state["last"] = "n/a"
        case 2:
            state["recent"].append(1.5)
        case 3:
            state["seen"] = {value: None}
        case 4:
            state["recent"] = [1, None]
        case _:
            raise ValueError(f"no {value}")


def by_row(row, state):
    return {"key": row["key"], "value": row["value"], "size": change(row["value"], state)}


def by_key(key, batch, state):
    for value in batch["value"].to_pylist():
        yield {"key": key, "value": value, "size": change(value, state)}


def results(logic, table, batch_rows, on_error="skip"):
    topology = de.Topology("skips")
    rows = topology.source("rows", de.sources.Arrow(table, batch_rows=batch_rows)).key_by("key")
    stream = rows.compute(logic, state=STATE, name="changes", executors=1, shards=2)
    stream.sink(de.sinks.Collect(), name="out")
    return run(topology, on_error=on_error)


def by_name(table):
    return {} if table is None else {row.pop("key"): row for row in table.to_pylist()}


def outputs(result):
    """Return the outputs by key: only the rows of one key have an order."""
    found = {}
    for row in result.outputs["out"].to_pylist() if "out" in result.outputs else ():
        found.setdefault(row["key"], []).append((row["value"], row["size"]))
    return found


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-40, 60).filter(bool)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    ROWS, st.integers(1, 20), st.sampled_from([de.per_row(output=OUTPUT)(by_row), de.per_key(output=OUTPUT)(by_key)])
)
def test_result_is_as_if_failing_rows_had_not_been_there(rows, batch_rows, logic):
    table = pa.table({"key": [key for key, _ in rows], "value": [value for _, value in rows]})
    good = table.filter(pa.array([value > 0 for _, value in rows]))
    skipped = results(logic, table, batch_rows)
    if good.num_rows:
        wanted = results(logic, good, batch_rows, on_error="fail")
        assert by_name(skipped.state["changes"]) == by_name(wanted.state["changes"])
        assert outputs(skipped) == outputs(wanted)
    else:
        assert by_name(skipped.state.get("changes")) == {}
    bad = Counter((key, value, value % 5 != 0) for key, value in rows if value < 0)
    letters = skipped.dead_letters["changes"].to_pylist() if bad else []
    assert (
        Counter((r["key"], r["value"], r["__error"].startswith("StateValueError: the state")) for r in letters) == bad
    )


VALUES = ["12", "n/a", 3, 4.0]


@de.per_row
def keep_last(row, state):
    state["last"] = VALUES[row["value"]]


@pytest.mark.parametrize("batch_rows", [1, 4])
def test_values_fit_the_declared_state_or_not_whatever_batch_they_are_in(batch_rows):
    table = pa.table({"key": list("abcd"), "value": [0, 1, 2, 3]})
    found = results(keep_last, table, batch_rows)
    assert {key: row["last"] for key, row in by_name(found.state["changes"]).items()} == {"a": 12, "c": 3, "d": 4}
    [letter] = found.dead_letters["changes"].to_pylist()
    assert letter["key"] == "b"
    assert letter["__error"].startswith("StateValueError: the state 'last' is declared as int64, which 'n/a' does not")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            lambda state: state.__setitem__("last", "n/a"),
            "the state 'last' is declared as int64, which 'n/a' does not fit",
        ),
        (
            lambda state: state["recent"].append("n/a"),
            "the state 'recent' is declared as int64, which 'n/a' does not fit",
        ),
        (lambda state: state["seen"].update({1: 2.5}), "the state 'seen' is declared as int64, which 2.5 does not fit"),
        (lambda state: state["seen"].update({1: None}), "the state 'seen' was given None"),
    ],
)
def test_value_that_does_not_fit_names_operator_row_state_and_value(value, reason):
    table = pa.table({"key": list("bb"), "value": [0, 1]})
    logic = de.per_row(lambda row, state: value(state) if row["value"] else None)
    with pytest.raises(UserCodeError, match=rf"operator 'changes', batch 0, row 1: StateValueError: {reason}"):
        results(logic, table, 2, on_error="fail")


@dataclass(frozen=True)
class Unlucky(Exception):
    """An exception that takes no attributes, whose key and row are not known."""

    value: int


def raised(key, batch, state):
    if key == "unlucky":
        raise Unlucky(7) if batch["value"][0].as_py() else ValueError("seven")


@pytest.mark.parametrize(("value", "said"), [(0, ", key 'unlucky': ValueError: seven"), (1, ": .*Unlucky")])
def test_error_of_logic_per_key_names_the_key(value, said):
    table = pa.table({"key": ["a", "unlucky"], "value": [value, value]})
    with pytest.raises(UserCodeError, match=rf"operator 'changes', batch 0{said}"):
        results(de.per_key(raised), table, 2, on_error="fail")


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_undeclared_state_fails_the_job_and_names_the_operator(on_error):
    logic = de.per_row(lambda row, state: state["lsat"])
    with pytest.raises(StateError, match="operator 'changes': the state 'lsat' is not declared"):
        results(logic, pa.table({"key": ["a"], "value": [1]}), 1, on_error=on_error)


def test_skipped_rows_of_a_batch_are_those_whose_values_do_not_fit():
    def keep(batch, state):
        state.set("last", [VALUES[batch["value"][place].as_py()] for place in state.first])

    found = results(keep, pa.table({"key": list("abcd"), "value": [0, 1, 0, 0]}), 4)
    assert sorted(by_name(found.state["changes"])) == ["a", "c", "d"]
    assert found.dead_letters["changes"]["key"].to_pylist() == ["b"]


@pytest.mark.parametrize(("level", "most"), [("row", 1.2), ("key", 1.5), ("batch", 1.3)])
def test_calls_are_few_if_a_third_of_the_rows_fail(level, most):
    calls, count = [], 4_000

    def process(values):
        calls.append(len(values))
        if any(value % 3 == 0 for value in values):
            raise ValueError("divisible")

    logic = {
        "row": de.per_row(lambda row, state: process([row["value"]])),
        "key": de.per_key(lambda key, batch, state: process(batch["value"].to_pylist())),
        "batch": lambda batch, state: process(batch["value"].to_pylist()),
    }[level]
    values = [number * 7919 % 10_007 for number in range(count)]
    table = pa.table({"key": [f"k{number % 40}" for number in range(count)], "value": values})
    result = results(logic, table, 1_000)
    assert result.dead_letters["changes"].num_rows == sum(value % 3 == 0 for value in values)
    assert len(calls) <= most * count
    assert sum(calls) <= 2 * most * count


def test_row_that_returns_wrong_columns_is_skipped_and_its_change_undone():
    @de.per_row(output={"change": pa.int64()})
    def wrong(row, state):
        state["last"] = row["value"]
        return {"other" if row["value"] == 3 else "change": row["value"]}

    table = pa.table({"key": ["a", "a", "b"], "value": [1, 2, 3]})
    result = results(wrong, table, 3)
    assert by_name(result.state["changes"]).keys() == {"a"}
    [letter] = result.dead_letters["changes"].to_pylist()
    assert letter["value"] == 3
    assert "returned a row with the columns ['other']" in letter["__error"]


@pytest.mark.parametrize("declared", [{"change": pa.int64()}, None])
def test_fraction_in_a_column_of_integers_is_an_error_of_its_row(declared):
    """Columns that are not declared have the types of the first rows."""

    @de.per_row(output=declared)
    def halves(row, state):
        return {"change": row["value"] / 2 if row["value"] % 2 else row["value"] // 2}

    table = pa.table({"key": ["a"] * 4, "value": [2, 4, 7, 8]})
    with pytest.raises(UserCodeError, match=r"change: int64\): 3\.5 has a fraction, and would be truncated as int64"):
        results(halves, table, 1, on_error="fail")
    result = results(halves, table, 1)
    assert [letter["value"] for letter in result.dead_letters["changes"].to_pylist()] == [7]


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_wrong_number_of_values_is_no_failure_of_a_row(on_error):
    """With fewer rows it may happen to fit."""

    def logic(batch, state):
        state.set("last", batch["value"])

    table = pa.table({"key": ["a", "a"], "value": [1, 2]})
    with pytest.raises(StateError, match="operator 'changes': state value 'last': 2 values for 1 keys"):
        results(logic, table, 2, on_error=on_error)


@de.per_row
def append_then_fail(row, state):
    values = state["values"] or []
    values.append(row["value"])
    if row["value"] < 0:
        raise ValueError("negative")
    state["values"] = values


def test_changes_of_a_list_that_is_a_value_are_undone():
    topology = de.Topology("nested")
    rows = topology.source("rows", de.sources.Arrow(pa.table({"key": ["a"] * 4, "value": [1, -2, 3, 4]})))
    rows.key_by("key").compute(append_then_fail, state={"values": pa.list_(pa.int64())}, name="kept")
    [found] = run(topology, on_error="skip").state["kept"].to_pylist()
    assert found == {"key": "a", "values": [1, 3, 4]}
