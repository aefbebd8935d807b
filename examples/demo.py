"""The demonstration: a static and an elastic job under the same shifting load, fed by Spark, side by side.

Text files keep arriving. Spark Structured Streaming parses and cleans them, and hands its micro-batches over to two
running jobs, which keep delays per airplane and per route. The load shifts from route to route; the cores and shards of
the elastic job follow it. In the midst, kill -9 ends a worker of each job, and both recover by themselves. At the end,
the results are compared with the same query as a Spark batch, and the latencies with the target.

Equivalent to ``dask elastic demo --spark``; without PySpark, to ``dask elastic demo``, which sends the flights itself
and compares with pandas. The extra `spark` includes a Java. The code, in reading order:

- dask_elastic/cli/demo/flight_delays.py: the topology; emulated_service.py: how service times are emulated
- dask_elastic/cli/demo/hot_routes.py: the hot routes of each month
- dask_elastic/cli/demo/spark_feed.py: the files, the Spark queries, and the batch query for comparison
- dask_elastic/cli/demo/calibration.py and load.py: what the machine bears, and the load that follows from it
- dask_elastic/cli/demo/schedule.py: the months, and when workers are killed
- dask_elastic/cli/demo/replay.py: submitting both jobs with a latency target
- dask_elastic/cli/demo/contest.py and follower.py: watching them, second by second
- dask_elastic/cli/demo/contestant.py and outage.py: killing a worker of each, and when both have recovered
- dask_elastic/cli/demo/judgement.py: when the demonstration succeeds
"""

from __future__ import annotations

import importlib.util
import sys

from dask_elastic.cli.main import elastic

if __name__ == "__main__":
    spark = importlib.util.find_spec("pyspark") is not None
    if not spark:
        print("PySpark is not installed, so Spark takes no part; to have it: pip install 'dask-elastic[demo,spark]'")
    elastic(["demo", *(["--spark"] if spark else []), *sys.argv[1:]], prog_name="examples/demo.py")
