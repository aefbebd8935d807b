"""The reports of a worker about its parts of jobs: a loop sends them to the scheduler, and does what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from distributed.comm.core import CommClosedError

from dask_elastic.runtime.protocol.reports import Fate, PartReport, Report, report_seconds
from dask_elastic.runtime.transport.error_log import ErrorLog
from dask_elastic.runtime.transport.program_end import program_ends
from dask_elastic.runtime.worker.hosting_node import HostingNode
from dask_elastic.runtime.worker.job_part import JobPart

logger = logging.getLogger("dask_elastic.node")

LATE_SECONDS = 0.25
"""Measuring a part waits for state that is being moved or copied. After this time, others report, and its last report
is repeated."""

ENDED_SECONDS = 60.0
"""Seconds after which a part that has ended asks again whether its job is still known."""


class ReportLoop:
    """Reports on the parts of jobs on a node.

    Parameters
    ----------
    node : HostingNode
        The node.
    clock : callable
        Returns the time, seconds.

    Notes
    -----
    The call that ends or drops a part is lost if the worker hangs or the connection breaks, and the part would go on
    reading and writing, or keep its state, for ever. So the answer to a report also says what becomes of the part.
    """

    def __init__(self, node: HostingNode, clock: Callable[[], float] = time.monotonic):
        self._node = node
        self._clock = clock
        self._errors = ErrorLog(logger, clock)
        self._wanted = asyncio.Event()
        self._closed = False
        # Parts whose report is under way, or still their measurement, or the repetition of the last report.
        self._reporting: set[JobPart] = set()
        self._measuring: set[JobPart] = set()
        self._repeating: set[JobPart] = set()
        # Parts whose report was under way when another one was wanted.
        self._again: set[JobPart] = set()

    def wake(self) -> None:
        """Report without waiting for the interval; called on the event loop."""
        self._again |= self._reporting
        self._wanted.set()

    def close(self) -> None:
        """Begin no more reports."""
        self._closed = True

    async def run(self) -> None:
        """Report until `close` is called."""
        try:
            while not self._closed:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), self._until_reports())
                self._wanted.clear()
                await self._report_all()
                self._errors.settle()
        finally:
            self._errors.settle(ends=True)

    async def _report_all(self) -> None:
        # Not in the loop above, which would keep the last job, and its state, while it waits without any job.
        for job_part in list(self._node.job_parts.values()):
            if job_part.reported_end and self._clock() - job_part.asked_at < ENDED_SECONDS:
                continue
            # One after the other, unless one is late.
            reporting = self._node.spawn(self._guarded(job_part), f"job {job_part.job!r}: the report of its part")
            await asyncio.wait([reporting], timeout=LATE_SECONDS)

    async def _guarded(self, job_part: JobPart) -> None:
        try:
            await (self._repeat(job_part) if job_part in self._reporting else self.report(job_part))
        except Exception as error:  # the other jobs' reports, and the next one of this job, need this loop
            if not program_ends():
                self._errors.note(f"report of job {job_part.job!r}", error)

    def _until_reports(self) -> float:
        parts = [part for part in self._node.job_parts.values() if not part.reported_end]
        interval = min((report_seconds(part.spec.options, part.idle_watch.idle) for part in parts), default=1.0)
        # All nodes report at the same moments, so that their shares of a job's load can be compared.
        return interval - time.time() % interval

    async def report(self, job_part: JobPart) -> None:
        """Report on a part, and do what the scheduler answers."""
        ended = job_part.ended
        self._reporting.add(job_part)
        try:
            report = None if job_part.reported_end else await self._measured(job_part, ended)
            if await self._told(job_part, report):
                job_part.reported_end = ended
        finally:
            self._reporting.discard(job_part)
            if job_part in self._again:
                # Not `wake`: two parts that are late would wake each other for ever.
                self._again.discard(job_part)
                self._wanted.set()

    async def _repeat(self, job_part: JobPart) -> None:
        """Renew the lease of a part that is measured late."""
        if job_part not in self._measuring or job_part in self._repeating:
            # A scheduler that answers late gets no more calls for that.
            return
        self._repeating.add(job_part)
        try:
            await self._told(job_part, None, late=True)
        finally:
            self._repeating.discard(job_part)

    async def _measured(self, job_part: JobPart, ended: bool) -> PartReport | None:
        """Return a report to send; None if the last one still holds."""
        if ended or job_part.is_busy():
            # The last report is made and sent in any case: it may carry the error of the job.
            job_part.idle_watch.note()
        last = job_part.last_report
        if not last.is_due():
            return None
        self._measuring.add(job_part)
        try:
            return last.changed(await self._node.report_on(job_part))
        finally:
            self._measuring.discard(job_part)

    async def _told(self, job_part: JobPart, report: PartReport | None, late: bool = False) -> bool:
        """Send a report, and do what the scheduler answers; returns False if it was not delivered."""
        spec, requested = job_part.spec, time.monotonic()
        job_part.asked_at = self._clock()
        call = Report(*spec.generation_id, spec.node, report, spec.incarnation, late)
        try:
            answer = await self._node.call_scheduler(call)
        except (CommClosedError, OSError, AttributeError) as error:
            # The next report replaces this one; a worker whose scheduler stays unreachable is closed by Dask.
            logger.debug("report of job %r was not delivered: %r", job_part.job, error)
            job_part.last_report.lost()
            return False
        except BaseException:
            job_part.last_report.lost()
            raise
        job_part.threads.lease.renew(requested, answer.lease)
        self._follow(job_part, answer.fate)
        return True

    def _follow(self, job_part: JobPart, fate: Fate) -> None:
        if fate is Fate.ENDS and job_part.end():
            logger.info("job %r has ended, and with it its part here", job_part.job)
        elif fate is Fate.DROPPED:
            self._node.spawn(self._drop(job_part), f"job {job_part.job!r}: dropping its part")

    async def _drop(self, job_part: JobPart) -> None:
        # Another part may have taken its place meanwhile.
        if self._node.job_parts.get(job_part.job) is job_part:
            logger.info("job %r goes on without its part here, or is not known any more: it is dropped", job_part.job)
            await self._node.forget(job_part.job)
