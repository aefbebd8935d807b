"""The demonstration: a year of New York's flights, fed by Spark, with cores that follow the load.

Text files keep arriving. Spark Structured Streaming parses and cleans them, and hands its micro-batches over to a
running job, which keeps delays per airplane and per route. The load shifts from route to route, and cores and shards
follow it. At the end, the results are compared with the same query as a Spark batch.

Equivalent to ``dask elastic demo --spark``; without PySpark, to ``dask elastic demo``, which reads Parquet and compares
with pandas. The extra `spark` includes a Java. The code, in reading order:

- dask_elastic/cli/demo/flight_delays.py: the topology, and how service times are emulated
- dask_elastic/cli/demo/hot_routes.py: the hot routes of each month
- dask_elastic/cli/demo/spark_feed.py: the files, the Spark query, and the batch query for comparison
- dask_elastic/cli/demo/replay.py: submitting the job with a latency target, and watching it
- dask_elastic/cli/demo/checks.py: verifying the results, and that shards and cores moved
"""

from __future__ import annotations

import importlib.util
import sys

from dask_elastic.cli.main import elastic

if __name__ == "__main__":
    spark = importlib.util.find_spec("pyspark") is not None
    if not spark:
        print("PySpark is not installed, so the job reads Parquet. For Spark: pip install 'dask-elastic[demo,spark]'")
    elastic(["demo", *(["--spark"] if spark else []), *sys.argv[1:]], prog_name="examples/demo.py")
