"""Times to live in event time, of values, lists and maps, for logic per row, per key and per batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.testing import run

HOUR = 3600
EVENT = {"ttl": "1h", "ttl_clock": "event"}
STATE = {
    "count": de.Value(pa.int64(), **EVENT),
    "hours": de.List(pa.int64(), **EVENT),
    "places": de.Map(pa.int64(), pa.int64(), **EVENT),
}
OUTPUT = {name: pa.int64() for name in ("number", "count", "hours", "places")}


@de.per_row(output=OUTPUT)
def by_row(row, state):
    if row["number"] < 0:
        state["count"], state["places"][9] = 99, 1
        state["hours"].append(9)
        raise ValueError("a row that is to leave no trace")
    state["count"] = state.get("count", 0) + 1
    state["hours"].append(row["number"])
    state["places"][row["number"] % 2] = 1
    return {"number": row["number"], **{name: state[name] if name == "count" else len(state[name]) for name in STATE}}


@de.per_key
def by_key(key, rows, state):
    state["count"] = state.get("count", 0) + rows.num_rows
    state["hours"].extend(rows["number"].to_pylist())
    for number in rows["number"].to_pylist():
        state["places"][number % 2] = 1


def by_batch(rows, state):
    numbers = rows["number"].to_numpy()
    state.set("count", state.get("count") + state.grouping.sizes)
    state.list("hours").append(numbers)
    state.map("places").put(numbers % 2, numbers)


def done(logic, times, batch_rows=1, **options):
    numbers = [-1 if time < 0 else number for number, time in enumerate(times)]
    at = pa.array([abs(time) for time in times], pa.timestamp("s"))
    rows = pa.table({"key": ["a"] * len(times), "at": at, "number": numbers})
    topology = de.Topology("expiry")
    keyed = topology.source("rows", de.sources.Arrow(rows, event_time="at", batch_rows=batch_rows)).key_by("key")
    keyed.compute(logic, name="kept", state=STATE).sink(de.sinks.Collect(), name="out")
    return run(topology, **options)


@pytest.mark.parametrize("batch_rows", [1, 2, 10])
def test_rows_see_what_has_not_expired_at_their_time(batch_rows):
    # The third row is out of order, and does not shorten the life of the count.
    times = [0, 3000, 1000, 3599, 6000, 6600, 20_000]
    found = done(by_row, times, batch_rows).outputs["out"]
    assert found["count"].to_pylist() == [1, 2, 3, 4, 5, 6, 1]
    assert found["hours"].to_pylist()[-1] == found["places"].to_pylist()[-1] == 1
    # Behind the watermark of the second row, the third one counts as of that row's time, and is still there at 6000.
    assert found["hours"].to_pylist() == [1, 2, 3, 4, 4 if batch_rows < 10 else 3, 3, 1]


@pytest.mark.parametrize("logic", [by_row, by_key, by_batch])
def test_state_is_shown_until_the_watermark_passes_its_time(logic):
    early, late = (done(logic, times).state["kept"].to_pylist() for times in ([0, 10, HOUR], [0, 10, HOUR + 10]))
    assert [len(row["hours"]) for row in early] == [2]
    assert [len(row["hours"]) for row in late] == [1]
    assert [row["hours"] for row in late] == [[2]]


@pytest.mark.parametrize("batch_rows", [1, 10])
def test_row_that_raises_leaves_no_expiry_times(batch_rows):
    found = done(by_row, [0, 1, -5000, 2, 3602], batch_rows, on_error="skip")
    # The watermark passes the time of the row that raises, so that the rows behind it see what is left then.
    assert found.outputs["out"]["count"].to_pylist() == ([1, 2, 1, 2] if batch_rows == 1 else [1, 2, 3, 1])
    assert found.outputs["out"]["places"].to_pylist()[-1] == (2 if batch_rows == 1 else 1)
    assert [letters.num_rows for letters in found.dead_letters.values()] == [1]


@pytest.mark.parametrize("year", [1685, 1800, 2200])
def test_state_expires_in_every_century(year):
    begin = (year - 1970) * 8766 * HOUR
    rows = pa.table({"key": ["a"] * 3, "at": pa.array([begin, begin + 1, begin + HOUR + 1], pa.timestamp("s"))})
    topology = de.Topology("centuries")
    source = topology.source("rows", de.sources.Arrow(rows, event_time="at", batch_rows=1)).key_by("key")

    @de.per_row(output={"count": pa.int64()})
    def counted(row, state):
        state["count"] = state.get("count", 0) + 1
        return {"count": state["count"]}

    source.compute(counted, state={"count": de.Value(pa.int64(), **EVENT)}).sink(de.sinks.Collect(), name="out")
    assert run(topology).outputs["out"]["count"].to_pylist() == [1, 2, 1]
