"""Timers as users write them: the three levels, the order of firing, both clocks, errors, and what is refused."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.state import slots
from dask_elastic.state.timer_bounds import TimerBounds
from dask_elastic.testing import run
from dask_elastic.vocab import errors

EPOCH = dt.datetime(1970, 1, 1)
OUT = {"key": pa.string(), "text": pa.string()}


def rows(*given):
    """A table of (key, seconds, value)."""
    keys, seconds, values = zip(*given, strict=True)
    at = pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us"))
    return pa.table({"key": list(keys), "at": at, "value": list(values)})


def fired(logic, timers, given, state=None, batch_rows=1, event_time="at", **options):
    """Return what is emitted, and the result."""
    topology = de.Topology("timers")
    source = de.sources.Arrow(given, event_time=event_time, batch_rows=batch_rows)
    keyed = topology.source("rows", source).key_by("key")
    keyed.compute(logic, state=state, timers=timers, name="timed").sink(de.sinks.Collect(), name="out")
    result = run(topology, executors=1, **options)
    emitted = result.outputs["out"].to_pylist() if "out" in result.outputs else []
    return emitted, result


def texts(emitted, key):
    return [row["text"] for row in emitted if row["key"] == key]


@de.per_row(output=OUT)
def set_by_row(row, state):
    state["sum"] = (state["sum"] or 0) + row["value"]
    state.timers.set("close", row["at"] + dt.timedelta(seconds=10))


@de.per_key(output=OUT)
def set_by_key(key, batch, state):
    state["sum"] = (state["sum"] or 0) + sum(batch["value"].to_pylist())
    state.timers.set("close", batch["at"][-1].as_py() + dt.timedelta(seconds=10))


def set_by_batch(batch, state):
    sums = np.bincount(state.ordinals, batch["value"].to_numpy(), len(state)).astype(np.int64)
    state.set("sum", state.get("sum") + sums)
    newest = pd.Series(batch["at"].to_numpy()).groupby(state.ordinals).max().to_numpy()
    state.timers.set("close", newest + np.timedelta64(10, "s"))


def report(key, time, state):
    total = state["sum"]
    del state["sum"]
    return {"key": key, "text": f"{(time - EPOCH).total_seconds():g}: {total}"}


def report_batch(batch, state):
    seconds = batch["due"].cast(pa.int64()).to_numpy() // 1_000_000
    made = [f"{second}: {total}" for second, total in zip(seconds, state.get("sum"), strict=True)]
    state.set("sum", pa.nulls(len(state), pa.int64()))
    return {"key": batch["key"], "text": pa.array(made)}


@pytest.mark.parametrize(
    ("logic", "function"), [(set_by_row, report), (set_by_key, report), (set_by_batch, report_batch)]
)
@pytest.mark.parametrize("batch_rows", [1, 100])
def test_timers_fire_with_state_at_each_level(logic, function, batch_rows):
    given = rows(("a", 0, 1), ("b", 1, 2), ("a", 5, 4), ("b", 5, 8), ("c", 40, 16), ("c", 41, 1))
    emitted, result = fired(
        logic, {"close": de.Timer(function)}, given, {"sum": pa.int64()}, batch_rows=batch_rows, seed=3
    )
    assert {key: texts(emitted, key) for key in "abc"} == {"a": ["15: 5"], "b": ["15: 10"], "c": ["51: 17"]}
    assert result.state["timed"].num_rows == 0, "keys without state are removed"


def test_timers_of_many_keys_are_searched_in_parts_of_limited_size(monkeypatch):
    monkeypatch.setattr(slots, "_WINDOW", 4)
    searched = []
    search = TimerBounds.search

    def noted(self, arrays, parts, limits, shards):
        listed = list(parts)
        searched.append([len(part) for part in listed])
        return search(self, arrays, listed, limits, shards)

    monkeypatch.setattr(TimerBounds, "search", noted)
    given = rows(*((f"k{key}", key, 1) for key in range(30)))
    emitted, _ = fired(set_by_row, {"close": de.Timer(report)}, given, {"sum": pa.int64()})
    assert sorted(row["text"] for row in emitted) == sorted(f"{key + 10}: 1" for key in range(30))
    assert max(map(max, searched)) <= 4
    assert max(map(len, searched)) > 1


def test_timers_of_a_key_fire_in_order_of_time_then_declaration():
    @de.per_row(output=OUT)
    def process(row, state):
        state.timers.set("late", EPOCH + dt.timedelta(seconds=9))
        state.timers.set("early", 3)
        state.timers.set("first", 5.0)
        state.timers.set("second", np.datetime64(5, "s"))

    def tell(name):
        return lambda key, time, state: {"key": key, "text": f"{name} {time.second}"}

    timers = {name: de.Timer(tell(name)) for name in ("late", "first", "second", "early")}
    emitted, _ = fired(process, timers, rows(("a", 0, 1), ("b", 20, 1)))
    assert texts(emitted, "a") == ["early 3", "first 5", "second 5", "late 9"]


def test_timer_that_sets_itself_catches_up_with_the_watermark_and_ends_with_the_input():
    @de.per_row(output=OUT)
    def process(row, state):
        if state.timers.get("tick") is None:
            state.timers.set("tick", row["at"] + dt.timedelta(seconds=10))

    def tick(key, time, state):
        assert state.timers.get("tick") is None
        state.timers.set("tick", time + dt.timedelta(seconds=10))
        return {"key": key, "text": f"{(time - EPOCH).seconds}"}

    given = rows(("a", 0, 1), ("b", 35, 1), ("b", 36, 1))
    emitted, _ = fired(process, {"tick": de.Timer(tick)}, given)
    assert texts(emitted, "a") == ["10", "20", "30", "40"]
    assert texts(emitted, "b") == ["45"]


def test_timer_is_deleted_by_rows_and_by_other_timers():
    @de.per_row(output=OUT)
    def process(row, state):
        if row["value"] < 0:
            state.timers.delete("alarm")
        else:
            state.timers.set("alarm", row["at"] + dt.timedelta(seconds=10))
            state.timers.set("cancel", row["at"] + dt.timedelta(seconds=row["value"]))

    def alarm(key, time, state):
        return {"key": key, "text": "alarm"}

    def cancel(key, time, state):
        state.timers.delete("alarm")
        return {"key": key, "text": "cancelled"}

    given = rows(("a", 0, 5), ("b", 0, 15), ("c", 0, 15), ("c", 1, -1), ("d", 60, 20), ("d", 61, 20))
    emitted, _ = fired(process, {"alarm": de.Timer(alarm), "cancel": de.Timer(cancel)}, given)
    assert {key: texts(emitted, key) for key in "abc"} == {
        "a": ["cancelled"],
        "b": ["alarm", "cancelled"],
        "c": ["cancelled"],
    }


def test_timer_in_processing_time_fires_while_rows_still_arrive():
    @de.per_row(output=OUT)
    def process(row, state):
        state["rows"] = (state["rows"] or 0) + 1
        if state.timers.get("poll") is None:
            state.timers.set("poll", state.now + 0.02)

    def poll(key, time, state):
        assert time <= EPOCH + dt.timedelta(seconds=state.now) or state["rows"] == 300
        return {"key": key, "text": str(state["rows"])}

    given = rows(*(("a", second, 1) for second in range(300)))
    timers = {"poll": de.Timer(poll, clock="processing")}
    emitted, _ = fired(process, timers, given, {"rows": pa.int64()}, event_time=None)
    counts = [int(text) for text in texts(emitted, "a")]
    assert len(counts) > 2
    assert counts == sorted(counts)
    assert counts[0] < 300


@pytest.mark.parametrize("per_batch", [False, True])
def test_failing_timer_becomes_a_dead_letter_and_has_fired(per_batch):
    def fail(key, time, state):
        state["sum"] = 1000
        if key == "b":
            raise ValueError("no b")
        return {"key": key, "text": "fired"}

    def fail_batch(batch, state):
        if "b" in batch["key"].to_pylist():
            raise ValueError("no b")
        return {"key": batch["key"], "text": pa.array(["fired"] * len(state))}

    given = rows(("a", 0, 1), ("b", 0, 2), ("c", 0, 3), ("d", 60, 1), ("d", 61, 1))
    logic, function = (set_by_batch, fail_batch) if per_batch else (set_by_row, fail)
    emitted, result = fired(
        logic, {"close": de.Timer(function)}, given, {"sum": pa.int64()}, batch_rows=3, on_error="skip"
    )
    assert sorted(row["key"] for row in emitted) == ["a", "c", "d"]
    letters = result.dead_letters["timed"].to_pylist()
    assert [(row["key"], row["due"].second, row["__error"]) for row in letters] == [("b", 10, "ValueError: no b")]
    assert dict(zip(*result.state["timed"].to_pydict().values(), strict=True))["b"] == 2, "its changes are undone"


def test_failing_timer_fails_the_run_and_names_operator_and_row():
    def fail(key, time, state):
        raise ValueError("never")

    with pytest.raises(errors.UserCodeError, match=r"'timed'.*never"):
        fired(set_by_row, {"close": de.Timer(fail)}, rows(("a", 0, 1)), {"sum": pa.int64()})


KEY_TYPES = [
    pa.array([3, 1]), pa.array([0.5, -1.0]), pa.array(["b", "a"]), pa.array([b"b", b"a"]), pa.array([True, False]),
    pa.array([2, 1], pa.timestamp("ns")), pa.array([2, 1], pa.date32()), pa.array([2, 1], pa.time32("s")),
    pa.array([2, 1], pa.duration("s")), pa.array(["b", "a"]).dictionary_encode(), pa.array([None, "a"]),
    pa.array([2, 1], pa.decimal128(5)), pa.array([b"bb", b"aa"], pa.binary(2)),
]  # fmt: skip


@pytest.mark.parametrize("keys", KEY_TYPES, ids=lambda keys: str(keys.type))
def test_keys_of_every_type_have_timers(keys):
    def process(batch, state):
        state.timers.set("close", np.full(len(state), np.datetime64(5, "s")))

    def close(batch, state):
        return batch

    given = pa.table({"key": keys, "at": pa.array([0, 0], pa.timestamp("us"))})
    emitted, _ = fired(process, {"close": de.Timer(close)}, given)
    assert len(emitted) == 2
    assert {str(row["key"]) for row in emitted} == {str(key) for key in keys.to_pylist()}


@pytest.mark.parametrize(
    ("at", "seconds"),
    [
        (dt.datetime(1970, 1, 1, 0, 0, 7), 7),
        (dt.datetime(1970, 1, 1, 1, 0, 7, tzinfo=dt.timezone(dt.timedelta(hours=1))), 7),
        (pd.Timestamp(7_500_000_999), 7.5),
        (np.datetime64(7, "s"), 7),
        (dt.date(1970, 1, 2), 86_400),
        (7.25, 7.25),
        (np.int64(7), 7),
    ],
)
def test_time_of_a_timer_may_have_every_usual_type(at, seconds):
    @de.per_row(output=OUT)
    def process(row, state):
        state.timers.set("close", at)

    def close(key, time, state):
        return {"key": key, "text": str((time - EPOCH).total_seconds())}

    emitted, _ = fired(process, {"close": de.Timer(close)}, rows(("a", 0, 1)))
    assert texts(emitted, "a") == [str(float(seconds))]


@pytest.mark.parametrize(
    "at", [None, "noon", float("nan"), float("inf"), 1e30, np.datetime64("NaT", "us"), pd.NaT, True]
)
def test_time_that_is_none_is_refused(at):
    @de.per_row
    def process(row, state):
        state.timers.set("close", at)

    with pytest.raises(errors.UserCodeError, match=r"'timed', .*timer 'close' was set for"):
        fired(process, {"close": de.Timer(report)}, rows(("a", 0, 1)))


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (lambda keys: [np.inf] * keys, "set for inf seconds"),
        (lambda keys: [1e30] * keys, "set for 1e\\+30 seconds"),
        (lambda keys: ["noon"] * keys, "times of type string"),
        (lambda keys: 3, "one time per key"),
    ],
)
def test_times_of_a_batch_that_are_none_are_refused(times, message):
    def process(batch, state):
        state.timers.set("close", times(len(state)))

    with pytest.raises(errors.UserCodeError, match=f"'timed', .*timer 'close'.*{message}"):
        fired(process, {"close": de.Timer(report_batch)}, rows(("a", 0, 1)))


def test_times_of_other_keys_than_those_of_the_batch_are_refused():
    def process(batch, state):
        state.timers.set("close", [1.0] * (len(state) + 1))

    with pytest.raises(errors.StateError, match="operator 'timed': timer 'close': 2 times for 1 keys"):
        fired(process, {"close": de.Timer(report_batch)}, rows(("a", 0, 1)))


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_null_deletes_the_timers_of_a_batch(nothing):
    def process(batch, state):
        state.timers.set("close", [900.0] if batch["value"][0].as_py() else [nothing])

    emitted, _ = fired(process, {"close": de.Timer(lambda batch, state: batch)}, rows(("a", 0, 1), ("a", 1, 0)))
    assert emitted == []


def test_timer_that_returns_something_else_than_rows_is_named():
    with pytest.raises(errors.UserCodeError, match="compute 'timed', timer 'close' returned str"):
        fired(set_by_row, {"close": de.Timer(lambda key, time, state: "x")}, rows(("a", 0, 1)), {"sum": pa.int64()})


def test_undeclared_timer_is_refused_by_name():
    @de.per_row
    def process(row, state):
        state.timers.set("open", 3)

    with pytest.raises(errors.StateError, match=r"'open' is not declared.*'close'"):
        fired(process, {"close": de.Timer(report)}, rows(("a", 0, 1)))


@pytest.mark.parametrize(
    ("timers", "message"),
    [
        ({"close": report}, "give de.Timer"),
        ([de.Timer(report)], "give a dict"),
        ({"": de.Timer(report)}, "not a name"),
        ({"close": de.Timer(report_batch)}, "cannot be called as function\\(key, time, state\\)"),
        ({"sum": de.Timer(report)}, "rename one of them"),
    ],
)
def test_invalid_timers_are_refused_when_declared(timers, message):
    with pytest.raises(errors.TopologyError, match=message):
        fired(set_by_row, timers, rows(("a", 0, 1)), {"sum!": pa.int64()})


@pytest.mark.parametrize("logic", [set_by_row, lambda batch, state: None])
def test_key_column_with_the_name_of_the_column_of_times_is_refused(logic):
    topology = de.Topology("due")
    keyed = topology.source("rows", de.sources.Arrow(pa.table({"due": [1]}))).key_by("due")
    function = report if logic is set_by_row else report_batch
    with pytest.raises(errors.TopologyError, match="rename the key column 'due'"):
        keyed.compute(logic, timers={"close": de.Timer(function, clock="processing")})


def test_timers_of_aggregates_are_refused():
    with pytest.raises(errors.TopologyError, match="aggregates set no timers"):
        fired({"rows": de.aggregate.Count()}, {"close": de.Timer(report)}, rows(("a", 0, 1)))


def test_timer_in_event_time_without_event_time_is_refused_with_the_remedy():
    with pytest.raises(errors.TopologyError, match=r"'timed' has timers in event time, \['close'\].*event_time="):
        fired(set_by_row, {"close": de.Timer(report)}, rows(("a", 0, 1)), {"sum": pa.int64()}, event_time=None)


@pytest.mark.parametrize(("function", "clock"), [(3, "event"), (report, "wall")])
def test_invalid_timer_is_refused(function, clock):
    with pytest.raises(errors.TopologyError, match="Timer: "):
        de.Timer(function, clock)
