"""Spark reads files that arrive in a directory, cleans the rows, and hands them over to a running job.

The job's state is compared with the same query as a Spark batch over all files. Needs the extra `spark`, which includes
a Java.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from dask.distributed import Client
from pyspark.sql import functions as sql

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.spark import into, register, session

SHOPS = ("north", "south", "harbour")
FILES = 6
ROWS = 500
SCHEMA = "shop string, amount decimal(10,2), at timestamp"


def arrive(folder: Path, number: int, rng: random.Random) -> None:
    """Write a file elsewhere and rename it, so that Spark reads it whole; one row in fifty has no amount."""
    rows = (
        {
            "shop": rng.choice(SHOPS),
            "amount": None if rng.random() < 0.02 else rng.randrange(1, 10_000) / 100,
            "at": f"2024-03-{number + 1:02}T12:00:00Z",
        }
        for _ in range(ROWS)
    )
    hidden = folder.parent / f"{number}.writing"
    hidden.write_text("\n".join(map(json.dumps, rows)))
    hidden.rename(folder / f"sales-{number}.json")


def clean(frame: Any) -> Any:
    """Apply the query, the same for a stream and for a batch."""
    return frame.where("amount is not null").selectExpr("shop", "cast(amount * 100 as bigint) as cents")


def build(schema: Any) -> de.Topology:
    topology = de.Topology("sales")
    sales = topology.source("sales", de.sources.Spark(schema))
    sales.key_by("shop").compute({"sales": agg.Count(), "cents": agg.Sum("cents")}, name="per_shop")
    return topology


def main() -> None:
    spark = session("arriving-files", master="local[2]", stream=sys.stdout)
    register(spark)
    with tempfile.TemporaryDirectory() as place, Client(n_workers=2, threads_per_worker=1) as client:
        folder, rng = Path(place) / "sales", random.Random(1)
        folder.mkdir()
        arrive(folder, 0, rng)
        stream = clean(spark.readStream.schema(SCHEMA).json(str(folder)))
        job = de.submit(build(stream.schema), client)
        writer = stream.writeStream.format("dask_elastic").options(**into(job))
        writer = writer.option("checkpointLocation", f"{place}/checkpoint")
        query = writer.trigger(processingTime="200 milliseconds").start()
        for number in range(1, FILES):
            arrive(folder, number, rng)
        query.processAllAvailable()
        query.stop()  # also ends the job's source
        job.wait(progress=False)

        found = job.state("per_shop").to_arrow().sort_by("shop").to_pylist()
        batch = clean(spark.read.schema(SCHEMA).json(str(folder))).groupBy("shop")
        expected = batch.agg(sql.count("*").alias("sales"), sql.sum("cents").alias("cents")).orderBy("shop").toArrow()
        assert found == expected.to_pylist(), (found, expected)
        for shop in found:
            print(f"{shop['shop']:8} {shop['sales']:5} sales {shop['cents'] / 100:12,.2f}")
    spark.stop()


if __name__ == "__main__":
    main()
