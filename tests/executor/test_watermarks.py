"""A watermark passes an executor when all batches before it are settled, and not earlier."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.watermarks import Watermarks
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import NoLock
from dask_elastic.vocab.watermark import Watermark

ME, ORIGIN, OTHER = ExecutorId("per_key", 0), ExecutorId("rows", 0), ExecutorId("rows", 1)

step = st.tuples(st.sampled_from(["batch", "batch", "settle", "settle", "advance", "idle"]), st.integers(0, 99))


def watermarks(*origins):
    return Watermarks(Inputs(ME, origins, origins), NoLock())


def advance(passing, time, idle=False):
    passing.inputs.advance(Watermark(ORIGIN, time, idle))
    passing.inputs_advanced()


@settings(max_examples=300, deadline=None)
@given(st.lists(step, max_size=60))
def test_emitted_watermark_is_newest_whose_earlier_batches_are_settled(steps):
    passing = watermarks(ORIGIN)
    # The oracle: all batches and watermarks in one list, and the batches that are not settled.
    history, open_, emitted, time, idle = [], {}, (None, False), None, False
    for action, number in steps:
        if action == "batch":
            if idle:
                idle = False
                advance(passing, time)
                history.append(("watermark", time, False))
            open_[len(history)] = passing.arrived()
            history.append(("batch",))
        elif action == "settle" and open_:
            chosen = sorted(open_)[number % len(open_)]
            passing.settled(open_.pop(chosen))
        elif action in ("advance", "idle"):
            time = (time or 0) + (number if action == "advance" else 0)
            idle = action == "idle"
            advance(passing, time, idle)
            history.append(("watermark", time, idle))
        first = min(open_, default=len(history))
        passed = [entry for entry in history[:first] if entry[0] == "watermark"]
        reached = passed[-1][1] if passed else None
        # The executor is idle only when no batch is open, and active at once.
        expected = (reached, idle and bool(passed) and passed[-1][2])
        found = passing.take()
        emitted = emitted if found is None else (found.time, found.idle)
        assert emitted == expected, history
        assert passing.take() is None, "a watermark is emitted once"


def test_watermark_waits_for_slowest_input():
    passing = watermarks(ORIGIN, OTHER)
    advance(passing, 10)
    assert passing.take() is None
    passing.inputs.advance(Watermark(OTHER, 4))
    passing.inputs_advanced()
    assert passing.take() == Watermark(ME, 4)
    passing.inputs.end(OTHER)
    passing.inputs_advanced()
    assert passing.take() == Watermark(ME, 10)


def test_untimed_executor_emits_no_watermark():
    passing = Watermarks(Inputs(ME, [ORIGIN]), NoLock())
    assert passing.arrived() is None
    passing.settled(None)
    passing.inputs.end(ORIGIN)
    passing.inputs_advanced()
    assert passing.due() == []
    assert passing.take() is None
