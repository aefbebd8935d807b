"""Planning time of core assignment, allocation, and balance within an executor.

Prints one JSON line per setting, with the median and the maximum of its runs in milliseconds.

- assign_cores on full clusters of nodes with 8 cores and 3 executors per node, where two fifths of the executors need
  one core more or less ("drift"), or the needs of all change completely ("upheaval").
- allocate for 100 executors.
- balance of 1,024 shards over 64 tasks, from a skewed start.

    python benchmarks/planning.py [--runs 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_elastic.model.jackson import allocate
from dask_elastic.planning.balance import balance
from dask_elastic.planning.cores import assign_cores

CORES = 8
SIZES = (8, 16, 32, 100, 316, 1_000)
"""Nodes; the paper has 8, 16 and 32 of them, with 4.1, 5.2 and 5.7 ms (Elasticutor, Table 3)."""


def cluster(seed: int, nodes: int, upheaval: bool) -> tuple[Any, ...]:
    """Return executors mostly at home on a full cluster, and their next demand."""
    random = np.random.default_rng(seed)
    executors = 3 * nodes
    home = np.arange(executors) % nodes
    current = np.zeros((nodes, executors), dtype=np.int64)
    current[home, np.arange(executors)] = 1
    free = np.full(nodes, CORES - 3)
    for executor in random.integers(0, executors, CORES * nodes - executors):
        node = home[executor]
        if not free[node] or random.random() < 0.1:
            node = random.choice(np.flatnonzero(free))
        current[node, executor] += 1
        free[node] -= 1
    if upheaval:
        shares = random.dirichlet(np.full(executors, 2.0))
        wanted = 1 + random.multinomial(int(0.95 * CORES * nodes) - executors, shares)
    else:
        change = random.integers(-1, 2, executors) * (random.random(executors) < 0.4)
        wanted = np.maximum(1, current.sum(axis=0) + change)
        while wanted.sum() > CORES * nodes:
            wanted[wanted.argmax()] -= 1
    state = random.lognormal(3, 1, executors) * 1e6
    return current, wanted, np.full(nodes, CORES), state, home, random.choice([0.0, 1e5, 1e6], executors)


def network(seed: int) -> tuple[Any, ...]:
    """Return 100 executors of up to four cores of load, and a target a tenth above their service times."""
    random = np.random.default_rng(seed)
    arrival = random.uniform(1, 100, 100)
    loads = random.uniform(0.1, 4, 100)
    return 100.0, arrival, arrival / loads, 1.1 * float(loads.sum()) / 100.0, 1_000


def shards(seed: int) -> tuple[Any, ...]:
    """Return 1,024 shards with a Zipf load, placed randomly on 64 tasks."""
    random = np.random.default_rng(seed)
    load = random.permutation(1.0 / np.arange(1, 1_025) ** 0.5)
    return load, random.integers(0, 64, 1_024), range(64)


def measure(function: Callable[..., Any], problems: list[tuple[Any, ...]], runs: int) -> dict[str, float]:
    """Return median and maximum time of the runs, which cycle through the problems, after a warm-up."""
    function(*problems[0])
    spent = []
    for run in range(runs):
        start = time.perf_counter()
        function(*problems[run % len(problems)])
        spent.append((time.perf_counter() - start) * 1e3)
    return {"median_ms": round(statistics.median(spent), 3), "max_ms": round(max(spent), 3)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    for nodes in SIZES:
        for upheaval in (False, True):
            problems = [cluster(seed, nodes, upheaval) for seed in range(5 if nodes <= 100 else 2)]
            plans = [assign_cores(*problem) for problem in problems]
            moved = statistics.mean(
                plan.cost / float(problem[3].sum()) for plan, problem in zip(plans, problems, strict=True)
            )
            line = {
                "benchmark": "assign_cores",
                "nodes": nodes,
                "executors": 3 * nodes,
                "change": "upheaval" if upheaval else "drift",
                "moved_share": round(moved, 4),
            }
            print(json.dumps(line | measure(assign_cores, problems, runs if nodes <= 100 else max(3, runs // 4))))
    print(json.dumps({"benchmark": "allocate", "executors": 100} | measure(allocate, [network(0), network(1)], runs)))
    problems = [shards(seed) for seed in range(5)]
    print(json.dumps({"benchmark": "balance", "shards": 1_024, "tasks": 64} | measure(balance, problems, runs)))


if __name__ == "__main__":
    main()
