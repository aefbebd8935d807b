"""Windows, timers and state that expires, in one task, continue from checkpoints with the results of pandas."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.vocab.errors import MoveRefused

RUN = {"timeout": 300, "progress": False}
AREAS, CARS, ROWS = 6, 4, 1_500
PART = ROWS // 3
MINUTE = 60_000_000
TTL = 6 * MINUTE
END = 120 * MINUTE
"""Behind the times of all rows: the timers of all keys are due then."""

SCHEMA = pa.schema({"area": pa.int64(), "car": pa.int64(), "n": pa.int64(), "at": pa.timestamp("us")})
STATE = {"recent": de.Value(pa.int64(), ttl="6min", ttl_clock="event"), "seen": pa.int64()}
OUTPUT = {**{field.name: field.type for field in SCHEMA}, "recent": pa.int64()}
FUSED = [("cars", "areas")]


def trips():
    random = np.random.default_rng(5)
    at = np.sort(random.choice(100 * MINUTE, ROWS, replace=False))
    columns = {
        "area": random.integers(0, AREAS, ROWS),
        "car": random.integers(0, CARS, ROWS),
        "n": random.integers(1, 50, ROWS),
        "at": pa.array(at, pa.timestamp("us")),
    }
    return pa.table(columns, schema=SCHEMA)


TRIPS = trips()


@de.per_row(output=OUTPUT)
def count(row, state):
    """Count the rows of a car since six minutes without any; return each row with the count."""
    state["recent"] = state.get("recent", 0) + 1
    state["seen"] = state.get("seen", 0) + 1
    state.timers.set("end", pd.Timestamp(END, unit="us").to_pydatetime())
    return {**row, "recent": state["recent"]}


def close(key, time, state):
    """Emit how many rows the car has had."""
    area, car = key
    return {"area": area, "car": car, "n": 1000 * state["seen"], "at": time, "recent": 0}


def cars_and_areas(folder):
    topology = de.Topology("trips")
    rows = topology.source("trips", de.sources.Push(SCHEMA, event_time="at"))
    own = {"state": STATE, "timers": {"end": de.Timer(close)}, "keeps": ["area", "car"]}
    cars = rows.key_by("area", "car").compute(count, **own, name="cars", executors=2, shards=8)
    windows = cars.key_by("area").window("10min", time="at")
    areas = windows.compute({"n": agg.Sum("n"), "trips": agg.Count(), "most": agg.Max("recent")}, name="areas")
    areas.sink(de.sinks.Parquet(folder), name="out")
    return topology


def expected():
    """Return the results of the windows, computed by pandas."""
    rows = TRIPS.to_pandas()
    cars = rows.groupby(["area", "car"])
    quiet = cars["at"].diff() >= pd.Timedelta(TTL, unit="us")
    rows["recent"] = (
        rows.assign(run=quiet.groupby([rows["area"], rows["car"]]).cumsum()).groupby(["area", "car", "run"]).cumcount()
        + 1
    )
    ends = cars.size().rename("n").mul(1000).reset_index().assign(at=pd.Timestamp(END, unit="us"), recent=0)
    every = pd.concat([rows, ends])
    found = every.groupby(["area", every["at"].dt.floor("10min").rename("window_start")]).agg(
        n=("n", "sum"), trips=("n", "size"), most=("recent", "max")
    )
    assert (rows["recent"] == 1).sum() > 2 * AREAS * CARS, "state expires often"
    return found.reset_index()


def results(folder):
    found = ds.dataset(folder, format="parquet").to_table().to_pandas()
    columns = ["area", "window_start", "n", "trips", "most"]
    return found[columns].sort_values(["area", "window_start"], ignore_index=True)


def send(job, rows):
    for batch in rows.to_batches(max_chunksize=50):
        job.send(batch)
    job.flush()


def test_fused_windows_timers_and_expiry_equal_pandas_after_a_move_and_a_lost_worker(
    small_cluster, wait_until, tmp_path
):
    out, durable = tmp_path / "out", {"checkpoint": tmp_path / "own", "checkpoint_interval": "200ms"}
    with Client(small_cluster(n_workers=3, threads_per_worker=2), set_as_default=False) as client:
        job = de.submit(cars_and_areas(out), client, fuse=FUSED, cores={"cars": 2}, **durable)
        send(job, TRIPS.slice(0, PART))
        job.checkpoint()

        def requested():
            tasks = job.assignment().query("executor == 0").set_index("task")["shards"]
            source, target = sorted(tasks.index, key=lambda task: -len(tasks[task]))
            # The load may move the same shard.
            with contextlib.suppress(MoveRefused):
                job.move_shard("cars", tasks[source][0], target)
                return True

        wait_until(requested, "a shard is to move")
        send(job, TRIPS.slice(PART, PART))
        wait_until(lambda: len(job.moves()), "the shard has moved")

        def measured():
            return job.computes().groupby("operator")[["state_bytes", "seconds", "on_time", "open_windows"]].sum()

        wait_until(lambda: measured()["on_time"].get("areas") == 2 * PART, "both computes are measured")
        table = measured()
        assert list(table.index) == ["areas", "cars"]
        assert (table[["state_bytes", "seconds"]] > 0).all(axis=None)
        assert table["on_time"]["cars"] == table["open_windows"]["cars"] == 0 < table["open_windows"]["areas"]
        job.checkpoint()
        send(job, TRIPS.slice(2 * PART))
        pids = client.run(os.getpid)
        os.kill(pids[job.assignment()["home"][0]], signal.SIGKILL)
        wait_until(lambda: job._describe().checkpoints.restarts and job.status == "running", "the job has restarted")
        job.end_of_input("trips")
        job.wait(**RUN)
    pd.testing.assert_frame_equal(results(out), expected(), check_dtype=False)


def numbered(batch, state):
    state.set("seen", state.get("seen") + state.grouping.sizes)
    return batch


def windows_behind(folder):
    """Return own logic that needs no event time, and windows behind it that pass on late rows."""
    topology = de.Topology("late")
    rows = topology.source("trips", de.sources.Push(SCHEMA, event_time="at"))
    cars = rows.key_by("area", "car").compute(
        numbered, state={"seen": pa.int64()}, name="cars", keeps=["area", "car"], shards=8
    )
    windows = cars.key_by("area").window("10min", time="at")
    areas = windows.compute({"n": agg.Sum("n")}, name="areas", late="stream", shards=8)
    areas.sink(de.sinks.Parquet(folder / "windows"), name="out")
    areas.late.sink(de.sinks.Parquet(folder / "late"), name="late")
    return topology


def test_late_rows_stay_late_when_computes_that_ran_apart_continue_in_one_task(client, wait_until, tmp_path):
    def row(minute, n):
        return pa.table({"area": [1], "car": [1], "n": [n], "at": pa.array([minute * MINUTE], pa.timestamp("us"))})

    durable = {"checkpoint_interval": "1h"}
    job = de.submit(windows_behind(tmp_path), client, checkpoint=tmp_path / "apart", **durable)
    for minute, n in ((1, 10), (2, 5), (25, 7)):
        job.send(row(minute, n))
    job.flush()
    assert job.computes().empty

    def first_window_is_closed():
        # It is the only open one before the last row.
        metrics = job.metrics()
        return ((metrics["on_time"] == 3) & (metrics["open_windows"] == 1)).any()

    wait_until(first_window_is_closed, "the first window is closed")
    job.stop(savepoint=tmp_path / "savepoint")
    fused = {"topology": windows_behind(tmp_path), "fuse": FUSED, "checkpoint": tmp_path / "fused", **durable}
    again = de.resume(tmp_path / "savepoint", client, **fused)
    send(again, row(3, 1000))
    again.end_of_input("trips")
    again.wait(**RUN)
    assert ds.dataset(tmp_path / "late", format="parquet").to_table()["n"].to_pylist() == [1000]
    found = ds.dataset(tmp_path / "windows", format="parquet").to_table().sort_by("window_start")
    assert found["n"].to_pylist() == [15, 7]
