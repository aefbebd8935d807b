"""Cost of counting traffic: processor time of an executor's `accept` per batch, with the counter and without.

Prints one JSON line per number of upstream instances: microseconds per batch with and without the counter, each the
fastest of many short rounds that take turns, and the share that the counter adds to `accept`. The whole way of a batch
takes several times as long; see `benchmarks/small_batches.py`.

    python benchmarks/traffic.py [--origins 1 16 256] [--rows 1] [--rounds 200]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import pyarrow as pa

from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId

BATCHES = 500


def seconds(origins: list[ExecutorId], batch: Batch, count: bool) -> float:
    """Return the seconds of one batch in `accept`, in one round."""
    executor = ElasticExecutor(ExecutorId("op", 0), KeySpace(1, 64), 0, {0: 1}, origins)
    measures: Any = executor.measures
    if not count:
        measures.arrived = _without_traffic(measures)
    blocks = [executor.split(batch) for _ in range(BATCHES)]
    began = time.process_time()
    for number, block in enumerate(blocks):
        executor.accept(block, origins[number % len(origins)], batch, 100, 0.0)
    return (time.process_time() - began) / BATCHES


def _without_traffic(measures: Any) -> Any:
    def arrived(origin: ExecutorId, rows: int, nbytes: int, customers: int, now: float) -> None:
        measures.arrivals.add(rows, now)
        measures.bytes_in.add(nbytes, now)
        measures.customers.add(customers, now)

    return arrived


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--origins", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    keys = np.arange(given.rows, dtype=np.uint64)
    batch = Batch(pa.record_batch({"key": pa.array(keys)}), keys, 0.0)
    for count in given.origins:
        origins = [ExecutorId("rows", index) for index in range(count)]
        best = {True: float("inf"), False: float("inf")}
        for _ in range(given.rounds):
            for counted in best:
                best[counted] = min(best[counted], seconds(origins, batch, counted))
        line = {
            "origins": count,
            "rows": given.rows,
            "counted": round(1e6 * best[True], 3),
            "not_counted": round(1e6 * best[False], 3),
            "added_us": round(1e6 * (best[True] - best[False]), 3),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
