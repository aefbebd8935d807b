from __future__ import annotations

import functools
import math
import re
from itertools import pairwise

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.topology import Sink, Source, Topology
from dask_elastic.topology.aggregates.aggregation import Aggregate
from dask_elastic.topology.logic_level import per_key, per_row
from dask_elastic.topology.validation import check_columns, check_count, check_name
from dask_elastic.vocab.errors import TopologyError


class Numbers(Source):
    def __init__(self, **options):
        self.__dict__.update(options)

    def read(self, context):
        yield from ()


class Nowhere(Sink):
    def open(self, context): ...


class Rows(Aggregate):
    columns = ()

    def bind(self, schema): ...

    def __repr__(self):
        return "Rows()"


def logic(batch, state): ...


@pytest.fixture
def topology():
    return Topology("test")


@pytest.fixture
def stream(topology):
    return topology.source("numbers", Numbers())


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\x00", 3, None])
def test_bad_topology_names_are_refused(name):
    with pytest.raises(TopologyError, match="name"):
        Topology(name)


@given(st.text())
def test_check_name_accepts_printable_names_only(name):
    try:
        assert check_name(name, "map") == name
    except TopologyError:
        assert not name.strip() or not name.isprintable()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Numbers, "Numbers is a class; give an instance"),
        ("flights.parquet", "'flights.parquet' is not a Source"),
        (pd.DataFrame({"a": [1]}), "a DataFrame is not a Source; give sources.Arrow of it"),
        (Numbers(parallel=0), "parallel is 0"),
        (Numbers(parallel=True), "parallel is True"),
        (Numbers(rate=0), "rate is 0"),
        (Numbers(rate=math.nan), "rate is nan"),
        (Numbers(rate="fast"), "rate is 'fast'"),
        (Numbers(event_time=3), "event_time is 3"),
        (Numbers(slack="5 s"), "slack is '5 s'; give seconds"),
    ],
)
def test_bad_sources_are_refused(topology, source, message):
    with pytest.raises(TopologyError, match=f"source 'x': {message}"):
        topology.source("x", source)
    assert topology.operators == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "3 is of type int; give a function, called as function(batch)"),
        ((pc.field("n"),), "give a function"),
        ((lambda: None,), "cannot be called as function(batch): too many positional arguments"),
        ((logic,), "the function logic(batch, state) cannot be called as function(batch): missing a required"),
        ((per_row(lambda row: row),), "map: @de.per_row is for compute; here <lambda> gets a batch: remove it."),
        ((per_key(logic),), "map: @de.per_key is for compute; here logic gets a batch: remove it."),
    ],
)
def test_bad_map_functions_are_refused(stream, arguments, message):
    with pytest.raises(TopologyError, match=re.escape(message)):
        stream.map(*arguments)


def test_filter_of_single_rows_is_refused(stream):
    with pytest.raises(TopologyError, match=re.escape("filter: @de.per_row is for compute")):
        stream.filter(per_row(lambda row: row["n"] > 3))


def test_asynchronous_function_is_refused(stream):
    async def later(batch):
        return batch

    with pytest.raises(TopologyError, match="later is asynchronous"):
        stream.map(later)


def test_callables_of_all_kinds_are_accepted(stream):
    class Callable:
        def __call__(self, batch):
            return batch

    stream.map(functools.partial(logic, state=None))
    stream.map(Callable())
    stream.map(print)
    stream.map(pa.Table.from_batches)
    stream.map(lambda batch, more=1, *rest: batch)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("n", "write columns=['n']"),
        ([], "columns is empty"),
        (["n", "n"], "column 'n' is named twice"),
        ([3], "3 is not a column name"),
        ({"n": 1}, "is of type dict; give a list"),
    ],
)
def test_bad_columns_are_refused(stream, columns, message):
    with pytest.raises(TopologyError, match=re.escape(message)):
        stream.filter(pc.field("n") > 1, columns=columns)


@given(st.lists(st.text(min_size=1), min_size=1, unique=True))
def test_check_columns_keeps_order(columns):
    assert check_columns(columns, "map") == tuple(columns)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((), "key_by got no columns"),
        ((["a", "b"],), "write key_by('a', 'b')"),
        ((3,), "3 is not a column name"),
        (("a", "a"), "'a' is named twice"),
        (("",), "'' is not a column name"),
    ],
)
def test_bad_keys_are_refused(stream, keys, message):
    with pytest.raises(TopologyError, match=re.escape(message)):
        stream.key_by(*keys)


@pytest.mark.parametrize(
    ("given_logic", "options", "message"),
    [
        ({}, {}, "the dict of aggregates is empty"),
        ({"n": Rows()}, {}, "the output has column 'n' twice, as key and as Rows()"),
        ({3: Rows()}, {}, "output column 3 is not a name"),
        ({"rows": Rows}, {}, "output 'rows': Rows is a class; give an instance of it, Rows(...)"),
        ({"rows": 3}, {}, "output 'rows': 3 is not an Aggregate"),
        (Rows(), {}, "write compute({'name': Rows()})"),
        ({"rows": Rows()}, {"state": {"last": pa.int64()}}, "aggregates keep their own state"),
        (lambda batch: batch, {}, "cannot be called as function(batch, state)"),
        (logic, {"state": ["last"]}, "state is of type list"),
        (logic, {"state": {"last": float}}, "'last' is declared as <class 'float'>"),
        (logic, {"state": {"n": pa.int64()}}, "'n' is a key column and a state value"),
        (logic, {"state": {"": pa.int64()}}, "'' is not a name"),
        (logic, {"executors": -1}, "executors is -1; give an integer, 1 or more"),
        (logic, {"executors": 1.5}, "executors is 1.5"),
        (logic, {"executors": True}, "executors is True"),
        (logic, {"shards": 0}, "shards is 0; give an integer from 1 to 65536"),
        (logic, {"shards": 65_537}, "shards is 65537"),
        (logic, {"name": "a\t"}, "cannot be printed"),
    ],
)
def test_bad_compute_arguments_are_refused(topology, stream, given_logic, options, message):
    with pytest.raises(TopologyError, match=re.escape(message)):
        stream.key_by("n").compute(given_logic, **options)
    assert len(topology.operators) == 1


def test_unknown_compute_option_is_refused(stream):
    with pytest.raises(TypeError, match="execs"):
        stream.key_by("n").compute(logic, execs=2)


@given(st.integers())
def test_check_count_accepts_integers_in_range(value):
    if 1 <= value <= 9:
        assert check_count(value, "compute", "shards", 9) == value
    else:
        with pytest.raises(TopologyError, match=f"shards is {value}; give an integer from 1 to 9"):
            check_count(value, "compute", "shards", 9)


def test_compute_without_keys_is_refused(stream):
    with pytest.raises(TopologyError, match=r"stream of 'numbers': compute keeps state per key.*key_by\('column'\)"):
        stream.compute({"rows": Rows()}, name="x")


@pytest.mark.parametrize("method", ["join", "join_asof"])
def test_join_without_keys_is_refused(stream, method):
    with pytest.raises(TopologyError, match=r"stream of 'numbers': join and join_asof .*key_by\('column'\)\.join\("):
        getattr(stream, method)(stream.key_by("plane"), within="1h")


@pytest.mark.parametrize("method", ["map", "filter", "key_by", "union", "sink"])
def test_method_of_streams_without_keys_is_refused_on_keyed_ones(stream, method):
    keyed = stream.key_by("n")
    for other in (keyed, keyed.window("1h", time="t")):
        with pytest.raises(TopologyError, match=r"keyed stream of 'numbers': .* or on the stream that compute\("):
            getattr(other, method)("n")


def test_bad_sinks_are_refused(stream):
    with pytest.raises(TopologyError, match="sink 'out': Nowhere is a class"):
        stream.sink(Nowhere, name="out")
    with pytest.raises(TopologyError, match="3 is not a Sink"):
        stream.sink(3)


def test_bad_unions_are_refused(stream):
    foreign = Topology("foreign").source("numbers", Numbers())
    with pytest.raises(TopologyError, match="of topology 'foreign', but this is topology 'test'"):
        stream.union(foreign)
    with pytest.raises(TopologyError, match="has the stream of 'numbers' twice"):
        stream.union(stream)
    with pytest.raises(TopologyError, match="got no other stream"):
        stream.union()
    with pytest.raises(TopologyError, match="takes streams before their key_by"):
        stream.union(stream.key_by("n"))
    with pytest.raises(TopologyError, match="was given 3, of type int"):
        stream.union(3)


def test_streams_of_two_topologies_of_one_name_are_told_apart(stream):
    later = Topology("test").source("numbers", Numbers())
    with pytest.raises(TopologyError, match="of another topology that is also named 'test'"):
        stream.union(later)
    with pytest.raises(TopologyError, match="of another topology that is also named 'test'"):
        stream.key_by("plane").join(later.key_by("plane"), within="1h")


def test_bad_feeds_are_refused(topology, stream):
    other = topology.source("other", Numbers())
    mapped = stream.map(print, name="mapped")
    with pytest.raises(TopologyError, match="source 'other' reads no stream"):
        stream.feed(other)
    with pytest.raises(TopologyError, match="'numbers' already feeds 'mapped'"):
        stream.feed(mapped)
    with pytest.raises(TopologyError, match="goes to one operator"):
        other.feed(stream.union(mapped))
    with pytest.raises(TopologyError, match="of topology 'test', but this is topology 'foreign'"):
        Topology("foreign").source("numbers", Numbers()).feed(mapped)


def test_topology_without_source_is_refused(topology):
    with pytest.raises(TopologyError, match="'test' has no source"):
        topology.validate()


def test_source_without_consumer_is_refused(topology, stream):
    with pytest.raises(TopologyError, match="nothing reads source 'numbers'"):
        topology.validate()


def test_map_without_consumer_is_refused(topology, stream):
    stream.map(print, name="shown")
    with pytest.raises(TopologyError, match="nothing reads map 'shown'"):
        topology.validate()


def test_compute_without_consumer_is_valid(topology, stream):
    stream.key_by("n").compute(logic)
    topology.validate()


def test_unused_key_by_is_refused(topology, stream):
    stream.sink(Nowhere())
    keyed = stream.key_by("n", "m")
    with pytest.raises(TopologyError, match=r"key_by\('n', 'm'\) of 'numbers' is not used"):
        topology.validate()
    keyed.compute(logic)
    topology.validate()


def test_cycle_is_refused_with_its_path(topology, stream):
    a = stream.map(print, name="a")
    b = a.map(print, name="b")
    c = b.map(print, name="c")
    c.sink(Nowhere())
    c.feed(a)
    with pytest.raises(TopologyError, match="has a cycle, a -> b -> c -> a; rows"):
        topology.validate()


def test_operator_that_feeds_itself_is_refused(topology, stream):
    a = stream.map(print, name="a")
    a.feed(a)
    with pytest.raises(TopologyError, match="has a cycle, a -> a; rows"):
        topology.validate()


@given(st.integers(2, 8), st.data())
def test_in_order_sorts_topologically_or_reports_a_real_cycle(length, data):
    topology = Topology("random")
    streams = [topology.source("source", Numbers())]
    for number in range(length):
        origin = data.draw(st.sampled_from(streams))
        streams.append(origin.map(print, name=f"m{number}"))
    edges = set(topology.edges)
    for _ in range(3):
        origin, target = data.draw(st.sampled_from(streams)), data.draw(st.sampled_from(streams[1:]))
        edge = (origin.producers[0], target.producers[0])
        if edge not in edges:
            origin.feed(target)
            edges.add(edge)
    assert set(topology.edges) == edges
    try:
        order = [operator.name for operator in topology.in_order()]
    except TopologyError as error:
        path = re.search("has a cycle, (.*); rows", str(error))[1].split(" -> ")
        assert path[0] == path[-1]
        assert all(edge in edges for edge in pairwise(path))
    else:
        assert all(order.index(left) < order.index(right) for left, right in edges)
