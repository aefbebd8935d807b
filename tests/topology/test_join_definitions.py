"""What can be wrong with a join is named when it is declared, or when the topology is validated."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.checkpoint.changed_aggregates import _changed_join
from dask_elastic.state.results import empty_state
from dask_elastic.topology.joins.joining import Joining
from dask_elastic.topology.known_schemas import known_inputs, known_output
from dask_elastic.topology.windowing import CountWindow, EventWindow
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

LEFT = {"order": pa.int64(), "at": pa.timestamp("us", "UTC"), "item": pa.string(), "price": pa.float64()}
RIGHT = {"paid_for": pa.int64(), "at": pa.timestamp("ms"), "item": pa.large_string(), "amount": pa.float64()}


def streams(left=LEFT, right=RIGHT, left_time="at", right_time="at"):
    topology = de.Topology("joined")
    return [
        topology.source(name, de.sources.Arrow(pa.schema(columns).empty_table(), event_time=time))
        for name, columns, time in (("orders", left, left_time), ("payments", right, right_time))
    ]


def keyed(**options):
    left, right = streams(**options)
    return left.key_by("order"), right.key_by("paid_for")


def test_results_have_the_columns_of_both_sides():
    left, right = keyed()
    joined = left.join(right, within="1h", name="paid")
    join = joined.topology.operator("paid").join
    names = ["order", "at", "item", "price", "at_right", "item_right", "amount"]
    assert join.output.names == names
    assert known_output(joined.topology, joined.producers).equals(join.output)
    # The prices and the amounts share a column.
    assert [str(kind) for kind in join.shared] == [
        "timestamp[us, tz=UTC]",
        "string",
        "double",
        "timestamp[ms]",
        "large_string",
    ]
    assert known_inputs(joined.topology)["paid"].equals(join.input)
    assert empty_state(joined.topology.operator("paid"), None).column_names == ["order", "side", *names[1:]]


def test_windows_of_results_have_the_zone_of_the_left_time():
    left, right = keyed()
    joined = left.join(right, window="10min", suffixes=("_l", "_r"))
    schema = joined.topology.operator("join-1").join.output
    assert schema.names == [
        *("order", "at_l", "item_l", "price", "at_r", "item_r", "amount"),
        *("window_start", "window_end"),
    ]
    assert schema.field("window_end").type == pa.timestamp("us", "UTC")


def test_join_survives_pickling_and_is_drawn():
    left, right = keyed()
    joined = left.join(right, within=("-90s", "2h"), how="outer")
    topology = pickle.loads(pickle.dumps(joined.topology))
    assert "outer join from -90s to 2h" in str(topology)
    assert topology.operator("join-1").join.same_state(joined.topology.operator("join-1").join)


def test_one_stream_joins_itself():
    orders, _ = streams()
    joined = orders.key_by("order").join(orders.key_by("order"), within="1h")
    assert "item_right" in known_output(joined.topology, joined.producers).names


def renamed(**types):
    return {**RIGHT, **types}


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {}, "neither within nor window; give one of them"),
        ({}, {"within": "1h", "window": "1h"}, "both within and window"),
        ({}, {"within": ("2h", "1h")}, "begins after it ends"),
        ({}, {"within": ("1h", "2h", "3h")}, "give two durations"),
        ({}, {"within": "ten parsecs"}, "is not a duration"),
        ({}, {"within": ("-1 parsec", "1h")}, "whose unit of time is unknown"),
        ({}, {"within": "1h", "how": "full"}, "how is 'full'; give one of 'inner', 'left', 'right', 'outer'"),
        ({}, {"window": EventWindow(0, 10, 20)}, "leaves gaps"),
        ({}, {"window": CountWindow(10, 10)}, "Sessions and windows of counts differ between the sides"),
        ({}, {"window": "0s"}, "give a length such as '10min'"),
        ({}, {"within": "1h", "time": "when"}, "no column 'when', its time"),
        ({}, {"within": "1h", "time": ("at", "amount")}, "time 'amount', which is double; give a column of timestamps"),
        ({}, {"within": "1h", "time": 5}, "give the name of a column, or a pair"),
        ({}, {"within": "1h", "suffixes": ("", "")}, "more than one column 'at'; give other suffixes"),
        ({}, {"within": "1h", "suffixes": "_x"}, "give two texts"),
        ({}, {"within": "1h", "left_schema": 5}, "left_schema is 5; give a pyarrow schema"),
        ({}, {"within": "1h", "left_schema": {"order": pa.int64()}}, "name it as the first of time="),
        ({}, {"within": "1h", "shards": 0}, "shards is 0"),
        ({}, {"within": "1h", "store": "tape"}, "store is 'tape'"),
        ({"left_time": None}, {"within": "1h"}, "the left side, 'orders', has no column that is known"),
        (
            {"right": renamed(paid_for=pa.string())},
            {"within": "1h"},
            "'order' of the left side is int64, but 'paid_for' of the right side is string; keys of one type join. "
            "Cast 'paid_for' of the right side in a map before key_by, with batch['paid_for'].cast('int64')",
        ),
        (
            {"left": {**LEFT, "order": pa.int32()}},
            {"within": "1h"},
            "Cast 'order' of the left side in a map before key_by, with batch['order'].cast('int64')",
        ),
        ({"right": renamed(__hash=pa.int64())}, {"within": "1h"}, "has a column '__hash'; rename it"),
    ],
)
def test_wrong_join_is_refused(options, arguments, message):
    left, right = keyed(**options)
    with pytest.raises(TopologyError) as raised:
        left.join(right, **arguments)
    assert message in " ".join(str(raised.value).split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tolerance": "-1s"}, "give a duration of 0 or more"),
        ({"how": "outer"}, "give one of 'left', 'inner'"),
    ],
)
def test_wrong_join_asof_is_refused(arguments, message):
    left, right = keyed()
    with pytest.raises(TopologyError, match=message):
        left.join_asof(right, **arguments)


def test_results_of_windows_are_joined_by_their_end():
    orders, payments = streams()
    counted = orders.key_by("order").window("10min").compute({"items": agg.Count()}, name="counted").key_by("order")
    with pytest.raises(
        TopologyError, match=r"the first of time=\(left, right\); that of results of windows is 'window_e"
    ):
        counted.join_asof(payments.key_by("paid_for"))
    with pytest.raises(TopologyError, match=r"results of compute 'counted' are late, and would .*'window_end'"):
        counted.join_asof(payments.key_by("paid_for"), time=("window_start", "at"))
    with pytest.raises(TopologyError, match="the right side, 'counted', has the time 'window_start'"):
        payments.key_by("paid_for").join(counted, within="1h", time=("at", "window_start"))
    joined = counted.join_asof(payments.key_by("paid_for"), time=("window_end", "at"))
    assert "amount" in known_output(joined.topology, joined.producers).names


def test_corrections_of_windows_are_filtered_before_a_join():
    orders, payments = streams()
    windows = orders.key_by("order").window("10min")
    counted = windows.compute({"items": agg.Count()}, name="counted", allowed_lateness="1h")
    time = ("window_end", "at")
    with pytest.raises(TopologyError, match=r"lateness of compute 'counted'; corrections are late.* == 0\)"):
        counted.key_by("order").join_asof(payments.key_by("paid_for"), time=time)
    first = counted.filter(pc.field("revision") == 0).key_by("order")
    assert (
        "revision"
        in known_output(first.topology, first.join_asof(payments.key_by("paid_for"), time=time).producers).names
    )


def test_keys_of_different_number_are_refused():
    left, right = streams()
    with pytest.raises(TopologyError, match=r"give key_by the same number of columns on both sides"):
        left.key_by("order", "item").join(right.key_by("paid_for"), within="1h")


def test_stream_without_key_or_of_another_topology_is_refused():
    left, right = streams()
    with pytest.raises(TopologyError, match="give the other stream with its keys"):
        left.key_by("order").join(right, within="1h")
    with pytest.raises(TopologyError, match="read both from one topology"):
        left.key_by("order").join(keyed()[1], within="1h")


def test_unknown_columns_are_asked_for_and_then_checked():
    orders, payments = streams()
    mapped = payments.map(lambda batch: batch, name="tidied")
    with pytest.raises(TopologyError, match="the right side, 'tidied', has columns that are not known") as raised:
        orders.key_by("order").join(mapped.key_by("paid_for"), within="1h")
    assert "give right_schema={" in str(raised.value)
    joined = orders.key_by("order").join(mapped.key_by("paid_for"), within="1h", right_schema=RIGHT)
    side = joined.topology.operator("join-1-right")
    wrong = pa.record_batch({name: pa.array([], pa.int8()) for name in RIGHT})
    with pytest.raises(SchemaMismatch, match=r"the right side of join 'join-1': .*'paid_for': int8 instead of int64"):
        side.apply(wrong)


@pytest.mark.parametrize("nested", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)])
def test_column_with_unions_is_refused(nested):
    kind = nested(pa.sparse_union([pa.field("number", pa.int64()), pa.field("text", pa.string())]))
    orders, payments = streams()
    right = payments.map(lambda batch: batch, name="tidied").key_by("paid_for")
    with pytest.raises(TopologyError, match=r"join 'paid': column 'either' has type .*union.* Derive columns"):
        orders.key_by("order").join(right, within="1h", name="paid", right_schema={**RIGHT, "either": kind})


def test_side_without_event_time_is_refused():
    left, right = keyed(right_time=None)
    joined = left.join(right, within="1h", time="at")
    joined.sink(de.sinks.Collect())
    with pytest.raises(TopologyError, match="no source of its right side has any; give that source event_time="):
        joined.topology.validate()


def test_time_that_is_no_time_is_refused_in_rows():
    left, right = keyed(left={**LEFT, "at": pa.timestamp("s")})
    side = left.join(right, within="1h").topology.operator("join-1-left")
    rows = {"order": [1], "at": pa.array([2**62], pa.timestamp("s")), "item": ["a"], "price": [1.0]}
    with pytest.raises(SchemaMismatch, match="a time more than 73,000 years from 1970"):
        side.apply(pa.record_batch(rows))


@pytest.mark.parametrize(
    ("unit", "most"), [("s", 2**61 // 10**6), ("ms", 2**61 // 10**3), ("us", 2**61), ("ns", 2**63 - 1)]
)
def test_all_times_of_73000_years_are_joined(unit, most):
    kind = pa.timestamp(unit)
    left, right = keyed(left={**LEFT, "at": kind})
    side = left.join(right, within="1h").topology.operator("join-1-left")
    # Nanoseconds end in the year 2262.
    times = [1 - most, most - 1]
    rows = {"order": [1, 2], "at": pa.array(times, pa.int64()).view(kind), "item": ["a", "b"], "price": [1.0, 2.0]}
    (found,) = side.apply(pa.record_batch(rows))
    factor = {"s": 10**6, "ms": 10**3}.get(unit, 1)
    assert found["__time"].to_pylist() == [time // 1000 if unit == "ns" else time * factor for time in times]


def test_resumed_job_keeps_the_state_of_the_same_join_only():
    def declared(**arguments):
        left, right = keyed()
        return left.join(right, **{"within": "1h", **arguments}).topology.operator("join-1")

    before = declared()
    assert isinstance(before.join, Joining)
    assert _changed_join(before, declared(suffixes=("", "_other"))) == ""
    assert (
        _changed_join(before, declared(within="2h"))
        == "inner join from -1h to 1h before, inner join from -2h to 2h now"
    )
    changed = _changed_join(before, declared(left_schema={**LEFT, "price": pa.int64(), "item": pa.string()}))
    assert changed.startswith("of the columns of the results, 'price' was double and is int64. To keep the state, have")
    changed = _changed_join(before, declared(left_schema={name: LEFT[name] for name in ("order", "at", "item")}))
    assert "'price' is missing. To keep" in changed
    assert "left_schema= and right_schema= choose them" in changed
    left, _ = keyed()
    counted = left.compute({"rows": de.aggregate.Count()}, name="rows").topology.operator("rows")
    assert _changed_join(counted, before) == "that of another operator before, of inner join from -1h to 1h now"


@pytest.mark.parametrize("within", ["100ns", ("0s", "1500ns"), 1e-7])
def test_bound_that_is_no_whole_number_of_microseconds_is_refused(within):
    left, right = keyed()
    with pytest.raises(TopologyError, match=r"within is .*; give whole microseconds, in which times are compared"):
        left.join(right, within=within, name="paid")
    left.join(right, within=("-1500us", 0.3), name="paid")
