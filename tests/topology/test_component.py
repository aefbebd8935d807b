from __future__ import annotations

import pickle

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.topology import Branch, Exit, Sink, Source, Topology, build_components
from dask_elastic.topology import aggregate as agg
from dask_elastic.topology.operators import Filter, MapOperator
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError


class Numbers(Source):
    columns = "not pruned"

    def __init__(self, event_time=None):
        self.event_time = event_time

    def columns_read(self, columns):
        pruned = type(self)(self.event_time)
        pruned.columns = columns
        return pruned

    def read(self, context):
        yield from ()


class Nowhere(Sink):
    def open(self, context): ...


def logic(batch, state): ...


def same(batch):
    return batch


def by_name(topology):
    return {component.name: component for component in build_components(topology)}


def test_components_of_the_design_example():
    topology = Topology("flight-delays")
    flights = topology.source("flights", Numbers("sched_dep"))
    arrived = flights.filter(pc.field("arr_delay").is_valid(), columns=["arr_delay"], name="arrived")
    planes = arrived.key_by("tailnum").compute({"flights": agg.Count(), "delay": agg.Mean("arr_delay")}, name="planes")
    planes.sink(Nowhere(), name="out")
    source, compute, sink = build_components(topology)
    assert [component.kind for component in (source, compute, sink)] == ["source", "compute", "sink"]
    assert source.operators == ("flights", "arrived")
    assert source.operator.source.columns == ("arr_delay", "tailnum", "sched_dep")
    (branch,) = source.outputs
    assert branch.operator.keep == ("tailnum", "arr_delay")
    assert branch.then == (Exit("planes", ("tailnum",), ("tailnum", "arr_delay")),)
    assert compute.inputs == ("flights",)
    assert compute.outputs == (Exit("out", (), None),)
    assert sink.inputs == ("planes",)
    assert sink.outputs == ()
    assert topology.operator("flights").source.columns == "not pruned"


def test_compute_without_consumers_has_no_outputs():
    topology = Topology("t")
    topology.source("s", Numbers()).key_by("k").compute({"n": agg.Count()}, name="c")
    components = by_name(topology)
    assert components["c"].outputs == ()
    assert components["s"].outputs == (Exit("c", ("k",), ("k",)),)
    assert components["s"].operator.source.columns == ("k",)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda s: s.sink(Nowhere()), None),
        (lambda s: s.map(same).sink(Nowhere()), None),
        (lambda s: s.map(same, columns=["b", "a"]).sink(Nowhere()), ("b", "a")),
        (lambda s: s.filter(same, columns=["a"]).sink(Nowhere()), None),
        (lambda s: s.filter(same).key_by("k").compute({"n": agg.Count()}), None),
        (lambda s: s.filter(same, columns=["a"]).map(same, columns=["b"]).sink(Nowhere()), ("a", "b")),
        (lambda s: s.key_by("k").compute(logic), None),
        (lambda s: s.key_by("k", "l").compute({"n": agg.Sum("a"), "m": agg.Mean("a")}), ("k", "l", "a")),
    ],
)
def test_source_is_pruned_to_the_columns_read(build, expected):
    topology = Topology("t")
    build(topology.source("s", Numbers()))
    assert by_name(topology)["s"].operator.source.columns == expected


def test_source_with_several_consumers_reads_the_columns_of_all():
    topology = Topology("t")
    stream = topology.source("s", Numbers())
    stream.key_by("k").compute({"a": agg.Sum("a")})
    stream.map(same, columns=["b", "a"]).sink(Nowhere())
    assert by_name(topology)["s"].operator.source.columns == ("k", "a", "b")
    stream.sink(Nowhere())
    assert by_name(topology)["s"].operator.source.columns is None


def test_diamond_runs_the_shared_operator_once():
    topology = Topology("t")
    prefix = topology.source("s", Numbers()).map(same, name="prefix")
    left = prefix.filter(same, name="left")
    right = prefix.filter(same, name="right")
    left.union(right).key_by("k").compute({"n": agg.Count()}, name="c")
    components = by_name(topology)
    (branch,) = components["s"].outputs
    assert branch.operator.name == "prefix"
    assert [step.operator.name for step in branch.then] == ["left", "right"]
    assert components["s"].exits == (Exit("c", ("k",), ("k",)), Exit("c", ("k",), ("k",)))
    assert components["s"].operators == ("s", "prefix", "left", "right")
    assert components["c"].inputs == ("s",)


def test_union_repeats_the_stateless_operator_under_each_producer():
    topology = Topology("t")
    a = topology.source("a", Numbers())
    b = topology.source("b", Numbers())
    shared = a.union(b).map(same, name="shared")
    computed = shared.key_by("k").compute(logic, name="c")
    computed.union(shared).sink(Nowhere(), name="out")
    components = by_name(topology)
    for name in ("a", "b"):
        (branch,) = components[name].outputs
        assert branch.operator is topology.operator("shared")
        assert branch.then == (Exit("c", ("k",), None), Exit("out"))
        assert components[name].operators == (name, "shared")
    assert components["c"].inputs == ("a", "b")
    assert set(components["out"].inputs) == {"a", "b", "c"}


def test_build_components_validates_the_topology():
    with pytest.raises(TopologyError, match="no source"):
        build_components(Topology("empty"))


def test_components_of_many_diamonds_stay_small():
    topology = Topology("t")
    stream = topology.source("s", Numbers())
    for number in range(60):
        left, right = stream.map(same, name=f"l{number}"), stream.map(same, name=f"r{number}")
        stream = left.union(right)
    stream.sink(Nowhere())
    components = build_components(topology)
    assert len(components[0].operators) == 121
    assert len(cloudpickle.dumps(components)) < 100_000


def test_components_of_very_long_chains_do_not_overflow_the_stack():
    topology = Topology("t")
    stream = topology.source("s", Numbers())
    for number in range(3_000):
        stream = stream.map(same, name=f"m{number}")
    stream.sink(Nowhere())
    assert len(build_components(topology)[0].operators) == 3_001


def test_components_are_picklable():
    topology = Topology("t")
    topology.source("s", Numbers()).map(lambda batch: batch).key_by("k").compute({"n": agg.Count()}, name="c")
    again = pickle.loads(cloudpickle.dumps(build_components(topology)))
    assert [component.operators for component in again] == [("s", "map-1"), ("c",)]


def test_exit_select_checks_columns_and_keys():
    rows = pa.RecordBatch.from_pydict({"k": [1], "a": [2], "b": [3]})
    assert Exit("c", ("k",), ("k", "b")).select(rows).schema.names == ["k", "b"]
    assert Exit("c", ("k",)).select(rows) is rows
    assert Exit("out").select(rows) is rows
    with pytest.raises(SchemaMismatch, match="operator 'c' reads column 'x', which its input lacks"):
        Exit("c", ("x",)).select(rows)


@st.composite
def topologies(draw):
    topology = Topology("random")
    streams = [topology.source(f"s{number}", Numbers()) for number in range(draw(st.integers(1, 3)))]
    for number in range(draw(st.integers(0, 8))):
        stream = draw(st.sampled_from(streams))
        drawn = draw(st.lists(st.sampled_from(streams), max_size=2, unique=True))
        others = [other for other in drawn if other is not stream]
        stream = stream.union(*others) if others else stream
        columns = draw(st.none() | st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
        kind = draw(st.sampled_from(["map", "filter", "aggregates", "function"]))
        if kind == "map":
            streams.append(stream.map(same, columns=columns, name=f"o{number}"))
        elif kind == "filter":
            streams.append(stream.filter(same, columns=columns, name=f"o{number}"))
        elif kind == "aggregates":
            logic_of_sums = {f"sum_{column}": agg.Sum(column) for column in columns or ["a"]}
            streams.append(stream.key_by("k").compute(logic_of_sums, name=f"o{number}"))
        else:
            streams.append(stream.key_by("k").compute(logic, name=f"o{number}"))
    for stream in streams:
        if not topology.consumers(stream.producers[0]):
            stream.sink(Nowhere())
    return topology


def walk(outputs, edges, producer):
    for output in outputs:
        if isinstance(output, Branch):
            edges.add((producer, output.operator.name))
            walk(output.then, edges, output.operator.name)
        else:
            edges.add((producer, output.target))


@given(topologies())
@settings(max_examples=80, deadline=None)
def test_components_contain_every_operator_and_edge(topology):
    components = build_components(topology)
    names = [component.name for component in components]
    assert {name for component in components for name in component.operators} == {
        operator.name for operator in topology.operators
    }
    edges: set[tuple[str, str]] = set()
    for component in components:
        walk(component.outputs, edges, component.name)
        assert all(names.index(before) < names.index(component.name) for before in component.inputs)
        assert len(set(component.inputs)) == len(component.inputs)
        for before in component.inputs:
            assert component.name in {way.target for way in components[names.index(before)].exits}
        assert not isinstance(component.operator, MapOperator | Filter)
    assert edges == set(topology.edges)


def requirement(topology, operator, column):
    """Return whether an operator's input must have a column, by the definition of each kind of operator."""
    if isinstance(operator, MapOperator):
        return operator.columns is None or column in operator.columns
    if isinstance(operator, Filter):
        consumers = topology.consumers(operator.name)
        passed_on = any(requirement(topology, consumer, column) for consumer in consumers)
        return operator.columns is None or column in operator.columns or passed_on
    if operator.kind == "compute":
        return operator.columns is None or column in operator.columns
    return True


@given(topologies(), st.sampled_from("abcdk"))
@settings(max_examples=80, deadline=None)
def test_sources_read_exactly_the_columns_needed(topology, column):
    for component in build_components(topology):
        if component.kind == "source":
            columns = component.operator.source.columns
            needed = any(requirement(topology, consumer, column) for consumer in topology.consumers(component.name))
            assert (columns is None or column in columns) == needed
