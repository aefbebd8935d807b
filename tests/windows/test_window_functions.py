"""Functions over windows get the rows of each instance, in the order in which they came."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from window_oracle import expected, records
from window_rows import EVENT, SECOND, readings, source

import dask_elastic as de
from dask_elastic import windows
from dask_elastic.executor.windows import window_functions
from dask_elastic.state.joins.layout import KIND, TIME
from dask_elastic.state.results import empty_state, state_table
from dask_elastic.state.windows.row_layout import ROW, RowLayout
from dask_elastic.testing import run
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.vocab.errors import TopologyError, UserCodeError
from dask_elastic.vocab.row_counts import RowCounts


def text(numbers):
    return " ".join(map(str, numbers))


# Rows are numbered in the order in which they come.
ORACLE = {"rows": ("size", None), "numbers": (lambda numbers: text(sorted(numbers)), "number")}


@de.per_key
def numbers_of_key(key, rows, window):
    assert set(rows["key"].to_pylist()) == {key}
    return {"rows": rows.num_rows, "numbers": text(rows["number"].to_pylist())}


@de.per_row
def numbers_of_rows(row, state):
    state.setdefault("numbers", []).append(row["number"])
    return {"rows": len(state["numbers"]), "numbers": text(state["numbers"])} if state.is_last else None


def numbers_of_batch(rows, instances):
    parts = np.split(rows["number"].to_numpy(), instances.offsets[1:-1])
    columns = {"rows": instances.lengths, "numbers": list(map(text, parts))}
    return pa.table(dict(zip(instances.table.schema.names, instances.table.columns, strict=True)) | columns)


LEVELS = [numbers_of_key, numbers_of_rows, numbers_of_batch]


def numbered(*arguments, **options):
    rows = readings(*arguments, **options)
    return rows.append_column("number", pa.array(range(len(rows))))


def computed(rows, given_, logic, time=None, spans="within", slack=None, parallel=1, **options):
    stream = source(rows, slack, parallel).key_by("key").window(given_, time=time, spans=spans)
    result = stream.compute(logic, name="windowed", **options)
    result.sink(de.sinks.Collect(), name="out")
    return result.topology


def results(topology, seed=0):
    return run(topology, executors=2, seed=seed).outputs.get("out", pa.table({}))


def truth(topology, rows):
    return expected(rows, ["key"], topology.operator("windowed").windowing, ORACLE)


WINDOWS = [windows.tumbling("10s"), windows.hopping("25s", "10s", start="3s"), ["10s", "30s"], windows.session("5s")]


@pytest.mark.parametrize("given_", WINDOWS, ids=str)
@pytest.mark.parametrize("logic", LEVELS, ids=lambda logic: logic.__name__)
def test_functions_get_the_rows_of_each_instance_in_order(given_, logic):
    rows = numbered(1, disorder=40, nulls=0.05)
    topology = computed(rows, given_, logic, slack=41)
    found, whole = run(topology, executors=2), truth(topology, rows)
    assert records(found.outputs["out"]) == records(whole.results)
    assert found.windows["windowed"] == RowCounts(whole.pairs, 0, 0, whole.outside, whole.untimed)
    assert found.state["windowed"].num_rows == 0


@settings(max_examples=8, deadline=None)
@given(
    st.lists(EVENT, min_size=1, max_size=2),
    st.integers(0, 2**31),
    st.integers(0, 60),
    st.sampled_from([None, "within", "overlapping"]),
)
def test_any_windows_give_functions_the_rows_of_the_whole_input(given_, seed, disorder, spans):
    rows = numbered(seed, rows=100, disorder=disorder)
    in_seconds = [EventWindow(*(number * SECOND for number in vars(window).values())) for window in given_]
    try:
        time = ("at", "until") if spans else None
        topology = computed(rows, in_seconds, numbers_of_batch, time, spans or "within", slack=disorder + 21)
    except TopologyError:
        assume(False)
    assert records(results(topology, seed)) == records(truth(topology, rows).results)


@pytest.mark.parametrize("emit", ["closed", "updates"])
def test_late_rows_call_the_function_again_with_all_rows(emit):
    rows = numbered(6, rows=300, disorder=45)
    topology = computed(rows, windows.hopping("30s", "10s"), numbers_of_key, allowed_lateness="60s", emit=emit)
    every = results(topology).to_pandas()
    found = every.dropna(subset="revision")
    groups = found.groupby(["key", "window_start", "window_end"], dropna=False)
    spread = groups["revision"].agg(["min", "max", "size"])
    assert (spread["min"] == 0).all()
    assert (spread["max"] + 1 == spread["size"]).all()
    assert spread["max"].max() > 0
    assert (len(every) > len(found)) == (emit == "updates")
    last = found.sort_values("revision").groupby(["key", "window_start", "window_end"], dropna=False).last()
    corrected = pa.Table.from_pandas(last.drop(columns="revision").reset_index(), preserve_index=False)
    whole = truth(topology, rows).results
    assert records(corrected.select([*whole.columns])) == records(whole)


@pytest.mark.parametrize("lateness", [0, "5s"])
def test_each_row_is_counted_for_each_instance(lateness):
    rows = numbered(9, rows=300, disorder=45, nulls=0.1)
    topology = computed(rows, [windows.sliding(0, "5s", "20s"), "30s"], numbers_of_key, allowed_lateness=lateness)
    whole, found = truth(topology, rows), run(topology, executors=2).windows["windowed"]
    assert found.late > 0
    assert (found.corrected > 0) == (lateness != 0)
    assert found.on_time + found.corrected + found.late == whole.pairs
    assert (found.outside, found.untimed) == (whole.outside, whole.untimed)


def test_late_rows_and_rows_without_a_time_are_a_stream():
    rows = numbered(10, rows=300, disorder=45, nulls=0.1)
    stream = source(rows).window("10s").compute(numbers_of_batch, name="windowed", late="stream", null_time="late")
    stream.sink(de.sinks.Collect(), name="out")
    stream.late.sink(de.sinks.Collect(), name="late")
    found = run(stream.topology)
    counts, late = found.windows["windowed"], found.outputs["late"]
    assert late.schema.names == rows.schema.names
    assert 0 < counts.untimed < len(late) == counts.untimed + counts.late
    kept = sorted(int(number) for row in found.outputs["out"]["numbers"].to_pylist() for number in row.split())
    assert kept == sorted({*range(len(rows))} - {*late["number"].to_pylist()})
    assert found.outputs["out"].schema.names == ["window_start", "window_end", "rows", "numbers"]


def test_rows_come_as_they_were_with_all_types():
    rows = numbered(3).filter(pc.field("key") == "k1").combine_chunks()
    rows = rows.append_column("text", rows["key"].dictionary_encode())
    rows = rows.append_column("list", pa.array([[n, None] if n % 3 else None for n in range(len(rows))]))
    held = []
    run(computed(rows, "1d", lambda part, instances: held.append(part)))
    found = pa.Table.from_batches(held).sort_by("number")
    assert found.schema.names == [*rows.schema.names, "window_start", "window_end"]
    assert found.select(rows.schema.names).to_pylist() == rows.to_pylist()


def test_state_is_the_rows_that_wait():
    rows = pa.record_batch({"key": ["a", "b"], "at": pa.array([20, 10], pa.timestamp("us")), "number": [0, 1]})
    topology = computed(numbered(3), "1d", numbers_of_key)
    operator = topology.operator("windowed")
    layout = RowLayout(operator, rows.schema)
    values = [field.initially(3) for field in layout.fields]
    values[KIND][:2], values[TIME][:2] = ROW, [20, 10]
    stored = layout.stored(pa.record_batch([column.take(pa.array([0, 1, 1])) for column in rows.columns], rows.schema))
    values[-len(stored) :] = stored
    keys = pa.record_batch({"key": ["a", "b", None]})
    assert state_table(operator, rows.schema, keys, values).to_pylist() == rows.to_pylist()[::-1]
    assert empty_state(operator, rows.schema).schema.names == rows.schema.names


def test_failing_instance_is_a_dead_letter_with_its_key_and_window():
    rows = numbered(4)

    def failing(key, part, window):
        if 7 in part["number"].to_pylist():
            raise ValueError(f"no result from {window.start:%H:%M:%S}")
        return numbers_of_key(key, part, window)

    topology = computed(rows, "30s", de.per_key(failing))
    whole = records(truth(topology, rows).results)
    found = run(topology, executors=2, on_error="skip")
    letters = found.dead_letters["windowed"]
    assert letters.schema.names == ["key", "window_start", "window_end", "__error"]
    (letter,) = letters.to_pylist()
    assert letter["key"] == rows["key"][7].as_py()
    assert letter["window_start"] <= rows["at"][7].as_py() < letter["window_end"]
    assert letter["__error"] == f"ValueError: no result from {letter['window_start']:%H:%M:%S}"
    kept = records(found.outputs["out"])
    assert len(kept) == len(whole) - 1
    assert all(one in whole for one in kept)
    with pytest.raises(UserCodeError, match="no result from"):
        results(topology)


def test_function_of_batches_that_fails_for_one_instance_skips_this_one():
    rows = numbered(4)

    def failing(part, instances):
        if 7 in part["number"].to_pylist():
            raise ValueError("seven")
        return numbers_of_batch(part, instances)

    topology = computed(rows, "30s", failing)
    found = run(topology, executors=2, on_error="skip")
    (letter,) = found.dead_letters["windowed"].to_pylist()
    assert letter["window_start"] <= rows["at"][7].as_py() < letter["window_end"]
    assert len(found.outputs["out"]) == len(truth(topology, rows).results) - 1


def test_row_without_a_time_is_a_dead_letter_or_fails_the_job():
    rows = numbered(8, nulls=0.1)
    topology = computed(rows, "10s", numbers_of_key, null_time="refuse")
    with pytest.raises(UserCodeError, match="the time 'at' is null; filter such rows"):
        results(topology)
    letters = run(topology, on_error="skip").dead_letters["windowed"]
    assert sorted(letters["number"].to_pylist()) == rows.filter(pc.is_null(rows["at"]))["number"].to_pylist()


def test_many_rows_are_passed_in_several_calls(monkeypatch):
    monkeypatch.setattr(window_functions, "MOST_ROWS", 10)
    rows = numbered(5)
    sizes = []

    def counted(part, instances):
        sizes.append((part.num_rows, len(instances)))
        return numbers_of_batch(part, instances)

    topology = computed(rows, "100s", counted)
    assert records(results(topology)) == records(truth(topology, rows).results)
    assert all(size <= 10 or count == 1 for size, count in sizes)
    assert max(count for _, count in sizes) > 1


def test_results_of_functions_can_be_windowed_by_their_span():
    rows = numbered(3)
    stream = source(rows).key_by("key").window("10s").compute(numbers_of_key, name="short")
    long = stream.key_by("key").window("60s").compute({"rows": de.aggregate.Sum("rows")}, name="long")
    long.sink(de.sinks.Collect(), name="out")
    windowing = source(rows).key_by("key").window("60s").windowing
    whole = expected(rows, ["key"], windowing, {"rows": ("size", None)})
    assert records(results(long.topology)) == records(whole.results)


def test_functions_may_return_tables_dicts_and_nothing():
    rows = numbered(2, keys=3)

    def mixed(key, part, window):
        if key is None:
            return None
        chosen = part.select(["number", "value"])
        return chosen if key == "k0" else (row for row in chosen.to_pylist())

    logic = de.per_key(mixed, output={"number": pa.int64(), "value": pa.int64()})
    found = results(computed(rows, "60s", logic))
    assert found.schema.names == ["key", "window_start", "window_end", "number", "value"]
    assert sorted(found["number"].to_pylist()) == rows.filter(pc.is_valid(rows["key"]))["number"].to_pylist()


def test_rows_with_unions_are_refused_before_they_wait():
    rows = numbered(1, rows=40)
    kinds = pa.array([0, 1] * 20, pa.int8())
    either = pa.UnionArray.from_sparse(kinds, [pa.array(range(40)), pa.array(map(str, range(40)))])
    topology = computed(rows.append_column("either", either), windows.tumbling("10s"), numbers_of_batch)
    with pytest.raises(TopologyError, match=r"operator 'windowed': column 'either' has type sparse_union.* Derive"):
        run(topology, on_error="skip")
