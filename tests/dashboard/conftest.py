"""A scheduler with a dashboard, and jobs with known values."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from distributed import LocalCluster

from dask_elastic.control.history import History
from dask_elastic.dashboard.cluster_view import ClusterView, JobCard
from dask_elastic.dashboard.display import Display
from dask_elastic.dashboard.prometheus import COLLECTOR
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision, Outlook, Plan
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

START = 1_800_000_000.0


@dataclass
class KnownCluster:
    """A cluster defined by the test: a number of nodes, and jobs with known values."""

    nodes: int = 3
    history: History = field(default_factory=History)
    cards: dict[str, JobCard] = field(default_factory=dict)
    decided: list[Decision] = field(default_factory=list)
    outlook: dict[str, Outlook] = field(default_factory=dict)
    moments: int = 0
    asked: int = 0
    problem: str | None = None
    host: LocalCluster | None = None
    """On whose event loop the history changes, as in the product; None as long as no scheduler displays it."""

    @property
    def addresses(self) -> list[str]:
        return [f"tcp://10.0.0.{node}:4000" for node in range(self.nodes)]

    def view(self) -> ClusterView:
        def list_cards() -> list[JobCard]:
            self.asked += 1
            return list(self.cards.values())

        def list_decisions(job: str) -> list[Decision]:
            return [decision for decision in self.decided if decision.job == job]

        return ClusterView(self.history, list_cards, list_decisions, lambda: self.problem)

    def add(
        self, *jobs: JobSnapshot, outlook: dict[str, Outlook] | None = None, decisions: tuple[Decision, ...] = ()
    ) -> None:
        """Advance by one second, and record these jobs."""
        if self.host is None:
            self._add(jobs, outlook, decisions)
        else:
            on_loop(self.host, self._add, jobs, outlook, decisions)

    def _add(
        self, jobs: tuple[JobSnapshot, ...], outlook: dict[str, Outlook] | None, decisions: tuple[Decision, ...]
    ) -> None:
        nodes = tuple(NodeSnapshot(address, "host", 8) for address in self.addresses)
        self.outlook |= outlook or {}
        plan = Plan(decisions=decisions, outlook=self.outlook)
        self.decided += decisions
        self.history.add(Snapshot(START + self.moments, nodes, jobs), plan)
        self.moments += 1
        for job in jobs:
            cores = {
                (one.executor.component, one.executor.index): {
                    self.addresses[node]: count for node, count in one.cores.items()
                }
                for one in job.executors
            }
            self.cards.setdefault(job.name, JobCard(job.name, "running", began=START + len(self.cards)))
            self.cards[job.name] = replace(self.cards[job.name], cores=lambda known=cores: known)

    def job(self, cores: dict[str, list[dict[int, int]]], name: str = "flights", **options: Any) -> JobSnapshot:
        """Make a job with these cores by operator, executor and node; each core has the same load."""
        executors = tuple(
            self.executor(ExecutorId(operator, index), by_node, entry=place == 0)
            for place, (operator, parts) in enumerate(cores.items())
            for index, by_node in enumerate(parts)
        )
        known = {"latency_target": 0.05, "latency": 0.02, "latency_p99": 0.08, "source_rate": 700.0}
        return JobSnapshot(name, options.pop("generation", 1), executors, **{**known, **options})

    @staticmethod
    def executor(executor: ExecutorId, by_node: dict[int, int], entry: bool) -> ExecutorSnapshot:
        count = sum(by_node.values())
        return ExecutorSnapshot(
            executor,
            home=min(by_node),
            cores=by_node,
            arrival_rate=600.0 * count,
            service_rate=1000.0,
            throughput=500.0 * count,
            queue=7 * count,
            state_bytes=1024 * count,
            sojourn=0.004,
            entry=entry,
            moves=11 * count,
        )

    def decision(self, number: int, **options: Any) -> Decision:
        """Make a decision that gives per_route[0] a core on another node."""
        executor = ExecutorId("per_route", 0)
        change = CoreChange("flights", 1, executor, before={0: 2}, after={0: 2, 1: 1}, moved_bytes=2048.0)
        known: dict[str, Any] = {
            "number": number,
            "time": START + self.moments,
            "job": "flights",
            "generation": 1,
            "target": 0.05,
            "measured": 0.11,
            "predicted": 0.031,
            "feasible": True,
            "wanted": {executor: 3},
            "changes": (change,),
            "applied": True,
            "reason": "per_route[0] is behind",
            "moved_bytes": 2048.0,
        }
        return Decision(**{**known, **options})


@pytest.fixture
def known() -> KnownCluster:
    """A cluster defined by the test."""
    return KnownCluster()


@pytest.fixture(scope="module")
def scheduler_host() -> Iterator[LocalCluster]:
    """A real scheduler with a dashboard, in this process, without workers."""
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


@pytest.fixture
def display(scheduler_host: LocalCluster, known: KnownCluster) -> Iterator[Display]:
    """The display of the known cluster, on the real scheduler."""
    made = Display(scheduler_host.scheduler, known.view())
    on_loop(scheduler_host, made.open)
    known.host = scheduler_host
    # This process may still have schedulers of other tests.
    others = {name: entry for name, entry in COLLECTOR._view.items() if name != scheduler_host.scheduler.address}
    for name in others:
        del COLLECTOR._view[name]
    yield made
    COLLECTOR._view.update(others)
    on_loop(scheduler_host, made.close)


@pytest.fixture
def address(scheduler_host: LocalCluster, display: Display) -> str:
    """The URL of the real scheduler's dashboard."""
    return address_of(scheduler_host)


@pytest.fixture(scope="session")
def get() -> Callable[[str], str]:
    """Return a function that fetches a page."""

    def fetch(url: str) -> str:
        with urllib.request.urlopen(url, timeout=100) as answer:
            return str(answer.read().decode())

    return fetch


@pytest.fixture(scope="session")
def call_on_loop() -> Callable[..., Any]:
    """Return a function that calls another one on a scheduler's event loop."""
    return on_loop


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """Return a function that waits until a condition is true, and fails after a timeout."""

    def wait(condition: Callable[[], Any], what: str, timeout: float = 100) -> Any:
        deadline = time.monotonic() + timeout
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
            time.sleep(0.02)
        return answer

    return wait


def address_of(cluster: LocalCluster) -> str:
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}"


def on_loop(cluster: LocalCluster, function: Callable[..., Any], *arguments: Any) -> Any:
    async def call() -> Any:
        return function(*arguments)

    return cluster.sync(call)
