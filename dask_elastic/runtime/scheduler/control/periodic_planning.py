"""What the drivers of slow planners share: periods in a thread of their own, and one task of moves for each job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor

from dask_elastic.control.placement.choices import SPREAD
from dask_elastic.runtime.protocol.remote_errors import Relayed
from dask_elastic.runtime.scheduler.control_driver import ControlDriver
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.transport.error_log import ErrorLog
from dask_elastic.runtime.transport.program_end import is_shut_down
from dask_elastic.vocab.errors import ElasticError
from dask_elastic.vocab.snapshot import Snapshot

logger = logging.getLogger("dask_elastic.scheduler")

FAILURES = (ElasticError, Relayed, OSError, TimeoutError)
"""Errors for which a planned move is not carried out; the planner plans again."""

PLANNING_SHARE = 0.05
"""Share of a processor that planning may take: a planner that needs long for a large cluster decides less often."""


class PeriodicPlanning(ABC):
    """Has a planner decide periodically beside the control loop, while there are jobs for it.

    Parameters
    ----------
    what : str
        What the planner moves, as a noun in the plural.
    jobs : JobTable
        The jobs.
    control : ControlDriver
        Has the snapshots and the settings, and keeps the decisions.

    Attributes
    ----------
    error : str or None
        The error of the last period.
    """

    def __init__(self, what: str, jobs: JobTable, control: ControlDriver):
        self.what = what
        self.jobs = jobs
        self.control = control
        self.settings = control.options.placement
        self.error: str | None = None
        self._errors = ErrorLog(logger)
        self._seen: Snapshot | None = None
        self._spent: deque[float] = deque(maxlen=2)
        self._task: asyncio.Task[None] | None = None
        self._moving: dict[str, asyncio.Task[None]] = {}

    @abstractmethod
    def places(self, record: JobRecord) -> bool:
        """Return whether the planner of a running job, which has one, decides here."""

    @abstractmethod
    async def period(self, pool: ThreadPoolExecutor) -> None:
        """Decide on the snapshots since the last period in the pool's thread, and begin to carry the decisions out."""

    def wait(self) -> float:
        """Return the seconds until the next decision: longer if the last ones took long."""
        # One decision may have taken long because it imported a solver, as the first one does.
        spent = min(self._spent) if len(self._spent) == self._spent.maxlen else 0.0
        return max(self.settings.period, spent / PLANNING_SHARE)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the processor time of a block, in the thread of the planner, as that of a decision."""
        began = time.thread_time()
        yield
        self._spent.append(time.thread_time() - began)

    def wake(self) -> None:
        """Start the periods if a job has a planner, unless they run."""
        if self.placed() and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop the periods, and the moves that have not begun."""
        for task in (self._task, *self._moving.values()):
            if task is not None:
                task.cancel()

    def placed(self) -> list[JobRecord]:
        """Return the running jobs for which the planner decides."""
        return [one for one in self.jobs.running if one.spec.options.placement != SPREAD and self.places(one)]

    def fresh(self) -> list[Snapshot]:
        """Return the snapshots of this period, oldest first."""
        kept = self.control.snapshot_log.snapshots
        if not kept:
            return []
        found: list[Snapshot] = []
        left, later = self.wait(), kept[-1]
        for snapshot in reversed(kept):
            # Times that come again, because the clock was set back, take none of the period.
            left -= max(later.now - snapshot.now, 0.0)
            if snapshot is self._seen or left <= 0:
                break
            found.append(snapshot)
            later = snapshot
        self._seen = kept[-1]
        return found[::-1]

    def begin(self, job: str, moves: Callable[[], Coroutine[None, None, None]]) -> None:
        """Carry out a plan for a job, unless an earlier one is still carried out."""
        if job not in self._moving:
            task = self._moving[job] = asyncio.ensure_future(moves())
            task.add_done_callback(lambda task: self._moved(job, task))

    def _moved(self, job: str, task: asyncio.Task[None]) -> None:
        del self._moving[job]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("job %r: %s could not be moved", job, self.what, exc_info=error)

    async def _run(self) -> None:
        """Run a period after the other, until no job has a planner."""
        pool = ThreadPoolExecutor(1, thread_name_prefix=f"elastic-control-{self.what.replace(' ', '-')}")
        try:
            while self.placed():
                await asyncio.sleep(self.wait())
                if not await self._guarded_period(pool):
                    return
        finally:
            self._errors.settle(ends=True)
            pool.shutdown(wait=False)

    async def _guarded_period(self, pool: ThreadPoolExecutor) -> bool:
        """Run a period; returns whether others can follow: not once the program has shut the pool down."""
        try:
            await self.period(pool)
        except Exception as error:  # an error of any kind ends this period only
            if isinstance(error, RuntimeError) and is_shut_down(pool):
                return False
            self._errors.note(f"the planning of {self.what}", error)
            self.error = f"{type(error).__name__}: {error}"
        else:
            self.error = None
        self._errors.settle()
        return True
