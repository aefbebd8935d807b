"""What the scheduler remembers of one job."""

from __future__ import annotations

import asyncio
import contextlib
import time
from enum import Enum
from typing import Any

from dask_elastic.runtime.job_spec import JobSpec


class Status(Enum):
    """Where a job stands."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({Status.FINISHED, Status.STOPPED, Status.FAILED})
"""The statuses that a job never leaves."""


class JobRecord:
    """One job on the scheduler.

    Parameters
    ----------
    spec : JobSpec
        What was started.
    oversubscribed : bool
        Whether executors share slots.
    """

    def __init__(self, spec: JobSpec, oversubscribed: bool):
        self.spec = spec
        self.oversubscribed = oversubscribed
        self.status = Status.STARTING
        self.finishing = False
        self.error: bytes | None = None
        self.began = time.time()
        self.ended_at: float | None = None
        self.reports: dict[int, dict[str, Any]] = {}
        self.cores = {
            (name, index): dict(by_node) for name, parts in spec.cores.items() for index, by_node in enumerate(parts)
        }
        self._ended = asyncio.Event()

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.spec.job

    @property
    def nodes(self) -> list[str]:
        """Addresses of its nodes, in order."""
        return list(self.spec.nodes)

    def change(self, status: Status) -> None:
        """Take on a status; one that ends the job is for ever."""
        if self.status in ENDED:
            return
        self.status = status
        if status in ENDED:
            self.ended_at = time.time()
            self._ended.set()

    async def ended(self, timeout: float) -> None:
        """Return when the job has ended, or after `timeout` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout)

    def cores_by_address(self) -> dict[str, int]:
        """Cores that the job holds on each worker."""
        held: dict[str, int] = {}
        for by_node in self.cores.values():
            for node, count in by_node.items():
                held[self.nodes[node]] = held.get(self.nodes[node], 0) + count
        return held

    def description(self) -> dict[str, Any]:
        """Everything of interest to a client, as plain values."""
        reports = [self.reports[node] for node in sorted(self.reports)]
        dead: dict[str, int] = {}
        for report in reports:
            for operator, count in report["dead_letters"].items():
                dead[operator] = dead.get(operator, 0) + count
        return {
            "name": self.name,
            "status": self.status.value,
            "error": self.error,
            "began": self.began,
            "ended": self.ended_at,
            "oversubscribed": self.oversubscribed,
            "nodes": self.nodes,
            "operators": [[s.name, s.kind, list(s.inputs), list(s.operators), s.pushed] for s in self.spec.summaries],
            "executors": [measure for report in reports for measure in report["executors"]],
            "sources": [part for report in reports for part in report["sources"]],
            "sinks": [part for report in reports for part in report["sinks"]],
            "dead_letters": dead,
        }
