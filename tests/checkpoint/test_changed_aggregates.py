from __future__ import annotations

import math
from dataclasses import replace

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dask_elastic.checkpoint import state_file
from dask_elastic.checkpoint.chain import Chain
from dask_elastic.checkpoint.changed_aggregates import ChangedAggregates
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import OperatorState
from dask_elastic.checkpoint.read_state import reading_of
from dask_elastic.checkpoint.restore import restore_executor
from dask_elastic.checkpoint.state_file import StateHeader
from dask_elastic.state import KeyedStore, StateRows
from dask_elastic.state.results import state_table
from dask_elastic.state.window_fields import window_fields
from dask_elastic.topology.aggregate import Count, DistinctCount, Max, Mean, Min, Sum, TopK
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.carry_over import carry_over
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.partial_results import Merged, Partial
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.state_kind import List, Map, Value
from dask_elastic.topology.timer import Timer
from dask_elastic.topology.windowing import EventWindow, Windowing
from dask_elastic.vocab.errors import CheckpointError, SchemaMismatch, TopologyError

INPUT = pa.schema({"plane": pa.string(), "delay": pa.int64(), "speed": pa.float64()})
ROWS = pa.record_batch(
    {"plane": ["a", "b", "a", "c"], "delay": [3, 5, None, None], "speed": [1.5, 2.5, None, 4.0]}, INPUT
)
GROUPS = Grouping(np.array([0, 1, 0, 2]), 3)
HOURLY = Windowing((EventWindow(0, 3_600_000_000, 3_600_000_000),), ("at",))


def operator(aggregates):
    return Compute("planes", ("plane",), aggregates)


def saved(tmp_path, aggregates, rows=ROWS, windowing=None):
    """Return a folder and the state of an operator that has processed the rows."""
    bundle = Bundle(aggregates, INPUT)
    values = bundle.update(bundle.initial(3), rows, GROUPS)
    fields, compute = bundle.fields, replace(operator(aggregates), windowing=windowing)
    if windowing is not None:
        fields = (*fields, *window_fields(compute, merges=False))
        values = [*values, np.array([0, 10, 20]), np.array([10, 20, 30])]
    hashes = np.arange(3, dtype=np.uint64)
    keys = pa.record_batch({"plane": ["a", "b", "c"]})
    state = StateRows(
        hashes, np.zeros(3, np.uint64), np.zeros(3, np.int32), keys, fields, values, np.zeros(3, np.bool_)
    )
    folder = CheckpointFolder(tmp_path)
    chain = Chain(1).cut(1, [3], [3])
    header = StateHeader("planes", 0, 1, 1, 1, chain.full(1), INPUT)
    file = state_file.write(folder, "state/1/0.arrows", header, [state])
    chains = (chain.written(1, file).at(1),)
    return folder, OperatorState("planes", ("plane",), 1, 1, chains, reading_of(compute))


def restored(folder, state, aggregates):
    """Return the results of the present aggregates from the state, and the chain to continue with."""
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.int32))
    changed = ChangedAggregates.of(state, operator(aggregates))
    found = restore_executor(folder, state, 0, 1, store, changed)
    keys, values = store.rows()
    assert store.fields == Bundle(aggregates, INPUT).fields
    return state_table(operator(aggregates), INPUT, keys, values).sort_by("plane"), found.chain


BEFORE = {
    "flights": Count(),
    "mean": Mean("delay"),
    "speed": Mean("speed"),
    "sum": Sum("speed"),
    "known": Count("speed"),
    "worst": Max("delay"),
    "double": Sum(lambda batch: np.asarray(batch["speed"].fill_null(0)) * 2, columns=["speed"]),
    "top": TopK("delay", 2),
}


@pytest.mark.parametrize(
    "now",
    [
        {"worst": Max("delay"), "flights": Count()},
        {"renamed": Max("delay"), "all": Count(), "best": TopK("delay", 2)},
        {"delays": Count("delay"), "total": Sum("delay")},
        {"speeds": Sum("speed"), "count": Count("speed")},
        {"double": Sum(lambda batch: np.asarray(batch["speed"].fill_null(0)) * 2, columns=["speed"])},
        {"twice": Sum(lambda batch: np.asarray(batch["speed"].fill_null(0)) * 2, columns=["speed"])},
        {**BEFORE, "again": Mean("delay")},
    ],
    ids=lambda now: "-".join(now),
)
def test_present_aggregates_have_the_values_they_would_have_had(tmp_path, now):
    folder, state = saved(tmp_path / "before", BEFORE)
    table, chain = restored(folder, state, now)
    wanted, _ = restored(*saved(tmp_path / "now", now), now)
    assert table.equals(wanted)
    # The next file has all shards in full: those before have other fields.
    assert not chain.files
    assert chain.due([0], [3]) == {0}


def test_mean_follows_from_sum_and_count(tmp_path):
    folder, state = saved(tmp_path, {"sum": Sum("delay"), "count": Count("delay")})
    table, _ = restored(folder, state, {"mean": Mean("delay")})
    assert table.to_pylist() == [
        {"plane": "a", "mean": 3.0},
        {"plane": "b", "mean": 5.0},
        {"plane": "c", "mean": None},
    ]


def test_partial_results_are_those_of_the_same_state(tmp_path):
    complete = {"flights": Count(), "mean": Mean("delay"), "top": TopK("delay", 2)}
    partial = {name: Partial(aggregate) for name, aggregate in complete.items()}
    folder, state = saved(tmp_path / "before", partial)
    wanted, _ = restored(*saved(tmp_path / "now", complete), complete)
    for now in (complete, {"renamed": partial["mean"]}, partial):
        found, _ = restored(folder, state, now)
        assert found.num_rows == 3
        if now is complete:
            assert found.equals(wanted)


def test_merged_partial_results_are_kept():
    before, now = ({"mean": Merged(Mean("delay"), "mean")} for _ in range(2))
    assert carry_over(before, now)["mean"].fields == "mean"
    with pytest.raises(TopologyError, match="cannot be computed"):
        carry_over(before, {"mean": Merged(Sum("delay"), "mean")})


def doubled_above(limit, *, factor=2, repeated=False):
    def values(batch, by=factor):
        if repeated:
            return values(batch, by)
        return pc.if_else(pc.greater(batch["delay"], limit), pc.multiply(batch["delay"], by), None)

    return values


def wrapped(function):
    return lambda batch: function(batch)


class Above:
    def __init__(self, limit):
        self.limit = limit

    def __eq__(self, other):
        return self.limit == other.limit

    __hash__ = None

    def delays(self, batch):
        return pc.if_else(pc.greater(batch["delay"], self.limit), batch["delay"], None)


@pytest.mark.parametrize(
    "make",
    [
        doubled_above,
        lambda number: doubled_above(5, factor=number),
        lambda number: doubled_above(number, repeated=True),
        lambda number: doubled_above([number, (number,)]),
        lambda number: Above(number).delays,
        lambda number: wrapped(doubled_above(number)),
    ],
    ids=["closure", "default", "itself", "list", "method", "function"],
)
def test_functions_are_the_same_if_they_capture_the_same_values(make):
    low, high = Sum(make(10), columns=["delay"]), Sum(make(20), columns=["delay"])
    mean = Mean(make(10), columns=["delay"])
    again = cloudpickle.loads(cloudpickle.dumps({"low": low, "high": high, "mean": mean}))
    assert carry_over(again, {"most": Sum(make(20), columns=["delay"])})["most"].fields == "high"
    assert "count" in carry_over(again, {"count": Count(make(10), columns=["delay"])})
    for other in (Sum, Count):
        with pytest.raises(TopologyError, match=r"^other="):
            carry_over(again, {"other": other(make(30), columns=["delay"])})
    # Under the name that it had, a function may change.
    assert carry_over(again, {"low": Sum(make(30), columns=["delay"])})["low"].fields == "low"


class Compiled:
    """A function of a compiler, which has code and nothing else of a function of Python."""

    def __init__(self, function):
        self.function, self.__code__ = function, function.__code__

    def __call__(self, batch):
        return self.function(batch)


class Incomparable:
    def __eq__(self, other):
        raise RuntimeError("not comparable")

    __hash__ = None


def without_a_value():
    if not BEFORE:
        later = None
    return lambda batch: later


def in_a_list_that_contains_itself(number):
    captured = [number, lambda batch: number]
    captured.append(captured)
    return doubled_above(captured)


def captured_twice_each(number, depth=40):
    function = doubled_above(number)
    for _ in range(depth):
        function = (lambda left, right: lambda batch: (left(batch), right(batch)))(function, function)
    return function


@pytest.mark.parametrize(
    "make",
    [
        lambda number: doubled_above(np.arange(number)),
        lambda number: doubled_above({"limits": np.arange(number)}),
        lambda number: doubled_above(pd.Series(range(number))),
        lambda number: doubled_above((math.nan, number)),
        in_a_list_that_contains_itself,
        captured_twice_each,
    ],
    ids=["array", "dict", "pandas", "nan", "itself", "twice"],
)
def test_values_that_functions_capture_are_compared_once_and_whole(make):
    before = cloudpickle.loads(cloudpickle.dumps({"a": Sum(make(10), columns=["delay"])}))
    assert carry_over(before, {"b": Sum(make(10), columns=["delay"])})["b"].fields == "a"
    with pytest.raises(TopologyError, match=r"^b="):
        carry_over(before, {"b": Sum(make(11), columns=["delay"])})


@pytest.mark.parametrize(
    ("make", "is_same"),
    [(lambda: Compiled(wrapped), True), (without_a_value, True), (lambda: doubled_above(Incomparable()), False)],
    ids=["compiled", "unset", "incomparable"],
)
def test_functions_that_cannot_be_compared_do_not_fail_with_another_error(make, is_same):
    before, now = {"a": Sum(make(), columns=["delay"])}, {"b": Sum(make(), columns=["delay"])}
    if is_same:
        assert carry_over(before, now)["b"].fields == "a"
    else:
        with pytest.raises(TopologyError, match=r"^b="):
            carry_over(before, now)


def declared(aggregate, before, now):
    """Declare the state of an aggregate for a column of one type, then for one of another."""
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.int32))
    for kind in (before, now):
        store.declare(pa.schema({"plane": pa.string()}), Bundle({"found": aggregate}, pa.schema({"x": kind})).fields)


@pytest.mark.parametrize(
    ("aggregate", "before", "now"),
    [
        (Max("x"), pa.timestamp("ns"), pa.timestamp("us")),
        (Min("x"), pa.time64("us"), pa.time64("ns")),
        (Min("x"), pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (Max("x"), pa.int64(), pa.timestamp("s")),
        (Sum("x"), pa.duration("s"), pa.duration("ms")),
        (Sum("x"), pa.decimal128(12, 2), pa.decimal128(12, 4)),
        (TopK("x", 2), pa.date64(), pa.timestamp("us")),
        (DistinctCount("x"), pa.timestamp("ms"), pa.timestamp("ns")),
        (DistinctCount("x"), pa.int64(), pa.float64()),
        (Merged(Max("x"), "x"), pa.timestamp("ns"), pa.timestamp("us")),
    ],
    ids=repr,
)
def test_numbers_of_another_unit_are_no_state_of_an_aggregate(aggregate, before, now):
    if isinstance(aggregate, Merged):
        before, now = (Partial(Max("x")).bind(pa.schema({"x": kind})).type for kind in (before, now))
    with pytest.raises(SchemaMismatch, match=r"missing fields: Field\('found\.\w+.*; new fields: Field\('found\."):
        declared(aggregate, before, now)


@pytest.mark.parametrize(
    ("aggregate", "before", "now"),
    [
        (Max("x"), pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (Max("x"), pa.string(), pa.large_string()),
        (Sum("x"), pa.int32(), pa.int64()),
        (Sum("x"), pa.decimal128(9, 2), pa.decimal128(12, 2)),
        (Mean("x"), pa.int64(), pa.float64()),
        (DistinctCount("x"), pa.int32(), pa.int64()),
        (DistinctCount("x"), pa.string(), pa.large_string()),
    ],
    ids=repr,
)
def test_state_of_the_same_numbers_is_kept_for_another_type(aggregate, before, now):
    declared(aggregate, before, now)


def test_state_of_unchanged_aggregates_is_not_written_again(tmp_path):
    folder, state = saved(tmp_path, BEFORE)
    assert ChangedAggregates.of(state, operator(dict(BEFORE))) is None
    _, chain = restored(folder, state, BEFORE)
    assert chain == state.chains[0]


@pytest.mark.parametrize(
    ("now", "unknown"),
    [
        ({"worst": Min("delay")}, "worst=Min('delay')"),
        ({"worst": Max("speed"), "flights": Count()}, "worst=Max('speed')"),
        ({"top": TopK("delay", 3)}, "top=TopK('delay', 3)"),
        ({"delays": Count("plane")}, "delays=Count('plane')"),
    ],
)
def test_aggregate_that_cannot_be_computed_is_named_with_its_operator(tmp_path, now, unknown):
    _, state = saved(tmp_path, BEFORE)
    with pytest.raises(CheckpointError) as raised:
        ChangedAggregates.of(state, operator(now))
    assert f"operator 'planes': {unknown} cannot be computed from the state of flights=Count(), mean=" in str(
        raised.value
    )
    assert "Give the operator another name" in str(raised.value)


def test_mean_that_cannot_be_computed_says_of_what_it_can(tmp_path):
    _, state = saved(tmp_path, {"flights": Count(), "sum": Sum("delay")})
    with pytest.raises(CheckpointError, match=r"\(a mean needs a sum and a count of the same column; each of these"):
        ChangedAggregates.of(state, operator({"mean": Mean("delay")}))


def test_sum_that_a_mean_may_have_rounded_is_refused(tmp_path):
    rows = ROWS.set_column(1, "delay", pa.array([2**53, 1, 2, 3]))
    folder, state = saved(tmp_path, {"mean": Mean("delay")}, rows)
    with pytest.raises(
        CheckpointError, match=r"state of operator 'planes' cannot be converted: Sum\('delay'\) .* 2\*\*53"
    ):
        restored(folder, state, {"sum": Sum("delay")})


def test_other_kinds_of_state_are_refused(tmp_path):
    _, state = saved(tmp_path, BEFORE)
    function = Compute("planes", ("plane",), lambda batch, state: batch, state={"last": Value(pa.int64())})
    with pytest.raises(
        CheckpointError, match="'planes' has another kind of state: that of aggregates before, of a function"
    ):
        ChangedAggregates.of(state, function)
    state = replace(state, reading=reading_of(function))
    assert ChangedAggregates.of(state, function) is None
    more = replace(function, state={"last": Value(pa.int64()), "first": Value(pa.int64())})
    with pytest.raises(CheckpointError, match=r"another kind of state: 'first' is new. Give the operator"):
        ChangedAggregates.of(state, more)
    with pytest.raises(CheckpointError, match=r"another kind of state: 'last' is missing. Give the operator"):
        ChangedAggregates.of(state, replace(function, state={}))


@pytest.mark.parametrize(
    ("former", "present", "changed"),
    [
        (Value(pa.int64()), Value(pa.string()), r"'x' was Value\(int64\) and is Value\(string\)"),
        (Value(pa.string()), Value(pa.decimal128(5, 2)), r"'x' was Value\(string\) and is Value\(decimal128\(5, 2\)\)"),
        (Value(object), Value(pa.string()), r"'x' was Value\(object\) and is Value\(string\)"),
        (Value(pa.string()), Value(object), r"'x' was Value\(string\) and is Value\(object\)"),
        (List(pa.string()), List(pa.binary()), r"'x' was List\(string\) and is List\(binary\)"),
        (
            Map(pa.string(), pa.int64()),
            Map(pa.binary(), pa.int64()),
            r"'x' was Map\(string, int64\) and is Map\(binary",
        ),
        (Value(pa.int64()), Value(pa.int64(), ttl="1h"), r"'x' was Value\(int64\) and is Value\(int64, ttl=3600\)"),
        (Value(pa.string(), ttl="1h"), Value(pa.large_string(), ttl="2h"), None),
        (Value(pa.timestamp("us")), Value(pa.timestamp("us", "UTC")), None),
        (Map(pa.large_binary(), object), Map(pa.binary(), object), None),
    ],
)
def test_state_that_is_declared_with_another_type_is_refused(tmp_path, former, present, changed):
    _, state = saved(tmp_path, BEFORE)
    function = Compute("planes", ("plane",), lambda batch, state: batch, state={"x": former})
    state = replace(state, reading=reading_of(function))
    function = replace(function, state={"x": present})
    if changed is None:
        assert ChangedAggregates.of(state, function) is None
    else:
        with pytest.raises(CheckpointError, match=f"'planes' has another kind of state: {changed}.* Give the operator"):
            ChangedAggregates.of(state, function)


def test_other_timers_are_refused(tmp_path):
    _, state = saved(tmp_path, BEFORE)
    function = Compute("planes", ("plane",), lambda batch, state: batch, timers={"close": Timer(print)})
    state = replace(state, reading=reading_of(function))
    assert ChangedAggregates.of(state, replace(function, timers={"close": Timer(repr)})) is None
    two = {"close": Timer(print), "open": Timer(print)}
    for timers, changed in ((two, "timer 'open' is new"), (None, "timer 'close' is missing")):
        with pytest.raises(CheckpointError, match=f"'planes' has another kind of state: {changed}. Give the operator"):
            ChangedAggregates.of(state, replace(function, timers=timers))


@pytest.mark.parametrize(
    ("before", "now", "problem"),
    [
        (None, HOURLY, "no windows before, 1h of at now"),
        (HOURLY, None, "1h of at before, no windows now"),
        (HOURLY, replace(HOURLY, allowed_lateness=60_000_000), "1h of at before, 1h of at, late by 1min at most now"),
    ],
)
def test_state_of_other_windows_is_refused(tmp_path, before, now, problem):
    _, state = saved(tmp_path, {"flights": Count()})
    former, present = (replace(operator({"flights": Count()}), windowing=windowing) for windowing in (before, now))
    with pytest.raises(CheckpointError, match=f"operator 'planes' has state of other windows: {problem}. Give"):
        ChangedAggregates.of(replace(state, reading=reading_of(former)), present)


def test_windows_keep_their_bounds_when_an_aggregate_is_left_out(tmp_path):
    before, now = {"known": Count("delay"), "flights": Count()}, {"flights": Count()}
    folder, state = saved(tmp_path, before, windowing=HOURLY)
    windowed = replace(operator(now), windowing=HOURLY)
    store = KeyedStore(1, lambda hashes: np.zeros(len(hashes), np.int32))
    restore_executor(folder, state, 0, 1, store, ChangedAggregates.of(state, windowed))
    assert store.fields == (*Bundle(now, INPUT).fields, *window_fields(windowed, merges=False))
    assert [column.tolist() for column in store.rows()[1]] == [[2, 1, 1], [0, 10, 20], [10, 20, 30]]


def test_state_of_the_same_windows_is_kept(tmp_path):
    _, state = saved(tmp_path, {"flights": Count()})
    windowed = replace(operator({"flights": Count()}), windowing=HOURLY)
    assert ChangedAggregates.of(replace(state, reading=reading_of(windowed)), windowed) is None
