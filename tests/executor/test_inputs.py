"""Event time of a receiver: the minimum over its active inputs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.control_records.inputs import Inputs, timed_components
from dask_elastic.topology import Sink, Source, Topology, build_components
from dask_elastic.topology import aggregate as agg
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

ME = ExecutorId("per_key", 0)
ORIGINS = [ExecutorId("rows", number) for number in range(3)]
UNTIMED = ExecutorId("others", 0)

step = st.tuples(st.integers(0, 2), st.sampled_from(["advance", "idle", "active", "end"]), st.integers(0, 9))


class Rows(Source):
    """A source without rows."""

    def __init__(self, event_time=None):
        self.event_time = event_time

    def read(self, context):
        return iter(())


class Nowhere(Sink):
    """A sink that is never opened."""

    def open(self, context):
        raise AssertionError("never opened")


def expected(times, idle, ended):
    """Return the event time of one moment, by the documented rule."""
    waiting = {origin: time for origin, time in times.items() if origin not in ended}
    active = [time for origin, time in waiting.items() if origin not in idle]
    if active:
        return None if None in active else min(active)
    return max((time for time in (waiting or times).values() if time is not None), default=None)


@settings(max_examples=200, deadline=None)
@given(st.lists(step, max_size=30))
def test_event_time_of_receiver_is_minimum_of_active_inputs_and_never_goes_back(steps):
    inputs = Inputs(ME, [*ORIGINS, UNTIMED], ORIGINS)
    times, idle, ended, reached = dict.fromkeys(ORIGINS), set(), set(), None
    for which, action, amount in steps:
        origin = ORIGINS[which]
        if origin in ended:
            continue
        if action == "end":
            inputs.end(origin)
            ended.add(origin)
        else:
            times[origin] = (times[origin] or 0) + amount if action == "advance" else times[origin]
            (idle.add if action == "idle" else idle.discard)(origin)
            inputs.advance(Watermark(origin, times[origin], action == "idle"))
        found = expected(times, idle, ended)
        reached = found if reached is None else max(reached, found if found is not None else reached)
        assert inputs.time == reached
        assert inputs.idle == (len(ended) < 3 and not set(ORIGINS) - ended - idle)
    assert inputs.open == {*ORIGINS, UNTIMED} - ended


@pytest.mark.parametrize(
    ("watermark", "message"),
    [
        (Watermark(ORIGINS[0], 4), "event time never goes back"),
        (Watermark(ORIGINS[0], None), "event time never goes back"),
        (Watermark(ORIGINS[1], 9), "has ended"),
        (Watermark(UNTIMED, 9), "has no event time"),
    ],
)
def test_illegal_watermark_raises(watermark, message):
    inputs = Inputs(ME, [*ORIGINS, UNTIMED], ORIGINS)
    inputs.advance(Watermark(ORIGINS[0], 5))
    inputs.end(ORIGINS[1])
    with pytest.raises(ProtocolError, match=message):
        inputs.advance(watermark)
    with pytest.raises(ProtocolError, match="ended twice"):
        inputs.end(ORIGINS[1])


def test_component_has_event_time_if_any_upstream_has():
    topology = Topology("mixed")
    timed, untimed = topology.source("timed", Rows("at")), topology.source("untimed", Rows())
    joined = timed.union(untimed).key_by("k").compute({"n": agg.Count()}, name="joined")
    joined.key_by("k").compute({"n": agg.Count()}, name="behind").sink(Nowhere(), name="out")
    untimed.key_by("k").compute({"n": agg.Count()}, name="alone").sink(Nowhere(), name="other")
    assert timed_components(build_components(topology)) == {"timed", "joined", "behind", "out"}
