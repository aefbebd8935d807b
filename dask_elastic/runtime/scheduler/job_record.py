"""What the scheduler remembers of one job."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from dask_elastic.runtime.protocol.job_spec import STATIC, JobSpec
from dask_elastic.runtime.protocol.job_status import ENDED, JobEvent, Status, next_status

ExecutorKey = tuple[str, int]
"""Operator and number of an executor."""


class JobRecord:
    """One job on the scheduler.

    Parameters
    ----------
    spec : JobSpec
        What was started; its nodes change.
    oversubscribed : bool
        Whether executors share slots.
    components : bytes
        The pickled components, for nodes that join.
    pinned : iterable of (str, int)
        Executors whose cores somebody chose.

    Attributes
    ----------
    cores : dict
        Cores of each executor by node, as its home was told last.
    pinned : set
        Executors whose cores are not to be changed by themselves.
    changing : dict of asyncio.Lock
        Held while the cores of an executor change.
    membership : asyncio.Lock
        Held while nodes join or leave.
    incarnations : dict
        Which joining each node is of that was not there from the beginning.
    expelling : set of str
        Lost workers that are about to leave the job.
    suspects : dict
        For each home what lost nodes had at hand, until it has come through it: the number under which it said so,
        operator, and batch.
    refused : int
        Reports of nodes that had left.
    """

    def __init__(
        self, spec: JobSpec, oversubscribed: bool, components: bytes = b"", pinned: Iterable[ExecutorKey] = ()
    ):
        self.spec = spec
        self.oversubscribed = oversubscribed
        self.components = components
        self.pinned = set(pinned)
        self.changing: defaultdict[ExecutorKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.membership = asyncio.Lock()
        self.status = Status.STARTING
        self.finishing = False
        self.error: bytes | None = None
        self.began = time.time()
        self.ended_at: float | None = None
        self.reports: dict[int, dict[str, Any]] = {}
        self.cores: dict[ExecutorKey, dict[int, int]] = {
            (name, index): dict(by_node) for name, parts in spec.cores.items() for index, by_node in enumerate(parts)
        }
        self.refused = 0
        self.changes = 0
        self.core_changes = 0
        self.joinings = 0
        self.incarnations: dict[int, int] = {}
        self.expelling: set[str] = set()
        self.suspects: dict[int, tuple[int, str, int]] = {}
        self._letters: Counter[str] = Counter()
        self._ended = asyncio.Event()

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.spec.job

    @property
    def nodes(self) -> list[str]:
        """Addresses of its nodes, in order; `VACANT` for those that have left."""
        return list(self.spec.nodes)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the nodes that have not left."""
        return [address for _, address in self.spec.members]

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status not in ENDED

    @property
    def elastic(self) -> bool:
        """Whether its cores may change."""
        return self.spec.options.paradigm != STATIC

    @property
    def complete(self) -> bool:
        """Whether every node has said that nothing is left to do there."""
        return all(node in self.reports and self.reports[node]["complete"] for node, _ in self.spec.members)

    def change(self, event: JobEvent) -> None:
        """Change the status as the table of `job_status` says; events after the end are late and change nothing."""
        if not self.live:
            return
        self.status = next_status(self.name, self.status, event)
        if self.status in ENDED:
            self.components = b""
            self.ended_at = time.time()
            self._ended.set()

    def holds(self, node: int) -> bool:
        """Whether a node is anybody's home, runs a source, or has cores of an executor."""
        return node in self.spec.settled or any(node in by_node for by_node in self.cores.values())

    def needs(self, address: str) -> bool:
        """Whether the loss of a worker ends the job: only what is at home there is nowhere else."""
        if address not in self.spec.nodes:
            return False
        return self.status is Status.STARTING or self.spec.nodes.index(address) in self.spec.settled

    def admits(self, generation: int, node: int, incarnation: int) -> bool:
        """Whether a node is part of the job as what it says of itself; counts those that are not."""
        present = any(place == node for place, _ in self.spec.members)
        if self.spec.generation == generation and present and self.incarnations.get(node, 0) == incarnation:
            return True
        self.refused += 1
        return False

    def leave(self, address: str) -> None:
        """Forget a node that holds nothing any more, but for the rows that it set aside."""
        report = self.reports.pop(self.spec.nodes.index(address), None)
        if report is not None:
            self._letters.update(report["dead_letters"])
            self.refused += report["refused"]
        self.spec = self.spec.without(address)

    async def ended(self, timeout: float) -> None:
        """Return when the job has ended, or after `timeout` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout)

    def cores_by_address(self) -> dict[str, int]:
        """Cores that the job holds on each worker."""
        nodes = self.spec.nodes
        held: dict[str, int] = {}
        for by_node in self.cores.values():
            for node, count in by_node.items():
                held[nodes[node]] = held.get(nodes[node], 0) + count
        return held

    def staged(self, source: str) -> tuple[int, int]:
        """Bytes of handed-over rows that the instances of a source hold in memory, and on disk."""
        held = [part for report in self.reports.values() for part in report["staged"] if part[0] == source]
        return sum(kept for _, kept, _ in held), sum(spilled for _, _, spilled in held)

    def description(self) -> dict[str, Any]:
        """Everything of interest to a client, as plain values."""
        reports = [self.reports[node] for node in sorted(self.reports)]
        dead = Counter(self._letters)
        for report in reports:
            dead.update(report["dead_letters"])
        return {
            "name": self.name,
            "run": self.spec.generation,
            "status": self.status.value,
            "error": self.error,
            "began": self.began,
            "ended": self.ended_at,
            "oversubscribed": self.oversubscribed,
            "latency_target": self.spec.options.latency_target,
            "planner": self.spec.options.planner,
            "paradigm": self.spec.options.paradigm,
            "dry_run": self.spec.options.dry_run,
            "pinned": [list(key) for key in sorted(self.pinned)],
            "nodes": self.nodes,
            "operators": [[s.name, s.kind, list(s.inputs), list(s.operators), s.pushed] for s in self.spec.summaries],
            "executors": [measure for report in reports for measure in report["executors"]],
            "sources": [part for report in reports for part in report["sources"]],
            "sinks": [part for report in reports for part in report["sinks"]],
            "event_times": [part for report in reports for part in report["event_times"]],
            "dead_letters": dict(dead),
            "refused": self.refused + sum(report["refused"] for report in reports),
        }
