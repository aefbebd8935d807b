"""Errors of user code: what the text names, and whose frames it shows."""

from __future__ import annotations

import asyncio
import pickle

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.executor.error_policy import ErrorPolicy, raise_source_error
from dask_elastic.testing import run
from dask_elastic.vocab.errors import ColumnMissing, SourceError, StateError, UserCodeError

ROWS = pa.table({"key": [1]})
US = pa.timestamp("us")


def text_of(function):
    """Return the text of the error that a function in a map causes."""
    topology = de.Topology("rows")
    mapped = topology.source("rows", de.sources.Arrow(ROWS)).map(function, name="enrich")
    mapped.sink(de.sinks.Collect(), name="out")
    with pytest.raises(UserCodeError) as caught:
        run(topology)
    return str(caught.value)


def test_frames_of_a_program_in_a_folder_named_as_the_package_are_shown(tmp_path):
    program = tmp_path / "dask_elastic" / "my_job.py"
    found = {}
    exec(compile("def enrich(rows):\n    return 1 / 0", str(program), "exec"), found)
    text = text_of(found["enrich"])
    assert "ZeroDivisionError" in text
    assert text.count("File ") == 1
    assert f'File "{program}", line 2, in enrich' in text


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError("timed out"), "asyncio.exceptions.CancelledError: timed out"),
        (GeneratorExit(), "GeneratorExit"),
    ],
    ids=repr,
)
def test_operator_that_raises_what_no_row_is_at_fault_for_is_named(on_error, raised, reason):
    policy = ErrorPolicy(on_error, lambda rows: None)

    def leaves(start, stop, failed):
        raise raised

    with pytest.raises(UserCodeError, match=f"operator 'enrich', batch 0: {reason}") as failed:
        policy.run("enrich", leaves, ROWS.to_batches()[0])
    for error in (failed.value, pickle.loads(pickle.dumps(failed.value))):
        assert "skip" not in str(error)
        assert "Fix the function: let it raise an Exception, as ValueError, where a row is at fault." in str(error)


def test_interrupt_of_the_user_goes_through_operators_as_it_is():
    def interrupted(batch):
        raise KeyboardInterrupt

    topology = de.Topology("rows")
    topology.source("rows", de.sources.Arrow(ROWS)).map(interrupted).sink(de.sinks.Collect(), name="out")
    with pytest.raises(KeyboardInterrupt):
        run(topology)


def test_error_that_a_check_raises_has_no_frames_and_one_full_stop():
    text = text_of(lambda rows: 5)
    assert text.startswith("operator 'enrich', batch 0: TypeError: map 'enrich' returned an int; return a pyarrow ")
    assert text.endswith(
        'or None. Fix the function, or submit with on_error="skip" to move such rows to the dead letters.'
    )


class ListWithoutThirteen(de.aggregate.UserAggregate):
    """The numbers of a key, in order; no result once 13 is among them."""

    type = pa.list_(pa.int64())

    def init(self):
        return []

    def add(self, acc, values):
        return acc + values["number"].to_pylist()

    def merge(self, a, b):
        return a + b

    def result(self, acc):
        if 13 in acc:
            raise ValueError("unlucky")
        return acc


@pytest.mark.parametrize("windowed", [False, True])
def test_rows_beside_one_whose_result_raises_are_aggregated_once(windowed):
    rows = pa.table({"key": ["a", "b", "c", "a", "b"], "number": [1, 13, 3, 4, 5], "at": pa.array(range(5), US)})
    topology = de.Topology("rows")
    keyed = topology.source("rows", de.sources.Arrow(rows, batch_rows=5, event_time="at")).key_by("key")
    logic = {"numbers": ListWithoutThirteen(["number"]), "rows": de.aggregate.Count()}
    if windowed:
        computed = keyed.window("1s").compute(logic, name="listed", emit="updates")
    else:
        computed = keyed.compute(logic, name="listed")
    computed.sink(de.sinks.Collect(), name="out")
    result = run(topology, on_error="skip")
    last = {row["key"]: (row["numbers"], row["rows"]) for row in result.outputs["out"].to_pylist()}
    assert last == {"a": ([1, 4], 2), "b": ([5], 1), "c": ([3], 1)}
    assert result.dead_letters["listed"]["number"].to_pylist() == [13]


def test_rows_and_results_of_one_operator_that_raise_are_in_one_table():
    def add(acc, values):
        if 7 in values["number"].to_pylist():
            raise ValueError("not seven")
        return acc + len(values)

    def result(acc):
        raise ValueError("no result")

    numbers = de.aggregate.custom(["number"], lambda: 0, add, lambda a, b: a + b, result, pa.int64())
    rows = pa.table({"key": ["a", "b"], "number": [7, 1], "at": pa.array([0, 1], US)})
    topology = de.Topology("rows")
    keyed = topology.source("rows", de.sources.Arrow(rows, event_time="at")).key_by("key")
    keyed.window("1s").compute({"x": numbers}, name="counted").sink(de.sinks.Collect(), name="out")
    letters = run(topology, on_error="skip").dead_letters["counted"]
    assert letters.select(["key", "number", "__error"]).to_pylist() == [
        {"key": "a", "number": 7, "__error": "ValueError: not seven"},
        {"key": "b", "number": None, "__error": "ValueError: no result"},
    ]
    assert [start is None for start in letters["window_start"].to_pylist()] == [True, False]


def test_errors_of_a_source_name_it_once():
    missing = ColumnMissing("Iterable(rows)", "kk", ("k", "v"))
    with pytest.raises(
        SourceError, match=r"^source 'rows': Iterable\(rows\) has no column 'kk'; it has 'k', 'v': did"
    ) as named:
        raise_source_error("rows", missing)
    with pytest.raises(SourceError) as again:
        raise_source_error("rows", named.value)
    assert again.value is named.value
    with pytest.raises(StateError, match=r"^of a task$"):
        raise_source_error("rows", StateError("of a task"))
