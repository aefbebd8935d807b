"""Duration of a decision about the homes of a job, and the delays of an event loop beside it.

Prints one JSON line per placement: milliseconds of CPU of a decision that finds homes to move, of those that follow
where a plan gained too little, and of taking a snapshot between two decisions; the moves. The cluster has eight slots
per node, and three executors for each node, of which half communicate with 16 others each; loads change slightly every
second. `decision_ms` is the median of some decisions, after one that imports solvers. Placements where each node has
consecutive executors have two lines: homes that are not consecutive are placed anew, the others by the planner. Then
one line per placement with the delays of an event loop while decisions run back to back in a thread beside it, as in
the scheduler, and without them, which shows the machine's share; and the longest garbage collection meanwhile. What the
process has imported is frozen before, as the plugin does in a scheduler's own process.

    python benchmarks/home_decisions.py [--nodes 1000] [--periods 5] [--placements flux,albic] [--wakes 1500]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from decision import Collections, lateness

from dask_elastic.control.placement.choices import ALIASES, PLACEMENTS, SPREAD, kind_of_placement
from dask_elastic.control.placement.loop import PlacementLoop
from dask_elastic.control.placement.settings import PlacementSettings
from dask_elastic.runtime.transport.switching import ShortTurns, responsive
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, Inputs, JobSnapshot, NodeSnapshot, Snapshot, SourceHome

SLOTS, PER_NODE, ORIGINS, SOURCES = 8, 3, 16, 16
SERVICE = 1_000.0
KEPT = 20
PLANNERS = [name for name in PLACEMENTS if name != SPREAD and name not in ALIASES.values()]


class Cluster:
    """A job with random loads, states, homes and traffic.

    Parameters
    ----------
    nodes : int
        The number of nodes.
    consecutive : bool
        Whether each node has consecutive executors; by default homes are random.
    """

    def __init__(self, nodes: int, consecutive: bool = False, seed: int = 0):
        self.random = np.random.default_rng(seed)
        count = PER_NODE * nodes
        self.nodes = tuple(NodeSnapshot(f"tcp://n{i}:1", f"host{i // 2}", SLOTS, False, 2**34) for i in range(nodes))
        self.home = self.random.integers(nodes, size=count).tolist()
        if consecutive:
            self.home = (np.arange(count) // PER_NODE).tolist()
        self.load = self.random.uniform(0.1, 0.9, count)
        self.state = self.random.lognormal(14, 1, count).astype(int).tolist()
        self.first = count // 2
        # As in the scheduler, all snapshots share them.
        self.identities = [ExecutorId("a", index) for index in range(self.first)]
        self.identities += [ExecutorId("b", index) for index in range(count - self.first)]
        self.origins = [
            ((name,) * ORIGINS, self.random.integers(most, size=ORIGINS))
            for index in range(count)
            for name, most in [("rows", SOURCES) if index < self.first else ("a", self.first)]
        ]
        self.rates = self.random.uniform(1e3, 1e6, (count, ORIGINS))
        self.sources = tuple(SourceHome("rows", index, index % nodes) for index in range(SOURCES))

    def snapshot(self, now: float, placement: str) -> Snapshot:
        """Return the measurements of a second."""
        loads = (self.load * self.random.normal(1.0, 0.03, len(self.load))).tolist()
        executors = tuple(
            ExecutorSnapshot(
                identity, home, {home: 1}, load * SERVICE, SERVICE, load * SERVICE, state_bytes=state,
                bytes_in=1e5 * load, traffic=Inputs(*origins, rates),
            )
            for identity, home, load, state, origins, rates in zip(
                self.identities, self.home, loads, self.state, self.origins, self.rates, strict=True
            )
        )  # fmt: skip
        return Snapshot(now, self.nodes, (JobSnapshot("job", 1, executors, placement=placement, sources=self.sources),))


def decisions(cluster: Cluster, placement: str, periods: int) -> dict[str, Any]:
    """Measure decisions of a placement; its moves are not carried out, so that each plan begins anew."""
    PlacementLoop(PlacementSettings()).decide(cluster.snapshot(0.0, placement))
    loop, spent, calm, ticks, moves = PlacementLoop(PlacementSettings(), pause=ShortTurns()), [], [], [], 0
    # As the control loop does, so that those of a period are not freed by its decision.
    kept: deque[Snapshot] = deque(maxlen=KEPT)
    for second in range(11 * (periods + 1)):
        snapshot = cluster.snapshot(float(second), placement)
        kept.append(snapshot)
        began = time.thread_time()
        found = loop.tick(snapshot)
        milliseconds = (time.thread_time() - began) * 1e3
        if not found:
            ticks.append(milliseconds)
        elif found[0].reason.startswith("hardly"):
            calm.append(milliseconds)
        else:
            spent.append(milliseconds)
            moves = len(found[0].moves or found[0].deferred)
    return {
        "benchmark": "home_decisions",
        "placement": placement,
        "nodes": len(cluster.nodes),
        "executors": len(cluster.load),
        "decision_ms": round(statistics.median(spent), 1),
        "unchanged_ms": round(statistics.median(calm), 1) if calm else None,
        "snapshot_ms": round(statistics.median(ticks), 1),
        "moves": moves,
    }


def event_loop(cluster: Cluster, placement: str, wakes: int) -> dict[str, Any]:
    """Measure the delays of an event loop beside decisions."""
    loop = PlacementLoop(PlacementSettings(), pause=ShortTurns())
    kept = cluster.snapshot(0.0, placement)
    loop.decide(kept)

    def decide() -> None:
        with responsive():
            loop.decide(kept)
            loop._jobs.clear()

    line: dict[str, Any] = {"benchmark": "home_decisions", "placement": placement, "setting": "event loop"}
    gc.collect()
    gc.freeze()
    for name, work in (("without", None), ("beside", decide)):
        with Collections() as collections:
            late = asyncio.run(lateness(wakes, work))
        line |= {
            f"late_median_ms_{name}": round(statistics.median(late), 2),
            f"late_p99_ms_{name}": round(float(np.quantile(late, 0.99)), 2),
            f"late_max_ms_{name}": round(max(late), 2),
            f"over_5_ms_{name}": sum(one > 5 for one in late),
            f"gc_max_ms_{name}": round(collections.longest * 1e3, 2),
        }
    return line


def lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the lines of all placements."""
    cluster, ordered = Cluster(options.nodes), Cluster(options.nodes, consecutive=True)
    for placement in options.placements.split(","):
        yield decisions(cluster, placement, options.periods)
        if kind_of_placement(placement) != "placement":
            yield decisions(ordered, placement, options.periods) | {"homes": "consecutive"}
    for placement in options.placements.split(","):
        if options.wakes:
            yield event_loop(cluster, placement, options.wakes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--periods", type=int, default=5)
    parser.add_argument("--placements", default=",".join(PLANNERS))
    parser.add_argument("--wakes", type=int, default=1_500)
    options = parser.parse_args()
    for line in lines(options):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
