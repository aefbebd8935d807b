from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_elastic.connectors.sources import Arrow
from dask_elastic.testing import run
from dask_elastic.topology import Sink, Source, Topology
from dask_elastic.topology import aggregate as agg
from dask_elastic.vocab.errors import (
    SchemaMismatch,
    SourceError,
    SubmitError,
    TopologyError,
    UnknownOperator,
    UserCodeError,
)

FLIGHTS = pa.table({"plane": ["a", "b", "a", "c", "b", "a"], "delay": [3, 7, 5, None, 1, 2]})


class Flights(Source):
    def __init__(self, parallel=1, rate=None):
        self.parallel = parallel
        self.rate = rate

    def read(self, context):
        for number, rows in enumerate(FLIGHTS.to_batches(max_chunksize=2)):
            if number % context.instances == context.instance:
                yield rows, number


class Broken(Source):
    def read(self, context):
        raise OSError("no such disk")
        yield


class Pushed(Source):
    pushed = True

    def read(self, context):
        for rows in context.mailbox:
            yield rows, None


class Nowhere(Sink):
    def open(self, context):
        raise AssertionError("the sink was opened")


def per_plane(source=None, **options):
    topology = Topology("flights")
    flights = topology.source("flights", source or Flights())
    logic = {"flights": agg.Count(), "delay": agg.Mean("delay"), "worst": agg.Max("delay")}
    flights.key_by("plane").compute(logic, name="per_plane", **options).sink(Nowhere(), name="planes")
    return topology


def sorted_rows(table, key="plane"):
    return table.sort_by(key).to_pylist()


EXPECTED = [
    {"plane": "a", "flights": 3, "delay": 10 / 3, "worst": 5},
    {"plane": "b", "flights": 2, "delay": 4.0, "worst": 7},
    {"plane": "c", "flights": 1, "delay": None, "worst": None},
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("executors", [None, 1, 3])
def test_run_without_inputs_reads_the_topologys_sources(seed, executors):
    result = run(per_plane(Flights(parallel=2, rate=5.0)), seed=seed, executors=executors)
    assert sorted_rows(result.state["per_plane"]) == EXPECTED
    assert {row["plane"]: row for row in result.outputs["planes"].to_pylist()} == {
        row["plane"]: row for row in EXPECTED
    }
    assert result.outputs["per_plane"] is result.outputs["planes"]
    assert result.dead_letters == {}


@pytest.mark.parametrize(
    "rows",
    [FLIGHTS, FLIGHTS.to_batches()[0], FLIGHTS.to_batches(max_chunksize=1), [FLIGHTS.slice(0, 2), FLIGHTS.slice(2)]],
    ids=["table", "batch", "batches", "tables"],
)
def test_inputs_replace_a_source(rows):
    result = run(per_plane(Broken()), {"flights": rows})
    assert sorted_rows(result.state["per_plane"]) == EXPECTED


def test_input_as_pandas_frame_is_converted_without_index():
    frame = pd.DataFrame({"plane": ["a", "b", "a"], "delay": [1, 2, 3]}, index=[5, 6, 7])
    result = run(per_plane(Pushed()), {"flights": frame})
    assert result.state["per_plane"].sort_by("plane")["worst"].to_pylist() == [3, 2]
    assert result.state["per_plane"].schema.names == ["plane", "flights", "delay", "worst"]


def test_named_levels_of_the_index_of_a_pandas_frame_become_columns():
    topology = Topology("totals")
    rows = topology.source("rows", Pushed())
    rows.map(lambda batch: batch.to_pandas().groupby("plane")[["delay"]].sum(), name="sums").sink(Nowhere(), name="out")
    frame = pd.DataFrame({"delay": [1, 2, 3]}, index=pd.Index(["a", "b", "a"], name="plane"))
    result = run(topology, {"rows": frame})
    assert result.outputs["out"].sort_by("plane").to_pydict() == {"plane": ["a", "b"], "delay": [4, 2]}
    frame["plane"] = "c"
    with pytest.raises(
        TopologyError, match=r"index and a column are both named 'plane': call reset_index\(drop=True\)"
    ):
        run(topology, {"rows": frame})


def test_expression_over_a_missing_column_is_refused_as_at_submit():
    topology = Topology("late")
    flights = topology.source("flights", Arrow(FLIGHTS))
    flights.filter(pc.field("dely") > 15, name="late").sink(Nowhere(), name="out")
    with pytest.raises(SchemaMismatch, match="filter 'late' reads column 'dely', which its input lacks"):
        run(topology)


def test_rows_of_unlike_streams_are_no_table():
    topology = Topology("unlike")
    left, right = topology.source("left", Broken()), topology.source("right", Broken())
    left.union(right).sink(Nowhere(), name="both")
    with pytest.raises(SchemaMismatch, match=r"the rows of sink 'both' differ in their columns: a: int64; b: int64\."):
        run(topology, {"left": pa.table({"a": [1]}), "right": pa.table({"b": [2]})})


def test_input_of_parallel_source_is_read_once():
    result = run(per_plane(Flights(parallel=3)), {"flights": FLIGHTS.to_batches(max_chunksize=1)})
    assert sorted_rows(result.state["per_plane"]) == EXPECTED


def test_column_types_are_kept_in_the_result():
    day = pa.array(np.array(["2013-01-01", "2013-01-03"], dtype="datetime64[s]"))
    rows = pa.table(
        {"plane": pa.array(["a", "a"]).dictionary_encode(), "delay": pa.array([1, 2], pa.int16()), "at": day}
    )
    topology = Topology("times")
    stream = topology.source("flights", Broken())
    stream.key_by("plane").compute({"last": agg.Max("at"), "worst": agg.Max("delay")}, name="last")
    state = run(topology, {"flights": rows}).state["last"]
    assert state.schema.field("last").type == pa.timestamp("s")
    assert state.schema.field("worst").type == pa.int16()
    assert state.to_pylist() == [{"plane": "a", "last": day[1].as_py(), "worst": 2}]


def test_function_with_state_keeps_and_returns_it():
    def change(batch, state):
        last = batch["delay"].to_numpy(zero_copy_only=False)[state.last]
        before = state.get("last", default=0.0)
        state.set("last", last)
        return state.keys.append_column("change", pa.array(last - before))

    topology = Topology("changes")
    stream = topology.source("flights", Broken())
    changes = stream.key_by("plane").compute(change, name="changes", state={"last": pa.float64()})
    changes.sink(Nowhere(), name="out")
    rows = [pa.table({"plane": ["a", "b"], "delay": [1.0, 2.0]}), pa.table({"plane": ["a"], "delay": [5.0]})]
    result = run(topology, {"flights": rows}, executors=1)
    assert sorted_rows(result.state["changes"]) == [{"plane": "a", "last": 5.0}, {"plane": "b", "last": 2.0}]
    changed = result.outputs["out"].filter(pc.field("plane") == "a")["change"].to_pylist()
    assert sum(changed) == 5.0


def test_output_of_union_is_listed_under_its_sink_only():
    topology = Topology("two")
    left, right = topology.source("left", Broken()), topology.source("right", Broken())
    sink = Nowhere()
    left.union(right).sink(sink, name="both")
    result = run(topology, {"left": pa.table({"a": [1]}), "right": pa.table({"a": [2]})})
    assert sorted(result.outputs["both"]["a"].to_pylist()) == [1, 2]
    assert set(result.outputs) == {"both"}


def test_empty_input_gives_empty_result():
    result = run(per_plane(), {"flights": FLIGHTS.slice(0, 0)})
    assert (result.outputs, result.state) == ({}, {})


def test_runs_with_same_seed_are_identical():
    first, second = run(per_plane(Flights(2)), seed=4), run(per_plane(Flights(2)), seed=4)
    assert first.outputs["planes"].equals(second.outputs["planes"])


def reciprocal(batch):
    values = batch["delay"].to_pylist()
    return batch.append_column("per", pa.array([1 / value for value in values]))


def divided():
    topology = Topology("divided")
    topology.source("flights", Broken()).map(reciprocal, name="divide").sink(Nowhere(), name="out")
    return topology


def test_error_in_user_function_names_operator_and_batch():
    with pytest.raises(UserCodeError, match=r"operator 'divide', batch 0: ZeroDivisionError"):
        run(divided(), {"flights": pa.table({"delay": [1, 0, 2]})})


def test_failing_rows_become_dead_letters_when_errors_are_skipped():
    result = run(divided(), {"flights": pa.table({"delay": [1, 0, 2, 0]})}, on_error="skip")
    assert result.outputs["divide"]["per"].to_pylist() == [1.0, 0.5]
    assert result.dead_letters["divide"].to_pylist() == [
        {"delay": 0, "__error": "ZeroDivisionError: division by zero"},
        {"delay": 0, "__error": "ZeroDivisionError: division by zero"},
    ]


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        ({"fligths": FLIGHTS}, {}, UnknownOperator, "'fligths', which is not a source .* its sources are: flights"),
        ({"per_plane": FLIGHTS}, {}, UnknownOperator, "'per_plane', which is not a source"),
        ({"flights": 5}, {}, TopologyError, "source 'flights'.* int"),
        ({"flights": {"plane": 5}}, {}, TopologyError, "rows for source 'flights' are no table: "),
        ({"flights": []}, {}, TopologyError, "source 'flights'.*empty"),
        ({"flights": [FLIGHTS, pa.table({"x": [1]})]}, {}, SchemaMismatch, "column 'plane'|missing"),
        ({"flights": FLIGHTS}, {"on_error": "ignore"}, SubmitError, "on_error is 'ignore'"),
        ({"flights": FLIGHTS}, {"executors": 0}, TopologyError, "executors is 0"),
        ({}, {}, SourceError, "source 'flights' could not be read: OSError: no such disk"),
    ],
)
def test_invalid_input_raises_error_with_reason(inputs, options, error, message):
    with pytest.raises(error, match=message):
        run(per_plane(Broken()), inputs, **options)


def test_pushed_source_without_input_is_refused():
    with pytest.raises(SourceError, match="source 'flights' is fed by a program"):
        run(per_plane(Pushed()))


def test_late_rows_are_counted_and_processed():
    class Timed(Flights):
        event_time, slack = "at", 10.0

    topology = Topology("timed")
    rows = topology.source("rows", Timed())
    rows.key_by("plane").compute({"n": agg.Count()}, name="per_plane")
    at = [pa.array(seconds, pa.timestamp("s")) for seconds in ([100, 40], [91, 89], [120, 0])]
    batches = [pa.table({"plane": ["a", "b"], "at": times}) for times in at]
    result = run(topology, {"rows": batches})
    assert result.late == {"rows": 2}
    assert sum(result.state["per_plane"]["n"].to_pylist()) == 6
    assert run(topology, {"rows": FLIGHTS}).late == {}


@pytest.mark.parametrize("encoded", [lambda keys: keys.cast(pa.string_view()), pc.run_end_encode])
def test_text_of_any_encoding_works_as_key_and_value(encoded):
    texts = FLIGHTS["plane"].combine_chunks()
    topology = Topology("texts")
    rows = topology.source("rows", Flights())
    logic = {"flights": agg.Count(), "routes": agg.DistinctCount("route")}
    rows.key_by("plane").compute(logic, name="per_plane", executors=2).sink(Nowhere(), name="planes")
    columns = {"plane": texts, "route": pa.array(["x", "y", "x", "x", "y", "z"])}
    found = [
        run(topology, {"rows": pa.table({name: way(column) for name, column in columns.items()})}).state["per_plane"]
        for way in (lambda column: column, encoded)
    ]
    plain, other = (sorted(table.to_pylist(), key=lambda row: row["plane"]) for table in found)
    assert plain == other
    assert [row["flights"] for row in plain] == [3, 2, 1]


def test_what_is_no_topology_is_refused():
    with pytest.raises(TypeError, match=r"run takes a Topology, not dict"):
        run({})
