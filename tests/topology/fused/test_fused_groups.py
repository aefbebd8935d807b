"""Which computes can run in one task, and which of them Algorithm 1 chooses."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.topology import Topology, build_components
from dask_elastic.topology.component import Branch, Exit
from dask_elastic.topology.fused.attributes import attributes
from dask_elastic.topology.fused.groups import FusedGroup, fused_groups
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.errors import TopologyError, UnknownOperator

ROWS = pa.table({"area": ["n"], "kind": ["a"], "n": [1], "at": pa.array([0], pa.timestamp("s"))})


def counted(stream, *keys, name, column="seen", **options):
    return stream.key_by(*keys).compute({column: agg.Count()}, name=name, **options)


@pytest.fixture
def topology():
    return Topology("loans")


@pytest.fixture
def rows(topology):
    return topology.source("rows", de.sources.Arrow(ROWS))


def same(batch):
    return batch


def test_motivating_job_of_the_paper_has_three_components(topology, rows):
    # Enorm, figures 1 and 2: op1 is a map, op2 and op3 are by area, op4 and op5 combine all areas.
    parsed = rows.map(same, keeps=["area"], name="op1")
    op2 = counted(parsed, "area", name="op2")
    op3 = counted(op2, "area", name="op3")
    counted(op2.map(lambda batch: {"all": [0] * batch.num_rows}, name="to_all"), "all", name="op4")
    counted(op3.map(lambda batch: {"all": [0] * batch.num_rows}, name="to_all_too"), "all", name="op5")
    assert fused_groups(topology) == (FusedGroup(("op2", "op3"), ("area",)),)
    computes = [component.operators for component in build_components(topology, "auto") if component.kind == "compute"]
    assert computes == [("op2", "op3", "to_all_too", "to_all"), ("op4",), ("op5",)]


def test_computes_on_more_keys_are_routed_by_the_common_ones(topology, rows):
    both = counted(rows, "area", "kind", name="both")
    counted(both, "area", name="areas")
    assert fused_groups(topology) == (FusedGroup(("both", "areas"), ("area",)),)
    source, compute = build_components(topology, "auto")
    assert source.outputs == (Exit("both", ("area", "kind"), ("area", "kind"), ("area",)),)
    assert [operator.routed_by for operator in compute.computes] == [("area",), None]
    (branch,) = compute.outputs
    assert isinstance(branch, Branch)
    assert isinstance(branch.operator, Compute)
    assert (compute.name, compute.operators, compute.kinds) == ("both", ("both", "areas"), ("compute", "compute"))
    assert compute.edges == (("both", "areas"),)


def test_three_computes_that_share_no_column_are_not_one_component(topology, rows):
    both = counted(rows, "area", "kind", "n", name="all")
    pairs = counted(both, "area", "kind", name="pairs")
    counted(pairs, "area", name="areas")
    counted(pairs, "kind", name="kinds")
    assert fused_groups(topology) == (FusedGroup(("all", "pairs", "areas"), ("area",)),)
    by_rate = fused_groups(topology, rates={("all", "pairs"): 5, ("pairs", "areas"): 1, ("pairs", "kinds"): 9})
    assert by_rate == (FusedGroup(("all", "pairs", "kinds"), ("kind",)),)
    with pytest.raises(TopologyError, match="'kinds' cannot run in the task of 'pairs' together with the other pairs"):
        fused_groups(topology, [("pairs", "areas"), ("pairs", "kinds")])


def test_rates_decide_what_is_fused(topology, rows):
    first = counted(rows, "area", name="first")
    counted(first.filter(pc.field("seen") > 1, name="many"), "area", name="second")
    assert fused_groups(topology, rates={("many", "second"): 1.0})
    assert not fused_groups(topology, rates={("first", "many"): 1.0})
    with pytest.raises(TopologyError, match=r"rates has \('first', 'second'\); give rates by"):
        fused_groups(topology, rates={("first", "second"): 1.0})
    with pytest.raises(TopologyError, match=r"the rate of \('many', 'second'\) is -1"):
        fused_groups(topology, rates={("many", "second"): -1})


def test_map_that_does_not_say_what_it_keeps_separates_computes(topology, rows):
    first = counted(rows, "area", name="first")
    counted(first.map(same), "area", name="second")
    assert not fused_groups(topology)
    with pytest.raises(TopologyError, match=r"'same' between them may change 'area'; .*keeps=\['area'\]"):
        fused_groups(topology, [("first", "second")])


def test_map_that_keeps_the_column_does_not_separate_computes(topology, rows):
    first = counted(rows, "area", name="first")
    counted(first.map(same, keeps=["area"]).filter(pc.field("seen") > 1), "area", name="second")
    assert fused_groups(topology) == (FusedGroup(("first", "second"), ("area",)),)


def test_own_logic_keeps_only_the_columns_that_it_declares(topology, rows):
    def own(batch, state):
        return batch

    kept = rows.key_by("area").compute(own, state={"x": pa.int64()}, name="kept", keeps=["area"])
    counted(kept, "area", name="after")
    free = rows.key_by("area").compute(own, state={"x": pa.int64()}, name="free")
    counted(free, "area", name="apart")
    assert fused_groups(topology) == (FusedGroup(("kept", "after"), ("area",)),)


def test_declared_partition_attributes_limit_the_choice(topology, rows):
    both = counted(rows, "area", "kind", name="both", partition_by=["kind"])
    counted(both, "area", name="areas")
    counted(both, "kind", name="kinds")
    assert fused_groups(topology) == (FusedGroup(("both", "kinds"), ("kind",)),)


def test_compute_with_two_inputs_begins_a_component(topology, rows):
    one, two = counted(rows, "area", name="one"), counted(rows, "area", name="two")
    union = counted(one.union(two), "area", name="union")
    counted(union, "area", name="after")
    assert fused_groups(topology) == (FusedGroup(("union", "after"), ("area",)),)
    with pytest.raises(TopologyError, match="'union' gets rows from 'two' too; only one compute may feed it"):
        fused_groups(topology, [("one", "union")])


def test_compute_with_two_paths_from_one_producer_is_not_fused(topology, rows):
    one = counted(rows, "area", name="one")
    few, many = one.filter(pc.field("seen") < 2, name="few"), one.filter(pc.field("seen") > 9, name="many")
    counted(few.union(many), "area", name="both")
    assert not fused_groups(topology)
    with pytest.raises(TopologyError, match="'both' gets rows on several paths"):
        fused_groups(topology, [("one", "both")])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"executors": 3}, "'second' has executors=3, and 'first' has not"),
        ({"shards": 8}, "'second' has shards=8, and 'first' has 256"),
    ],
)
def test_options_keep_computes_apart(topology, rows, options, reason):
    counted(counted(rows, "area", name="first"), "area", name="second", **options)
    assert not fused_groups(topology)
    with pytest.raises(TopologyError, match=reason):
        fused_groups(topology, [("first", "second")])


def test_what_only_the_first_compute_can_do_keeps_computes_apart(topology):
    rows = topology.source("rows", de.sources.Arrow(ROWS, event_time="at"))
    first = counted(rows, "area", name="first")

    def latest(batch, instances):
        return batch

    windows = first.key_by("area").window("1h", time="at")
    windows.compute(latest, name="called")
    for pair, reason in {
        ("first", "called"): "'called' calls a function for each window",
        ("rows", "first"): "'rows' is a source, not a compute",
    }.items():
        with pytest.raises(TopologyError, match=reason):
            fused_groups(topology, [pair])
    assert not fused_groups(topology)


def test_pairs_by_hand_are_checked(topology, rows):
    first = counted(rows, "area", name="first")
    second = counted(first, "area", name="second")
    counted(second, "area", name="third")
    assert fused_groups(topology, [("second", "third")]) == (FusedGroup(("second", "third"), ("area",)),)
    assert fused_groups(topology, False) == ()
    with pytest.raises(TopologyError, match="'third' does not read the rows of 'first'"):
        fused_groups(topology, [("first", "third")])
    with pytest.raises(UnknownOperator, match="no operator 'fourth'"):
        fused_groups(topology, [("first", "fourth")])
    for wrong in ("yes", True, [("first",)], [("first", 2)]):
        with pytest.raises(TopologyError, match="fuse"):
            fused_groups(topology, wrong)


def test_declarations_are_checked(rows):
    with pytest.raises(TopologyError, match=r"compute 'x': partition_by has 'n', which is no key column"):
        counted(rows, "area", name="x", partition_by=["n"])
    with pytest.raises(
        TopologyError, match=r"map: keeps is 'area'; give a list of distinct column names, such as \['area'\]"
    ):
        rows.map(same, keeps="area")


def test_attribute_has_the_operator_that_made_its_values(topology, rows):
    first = counted(rows.map(same, name="made"), "area", name="first")
    counted(first.map(same, keeps=["area"], name="kept"), "area", "seen", name="second", column="again")
    found = attributes(topology)
    assert found["first"] < found["second"]
    assert {attribute.operator for attribute in found["second"]} == {"made", "kept"}
    assert not found["rows"]


def test_explanation_and_drawing_show_the_choice(topology, rows):
    first = counted(rows, "area", name="first")
    second = counted(first, "area", name="second")
    counted(second.map(same), "kind", name="third")
    assert topology.explain().splitlines() == [
        "Topology 'loans': 3 computes in 2 components",
        "  first   by area",
        "  second  in the task of 'first'",
        "  third   by kind; apart from 'second': 'second' by area and 'third' by kind share no key column",
    ]
    assert "apart from 'first': fuse=False" in topology.explain(False)
    assert "in the task of first" in topology.to_svg("auto")
    assert "in the task of" not in topology.to_svg()
