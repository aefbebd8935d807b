"""Functions over windows with a merge: partial results are shared as those of aggregates, and no row waits."""

from __future__ import annotations

import datetime
from operator import add

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from window_oracle import expected, records, standing
from window_rows import EVENT, SECOND, readings, source

import dask_elastic as de
from dask_elastic import windows
from dask_elastic.checkpoint.changed_aggregates import carry_over
from dask_elastic.testing import run
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.known_schemas import known_inputs
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.topology.windows.merged_function import MergedFunction, _BoundMergedFunction
from dask_elastic.topology.windows.partial_columns import PartialColumns
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError, UserCodeError
from dask_elastic.vocab.row_counts import RowCounts

OUTPUT = {"rows": pa.int64(), "least": pa.int32(), "numbers": pa.list_(pa.int64())}


def text(numbers):
    return " ".join(map(str, sorted(numbers)))


def or_none(function):
    """Return a function of the values that are not null; None without any."""
    return lambda column: function(column.dropna()) if column.count() else None


# Rows without a value have no partial result; a window of such rows alone has a row of nulls.
ORACLE = {
    "rows": (or_none(len), "counted"),
    "least": (or_none(min), "value"),
    "numbers": (or_none(lambda numbers: text(map(int, numbers))), "counted"),
}


@de.per_key(output=OUTPUT)
def of_key(key, rows):
    assert set(rows["key"].to_pylist()) == {key}
    kept = [row for row in rows.to_pylist() if row["value"] is not None]
    least = min((row["value"] for row in kept), default=None)
    return {"rows": len(kept), "least": least, "numbers": [row["number"] for row in kept]} if kept else None


@de.per_row(output=OUTPUT)
def of_row(row, state):
    if row["value"] is not None:
        state["rows"] = state.get("rows", 0) + 1
        state["least"] = min(state.get("least", row["value"]), row["value"])
        state.setdefault("numbers", []).append(row["number"])


def of_batch(rows, parts):
    counted = rows["counted"]
    bounds = list(zip(parts.offsets, parts.offsets[1:], strict=False))
    numbers = [counted.slice(low, high - low).drop_null().to_pylist() or None for low, high in bounds]
    found = pa.table({"part": parts.ids, "value": rows["value"]}).group_by("part", use_threads=False)
    return (
        parts.table.append_column("least", found.aggregate([("value", "min")])["value_min"].combine_chunks())
        .append_column("numbers", pa.array(numbers, pa.list_(pa.int64())))
        .append_column("rows", pc.list_value_length(pa.array(numbers, pa.list_(pa.int64()))))
    )


def merge_dicts(one, other):
    least = min(one["least"], other["least"])
    return {"rows": one["rows"] + other["rows"], "least": least, "numbers": one["numbers"] + other["numbers"]}


def merge_batches(left, right):
    numbers = [
        (one or []) + (other or []) or None
        for one, other in zip(left["numbers"].to_pylist(), right["numbers"].to_pylist(), strict=True)
    ]
    rows = pc.add(*(pc.fill_null(side["rows"], 0) for side in (left, right)))
    least = pc.min_element_wise(left["least"], right["least"])
    return {
        "rows": pc.if_else(pc.equal(rows, 0), pa.scalar(None, pa.int64()), rows),
        "least": least,
        "numbers": numbers,
    }


LEVELS = {
    "batch": (of_batch, {"merge": merge_batches, "output": OUTPUT}),
    "key": (of_key, {"merge": merge_dicts}),
    "row": (of_row, {"merge": merge_dicts}),
}


def numbered(*arguments, **options):
    rows = readings(*arguments, **options)
    numbers = pa.array(range(len(rows)))
    counted = pc.if_else(pc.is_valid(rows["value"]), pa.chunked_array([numbers]), None)
    return rows.append_column("number", numbers).append_column("counted", counted)


def computed(rows, given_, level, time=None, spans="within", slack=None, **options):
    logic, merging = LEVELS[level]
    stream = source(rows, slack).key_by("key").window(given_, time=time, spans=spans)
    result = stream.compute(logic, name="windowed", **merging, **options)
    result.sink(de.sinks.Collect(), name="out")
    return result.topology


def plain(results):
    """Return results with their numbers as text."""
    place = results.schema.get_field_index("numbers")
    texts = [None if one is None else text(one) for one in results["numbers"].to_pylist()]
    return results.set_column(place, "numbers", pa.array(texts))


def results(topology, seed=0):
    return plain(run(topology, executors=2, seed=seed).outputs["out"])


def truth(topology, rows):
    return expected(rows, ["key"], topology.operator("windowed").windowing, ORACLE)


WINDOWS = [
    windows.tumbling("10s"),
    windows.hopping("25s", "10s", start="3s"),
    ["10s", "30s"],
    windows.session("5s"),
    windows.count(7, 3),
]


@pytest.mark.parametrize("given_", WINDOWS, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_results_are_those_of_all_rows(given_, level):
    rows = numbered(1, disorder=40, nulls=0.05)
    topology = computed(rows, given_, level, slack=41)
    found, whole = run(topology, executors=2), truth(topology, rows)
    assert records(plain(found.outputs["out"])) == records(whole.results)
    assert found.windows["windowed"] == RowCounts(whole.pairs, 0, 0, whole.outside, whole.untimed)
    assert isinstance(given_, windows.CountWindow) or found.state["windowed"].num_rows == 0


@settings(max_examples=12, deadline=None)
@given(
    st.lists(EVENT, min_size=1, max_size=2),
    st.integers(0, 2**31),
    st.integers(0, 60),
    st.sampled_from([None, "within", "overlapping"]),
    st.sampled_from([*LEVELS]),
    st.sampled_from(["auto", False]),
)
def test_any_windows_have_the_results_of_all_rows(given_, seed, disorder, spans, level, share):
    rows = numbered(seed, rows=100, disorder=disorder)
    in_seconds = [EventWindow(*(number * SECOND for number in vars(window).values())) for window in given_]
    try:
        time = ("at", "until") if spans else None
        topology = computed(rows, in_seconds, level, time, spans or "within", slack=disorder + 21, share=share)
    except TopologyError:
        assume(False)
    found, whole = run(topology, executors=2, seed=seed).outputs.get("out"), truth(topology, rows).results
    assert records(whole) == ([] if found is None else records(plain(found)))


@pytest.mark.parametrize("emit", ["closed", "updates"])
@pytest.mark.parametrize("level", LEVELS)
def test_late_rows_correct_results(level, emit):
    rows = numbered(6, rows=300, disorder=45)
    topology = computed(rows, windows.hopping("30s", "10s"), level, allowed_lateness="60s", emit=emit)
    every = results(topology).to_pandas()
    found = every.dropna(subset="revision").sort_values("revision")
    assert found["revision"].max() > 0
    assert (len(every) > len(found)) == (emit == "updates")
    last = found.groupby(["key", "window_start", "window_end"], dropna=False).tail(1).drop(columns="revision")
    assert records(pa.Table.from_pandas(last, preserve_index=False)) == records(truth(topology, rows).results)


def test_sessions_that_grow_are_withdrawn():
    rows = numbered(2, rows=200, disorder=20)
    topology = computed(rows, windows.session("5s"), "key", allowed_lateness="60s")
    assert records(standing(results(topology), ["key"])) == records(truth(topology, rows).results)


def test_windows_share_partials_and_no_row_waits():
    rows = numbered(1)
    hopping = windows.hopping("40s", "10s")
    calls = []

    def counted(part, parts):
        calls.append(part.num_rows)
        assert parts.table.schema.names == ["key"]
        assert "window_start" not in part.schema.names
        return {"n": parts.lengths}

    def added(left, right):
        return {"n": pc.add(left["n"], right["n"])}

    for share, times in ((True, 1), (False, 4)):
        calls.clear()
        stream = source(rows).key_by("key").window(hopping)
        stream.compute(counted, merge=added, output={"n": pa.int64()}, share=share)
        run(stream.topology)
        assert sum(calls) == times * len(rows)


def test_windows_over_all_rows_have_no_key():
    rows = numbered(1)
    seen = []

    @de.per_key(output={"n": pa.int64()})
    def counted(key, part):
        seen.append((key, part.schema.names))
        return {"n": part.num_rows}

    stream = source(rows).window("1d").compute(counted, merge=lambda a, b: {"n": a["n"] + b["n"]})
    stream.sink(de.sinks.Collect(), name="out")
    assert sum(run(stream.topology).outputs["out"]["n"].to_pylist()) == len(rows)
    assert {(key, *names) for key, names in seen} == {(None, *rows.schema.names)}


def test_partial_results_are_consolidated():
    rows = numbered(1)
    keyed = source(rows).key_by("key").window("30s")
    logic, merging = LEVELS["key"]
    parts = keyed.compute(logic, name="windowed", partials=True, **merging)
    de.consolidate([parts], by="key", name="all").sink(de.sinks.Collect(), name="out")
    assert records(results(parts.topology)) == records(truth(parts.topology, rows).results)


def test_functions_per_key_and_row_merge_private_values():
    """What a merge changes in place must not change what the state holds."""

    def merged_in_place(one, other):
        one["numbers"] += other["numbers"]
        other["numbers"].clear()
        one["rows"] += other["rows"]
        one["least"] = min(one["least"], other["least"])
        return one

    rows = numbered(4)
    keyed = source(rows).key_by("key").window(["10s", windows.hopping("60s", "10s")])
    keyed.compute(of_row, merge=merged_in_place, name="windowed").sink(de.sinks.Collect(), name="out")
    assert records(results(keyed.topology)) == records(truth(keyed.topology, rows).results)


class Numbers:
    """No function."""


PER_KEY = de.per_key(of_key.function)

REFUSED = [
    (of_key, {"merge": 3}, "merge: 3 is of type int; give a function, called as function"),
    (of_key, {"merge": lambda a: a}, "cannot be called as function(a, b)"),
    (of_key, {"merge": de.per_row(merge_dicts)}, "give the function without a decorator"),
    (of_key, {"merge": merge_dicts, "output": OUTPUT}, "declare the columns in @de.per_key(output=...)"),
    (PER_KEY, {"merge": merge_dicts}, "write @de.per_key(output={'most': pa.int64()}) above the function"),
    (of_batch, {"merge": merge_batches}, "pass a pyarrow schema, or a dict such as output={'most': pa.int64()}"),
    (of_batch, {"merge": merge_batches, "output": {"n": int}}, "columns must be declared"),
    (of_batch, {"merge": merge_batches, "output": {}}, "output is {}, but partial results are state"),
    (of_batch, {"output": OUTPUT}, "output= declares the columns of the partial results that merge= merges"),
    (of_batch, {"merge": merge_batches, "output": {"key": pa.int64()}}, "results have a column 'key' from the key"),
    (of_batch, {"merge": merge_batches, "output": {"window_end": pa.int64()}}, "rename it in output="),
    (Numbers(), {"merge": merge_batches, "output": OUTPUT}, "give a function, called as function(rows, parts)"),
    (lambda rows: rows, {"merge": merge_batches, "output": OUTPUT}, "cannot be called as function(rows, parts)"),
    ({"n": de.aggregate.Count()}, {"merge": add}, "merge= is for functions; aggregates merge their partial results"),
    (lambda rows, instances: rows, {"share": True}, "pass a merge=, which merges two partial results, or omit share"),
    (lambda rows, instances: rows, {"partials": True}, "functions with merge=; pass a merge"),
]


@pytest.mark.parametrize(("logic", "options", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_bad_logic_is_refused_with_the_remedy(logic, options, message):
    keyed = source(numbered(1)).key_by("key").window(windows.hopping("40s", "10s"))
    with pytest.raises(TopologyError) as raised:
        keyed.compute(logic, name="mine", **options)
    assert str(raised.value).startswith("compute 'mine': ")
    assert message in str(raised.value)


def test_key_named_as_partial_results_is_refused():
    rows = numbered(1).rename_columns(["partial", "at", "until", "value", "number", "counted"])
    keyed = source(rows).key_by("partial").window("10s")
    with pytest.raises(TopologyError, match="partial results have a column 'partial'"):
        keyed.compute(of_key, merge=merge_dicts, partials=True)


WRONG = [
    (of_batch, lambda left, right: left.slice(1), "merge=<lambda> returned"),
    (lambda rows, parts: None, merge_batches, "returned 0 rows for"),
    (lambda rows, parts: {"rows": parts.lengths}, merge_batches, "missing: 'least', 'numbers'"),
    (lambda rows, parts: 5, merge_batches, "returned an int; return a pyarrow RecordBatch"),
    (de.per_key(lambda key, rows: 5, output=OUTPUT), merge_dicts, "return the partial result as a dict by column"),
    (de.per_key(lambda key, rows: {"n": 5}, output=OUTPUT), merge_dicts, "has 'n', which output= does not declare"),
    (de.per_key(lambda key, rows: {"rows": 1}, output=OUTPUT), merge_dicts, "the partial result lacks 'least'"),
    (of_key, lambda one, other: {"rows": 1}, "merge=<lambda>: the partial result lacks 'least'"),
    (de.per_key(lambda key, rows: of_key.function(key, rows) | {"rows": "a"}, output=OUTPUT), merge_dicts, "not fit"),
    (of_key, lambda one, other: None, "merge=<lambda> returned None; return the partial result as a dict"),
    (de.per_row(lambda row, state: row, output=OUTPUT), merge_dicts, "put the partial result into state, and return"),
    (de.per_row(lambda row, state: state.update(n=1), output=OUTPUT), merge_dicts, "which output= does not declare"),
]


@pytest.mark.parametrize(("logic", "merge", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_what_is_no_partial_result_fails_the_job_and_is_named(logic, merge, message):
    rows = numbered(1).filter(pc.is_valid(pc.field("value")))
    output = None if hasattr(logic, "decorator") else OUTPUT
    keyed = source(rows).key_by("key").window("1d")
    keyed.compute(logic, merge=merge, output=output, name="mine").sink(de.sinks.Collect(), name="out")
    with pytest.raises(de.ElasticError) as raised:
        run(keyed.topology)
    assert message in str(raised.value)
    assert "'mine'" in str(raised.value)


def test_row_for_which_the_function_raises_is_a_dead_letter():
    rows = numbered(4)

    @de.per_row(output=OUTPUT)
    def failing(row, state):
        if row["number"] == 7:
            raise ValueError("seven")
        of_row(row, state)

    keyed = source(rows).key_by("key").window(windows.hopping("60s", "20s"))
    keyed.compute(failing, merge=merge_dicts, name="windowed").sink(de.sinks.Collect(), name="out")
    found = run(keyed.topology, executors=2, on_error="skip")
    assert found.dead_letters["windowed"]["number"].to_pylist() == [7]
    kept = rows.filter(pc.field("number") != 7)
    assert records(plain(found.outputs["out"])) == records(truth(keyed.topology, kept).results)
    with pytest.raises(UserCodeError, match="seven"):
        run(keyed.topology)


def test_changed_function_keeps_the_state_of_the_same_columns():
    other = MergedFunction(of_row, merge_batches, of_row.output, ("key",))
    before = {"partial": MergedFunction(of_key, merge_dicts, of_key.output, ("key",))}
    assert carry_over(before, {"partial": other})["partial"].fields == "partial"
    narrow = MergedFunction(of_row, merge_dicts, pa.schema({"rows": pa.int64()}), ("key",))
    with pytest.raises(TopologyError, match=r"partial=of_row -> \(rows: int64\), merged by merge_dicts cannot"):
        carry_over(before, {"partial": narrow})


def test_results_behind_are_checked_at_submit():
    keyed = source(numbered(1)).key_by("key").window("10s")
    stream = keyed.compute(of_key, merge=merge_dicts).key_by("key").compute({"n": de.aggregate.Sum("missing")})
    with pytest.raises(SchemaMismatch, match="missing"):
        known_inputs(stream.topology)


MOMENT = datetime.datetime(2013, 7, 1, 6, 5, tzinfo=datetime.UTC)
VALUES = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=3),
    pa.decimal128(10, 2): st.decimals(-1000, 1000, places=2),
    pa.decimal128(30, 2): st.decimals(-1000, 1000, places=2),
    pa.timestamp("us", "UTC"): st.integers(0, 10**6).map(lambda n: MOMENT + datetime.timedelta(microseconds=n)),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=3),
    pa.struct({"a": pa.int64()}): st.fixed_dictionaries({"a": st.integers(0, 9)}),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text(max_size=1), st.integers(0, 9)).map(
        lambda d: [*d.items()]
    ),
}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=3), st.data())
def test_state_keeps_values_of_all_types(kinds, data):
    columns = PartialColumns(pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)]))
    rows = [
        {f"c{number}": data.draw(st.none() | VALUES[kind]) for number, kind in enumerate(kinds)}
        for _ in range(data.draw(st.integers(0, 4)))
    ]
    batch = pa.RecordBatch.from_pylist(rows, columns.schema)
    assert columns.rows(columns.stored(batch)).to_pylist() == batch.to_pylist()


# mutants


def merge_keeps_one_side(monkeypatch):
    monkeypatch.setattr(_BoundMergedFunction, "_merged", lambda self, left, right: list(left))


def merge_counts_one_side_twice(monkeypatch):
    real = _BoundMergedFunction._merged
    monkeypatch.setattr(
        _BoundMergedFunction, "_merged", lambda self, left, right: real(self, real(self, left, right), right)
    )


def rows_are_not_sorted_by_part(monkeypatch):
    monkeypatch.setattr(Grouping, "is_sorted", property(lambda self: True))


def part_without_a_partial_result_has_one(monkeypatch):
    real = _BoundMergedFunction.update

    def update(self, current, rows, grouping):
        after = real(self, current, rows, grouping)
        return [*after[:-1], np.ones_like(after[-1])]

    monkeypatch.setattr(_BoundMergedFunction, "update", update)


def nulls_are_zeros(monkeypatch):
    real = PartialColumns.rows

    def rows(self, values):
        known = [field.name.endswith(".known") for field in self.fields]
        return real(self, [np.ones_like(value) if one else value for one, value in zip(known, values, strict=True)])

    monkeypatch.setattr(PartialColumns, "rows", rows)


MUTANTS = [
    merge_keeps_one_side,
    merge_counts_one_side_twice,
    rows_are_not_sorted_by_part,
    part_without_a_partial_result_has_one,
    nulls_are_zeros,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    rows = numbered(1)
    topologies = [computed(rows, windows.hopping("25s", "10s"), level) for level in LEVELS]
    whole = records(truth(topologies[0], rows).results)
    mutant(monkeypatch)
    for topology in topologies:
        try:
            found = records(results(topology))
        except (UserCodeError, AssertionError):
            return
        if found != whole:
            return
    pytest.fail(f"not found: {mutant.__name__}")
