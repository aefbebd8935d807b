"""Windows, joins and fused computes in key groups continue with other numbers of executors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.testing import run

ROWS, KEYS, GROUPS = 6_000, 40, 12
RANDOM = np.random.default_rng(3)
TIMES = np.sort(RANDOM.integers(0, 60_000_000, ROWS))
TABLE = pa.table(
    {
        "k": RANDOM.integers(0, KEYS, ROWS),
        "kind": RANDOM.integers(0, 3, ROWS),
        "at": pa.array(TIMES, pa.timestamp("us")),
        "value": np.arange(ROWS),
        # Some rows come too late for the instances that they correct.
        "seen": pa.array(
            TIMES - RANDOM.integers(0, 9_000_000, ROWS) * (RANDOM.random(ROWS) < 0.05), pa.timestamp("us")
        ),
    }
)
LOGIC = {"rows": agg.Count(), "sum": agg.Sum("value")}
FUSED = [("passed", "kinds")]
NUMBERS = (2, 3, 1)
"""Executors of each operator, one run after the other."""


def summed(rows, instances):
    """Return the number and the sum of the rows of each instance."""
    sums = np.add.reduceat(rows["value"].to_numpy(), instances.offsets[:-1])
    counted = instances.table.append_column("rows", pa.array(np.diff(instances.offsets)))
    return counted.append_column("sum", pa.array(sums))


def passed(rows, state):
    return rows


def built(folder, executors):
    """The topology; its sinks write to a folder."""
    topology = de.Topology("resumed-windows")
    rows = topology.source("rows", de.sources.Push(TABLE.schema, event_time="at"))
    keyed, own = rows.key_by("k"), {"executors": executors, "shards": GROUPS}
    hopping = de.windows.hopping("8s", "2s")
    kinds = keyed.compute(passed, state={}, keeps=("k", "kind"), name="passed", **own).key_by("k", "kind")
    corrected = {"allowed_lateness": "20s", "share": True}
    results = {
        "hopping": keyed.window(hopping).compute(LOGIC, name="hopping", **own),
        "corrected": keyed.window(hopping, time="seen").compute(LOGIC, name="corrected", **corrected, **own),
        "functions": keyed.window(hopping).compute(summed, name="functions", **own),
        "sessions": keyed.window(de.windows.session("300ms")).compute(LOGIC, name="sessions", **own),
        "counts": keyed.window(de.windows.count(70)).compute(LOGIC, name="counts", **own),
        "joined": keyed.join(keyed, within=("0s", "200ms"), name="joined", **own),
        "kinds": kinds.window(hopping, time="at").compute(LOGIC, name="kinds", **own),
    }
    for name, stream in results.items():
        stream.sink(de.sinks.Parquet(folder / name), name=f"{name}-out")
    return topology


def rows_of(name, table):
    """The rows in an order of their own; of corrected instances the last result."""
    frame = table.to_pandas()
    if name == "corrected":
        instance = ["k", "window_start", "window_end"]
        frame = frame.sort_values("revision").groupby(instance).tail(1).drop(columns="revision")
    return sorted(frame.itertuples(index=False, name=None))


def test_windows_joins_and_fused_computes_continue_with_other_numbers_of_executors(client, tmp_path):
    alone = run(built(tmp_path / "alone", None), {"rows": TABLE}, fuse=FUSED)
    options = {"checkpoint_interval": "1h", "fuse": FUSED}
    first, part = built(tmp_path / "out", NUMBERS[0]), ROWS // len(NUMBERS)
    job = de.submit(first, client, checkpoint=tmp_path / "0", paradigm="resource-centric", **options)
    for number, executors in enumerate(NUMBERS):
        assert {*job.assignment().groupby("operator").size()} == {executors}
        job.send(TABLE.slice(number * part, part), wait=True)
        if executors > 1:
            job.move_groups("hopping", [0, 1], executor=executors - 1)
        if number + 1 < len(NUMBERS):
            job.stop(savepoint=tmp_path / f"saved-{number}")
            again, own = built(tmp_path / "out", NUMBERS[number + 1]), tmp_path / str(number + 1)
            job = de.resume(tmp_path / f"saved-{number}", client, topology=again, checkpoint=own, **options)
    job.end_of_input()
    job.wait(120, progress=False)
    for name, wanted in alone.outputs.items():
        if name.endswith("-out"):
            found = ds.dataset(tmp_path / "out" / name.removesuffix("-out"), format="parquet").to_table()
            kind = name.removesuffix("-out")
            assert rows_of(kind, found.select(wanted.schema.names)) == rows_of(kind, wanted), kind
