"""State that expires in event time: what is refused before a job runs, and by which column it expires."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.testing import run
from dask_elastic.topology.known_schemas import known_inputs
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

EVENT = {"count": de.Value(pa.int64(), ttl="1h", ttl_clock="event")}
ROWS = pa.table({"key": ["a", "a"], "at": pa.array([0, 1], pa.timestamp("s"))})


def count(rows, state):
    state.set("count", state.get("count") + state.grouping.sizes)


def source(topology, name="rows", rows=ROWS, **options):
    return topology.source(name, de.sources.Arrow(rows, **options))


def test_state_expires_by_the_column_of_the_source_or_of_windows():
    topology = de.Topology("times")
    stream = source(topology, event_time="at")
    stream.filter(lambda rows: rows["key"].is_valid()).key_by("key").compute(count, state=EVENT, name="direct")
    hourly = stream.key_by("key").window("1h").compute({"n": de.aggregate.Count()}, name="hourly")
    hourly.key_by("key").compute(count, state=EVENT, name="behind")
    stream.key_by("key").compute(count, state=EVENT, name="named", time="other")
    stream.key_by("key").compute(count, state={"count": pa.int64()}, name="never")
    times = {name: topology.operator(name).time for name in ("direct", "behind", "named", "never")}
    assert times == {"direct": "at", "behind": "window_end", "named": "other", "never": None}
    assert "event" in topology.operator("direct").clocks
    assert not topology.operator("never").clocks


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ttl_clock": "wall", "ttl": 1}, "ttl_clock is 'wall'"),
        ({"ttl_clock": "event"}, "there is no time to live; give ttl="),
    ],
)
def test_clock_that_does_not_fit_is_refused(given, message):
    with pytest.raises(TopologyError, match=message):
        de.Value(pa.int64(), **given)


def test_source_without_event_time_is_refused():
    keyed = source(de.Topology("times")).key_by("key")
    with pytest.raises(TopologyError, match=r"'count' expires in event time, but source 'rows' has no event"):
        keyed.compute(count, state=EVENT)


def test_column_of_a_compute_has_to_be_named():
    topology = de.Topology("times")
    first = source(topology, event_time="at").key_by("key").compute(count, state=EVENT, name="first")
    with pytest.raises(TopologyError, match=r"results of compute 'first' is not known; name it with time='column'"):
        first.key_by("key").compute(count, state=EVENT)
    assert first.key_by("key").compute(count, state=EVENT, time="at", name="second") is not None


def test_inputs_with_other_columns_of_event_time_are_refused():
    topology = de.Topology("times")
    other = source(topology, "other", ROWS.rename_columns(["key", "then"]), event_time="then")
    both = source(topology, event_time="at").union(other)
    with pytest.raises(TopologyError, match=r"'at' of 'rows', 'then' of 'other'. Give them one name"):
        both.key_by("key").compute(count, state=EVENT)


def test_time_without_such_state_is_refused():
    keyed = source(de.Topology("times"), event_time="at").key_by("key")
    with pytest.raises(TopologyError, match=r"time='at' is for state with ttl_clock='event'"):
        keyed.compute(count, state={"count": pa.int64()}, time="at")
    with pytest.raises(TopologyError, match="time is 3; give the name of a column"):
        keyed.compute(count, state=EVENT, time=3)


def test_timer_in_processing_time_is_refused():
    keyed = source(de.Topology("times"), event_time="at").key_by("key")
    with pytest.raises(TopologyError, match=r"timer 'poll' writes has no event time by which state 'count' could"):
        keyed.compute(count, state=EVENT, timers={"poll": de.Timer(count, clock="processing")})


def test_operator_whose_event_time_does_not_advance_is_refused():
    topology = de.Topology("times")
    stream = source(topology).key_by("key").compute(count, state=EVENT, time="at", name="counted")
    stream.sink(de.sinks.Collect())
    with pytest.raises(TopologyError, match=r"'counted' has state with ttl_clock='event', but no source before it"):
        topology.validate()


@pytest.mark.parametrize(
    ("time", "message"),
    [("then", "reads column 'then', which its input lacks"), ("key", "expires by the column 'key', which is string")],
)
def test_column_that_is_missing_or_has_no_times_is_refused(time, message):
    topology = de.Topology("times")
    keyed = source(topology, event_time="at").key_by("key")
    keyed.compute(count, state=EVENT, time=time).sink(de.sinks.Collect())
    with pytest.raises(SchemaMismatch, match=message):
        known_inputs(topology)


def test_map_that_drops_the_column_is_named_when_it_does():
    topology = de.Topology("times")
    mapped = source(topology, event_time="at").map(lambda rows: rows.select(["key"]))
    mapped.key_by("key").compute(count, state=EVENT, name="counted").sink(de.sinks.Collect())
    with pytest.raises(SchemaMismatch, match=r"'counted': state expires by the column 'at', which its input lacks"):
        run(topology)
