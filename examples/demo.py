"""The main job: a year of New York's flights by way of Spark, with cores that follow the load by themselves.

Files of raw text keep arriving. Spark Structured Streaming parses and cleans them, and hands its micro-batches over to
a running job, which keeps delays per airplane and per route. The load moves from route to route, and cores and shards
after it. In the end, results are compared with the same query as a batch of Spark.

The same as ``dask elastic demo --spark``; where PySpark is not installed, the same as ``dask elastic demo``, which
reads Parquet and compares with pandas. A Java is not needed, one comes with the extra `spark`. To read it, begin with
the topology and the load that shifts:

- dask_elastic/cli/demo/flight_delays.py: the topology, and how service times are emulated
- dask_elastic/cli/demo/hot_routes.py: which routes are hot in which month
- dask_elastic/cli/demo/spark_feed.py: the files, the query of Spark, and the batch to compare with
- dask_elastic/cli/demo/replay.py: submitting it with a latency target, and following it
- dask_elastic/cli/demo/checks.py: comparing, and whether shards and cores moved
"""

from __future__ import annotations

import importlib.util
import sys

from dask_elastic.cli.main import elastic

if __name__ == "__main__":
    spark = importlib.util.find_spec("pyspark") is not None
    if not spark:
        print(
            "PySpark is not installed, so the job reads Parquet: pip install 'dask-elastic[demo,spark]' for all of it."
        )
    elastic(["demo", *(["--spark"] if spark else []), *sys.argv[1:]], prog_name="examples/demo.py")
