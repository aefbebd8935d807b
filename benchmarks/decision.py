"""Duration of a decision, from a snapshot of the cluster to a plan.

Prints one JSON line per setting, with the median and the maximum tick in milliseconds, the median and the first tick in
milliseconds of CPU, and the changes per tick: 32 nodes with 8 cores and 96 executors of three jobs, whose arrivals
change slightly every second ("drift"), are redistributed every few seconds ("shuffle"), or far exceed the capacity of
the cores ("overload"). The first tick of the first setting is that of the process. The last line has the delays of an
event loop while ticks run back to back in a thread beside it, as in the scheduler, and without them, which shows the
machine's share; and the longest garbage collection meanwhile, which stops all threads. What the process has imported is
frozen before, as the plugin does in a scheduler's own process.

    python benchmarks/decision.py [--ticks 60] [--nodes 32] [--executors 96] [--wakes 3000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from dask_elastic.control.loop import ControlLoop
from dask_elastic.runtime.transport.switching import ShortTurns, responsive
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

CORES = 8
SERVICE = 1_000.0
SHARDS = 256
JOBS = 3
TARGETS = (0.05, 0.01, None)
SHUFFLE_SECONDS = 5


class Collections:
    """Context manager that measures the longest garbage collection."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = 0.0

    def __enter__(self) -> Collections:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *raised: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest = max(self.longest, time.perf_counter() - self._began)


class Cluster:
    """Executors with the cores of the last plan, under seeded random loads."""

    def __init__(self, nodes: int, executors: int, busy: float, seed: int = 0):
        self.random = np.random.default_rng(seed)
        self.nodes = tuple(NodeSnapshot(f"tcp://n{i}:1", f"host{i // 2}", CORES) for i in range(nodes))
        self.home = np.arange(executors) % nodes
        self.cores = [{int(home): 1} for home in self.home]
        for node in range(nodes):
            here = np.flatnonzero(self.home == node)
            for executor in self.random.choice(here, CORES - len(here)) if len(here) else ():
                self.cores[executor][node] += 1
        self.share = self.random.dirichlet(np.full(executors, 4.0))
        self.total = busy * CORES * nodes
        self.state = self.random.lognormal(16, 1, executors)
        self.nbytes = self.random.choice([1e3, 1e5, 3e6], executors)
        # As in the scheduler, all snapshots share them.
        self.identities = [ExecutorId("op", number) for number in range(executors)]

    def shuffle(self) -> None:
        self.share = self.random.permutation(self.share)

    def snapshot(self, now: float, pause: Callable[[], None]) -> Snapshot:
        loads = self.share * self.total * self.random.normal(1.0, 0.03, len(self.share))
        executors = []
        for number, load in enumerate(loads.tolist()):
            executors.append(self._executor(number, max(load, 0.01)))
            pause()
        parts = np.array_split(np.arange(len(executors)), JOBS)
        jobs = tuple(
            JobSnapshot(f"job{i}", 1, tuple(executors[j] for j in part), target, latency=0.02, latency_p99=0.1)
            for i, (part, target) in enumerate(zip(parts, TARGETS, strict=True))
        )
        return Snapshot(now, self.nodes, jobs)

    def _executor(self, number: int, load: float) -> ExecutorSnapshot:
        held = sum(self.cores[number].values())
        done = min(load, held) * SERVICE
        shards = self.random.dirichlet(np.full(SHARDS, 2.0))
        return ExecutorSnapshot(
            self.identities[number], int(self.home[number]), self.cores[number], done, SERVICE, done, 1.0,
            int(0.1 * held * SERVICE) if load > held else 3, int(self.state[number]), self.nbytes[number],
            self.nbytes[number] / 2, 0.002, shard_load=shards * min(load, held), shard_bytes=shards * 1e6,
        )  # fmt: skip

    def carry_out(self, plan: Plan) -> None:
        for change in plan.changes:
            self.cores[change.executor.index] = dict(change.after)


def ticks(cluster: Cluster, number: int, shuffled: bool) -> Iterator[tuple[float, float, int]]:
    """Yield seconds, seconds of CPU and number of changes of each tick."""
    pause = ShortTurns()
    loop = ControlLoop(clock=time.perf_counter, pause=pause)
    for second in range(number):
        if shuffled and second % SHUFFLE_SECONDS == 0:
            cluster.shuffle()
        snapshot = cluster.snapshot(float(second), pause)
        started, busy = time.perf_counter(), time.process_time()
        plan = loop.tick(snapshot)
        spent, consumed = time.perf_counter() - started, time.process_time() - busy
        cluster.carry_out(plan)
        yield spent, consumed, len(plan.changes)


async def lateness(count: int, work: Callable[[], object] | None) -> list[float]:
    """Return the delays of an event loop's wake-ups in milliseconds, while a thread repeats `work`."""
    late: list[float] = []
    running = asyncio.get_running_loop()
    beside = running.run_in_executor(None, work) if work else None
    while len(late) < count:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - began - 0.001) * 1e3)
        if work and beside and beside.done():
            beside.result()
            beside = running.run_in_executor(None, work)
    if beside:
        await beside
    return late


def event_loop(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the delays of an event loop, with and without decisions beside it."""
    pause, seconds = ShortTurns(), count()
    cluster, loop = Cluster(options.nodes, options.executors, 1.5), ControlLoop(pause=pause)

    def decide() -> None:
        with responsive():
            cluster.shuffle()
            cluster.carry_out(loop.tick(cluster.snapshot(float(next(seconds)), pause)))

    line: dict[str, Any] = {"benchmark": "decision", "setting": "event loop"}
    gc.collect()
    gc.freeze()
    for name, work in (("without", None), ("beside", decide)):
        with Collections() as collections:
            late = asyncio.run(lateness(options.wakes, work))
        line |= {
            f"late_median_ms_{name}": round(statistics.median(late), 2),
            f"late_p99_ms_{name}": round(float(np.quantile(late, 0.99)), 2),
            f"late_max_ms_{name}": round(max(late), 2),
            f"over_5_ms_{name}": sum(one > 5 for one in late),
            f"gc_max_ms_{name}": round(collections.longest * 1e3, 2),
        }
    return line | {"wakes": options.wakes}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--executors", type=int, default=96)
    parser.add_argument("--wakes", type=int, default=3_000)
    options = parser.parse_args()
    for setting, busy, shuffled in (("drift", 0.6, False), ("shuffle", 0.6, True), ("overload", 1.5, True)):
        cluster = Cluster(options.nodes, options.executors, busy)
        gc.collect()
        found = list(ticks(cluster, options.ticks, shuffled))
        spent = [seconds * 1e3 for seconds, _, _ in found]
        cpu = [seconds * 1e3 for _, seconds, _ in found]
        line = {
            "benchmark": "decision",
            "setting": setting,
            "nodes": options.nodes,
            "cores": CORES * options.nodes,
            "executors": options.executors,
            "changes_per_tick": round(statistics.mean(changes for _, _, changes in found), 1),
            "median_ms": round(statistics.median(spent), 2),
            "max_ms": round(max(spent), 2),
            "cpu_median_ms": round(statistics.median(cpu), 2),
            "cpu_first_ms": round(cpu[0], 2),
        }
        print(json.dumps(line), flush=True)
    print(json.dumps(event_loop(options)), flush=True)


if __name__ == "__main__":
    main()
