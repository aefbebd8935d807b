"""Latency target under a load that doubles and halves: how well it is met, with how many cores, and the model's error.

Eight emulated cores (service time 10 ms per tuple by sleeping; 2 workers of 4 threads). The stream has 200 tuples per
second, then 400, and so on. An oracle tries every constant number of cores on either load: the smallest number that
meets the target is the reference. Prints one JSON line with medians of the runs.

    python benchmarks/latency_target.py [--target 60ms] [--phase 20] [--runs 5]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _emulated import forget_processed, processed, served_in_10_ms
from dask.utils import parse_timedelta
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.topology.pace import SLICE_SECONDS, rows_within

WORKERS, THREADS = 2, 4
HIGH = 400.0
KEYS = 10_000
PHASES = (False, True, False, True, False)
"""Whether the load is high."""

WARM_SECONDS = 5.0
ORACLE_SECONDS = 20.0
OBSERVED_SECONDS = 6.0
"""Seconds after which the effect of a decision is measured."""


def stream(phases: tuple[bool, ...], phase: float) -> Iterator[pa.RecordBatch]:
    """Yield rows with due times at the high rate; in low phases every other row is marked to be dropped."""
    rng = np.random.default_rng(5)
    size = rows_within(HIGH, SLICE_SECONDS, 65_536)
    began = time.time()
    for number in range(int(len(phases) * phase * HIGH / size)):
        seconds = number * size / HIGH
        kept = np.ones(size, dtype=bool) if phases[int(seconds / phase)] else np.arange(size) % 2 == 0
        keys = rng.integers(0, KEYS, size)
        due = np.full(size, began + seconds)
        yield pa.record_batch({"key": keys, "value": np.ones(size), "due": due, "kept": kept})


def kept(batch: pa.RecordBatch) -> pa.Array:
    """Return which rows are kept."""
    return pc.equal(batch["kept"], True)


def run(client: Client, phases: tuple[bool, ...], phase: float, **options: Any) -> dict[str, Any]:
    """Run the job; returns seconds with their mean latencies, cores over time, and the decisions."""
    client.run(forget_processed)
    topology = de.Topology("latency-target")
    source = de.sources.Iterable(functools.partial(stream, phases, phase), rate=HIGH)
    rows = topology.source("stream", source).filter(kept)
    total = de.aggregate.Sum(served_in_10_ms, columns=["value", "due"])
    rows.key_by("key").compute({"rows": de.aggregate.Count(), "total": total}, name="per_key", executors=1)
    began = time.time()
    job = de.submit(topology, client, **options)
    job.wait(progress=False)
    decisions, snapshots = job.decisions(), job.snapshots()
    job.forget()
    done = [entry for of_worker in client.run(processed).values() for entry in of_worker]
    times, counts, latencies = (np.array(column) for column in zip(*done, strict=True))
    second = np.floor(times - began).astype(int)
    inside = (second >= WARM_SECONDS) & (second < len(phases) * phase)
    sums = np.bincount(second[inside], latencies[inside] * counts[inside])
    rows = np.bincount(second[inside], counts[inside])
    means = sums[rows > 0] / rows[rows > 0]
    cores = [
        executor.total_cores
        for snapshot in snapshots
        for of_job in snapshot.jobs
        if of_job.name == "latency-target" and began + WARM_SECONDS <= snapshot.now
        for executor in of_job.executors
    ]
    return {"means": means, "cores": cores, "decisions": decisions, "began": began}


def oracle(client: Client, high: bool, target: float) -> int:
    """Return the smallest constant number of cores whose mean latency meets the target."""
    for cores in range(1, WORKERS * THREADS + 1):
        means = run(client, (high,), ORACLE_SECONDS, cores={"per_key": cores})["means"]
        if len(means) and means.mean() <= target:
            return cores
    return WORKERS * THREADS


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="60ms")
    parser.add_argument("--phase", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    target = parse_timedelta(arguments.target)
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=THREADS, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        least = {high: oracle(client, high, target) for high in (False, True)}
        made = [run(client, PHASES, arguments.phase, cores=None, latency_target=target) for _ in range(arguments.runs)]
    enough = statistics.mean(least[high] for high in PHASES)
    line = {
        "benchmark": "latency-target",
        "target_ms": target * 1e3,
        "runs": len(made),
        "least_cores_low_high": [least[False], least[True]],
        "seconds_within_target": round(statistics.median((one["means"] <= target).mean() for one in made), 3),
        "cores_used": round(statistics.median(np.mean(one["cores"]) for one in made), 2),
        "cores_that_would_have_done": enough,
        "model_error": _median_error(made, arguments.phase),
        "decisions_applied": statistics.median(int(one["decisions"]["applied"].sum()) for one in made),
    }
    print(json.dumps(line), flush=True)


def _median_error(made: list[dict[str, Any]], phase: float) -> float | None:
    """Return the median of |predicted / observed - 1| over the decisions whose phase lasts until the observation."""
    errors: list[float] = []
    for one in made:
        known = one["decisions"].dropna(subset=["predicted", "observed"])
        into = (known["time"] - one["began"]) % phase
        known = known[into < phase - OBSERVED_SECONDS]
        errors += abs(known["predicted"] / known["observed"] - 1).tolist()
    return round(statistics.median(errors), 3) if errors else None


if __name__ == "__main__":
    main()
