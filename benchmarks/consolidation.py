"""Planning time of window consolidation and of operator fusion.

Prints one JSON line per setting, with the median and the maximum of its runs in milliseconds, and the median of their
CPU time, which other load on the machine affects less.

- Consolidation plans for 20 windows over slices of a minute: tumbling windows of 5 to 100 minutes, for a horizon of
  the longest window, of half a day and of a day; overlapping windows of the same lengths; and tumbling windows from a
  minute to a day, for a day. Prices: by count, by keys per length, and by keys per span. `formed` is the number of
  windows that a plan forms, from a number of patterns; the second line of each, `listed`, includes listing them all.
- Fusion of random large jobs (Enorm, section 7) of 50, 100 and 150 operators, by each score, with cycles forbidden and
  as printed in the paper; and of a job of three levels, which has the most edges.

    python benchmarks/consolidation.py [--runs 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from dask_elastic.papers.random_jobs import RandomJob, random_job
from dask_elastic.topology.fusion import SCORES, fuse
from dask_elastic.windows.consolidation import Recipe, plan
from dask_elastic.windows.merge_cost import Keys
from dask_elastic.windows.window import Window

DAY = 1440
LENGTHS = range(5, 101, 5)
MIXED = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 40, 60, 120, 180, 240, 360, 480, 720, 1440)
"""Divisors of a day in minutes."""

TUMBLING = [Window.tumbling(length) for length in LENGTHS]
ALL_SORTS = [Window.tumbling(length) for length in MIXED]
BY_LENGTH = {length: length**0.5 for length in {1, *LENGTHS, *MIXED}}
SETTINGS: dict[str, tuple[list[Window], int, Keys | None]] = {
    "tumbling, 5 to 100 min, for 100 min": (TUMBLING, 100, None),
    "tumbling, 5 to 100 min, for 12 h": (TUMBLING, DAY // 2, None),
    "tumbling, 5 to 100 min, for a day": (TUMBLING, DAY, None),
    "tumbling, 5 to 100 min, for 100 min, by keys of spans": (TUMBLING, 100, lambda begin, end: (end - begin) ** 0.5),
    "tumbling, 5 to 100 min, for a day, by keys": (TUMBLING, DAY, BY_LENGTH),
    "5 to 100 min every 5 min": ([Window(0, length, 5) for length in LENGTHS], 5, None),
    "5 to 100 min every minute": ([Window(0, length, 1) for length in LENGTHS], 1, None),
    "5 to 100 min every 1 to 20 min, for 1 h": ([Window(0, length, length // 5) for length in LENGTHS], 60, None),
    "tumbling, 1 min to 1 day, for a day": (ALL_SORTS, DAY, None),
    "tumbling, 1 min to 1 day, for a day, by keys": (ALL_SORTS, DAY, BY_LENGTH),
    "1 to 20 h every minute": ([Window(0, 60 * hours, 1) for hours in range(1, 21)], 1, None),
}


def measure(function: Callable[..., Any], problems: list[tuple[Any, ...]], runs: int) -> dict[str, float]:
    """Return median and maximum time of the runs, which cycle through the problems, and their median CPU time."""
    function(*problems[0])
    spent, computed = [], []
    for run in range(runs):
        start, cpu = time.perf_counter(), time.process_time()
        function(*problems[run % len(problems)])
        spent.append((time.perf_counter() - start) * 1e3)
        computed.append((time.process_time() - cpu) * 1e3)
    found = {"median_ms": statistics.median(spent), "max_ms": max(spent), "cpu_ms": statistics.median(computed)}
    return {name: round(value, 3) for name, value in found.items()}


def plan_and_list(*problem: Any) -> tuple[Recipe, ...]:
    """Plan, and list the recipe of each window."""
    return plan(*problem).recipes


def densest(operators: int) -> RandomJob:
    """Return the first random job of three levels."""
    seed = 0
    while len((job := random_job(operators, seed)).levels) > 3:
        seed += 1
    return job


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    for name, (windows, horizon, keys) in SETTINGS.items():
        found = plan(windows, 1, horizon, keys)
        line = {
            "benchmark": "consolidation",
            "windows": name,
            "patterns": len(found.patterns),
            "formed": found.formed,
            "merges": found.merges,
            "naive_merges": found.naive_merges,
        }
        for listed, function in ((False, plan), (True, plan_and_list)):
            figures = measure(function, [(windows, 1, horizon, keys)], runs)
            print(json.dumps(line | {"listed": listed} | figures), flush=True)
    for operators in (50, 100, 150):
        for edges, jobs in (
            ("random", [random_job(operators, seed) for seed in range(20)]),
            ("most", [densest(operators)]),
        ):
            for score in SCORES:
                for allow_cycles in (False, True):
                    line = {
                        "benchmark": "fuse",
                        "operators": operators,
                        "edges": edges,
                        "score": score,
                        "cycles": "as printed" if allow_cycles else "forbidden",
                    }
                    problems = [(job.attributes, job.rates, score, allow_cycles) for job in jobs]
                    print(json.dumps(line | measure(fuse, problems, runs)), flush=True)


if __name__ == "__main__":
    main()
