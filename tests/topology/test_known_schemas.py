from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_elastic import per_row, sinks, sources
from dask_elastic.topology import Topology
from dask_elastic.topology import aggregate as agg
from dask_elastic.topology.known_schemas import known_inputs
from dask_elastic.vocab.errors import SchemaMismatch

ROWS = pa.table({"plane": ["a"], "delay": [3], "note": ["-"]})


@per_row(output={"plane": pa.string(), "change": pa.float64()})
def changes(row, state):
    raise AssertionError("no user code is called")


def flights(rows=ROWS):
    topology = Topology("delays")
    return topology, topology.source("flights", sources.Arrow(rows))


def never(batch):
    raise AssertionError("no user code is called")


def test_schemas_are_known_behind_filters_aggregates_and_declared_outputs():
    topology, stream = flights()
    late = stream.filter(pc.field("delay") > 15, name="late").filter(never, name="own")
    counted = late.key_by("plane").compute({"n": agg.Count(), "worst": agg.Max("delay")}, name="counted")
    changed = counted.key_by("n").compute(changes, state={"last": pa.int64()}, name="changed")
    changed.key_by("plane").compute({"mean": agg.Mean("change")}, name="means")
    assert known_inputs(topology) == {
        "counted": ROWS.schema,
        "changed": pa.schema({"plane": pa.string(), "n": pa.int64(), "worst": pa.int64()}),
        "means": pa.schema({"plane": pa.string(), "change": pa.float64()}),
    }


def test_what_follows_functions_is_unknown():
    topology, stream = flights()
    stream.map(never).key_by("x").compute({"sum": agg.Sum("y")}, name="sums")
    own = stream.key_by("plane").compute({"sum": agg.Sum(never, columns=["delay"])}, name="own")
    own.key_by("z").compute({"n": agg.Count()}, name="again")
    assert known_inputs(topology) == {"sums": None, "own": ROWS.schema, "again": None}


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (
            pc.field("dely") > 15,
            r"reads column 'dely', which its input lacks; the columns of 'flights' are plane: string",
        ),
        (pc.field("plane") > 15, r"cannot evaluate \(plane > 15\): Function 'greater' has no kernel"),
        (pc.field("delay") + 1, "cannot evaluate .* return one boolean per row"),
        (pc.field("delay", "x") > 1, "cannot evaluate .* No match for FieldRef"),
    ],
)
def test_expression_that_does_not_fit_its_input_is_refused(predicate, reason):
    topology, stream = flights()
    first = stream.filter(pc.field("delay") > 0, name="first")
    first.filter(predicate, name="second").sink(sinks.Collect(), name="out")
    with pytest.raises(SchemaMismatch, match=f"filter 'second' {reason}"):
        known_inputs(topology)


def test_expression_on_columns_without_values_is_accepted():
    topology, stream = flights(pa.table({"plane": [], "delay": []}))
    late = stream.filter((pc.field("delay") > 15) & pc.starts_with(pc.field("plane"), "N"), name="late")
    late.key_by("plane").compute({"sum": agg.Sum("delay")}, name="sums")
    known_inputs(topology)
    stream.filter(pc.field("dely") > 15, name="wrong").sink(sinks.Collect(), name="out")
    with pytest.raises(SchemaMismatch, match="'dely'"):
        known_inputs(topology)


@pytest.mark.parametrize(
    "add",
    [
        lambda stream: stream.filter(never, columns=["dely"], name="reader"),
        lambda stream: stream.map(never, columns=["dely"], name="reader"),
        lambda stream: stream.key_by("dely").compute({"n": agg.Count()}, name="reader"),
        lambda stream: stream.key_by("plane").compute({"n": agg.Sum("dely")}, name="reader"),
    ],
)
def test_column_that_the_input_lacks_is_named(add):
    topology, stream = flights()
    add(stream.key_by("plane").compute({"delay": agg.Max("delay")}, name="worst"))
    with pytest.raises(SchemaMismatch, match=r"operator 'reader' reads column 'dely'.*\['plane', 'delay'\]"):
        known_inputs(topology)
