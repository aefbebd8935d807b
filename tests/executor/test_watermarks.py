"""A watermark passes an executor once all that came before it is settled, and not earlier."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.inputs import Inputs
from dask_elastic.executor.watermarks import Watermarks
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import NoLock
from dask_elastic.vocab.watermark import Watermark

ME, ORIGIN, OTHER = ExecutorId("per_key", 0), ExecutorId("rows", 0), ExecutorId("rows", 1)

step = st.tuples(st.sampled_from(["batch", "batch", "settle", "settle", "advance", "idle"]), st.integers(0, 99))


def watermarks(*origins):
    return Watermarks(Inputs(ME, origins, origins), NoLock())


def hear(passing, time, idle=False):
    passing.inputs.advance(Watermark(ORIGIN, time, idle))
    passing.inputs_advanced()


@settings(max_examples=300, deadline=None)
@given(st.lists(step, max_size=60))
def test_what_is_said_is_the_newest_that_all_before_is_settled_for(steps):
    passing = watermarks(ORIGIN)
    # The oracle: all that came in one list, and what is not settled of it.
    history, open_, said, time, idle = [], {}, (None, False), None, False
    for what, number in steps:
        if what == "batch":
            if idle:
                idle = False
                hear(passing, time)
                history.append(("say", time, False))
            open_[len(history)] = passing.arrived()
            history.append(("batch",))
        elif what == "settle" and open_:
            chosen = sorted(open_)[number % len(open_)]
            passing.settled(open_.pop(chosen))
        elif what in ("advance", "idle"):
            time = (time or 0) + (number if what == "advance" else 0)
            idle = what == "idle"
            hear(passing, time, idle)
            history.append(("say", time, idle))
        first = min(open_, default=len(history))
        passed = [entry for entry in history[:first] if entry[0] == "say"]
        reached = passed[-1][1] if passed else None
        # Idle only where nothing is on its way, active at once.
        expected = (reached, idle and bool(passed) and passed[-1][2])
        found = passing.take()
        said = said if found is None else (found.time, found.idle)
        assert said == expected, history
        assert passing.take() is None, "it is said once"


def test_one_that_waits_says_nothing_new_for_an_input_that_is_ahead():
    passing = watermarks(ORIGIN, OTHER)
    hear(passing, 10)
    assert passing.take() is None
    passing.inputs.advance(Watermark(OTHER, 4))
    passing.inputs_advanced()
    assert passing.take() == Watermark(ME, 4)
    passing.inputs.end(OTHER)
    passing.inputs_advanced()
    assert passing.take() == Watermark(ME, 10)


def test_who_has_no_event_time_counts_nothing():
    passing = Watermarks(Inputs(ME, [ORIGIN]), NoLock())
    assert passing.arrived() is None
    passing.settled(None)
    passing.inputs.end(ORIGIN)
    passing.inputs_advanced()
    assert passing.due() == []
    assert passing.take() is None
