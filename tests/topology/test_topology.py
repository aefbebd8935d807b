from __future__ import annotations

import copy
import pickle
import threading

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_elastic.topology import KeyedStream, Sink, SinkContext, SinkWriter, Source, SourceContext, Stream, Topology
from dask_elastic.topology.operators import Compute, Filter, MapOperator
from dask_elastic.vocab.errors import SinkError, SubmitError, TopologyError, UnknownOperator


class Numbers(Source):
    def read(self, context):
        for number in range(context.offset or 0, 4):
            if context.stopping():
                return
            yield pa.RecordBatch.from_pydict({"n": [number]}), number + 1


class Writer(SinkWriter):
    def write(self, rows): ...

    def close(self): ...

    def abort(self): ...


class Nowhere(Sink):
    def open(self, context):
        return Writer()


def double(batch):
    return batch


def count(batch, state):
    return None


def pipeline() -> Topology:
    topology = Topology("numbers")
    numbers = topology.source("numbers", Numbers())
    doubled = numbers.map(double).filter(pc.field("n") > 1)
    doubled.key_by("n").compute(count, state={"seen": pa.int64(), "blob": object}).sink(Nowhere())
    return topology


def test_operator_names_are_given_or_derived():
    topology = Topology("names")
    numbers = topology.source("numbers", Numbers())
    numbers.map(double)
    numbers.map(double)
    numbers.map(lambda batch: batch)
    numbers.map(lambda batch: batch)
    numbers.filter(pc.field("n") > 1)
    numbers.map(double, name="mine")
    numbers.sink(Nowhere())
    names = [operator.name for operator in topology.operators]
    assert names == ["numbers", "double", "double-2", "map-1", "map-2", "filter-1", "mine", "sink-1"]


def test_derived_name_avoids_given_names():
    topology = Topology("names")
    numbers = topology.source("numbers", Numbers())
    numbers.map(lambda batch: batch, name="map-1")
    assert numbers.map(lambda batch: batch).producers == ("map-2",)


def test_duplicate_name_error_names_both_operators():
    topology = Topology("names")
    numbers = topology.source("numbers", Numbers())
    numbers.map(double, name="a")
    with pytest.raises(TopologyError, match=r"map 'a', operator number 2, and the new filter 'a'"):
        numbers.filter(double, name="a")
    with pytest.raises(TopologyError, match=r"source 'a'"):
        topology.source("a", Numbers())
    assert [operator.name for operator in topology.operators] == ["numbers", "a"]


def test_topology_lists_operators_as_written():
    topology = pipeline()
    source, mapped, filtered, computed, sink = topology.operators
    assert source.kind == "source"
    assert isinstance(mapped, MapOperator)
    assert isinstance(filtered, Filter)
    assert isinstance(computed, Compute)
    assert computed.keys == ("n",)
    assert computed.aggregates is None
    assert computed.function is count
    assert computed.state == {"seen": pa.int64(), "blob": object}
    assert computed.stateful
    assert computed.shards == 256
    assert sink.kind == "sink"
    assert topology.edges == (
        ("numbers", "double"),
        ("double", "filter-1"),
        ("filter-1", "count"),
        ("count", "sink-1"),
    )
    assert [operator.name for operator in topology.inputs("count")] == ["filter-1"]
    assert [operator.name for operator in topology.consumers("count")] == ["sink-1"]
    topology.validate()


def test_unknown_operator_lists_the_known_ones():
    with pytest.raises(UnknownOperator, match="no operator 'x'; it has: numbers, double"):
        pipeline().operator("x")


def test_union_and_feed_connect_several_inputs():
    topology = Topology("union")
    left = topology.source("left", Numbers())
    right = topology.source("right", Numbers())
    third = topology.source("third", Numbers())
    both = left.union(right)
    assert both.producers == ("left", "right")
    merged = both.map(double, name="merged")
    third.feed(merged)
    merged.sink(Nowhere())
    assert [operator.name for operator in topology.inputs("merged")] == ["left", "right", "third"]
    topology.validate()


@pytest.mark.parametrize("duplicate", [pickle.loads, cloudpickle.loads])
@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
def test_topology_with_lambdas_and_local_classes_is_picklable(dump, duplicate):
    topology = pipeline()
    topology.source("more", Numbers()).map(lambda batch: [batch, batch], name="twice").sink(Nowhere())
    again = duplicate(dump(topology))
    assert again.describe() == topology.describe()
    again.validate()
    assert len(again.operator("twice").apply(pa.RecordBatch.from_pydict({"n": [1]}))) == 2


def test_deepcopy_of_topology_is_independent():
    topology = pipeline()
    again = copy.deepcopy(topology)
    again.source("more", Numbers())
    assert len(topology.operators) == 5
    assert len(again.operators) == 6


def test_topology_that_cannot_be_pickled_names_the_operator():
    lock = threading.Lock()
    topology = Topology("locked")
    topology.source("numbers", Numbers()).map(lambda batch: lock and batch, name="guarded").sink(Nowhere())
    with pytest.raises(SubmitError, match=r"map 'guarded' cannot be pickled.*lock"):
        pickle.dumps(topology)


def test_reprs_are_readable():
    topology = pipeline()
    assert repr(topology) == "<Topology 'numbers': 1 source, 1 map, 1 filter, 1 compute, 1 sink>"
    assert repr(Topology("none")) == "<Topology 'none': empty>"
    stream = topology.source("more", Numbers())
    assert repr(stream) == "Stream('more' of topology 'numbers')"
    assert repr(stream.key_by("a", "b")) == "KeyedStream('more' by 'a', 'b' of topology 'numbers')"
    assert isinstance(stream, Stream)
    assert isinstance(stream.key_by("n"), KeyedStream)
    assert stream.key_by("n").keys == ("n",)


def test_topology_copies_given_dicts():
    topology = Topology("values")
    state = {"seen": pa.int64()}
    topology.source("numbers", Numbers()).key_by("n").compute(count, state=state)
    state["more"] = pa.int64()
    assert topology.operator("count").state == {"seen": pa.int64()}


def test_source_defaults_and_context():
    source = Numbers()
    assert (source.parallel, source.rate, source.event_time, source.pushed) == (1, None, None, False)
    assert source.columns_read(("n",)) is source
    source.check()
    assert [offset for _, offset in source.read(SourceContext(offset=2))] == [3, 4]
    assert list(source.read(SourceContext(stopping=lambda: True))) == []


def test_collected_of_a_sink_that_keeps_no_rows_is_refused():
    writer = Nowhere().open(SinkContext("job", "out", 0, 0))
    with pytest.raises(SinkError, match=r"Writer keeps no rows .* sinks.Collect"):
        writer.collected()
