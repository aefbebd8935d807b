"""A small simulated cluster under load that carries out the plans of a control loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced

import numpy as np
import pytest

from dask_elastic.model.queueing import mmk_sojourn
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

STEP = 0.02
QUEUE_TIME = 0.1
START = 0.4


@dataclass
class FluidExecutor:
    """One executor: a fluid queue with bounded credit, whose cores take `START` seconds to start."""

    name: ExecutorId
    home: int
    cores: dict[int, int]
    service: float
    rows: float = 1.0
    gil: int | None = None
    state: int = 1 << 20
    nbytes: float = 10.0
    pinned: bool = False
    queue: float = 0.0
    working: dict[int, int] = field(default_factory=dict)
    starting: list[tuple[float, dict[int, int]]] = field(default_factory=list)
    arrived: deque[float] = field(default_factory=lambda: deque(maxlen=round(1 / STEP)))
    done: deque[float] = field(default_factory=lambda: deque(maxlen=round(1 / STEP)))

    def __post_init__(self) -> None:
        self.working = dict(self.cores)

    def set_cores(self, cores: dict[int, int], now: float) -> None:
        self.working = {n: min(c, self.working.get(n, 0)) for n, c in cores.items() if self.working.get(n, 0)}
        self.cores = dict(cores)
        self.starting.append((now + START, dict(cores)))

    def capacity(self, now: float) -> float:
        for due, cores in self.starting:
            if due <= now:
                self.working = {n: c for n, c in cores.items() if n in self.cores}
        self.starting = [(due, cores) for due, cores in self.starting if due > now]
        return self.service * sum(c if self.gil is None else min(c, self.gil) for c in self.working.values())

    def room(self, now: float) -> float:
        return max(QUEUE_TIME * max(self.capacity(now), self.service) - self.queue, 0.0)


@dataclass
class Load:
    """A job: its input rate, the shares of its executors per stage, and its latency target."""

    name: str
    rate: Callable[[float], float]
    stages: Sequence[tuple[Sequence[FluidExecutor], Callable[[float], Sequence[float]]]]
    target: float | None = None
    planner: str = "elasticutor"
    paradigm: str = "executor-centric"
    dry_run: bool = False
    generation: int = 1
    hop: float = 0.005
    behind: float = 0.0

    @property
    def executors(self) -> list[FluidExecutor]:
        return [executor for executors, _ in self.stages for executor in executors]


class Plant:
    """Runs jobs on nodes under a control loop with one tick per second."""

    def __init__(self, nodes: Sequence[NodeSnapshot], loads: Sequence[Load], seed: int = 0, noise: float = 0.0):
        self.nodes = list(nodes)
        self.loads = list(loads)
        self.now = 0.0
        self.noise = noise
        self.random = np.random.default_rng(seed)
        self.plans = []
        self.snapshots = []
        self.throughput = {load.name: [] for load in loads}
        self.latency = {load.name: [] for load in loads}
        self.cores = {load.name: [] for load in loads}

    def run(self, seconds: float, loop, until=None) -> Plant:
        for _ in range(round(seconds)):
            entered = {load.name: 0.0 for load in self.loads}
            for _ in range(round(1 / STEP)):
                for load in self.loads:
                    entered[load.name] += self._flow(load)
                self.now += STEP
            snapshot = self.snapshot()
            plan = loop.tick(snapshot)
            self.snapshots.append(snapshot)
            self.plans.append(plan)
            self.carry_out(plan)
            for load, job in zip(self.loads, snapshot.jobs, strict=True):
                self.throughput[load.name].append(entered[load.name])
                self.latency[load.name].append(job.latency)
                self.cores[load.name].append(tuple(sum(executor.cores.values()) for executor in load.executors))
            if until is not None and until():
                break
        return self

    def carry_out(self, plan) -> None:
        by_name = {
            (load.name, load.generation, executor.name): executor for load in self.loads for executor in load.executors
        }
        for change in plan.changes:
            executor = by_name[change.job, change.generation, change.executor]
            assert executor.cores == dict(change.before)
            executor.set_cores(dict(change.after), self.now)

    def changes(self, name: str, since: float = 0.0) -> int:
        return sum(
            len([change for change in plan.changes if change.job == name])
            for plan, snapshot in zip(self.plans, self.snapshots, strict=True)
            if snapshot.now >= since
        )

    def total(self, name: str) -> int:
        return sum(self.cores[name][-1])

    def used(self) -> list[int]:
        used = [0] * len(self.nodes)
        for load in self.loads:
            for executor in load.executors:
                for node, count in executor.cores.items():
                    used[node] += count
        return used

    def decisions(self, name: str):
        return [decision for plan in self.plans for decision in plan.decisions if decision.job == name]

    def _flow(self, load: Load) -> float:
        load.behind += load.rate(self.now) * STEP
        offered = load.behind
        for position, (executors, shares) in enumerate(load.stages):
            parts = np.asarray(shares(self.now), dtype=float)
            if position == 0:
                room = [
                    executor.room(self.now) / part for executor, part in zip(executors, parts, strict=True) if part > 0
                ]
                offered = min([offered, *room])
                load.behind -= offered
            done = 0.0
            following = load.stages[position + 1] if position + 1 < len(load.stages) else None
            for executor, part in zip(executors, parts, strict=True):
                executor.queue += offered * part
                executor.arrived.append(offered * part)
                able = min(executor.queue, executor.capacity(self.now) * STEP)
                if following is not None:
                    able = min(able, self._room(following) / len(executors))
                executor.queue -= able
                executor.done.append(able)
                done += able
            if position == 0:
                entered = offered
            offered = done
        return entered

    def _room(self, stage) -> float:
        executors, shares = stage
        parts = np.asarray(shares(self.now), dtype=float)
        return min(executor.room(self.now) / part for executor, part in zip(executors, parts, strict=True) if part > 0)

    def _noisy(self, value: float) -> float:
        return float(value * math.exp(self.random.normal(0.0, self.noise))) if self.noise else float(value)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.now, tuple(self.nodes), tuple(self._job(load) for load in self.loads))

    def _job(self, load: Load) -> JobSnapshot:
        measured, sojourns, entering = [], 0.0, sum(sum(executor.arrived) for executor in load.stages[0][0]) or 1.0
        for position, (executors, _) in enumerate(load.stages):
            for executor in executors:
                snapshot = self._measured(executor, entry=position == 0)
                sojourns += sum(executor.arrived) / entering * (snapshot.sojourn or 0.0)
                measured.append(snapshot)
        rate = max(load.rate(self.now), 1e-9)
        latency = load.hop + sojourns + load.behind / rate if entering > 1 else None
        return JobSnapshot(
            load.name, load.generation, tuple(measured), load.target, load.paradigm, load.planner, load.dry_run,
            latency, None if latency is None else 3 * latency,
        )  # fmt: skip

    def _measured(self, executor: FluidExecutor, entry: bool) -> ExecutorSnapshot:
        arrival, done = sum(executor.arrived), sum(executor.done)
        capacity = executor.capacity(self.now)
        held = sum(executor.cores.values())
        working = max(sum(executor.working.values()), 1)
        service = capacity / working if capacity else executor.service
        waiting, stochastic = executor.queue / max(capacity, 1e-9), 1 / executor.service
        if arrival < 0.98 * service * held:
            stochastic = executor.rows * mmk_sojourn(arrival, service, held)
        sojourn = self._noisy(waiting + stochastic) if done else None
        return ExecutorSnapshot(
            executor.name, executor.home, dict(executor.cores), self._noisy(arrival),
            self._noisy(service) if done else None, self._noisy(done), executor.rows,
            round(executor.queue + arrival * max(stochastic - executor.rows / service, 0)), executor.state,
            arrival * executor.nbytes, arrival * executor.nbytes, sojourn, entry, executor.pinned,
        )  # fmt: skip


def executors(operator: str, homes: Sequence[int], cores: Sequence[int], service: float, **more) -> list[FluidExecutor]:
    return [
        FluidExecutor(ExecutorId(operator, i), home, {home: count}, service, **more)
        for i, (home, count) in enumerate(zip(homes, cores, strict=True))
    ]


def nodes(count: int, cores: int, hosts: Sequence[str] | None = None) -> list[NodeSnapshot]:
    return [NodeSnapshot(f"tcp://n{i}:1", hosts[i] if hosts else f"host{i}", cores) for i in range(count)]


class Kit:
    """The classes and functions from which tests build clusters and loads."""

    Load, FluidExecutor, Plant = Load, FluidExecutor, Plant
    executors, nodes = staticmethod(executors), staticmethod(nodes)
    replaced = staticmethod(replaced)

    @staticmethod
    def even(count: int) -> Callable[[float], Sequence[float]]:
        return lambda now: [1 / count] * count


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """Return the classes and functions from which tests build clusters and loads."""
    return Kit
