"""Planning time of migrations: single steps, sequences, and projected costs.

Prints one JSON line per setting, with the median and the maximum of its runs, and the median of their CPU time, which
other load on the machine affects less.

- single_step for growing numbers of tasks and nodes, loads that differ by half and state that differs more. The paper's
  bound is 2 ms for 64 tasks and 8 to 16 nodes (State migration, figure 13). With a tight limit, intervals get shorter
  with more nodes, so that time grows with the tasks alone; without a limit every interval is allowed, and time grows
  with tasks² × nodes, once the overhead of NumPy's calls is negligible.
- sequence of ten steps for 64 tasks: up to 5 nodes, and the paper's range of 8 nodes and more.
- projected_costs for growing numbers of tasks and nodes, up to 24 tasks and 5 nodes with a limit so loose that most
  partitionings satisfy it.

    python benchmarks/migration_planning.py [--runs 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_elastic.planning.intervals.load_limit import least_tau
from dask_elastic.planning.intervals.sequence import sequence
from dask_elastic.planning.intervals.single_step import single_step
from dask_elastic.planning.intervals.transition import projected_costs

STEPS = [(64, 4), (64, 16), (64, 32), (128, 16), (256, 16), (512, 16), (1024, 16), (1024, 64), (2048, 64)]
"""Tasks and nodes."""
UNLIMITED = [(128, 16), (256, 16), (512, 16), (1024, 16), (512, 32), (512, 64)]
"""Tasks and nodes of steps without a binding limit."""
SEQUENCES = {"2 to 5": [3, 4, 3, 2, 3, 4, 5, 4, 3, 2], "8 to 12": [9, 10, 9, 8, 9, 10, 11, 12, 11, 10]}
PROJECTED = [(12, 5), (16, 5), (20, 5), (24, 2), (24, 3), (24, 4), (24, 5)]
"""Tasks and maximum number of nodes."""


def tasks(seed: int, count: int, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Return loads and sizes."""
    random = np.random.default_rng(seed)
    return random.lognormal(0, spread, count), random.lognormal(0, 1, count) * 1e6


def step(seed: int, count: int, nodes: int, limited: bool = True) -> tuple[Any, ...]:
    """Return a step from three quarters of the nodes, with a limit a fifth above the least or without a binding one."""
    load, state = tasks(seed, count)
    before = single_step(load, state, [[0, count]], max(3 * nodes // 4, 1), 1.0).intervals
    return load, state, before, nodes, least_tau(load, nodes) + 0.2 if limited else float(nodes)


def steps(seed: int, counts: list[int]) -> tuple[Any, ...]:
    """Return a sequence of steps for 64 tasks."""
    load, state = tasks(seed, 64, spread=0.3)
    tau = max(0.2, max(least_tau(load, nodes) for nodes in counts))
    return load, state, single_step(load, state, [[0, 64]], counts[0] - 1, tau).intervals, counts, tau


def chain(seed: int, count: int, most: int, tau: float) -> tuple[Any, ...]:
    """Return a chain of node counts that rise and fall by one, and the parameters of its projected costs."""
    load, state = tasks(seed, count, spread=0.3)
    near = {nodes: [other for other in (nodes - 1, nodes + 1) if 1 <= other <= most] for nodes in range(1, most + 1)}
    matrix = {nodes: dict.fromkeys(others, 1 / len(others)) for nodes, others in near.items()}
    return load, state, matrix, tau, 0.8


def measure(function: Callable[..., Any], problems: list[tuple[Any, ...]], runs: int) -> dict[str, float]:
    """Return median and maximum time of the runs, which cycle through the problems, after a warm-up."""
    function(*problems[0])
    spent, worked = [], []
    for run in range(runs):
        start, worked_before = time.perf_counter(), time.process_time()
        function(*problems[run % len(problems)])
        spent.append((time.perf_counter() - start) * 1e3)
        worked.append((time.process_time() - worked_before) * 1e3)
    return {
        "median_ms": round(statistics.median(spent), 3),
        "max_ms": round(max(spent), 3),
        "median_cpu_ms": round(statistics.median(worked), 3),
    }


def report(about: dict[str, Any], function: Callable[..., Any], problems: list[tuple[Any, ...]], runs: int) -> None:
    """Measure and print a line."""
    print(json.dumps(about | measure(function, problems, runs)), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    for count, nodes in STEPS:
        about = {"benchmark": "single_step", "tasks": count, "nodes": nodes}
        report(about, single_step, [step(seed, count, nodes) for seed in range(5)], runs)
    for count, nodes in UNLIMITED:
        about = {"benchmark": "single_step", "limit": "none that binds", "tasks": count, "nodes": nodes}
        report(about, single_step, [step(seed, count, nodes, limited=False) for seed in range(3)], max(3, runs // 4))
    for name, counts in SEQUENCES.items():
        about = {"benchmark": "sequence", "tasks": 64, "steps": len(counts), "nodes": name}
        report(about, sequence, [steps(seed, counts) for seed in range(3)], max(3, runs // 6))
    for count, most in PROJECTED:
        problem = chain(0, count, most, 1.2)
        about = {"benchmark": "projected_costs", "tasks": count, "nodes": most, "tau": 1.2}
        report(
            about | {"partitionings": len(projected_costs(*problem))},
            projected_costs,
            [problem],
            max(2, runs // 10),
        )


if __name__ == "__main__":
    main()
