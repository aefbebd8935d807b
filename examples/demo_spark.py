"""The main job, whole: Spark reads flights from files that keep arriving, cleans them, and feeds a running job.

A year of New York's flights arrives as files of raw text, one a month. Spark Structured Streaming reads them, parses
and cleans them in Spark SQL, and hands each micro-batch over to a running job, which keeps delays per airplane and per
route. At the end, its state is compared with the same query as a Spark batch. A Java is not needed, one comes with the
extra `spark`; the flights come with the extra `demo`.

    python examples/demo_spark.py [--months 12]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from dask.distributed import Client
from pyarrow import csv
from pyspark.sql import functions as sql

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.cli.demo import flights
from dask_elastic.spark import drain, into, register, session

RAW = "sched_dep string, route string, tailnum string, arr_delay string, distance string"
CLEAN = [
    "to_timestamp(sched_dep) as scheduled",
    "route",
    "trim(tailnum) as plane",
    "cast(arr_delay as bigint) as delay",
    "cast(distance as bigint) as miles",
]
KEYS = {"per_plane": "plane", "per_route": "route"}
GAP = 0.5


def clean(frame: Any) -> Any:
    """The query, the same for a stream and for a batch: flights that were cancelled, or of unknown planes, go."""
    return frame.selectExpr(*CLEAN).where("delay is not null and plane is not null and plane <> ''")


def arrive(months: list[pa.Table], folder: Path) -> None:
    """Let one file after the other arrive, each as a whole."""
    for number, month in enumerate(months):
        hidden = folder.parent / f"{number}.writing"
        csv.write_csv(month, hidden, csv.WriteOptions(include_header=False))
        hidden.rename(folder / f"month-{number:02}.csv")
        time.sleep(GAP)


def by_month(table: pa.Table, count: int) -> list[pa.Table]:
    table = table.select([part.split()[0] for part in RAW.split(", ")])
    month = pc.month(table["sched_dep"])
    return [table.filter(pc.equal(month, number)) for number in range(1, count + 1)]


def build(schema: Any) -> de.Topology:
    topology = de.Topology("flights-by-spark")
    arrived = topology.source("arrived", de.sources.Spark(schema, parallel=2, event_time="scheduled"))
    for name, key in KEYS.items():
        delays = {"flights": agg.Count(), "delay": agg.Sum("delay"), "worst": agg.Max("delay")}
        arrived.key_by(key).compute(delays, name=name)
    return topology


def expected(batch: Any, key: str) -> list[dict[str, Any]]:
    delays = [sql.count("*").alias("flights"), sql.sum("delay").alias("delay"), sql.max("delay").alias("worst")]
    rows: list[dict[str, Any]] = batch.groupBy(key).agg(*delays).toArrow().sort_by(key).to_pylist()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--months", type=int, default=12, help="how many months of the year arrive")
    months = by_month(flights.load(), parser.parse_args().months)
    spark = session("flights", master="local[2]", config={"spark.sql.shuffle.partitions": "2"}, stream=sys.stdout)
    register(spark)
    with (
        tempfile.TemporaryDirectory() as place,
        Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client,
    ):
        folder = Path(place, "arriving")
        folder.mkdir()
        began = time.monotonic()
        stream = clean(spark.readStream.schema(RAW).csv(str(folder)))
        job = de.submit(build(stream.schema), client)
        writer = stream.writeStream.format("dask_elastic").options(**into(job))
        query = writer.option("checkpointLocation", f"{place}/checkpoint").start()
        arriving = threading.Thread(target=arrive, args=(months, folder))
        arriving.start()
        while arriving.is_alive():
            counted = job.metrics().groupby("operator")["rows"].sum().to_dict()
            print(f"{time.monotonic() - began:5.1f} s  {len([*folder.iterdir()]):2} files  {counted}", flush=True)
            arriving.join(2.0)
        query.processAllAvailable()
        query.stop()
        drain(query, job)
        batch = clean(spark.read.schema(RAW).csv(str(folder)))
        print(f"{time.monotonic() - began:5.1f} s  all of it is processed; now the same query as a batch of Spark")
        wrong = []
        for name, key in KEYS.items():
            found = job.state(name).to_arrow().sort_by(key)
            same = found.to_pylist() == expected(batch, key)
            wrong += [] if same else [name]
            print(
                f"{name}: {found.num_rows} keys, {pc.sum(found['flights'])} flights, {'equal' if same else 'DIFFERENT'}"
            )
    spark.stop()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
