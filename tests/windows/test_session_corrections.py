"""Results of sessions that are not withdrawn are those of the oracle, whatever the order of the rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_oracle import expected, records, standing

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic import windows
from dask_elastic.testing import run
from dask_elastic.vocab.errors import TopologyError

LOGIC = {
    "rows": agg.Count(),
    "sum": agg.Sum("value"),
    "distinct": agg.DistinctCount("value"),
    "mean": agg.Mean("value"),
}
ORACLE = {"rows": ("size", None), "sum": ("sum", "value"), "distinct": ("nunique", "value"), "mean": ("mean", "value")}


def readings(seed, rows=200, keys=4, disorder=60):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 900, rows)) - rng.integers(0, disorder + 1, rows)
    return pa.table(
        {
            "key": pa.array(rng.choice([f"k{number}" for number in range(keys)], rows), mask=rng.random(rows) < 0.1),
            "at": pa.array(times, pa.timestamp("s"), mask=rng.random(rows) < 0.05),
            "value": pa.array(rng.integers(-50, 50, rows), mask=rng.random(rows) < 0.2),
        }
    )


def stream_of(rows, gap="12s", batch_rows=13, logic=LOGIC, **options):
    source = de.Topology("sessions").source("rows", de.sources.Arrow(rows, batch_rows=batch_rows, event_time="at"))
    stream = source.key_by("key").window(windows.session(gap)).compute(logic, name="sessions", **options)
    stream.sink(de.sinks.Collect(), name="out")
    return stream


def sessions(*args, **options):
    return stream_of(*args, **options).topology


def check(topology, rows, **options):
    found = run(topology, executors=2, **options)
    whole = expected(rows, ["key"], topology.operator("sessions").windowing, ORACLE)
    assert records(standing(found.outputs["out"], ["key"])) == records(whole.results)
    counts = found.windows["sessions"]
    assert (counts.on_time + counts.corrected, counts.late, counts.untimed) == (whole.pairs, 0, whole.untimed)
    assert not len(found.state["sessions"])
    return found.outputs["out"], counts


@pytest.mark.parametrize("emit", ["closed", "updates"])
@pytest.mark.parametrize("gap", ["5s", "30s"])
def test_results_that_stay_are_those_of_the_whole_input(gap, emit):
    rows = readings(1)
    found, counts = check(sessions(rows, gap, allowed_lateness="100s", emit=emit), rows)
    assert counts.corrected > 0
    assert pc.sum(found["withdrawn"]).as_py() > 0
    assert (found["revision"].null_count > 0) == (emit == "updates")


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), st.sampled_from(["closed", "updates"]), st.integers(0, 2**31))
def test_any_sessions_are_corrected(gap, batch_rows, emit, seed):
    rows = readings(seed, rows=100)
    check(sessions(rows, f"{gap}s", batch_rows, allowed_lateness="900s", emit=emit), rows, seed=seed)


def shown(rows, **options):
    times = [time for time, _ in rows]
    table = pa.table(
        {"key": ["a"] * len(rows), "at": pa.array(times, pa.timestamp("s")), "value": [v for _, v in rows]}
    )
    found = run(sessions(table, "10s", 1, {"sum": agg.Sum("value")}, **options)).outputs["out"]
    bounds = [found[name].cast(pa.timestamp("s")).cast(pa.int64()) for name in ("window_start", "window_end")]
    rest = [found[name] for name in ("revision", "withdrawn", "sum")]
    return [*zip(*(column.to_pylist() for column in [*bounds, *rest]), strict=True)]


def test_late_row_joins_two_sessions():
    assert shown([(0, 1), (15, 2), (40, 4), (8, 8), (80, 16)], allowed_lateness="60s") == [
        (0, 10, 0, False, 1),
        (15, 25, 0, False, 2),
        (0, 10, 1, True, None),
        (15, 25, 1, True, None),
        (0, 25, 0, False, 11),
        (40, 50, 0, False, 4),
        (80, 90, 0, False, 16),
    ]


def test_row_on_time_opens_a_closed_session_again():
    assert shown([(0, 1), (11, 2), (9, 4), (40, 8)], allowed_lateness="60s")[:3] == [
        (0, 10, 0, False, 1),
        (0, 10, 1, True, None),
        (0, 21, 0, False, 7),
    ]


def test_late_row_within_a_session_corrects_it():
    assert shown([(0, 1), (6, 2), (40, 4), (3, 8)], allowed_lateness="60s")[:2] == [
        (0, 16, 0, False, 3),
        (0, 16, 1, False, 11),
    ]


def test_updates_withdraw_what_has_grown():
    assert shown([(0, 1), (4, 2), (4, 4), (40, 8)], emit="updates") == [
        (0, 10, None, False, 1),
        (0, 10, None, True, None),
        (0, 14, None, False, 3),
        (0, 14, None, False, 7),
        (40, 50, None, False, 8),
        (0, 14, 0, False, 7),
        (40, 50, 0, False, 8),
    ]


def test_row_is_too_late_after_the_allowed_lateness():
    assert shown([(0, 1), (40, 4), (3, 8)], allowed_lateness="20s") == [(0, 10, 0, False, 1), (40, 50, 0, False, 4)]


def test_result_that_raises_leaves_sessions_as_they_were():
    def checked(values):
        if 13 in values:
            raise ValueError("no 13")
        return sum(values)

    logic = {"sum": agg.custom(["value"], list, _added, list.__add__, checked, pa.int64())}
    rows = pa.table({"key": ["a"] * 5, "at": pa.array([0, 40, 5, 6, 80], pa.timestamp("s")), "value": [1, 2, 13, 4, 5]})
    topology = sessions(rows, "10s", 5, logic, allowed_lateness="60s")
    assert standing(run(topology, on_error="skip").outputs["out"], ["key"])["sum"].to_pylist() == [2, 5]
    topology = sessions(rows, "10s", 1, logic, allowed_lateness="60s")
    found = run(topology, on_error="skip")
    assert standing(found.outputs["out"], ["key"])["sum"].to_pylist() == [5, 2, 5]


def _added(values, rows):
    return values + rows["value"].to_pylist()


def test_results_that_may_be_withdrawn_are_not_windowed():
    stream = stream_of(readings(2), allowed_lateness="10s")
    with pytest.raises(TopologyError, match="results of compute 'sessions' may be corrected"):
        stream.window("1min")
    with pytest.raises(TopologyError, match="the aggregate 'withdrawn' has this name, too; rename the aggregate"):
        sessions(readings(2), logic={"withdrawn": agg.Count()}, emit="updates")


def test_result_that_raised_at_the_close_is_not_withdrawn_and_has_no_revision():
    def checked(values):
        if values == [13]:
            raise ValueError("13 alone")
        return sum(values)

    logic = {"sum": agg.custom(["value"], list, _added, list.__add__, checked, pa.int64())}
    # Late rows extend the first session that failed, and correct the second one.
    given = [(0, 1), (40, 13), (80, 2), (45, 4), (100, 13), (140, 5), (149, 6), (100, 3), (200, 7)]
    at = pa.array([time for time, _ in given], pa.timestamp("s"))
    rows = pa.table({"key": ["a"] * len(given), "at": at, "value": [value for _, value in given]})
    found = run(sessions(rows, "10s", 1, logic, allowed_lateness="60s"), on_error="skip")
    out = found.outputs["out"]
    bounds = [out[name].cast(pa.timestamp("s")).cast(pa.int64()) for name in ("window_start", "window_end")]
    shown = [column.to_pylist() for column in [*bounds, out["revision"], out["withdrawn"], out["sum"]]]
    assert [*zip(*shown, strict=True)] == [
        (0, 10, 0, False, 1),
        (40, 55, 0, False, 17),
        (80, 90, 0, False, 2),
        (100, 110, 0, False, 16),
        (140, 159, 0, False, 11),
        (200, 210, 0, False, 7),
    ]
    assert [letters.num_rows for letters in found.dead_letters.values()] == [2], "each failed once"
