"""The scheduler's part in the heartbeats: it finds workers that hang although no other worker watches them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from dask_elastic.runtime.config.worker_options import WorkerOptions
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.remote_errors import Relayed
from dask_elastic.runtime.protocol.reports import report_seconds
from dask_elastic.runtime.scheduler.job_record import MISSED_REPORTS, JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.transport.error_log import ErrorLog
from dask_elastic.vocab.errors import ElasticError

logger = logging.getLogger("dask_elastic.scheduler")


class Heartbeats:
    """Watches the nodes of running jobs: a report is a heartbeat, and a worker that does not report is pinged.

    Parameters
    ----------
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Pings the workers.
    options : WorkerOptions
        Interval and timeout of heartbeats.
    on_hung : callable
        Called with the address of a worker that has neither reported nor answered pings.

    Notes
    -----
    Workers watch each other, but the only worker of a job has no peer. Reports alone do not tell a worker that hangs
    from one that is late; pings do, also after the scheduler itself was suspended.
    """

    def __init__(self, jobs: JobTable, calls: WorkerCalls, options: WorkerOptions, on_hung: Callable[[str], None]):
        self.jobs = jobs
        self.calls = calls
        self.options = options
        self.on_hung = on_hung
        self._task: asyncio.Task[None] | None = None
        self._pings: dict[str, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Start to watch, unless it does; it ends by itself when no job runs."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop watching."""
        tasks: list[asyncio.Task[Any] | None] = [self._task, *self._pings.values()]
        for task in tasks:
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        errors = ErrorLog(logger)
        try:
            while self.jobs.running:
                try:
                    self._look()
                except Exception as error:  # the next look pings: only this finds a worker without peers that hangs
                    errors.note("the watch over heartbeats", error)
                errors.settle()
                await asyncio.sleep(self.options.heartbeat_interval)
        finally:
            errors.settle(ends=True)

    def _look(self) -> None:
        for address in self.silent(time.time()):
            if address not in self._pings:
                self._pings[address] = asyncio.ensure_future(self._ping(address))

    def silent(self, now: float) -> set[str]:
        """Return the nodes of running jobs that should have reported."""
        return {
            address
            for record in self.jobs.running
            if not record.starting
            for node, address in record.spec.members
            if not self._reported(record, node, now)
        }

    async def _look_for_parts(self, address: str) -> None:
        """Ask a worker that answers, but does not report, for the parts of jobs that need it.

        `WorkerCalls` reports those that it does not host.
        """
        for record in self.jobs.running:
            if not record.starting and record.needs(address) and address in self.silent(time.time()):
                with contextlib.suppress(ElasticError, Relayed):
                    await self.calls.of_home(record, address, part_calls.Report(*record.generation_id))

    def _reported(self, record: JobRecord, node: int, now: float) -> bool:
        """Return whether the last report of a node is recent; none is if the clock was set back since."""
        last = record.reports.get(node)
        at, idle = (record.generation_began, False) if last is None else (last.at, last.idle)
        interval = report_seconds(record.spec.options, idle)
        return at <= now <= at + max(self.options.heartbeat_timeout, MISSED_REPORTS * interval)

    async def _ping(self, address: str) -> None:
        try:
            if self.calls.present(address) and not await self.calls.answers(address):
                logger.warning("worker %s neither reports nor answers", address)
                self.on_hung(address)
            elif self.calls.present(address):
                await self._look_for_parts(address)
        except Exception:  # the next look pings again
            logger.exception("ping of worker %s", address)
        finally:
            del self._pings[address]
