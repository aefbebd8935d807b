"""List and map state, times to live and logic of each level on real workers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

import dask_elastic as de

sys.path.insert(0, str(Path(__file__).parent))
from oracle import Pump

RUN = {"timeout": 100, "progress": False}
KEPT = {
    "values": de.List(pa.int64()),
    "seen": de.Map(pa.string(), pa.int64()),
    "short": de.Value(pa.int64(), ttl="1 second"),
}


@de.per_row(output={"k": pa.int64(), "length": pa.int64()})
def keep(row, state):
    state["values"].append(row["v"])
    state["seen"][row["name"]] = state["seen"].get(row["name"], 0) + 1
    state["short"] = row["v"]
    return {"k": row["k"], "length": len(state["values"])}


@de.per_key
def only_short(key, batch, state):
    state["short"] = batch.num_rows


def measured(job, figure):
    metrics = job.metrics()
    return int(metrics.loc[metrics["operator"] == "kept", figure].sum())


def test_state_moves_with_its_shard_and_expires_in_time(client, wait_until):
    numbers = np.arange(200_000)
    rows = pa.table({"k": numbers % 20, "v": numbers, "name": np.array(["a", "b", "c"])[numbers % 3]})
    topology = de.Topology("kept")
    source = topology.source("rows", de.sources.Push(rows.schema))
    keyed = source.key_by("k").compute(keep, state=KEPT, name="kept", shards=8, executors=1)
    keyed.sink(de.sinks.Collect(), name="out")
    short = {"short": KEPT["short"]}
    source.key_by("k").compute(only_short, state=short, name="brief", shards=8, executors=1)
    job = de.submit(topology, client, cores={"kept": 1})
    pump = Pump(job, rows, rows=60, pause=0.05)
    pump.start()
    for cores in (5, 2, 4):
        before = measured(job, "moves")
        job.set_cores("kept", cores)
        wait_until(lambda b=before: measured(job, "moves") > b, "shards move")
    wait_until(lambda: measured(job, "moves_across") > 0, "a shard moves between workers")
    rows = pump.stop()
    job.end_of_input()
    job.wait(**RUN)
    found = job.state("kept").to_pandas().set_index("k").sort_index()
    frame = rows.to_pandas()
    assert found["values"].map(list).to_dict() == frame.groupby("k")["v"].apply(list).to_dict()
    counts = frame.groupby(["k", "name"]).size()
    assert {k: dict(entries) for k, entries in found["seen"].items()} == {k: counts[k].to_dict() for k in range(20)}
    out = job.collect("out").to_pandas()
    lengths = {k: list(range(1, count + 1)) for k, count in frame.groupby("k").size().items()}
    assert out.groupby("k")["length"].apply(list).to_dict() == lengths
    wait_until(lambda: job.state("brief").to_arrow().num_rows == 0, "the brief state expires")
    wait_until(
        lambda: job.state("kept").to_pandas()["short"].isna().all(), "short-lived entries expire and others stay"
    )
    assert job.state("kept").to_arrow().num_rows == 20
    assert job.state("kept").get(3)["short"] is None
    assert job.state("brief").get(3) is None


def test_state_has_its_columns_before_the_first_row(client):
    topology = de.Topology("empty")
    rows = topology.source("rows", de.sources.Push(pa.schema({"k": pa.int64(), "v": pa.int64(), "name": pa.string()})))
    rows.key_by("k").compute({"n": de.aggregate.Count(), "mean": de.aggregate.Mean("v")}, name="means")
    rows.key_by("k").compute(keep, state=KEPT, name="kept")
    rows.map(lambda batch: batch, name="own").key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    job = de.submit(topology, client)
    before = {name: job.state(name).to_arrow() for name in ("means", "kept", "counted")}
    assert {name: table.num_rows for name, table in before.items()} == {"means": 0, "kept": 0, "counted": 0}
    assert job.state("means").get(1) is None
    assert [*job.state("means").to_pandas()] == ["k", "n", "mean"]
    job.send({"k": [1], "v": [2], "name": ["a"]})
    job.end_of_input()
    job.wait(**RUN)
    assert job.state("means").to_arrow().schema == before["means"].schema
    assert job.state("kept").to_arrow().schema == before["kept"].schema
    assert job.state("counted").to_arrow().schema.names == before["counted"].schema.names
