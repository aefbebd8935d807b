"""Windows and joins of real jobs have each result once, also when workers are killed and the job restarts."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg

sys.path.insert(0, str(Path(__file__).parent))
from followed_jobs import Gated, newest

sys.path.pop(0)

KEYS = 20
ROWS = 16_000
LENGTH, FREQUENCY, GAP, COUNT, APART = 1_000_000, 250_000, 60_000, 50, 2_000
"""Microseconds of event time of an instance, from one to the next, that end a session; rows of an instance of a count
window; and the microseconds between rows that join."""

RANDOM = np.random.default_rng(0)
TIMES = np.sort(RANDOM.integers(0, ROWS * 1_000, ROWS))
TABLE = pa.table(
    {
        "k": RANDOM.integers(0, KEYS, ROWS),
        "at": pa.array(TIMES, pa.timestamp("us")),
        "until": pa.array(TIMES + FREQUENCY, pa.timestamp("us")),
        "value": RANDOM.integers(-50, 50, ROWS),
        "seen": pa.array(TIMES - RANDOM.integers(0, LENGTH, ROWS) * (RANDOM.random(ROWS) < 0.02), pa.timestamp("us")),
    }
)
LOGIC = {"rows": agg.Count(), "sum": agg.Sum("value")}
INSTANCE = ["k", "window_start", "window_end"]


def summed(rows, instances):
    """Return the number and the sum of the rows of each instance."""
    sums = np.add.reduceat(rows["value"].to_numpy(), instances.offsets[:-1])
    counted = instances.table.append_column("rows", pa.array(np.diff(instances.offsets)))
    return counted.append_column("sum", pa.array(sums))


def partly(rows, parts):
    """Return the number and the sum of the rows of each part."""
    return {"rows": parts.lengths, "sum": np.add.reduceat(rows["value"].to_numpy(), parts.offsets[:-1])}


def added(left, right):
    """Return the sums of both."""
    return {name: pc.add(left[name], right[name]) for name in ("rows", "sum")}


def topology(folder, gate):
    built = de.Topology("windows")
    source = Gated(TABLE, gate, rate=3_000, batch_rows=200, event_time="at")
    keyed = built.source("rows", source).key_by("k")
    own = {"executors": 1, "shards": 16}
    hopping = de.windows.hopping(LENGTH / 1e6, FREQUENCY / 1e6)
    results = {
        "hopping": keyed.window(hopping).compute(LOGIC, name="hopping", **own),
        "functions": keyed.window(hopping).compute(summed, name="functions", **own),
        "sessions": keyed.window(de.windows.session(GAP / 1e6)).compute(LOGIC, name="sessions", **own),
        "counts": keyed.window(de.windows.count(COUNT)).compute(LOGIC, name="counts", **own),
        "joined": keyed.join(keyed, within=("0s", APART / 1e6), name="joined", **own),
    }
    late = keyed.window(hopping, time="seen")
    columns = {"rows": pa.int64(), "sum": pa.int64()}
    results["corrected"] = late.compute(
        partly, merge=added, output=columns, name="corrected", allowed_lateness=2 * LENGTH / 1e6, share=True, **own
    )
    spans = keyed.window(LENGTH / 1e6, time=("at", "until"), spans="overlapping")
    results["overlapping"] = spans.compute(LOGIC, name="overlapping", **own)
    parts = keyed.window([LENGTH / 1e6, 2 * LENGTH / 1e6]).compute(LOGIC, name="parts", partials=True, **own)
    results["totals"] = de.consolidate([parts], name="totals", shards=16)
    for name, stream in results.items():
        stream.sink(de.sinks.Parquet(folder / name), name=f"{name}-out")
    return built


def test_each_result_appears_once_when_home_and_remote_tasks_are_killed(small_cluster, wait_until, tmp_path):
    gate = tmp_path / "gate"
    with Client(small_cluster(n_workers=3, threads_per_worker=3), set_as_default=False) as client:
        options = {"checkpoint": tmp_path / "checkpoints", "checkpoint_interval": "500ms"}
        job = de.submit(topology(tmp_path, gate), client, **options)
        wait_until(lambda: newest(job) > 0, "a checkpoint is complete")
        home = dict(zip(job.assignment()["operator"], job.assignment()["home"], strict=True))["hopping"]
        guest = next(worker for worker in client.nthreads() if worker != home)
        pids = client.run(os.getpid)
        job.set_cores("hopping", {home: 1, guest: 1})
        wait_until(lambda: job.assignment()["remote"].sum() >= 1, "the executor has a remote task")
        os.kill(pids[guest], signal.SIGKILL)
        wait_until(lambda: guest not in job._describe().nodes, "the job goes on without the guest")
        first = newest(job)
        wait_until(lambda: newest(job) > first, "a later checkpoint is complete")
        os.kill(pids[home], signal.SIGKILL)
        gate.touch()
        job.wait(240, progress=False)
    ended = ("hopping", "functions", "sessions", "joined", "corrected")
    left = {name: de.read_state(tmp_path / "checkpoints", name).num_rows for name in ended}
    assert not any(left.values()), "state is left behind the end"
    for name, wanted in expected().items():
        found = ds.dataset(tmp_path / name, format="parquet").to_table().to_pandas()
        if name == "corrected":
            assert not found.duplicated([*INSTANCE, "revision"]).any()
            assert found["revision"].max() > 0
            found = found.sort_values("revision").groupby(INSTANCE).tail(1)
        found = found[[*wanted]]
        found = in_order(found.assign(**{one: microseconds(found[one]) for one in found if one.startswith("window")}))
        pd.testing.assert_frame_equal(found, in_order(wanted), check_dtype=False, obj=name)


def expected():
    """The results over all rows, by pandas; times in microseconds."""
    rows = TABLE.drop_columns(["until"]).to_pandas()
    rows["at"], rows["seen"] = microseconds(rows["at"]), microseconds(rows["seen"])
    hopping, corrected = (hopping_by(rows, column) for column in ("at", "seen"))
    several = [
        rows.assign(window_start=rows["at"] // size * size, window_end=rows["at"] // size * size + size)
        for size in (LENGTH, 2 * LENGTH)
    ]
    begins = {side: (rows["at"] + side * (FREQUENCY - 1)) // LENGTH * LENGTH for side in (0, 1)}
    later = rows.assign(window_start=begins[1])[begins[0] < begins[1]]
    overlapped = pd.concat([rows.assign(window_start=begins[0]), later]).eval("window_end = window_start + @LENGTH")
    ordered = rows.sort_values(["k", "at"], kind="stable")
    ordered["session"] = (~(ordered.groupby("k")["at"].diff() < GAP)).cumsum()
    of_session = ordered.groupby("session")["at"]
    ordered["window_start"], ordered["window_end"] = of_session.transform("min"), of_session.transform("max") + GAP
    rows["number"] = rows.groupby("k").cumcount() // COUNT
    counts = rows.groupby(["k", "number"]).agg(
        window_start=("at", "min"), window_end=("at", "max"), rows=("value", "size"), sum=("value", "sum")
    )
    counts = counts[counts["rows"] == COUNT].reset_index().drop(columns="number").eval("window_end = window_end + 1")
    pairs = rows[["k", "at", "value"]].merge(rows[["k", "at", "value"]], on="k", suffixes=("", "_right"))
    return {
        "hopping": hopping,
        "functions": hopping,
        "corrected": corrected,
        "sessions": grouped(ordered, INSTANCE),
        "overlapping": grouped(overlapped, INSTANCE),
        "counts": counts,
        "totals": grouped(pd.concat(several), INSTANCE[1:]),
        "joined": pairs[(pairs["at_right"] - pairs["at"]).between(0, APART)][["k", "value", "value_right"]],
    }


def hopping_by(rows, column):
    """The results of the hopping window by a column of times."""
    first = rows[column] // FREQUENCY * FREQUENCY
    moved = [rows.assign(window_start=first - shift * FREQUENCY) for shift in range(LENGTH // FREQUENCY)]
    return grouped(pd.concat(moved).eval("window_end = window_start + @LENGTH"), INSTANCE)


def grouped(rows, by):
    return rows.groupby(by).agg(rows=("value", "size"), sum=("value", "sum")).reset_index()


def in_order(frame):
    return frame.sort_values([*frame], ignore_index=True)


def microseconds(times):
    return times.astype("datetime64[us]").astype("int64")
