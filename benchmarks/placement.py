"""Quality of placements within a time limit: the MILP compared with Flux and with the best known; ALBIC and COLA.

Prints one JSON line per setting. Load distances are in points, percent of a node, at a mean of 50.

- milp: ALBIC's section 5.1, a fifth of the nodes raised or lowered by 20 points. Twenty nodes and 400 groups within 1 s
  and 5 s, sixty nodes and 1,200 groups within 5 s, each compared with repeated Flux; `above_best_max` is the load
  distance minus the lowest of this run and of a longer one (`--best`, in seconds; 0 omits it).
- albic and cola: a chain of operators on sixty nodes and 1,200 groups, half of which communicate one to one.
- others: every other planner on the same problem as the solver.

    python benchmarks/placement.py [--seeds 3] [--best 60] [--only milp]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from dask_elastic.papers.workloads.node_loads import SIZES, varied_nodes
from dask_elastic.papers.workloads.operator_chains import operator_chain
from dask_elastic.planning.placement.check import validate
from dask_elastic.planning.placement.flux import Flux
from dask_elastic.planning.placement.milp import Milp
from dask_elastic.planning.placement.planner import PlacementPlanner
from dask_elastic.planning.placement.problem import Placement, PlacementProblem
from dask_elastic.planning.placement.quality import collocation, load_distance
from dask_elastic.planning.registry import names, planner

BUDGETS = (10, 20, 30, 40, None)
SMALL, LARGE = SIZES[0], SIZES[2]


def timed(made: PlacementPlanner, problem: PlacementProblem, seed: int) -> tuple[Placement, float]:
    """Plan, and measure the time."""
    start = time.perf_counter()
    placement = made.plan(problem, seed)
    spent = time.perf_counter() - start
    validate(problem, placement)
    return placement, spent


def balances(seeds: int, best: float) -> Iterator[dict[str, Any]]:
    """Yield a line for each cluster, budget and limit."""
    for size, limits in ((SMALL, (1.0, 5.0)), (LARGE, (5.0,))):
        for max_moves in BUDGETS:
            problems = [varied_nodes(seed, size, 40.0, max_moves) for seed in range(seeds)]
            flux = [load_distance(problem, Flux().plan(problem).bin) for problem in problems]
            found = {
                limit: [timed(Milp(time_limit=limit), problem, seed) for seed, problem in enumerate(problems)]
                for limit in limits
            }
            distances = {
                limit: [load_distance(problem, plan.bin) for problem, (plan, _) in zip(problems, plans, strict=True)]
                for limit, plans in found.items()
            }
            known = [min(values) for values in zip(*distances.values(), strict=True)]
            if best:
                longer = [Milp(time_limit=best).plan(problem, seed + 100) for seed, problem in enumerate(problems)]
                known = [min(k, load_distance(p, x.bin)) for k, p, x in zip(known, problems, longer, strict=True)]
            for limit, plans in found.items():
                reached = distances[limit]
                line = {
                    "benchmark": "milp",
                    "nodes": size.nodes,
                    "groups": size.groups,
                    "max_moves": max_moves,
                    "limit_s": limit,
                    "seconds_max": round(max(spent for _, spent in plans), 2),
                    "flux": round(statistics.mean(flux), 4),
                    "load_distance": round(statistics.mean(reached), 4),
                    "never_worse_than_flux": all(one <= other for one, other in zip(reached, flux, strict=True)),
                    "proven": sum(plan.proven for plan, _ in plans),
                }
                if best:
                    above = [one - other for one, other in zip(reached, known, strict=True)]
                    line |= {"best_known_after_s": best, "above_best_max": round(max(above), 4)}
                yield line


def collocations(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a line for ALBIC and one for COLA."""
    for name in ("albic", "cola"):
        problems = [operator_chain(seed, LARGE, 0.5, max_moves=20) for seed in range(seeds)]
        plans = [timed(planner(name), problem, seed) for seed, problem in enumerate(problems)]
        yield {
            "benchmark": name,
            "nodes": LARGE.nodes,
            "groups": LARGE.groups,
            "seconds_max": round(max(spent for _, spent in plans), 2),
            "load_distance": round(
                statistics.mean(load_distance(p, x.bin) for p, (x, _) in zip(problems, plans, strict=True)), 4
            ),
            "collocation_before": round(statistics.mean(collocation(p, p.current) for p in problems), 4),
            "collocation": round(
                statistics.mean(collocation(p, x.bin) for p, (x, _) in zip(problems, plans, strict=True)), 4
            ),
        }


def others(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a line for every planner but the solver, ALBIC and COLA."""
    problems = [varied_nodes(seed, LARGE, 40.0) for seed in range(seeds)]
    for name in names("placement"):
        if name not in ("milp", "albic", "cola"):
            plans = [timed(planner(name), problem, seed) for seed, problem in enumerate(problems)]
            yield {
                "benchmark": name,
                "nodes": LARGE.nodes,
                "groups": LARGE.groups,
                "seconds_max": round(max(spent for _, spent in plans), 3),
                "load_distance": round(
                    statistics.mean(load_distance(p, x.bin) for p, (x, _) in zip(problems, plans, strict=True)), 4
                ),
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--best", type=float, default=60.0)
    parser.add_argument("--only", choices=["milp", "collocation", "others"])
    given = parser.parse_args()
    parts = {
        "milp": lambda: balances(given.seeds, given.best),
        "collocation": lambda: collocations(given.seeds),
        "others": lambda: others(given.seeds),
    }
    for name, part in parts.items():
        if given.only in (None, name):
            for line in part():
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
