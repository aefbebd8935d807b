"""The workers of a cluster, as far as jobs run on them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from dask_elastic.runtime.scheduler.cluster.growth import Growth

if TYPE_CHECKING:
    from distributed import Scheduler

START_SECONDS = 10.0
START_POLL = 0.01
"""Seconds of waiting for a worker that has registered to run, and between two checks: Dask has no event for it."""

FIRST_SECONDS = 600.0
FIRST_POLL = 0.1
"""Seconds of waiting for the first worker of a cluster that grows with its jobs, and between two checks."""

HOSTING = frozenset({"running", "paused"})
"""Statuses in which a worker keeps its cores; Dask pauses a worker that is short of memory."""


class Workers:
    """The registered workers, and those that are to leave.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Registers them.

    Attributes
    ----------
    retiring : set of str
        Addresses of workers that get no more work; see `dask_elastic.retire`.
    growth : Growth
        Whether the cluster grows with its jobs.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.retiring: set[str] = set()
        self.growth = Growth()

    def __contains__(self, address: object) -> bool:
        return address in self.scheduler.workers

    def leaving(self, address: str) -> bool:
        """Return whether a worker has to give up its cores: `dask_elastic.retire` or Dask retires it, or it left."""
        state = self.scheduler.workers.get(address)
        return address in self.retiring or state is None or state.status.name not in HOSTING

    def status(self, address: str) -> str:
        """Return the status of a registered worker, as Dask names it."""
        return str(self.scheduler.workers[address].status.name)

    def usable(self) -> list[str]:
        """Return the addresses of the workers that run and are not retired."""
        running = (w.address for w in self.scheduler.workers.values() if w.status.name == "running")
        return sorted(address for address in running if address not in self.retiring)

    async def ready(self) -> list[str]:
        """Return the same, after the workers that have just registered have started."""
        deadline = time.monotonic() + START_SECONDS
        while any(w.status.name == "init" for w in self.scheduler.workers.values()) and time.monotonic() < deadline:
            await asyncio.sleep(START_POLL)
        return self.usable() or await self._first()

    async def _first(self) -> list[str]:
        """Return the usable workers once there are some, if the cluster starts them for a job that waits."""
        deadline = time.monotonic() + FIRST_SECONDS
        while not self.usable() and self.growth.expected and time.monotonic() < deadline:
            await asyncio.sleep(FIRST_POLL)
        return self.usable()

    def memory(self, address: str) -> int | None:
        """Return the bytes of memory that a worker may have; None without a limit."""
        state = self.scheduler.workers.get(address)
        return int(getattr(state, "memory_limit", None) or 0) or None

    def slots(self, address: str) -> int:
        """Return the cores of a worker; one that is to leave offers none."""
        return 0 if self.leaving(address) else int(self.scheduler.workers[address].nthreads)
