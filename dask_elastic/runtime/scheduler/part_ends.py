"""Ends of the parts of a generation of a job: no later generation starts while a part may still emit."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from distributed.comm.addressing import get_address_host

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import note_ended
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.part_calls import PartCall
from dask_elastic.runtime.protocol.remote_errors import text_of
from dask_elastic.runtime.protocol.reports import report_seconds
from dask_elastic.runtime.scheduler.checkpoint_folders import in_thread
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.transport.ended_process import has_died
from dask_elastic.vocab.errors import CheckpointError
from dask_elastic.vocab.text.shown_url import shown_url

logger = logging.getLogger("dask_elastic.scheduler")

LOOK_SECONDS = 0.1
"""Seconds between two looks whether the process of a lost worker has ended."""

ANSWER_SECONDS = 6.0
"""Seconds that workers have to end their part before the next generation starts without them: those that wait for
threads, or for storage that hangs, answer after 5 s."""

PARTS_SECONDS = 10.0
"""Seconds for which a stop, and a wait for the end, last longer at most until the workers have ended their parts and
written their last files, see `LAST_SECONDS`, and so has the scheduler."""

NOTED_SECONDS = 1.0
"""Seconds for which they last longer after that at least, until the folder says that the job has ended."""

SETTLED_SECONDS = PARTS_SECONDS + NOTED_SECONDS
"""Seconds for all of this, which storage that is slow may need for the end and for the deletion of old files."""

SILENT_SECONDS = 2.0
SILENT_REPORTS = 3
"""A node that has not reported for so many seconds and report intervals is lost, if another node cannot reach it; the
end of a job does not wait for what it writes."""


class PartEnds:
    """Ends the parts of jobs, and knows when none of a generation can emit any more.

    That is certain of a part once its worker has confirmed the end, its process has died, or its lease is over.

    Parameters
    ----------
    calls : WorkerCalls
        Calls the workers.
    committed : callable
        Returns when no epoch of a job is being committed.
    """

    def __init__(self, calls: WorkerCalls, committed: Callable[[str], Awaitable[None]]):
        self.calls = calls
        self._committed = committed
        self._closing = False
        # Starts that call workers, of jobs that have not ended when they begin.
        self._starts: WeakKeyDictionary[JobRecord, set[asyncio.Future[None]]] = WeakKeyDictionary()

    async def settle(self, record: JobRecord) -> str:
        """Return when nothing changes the folder of a job that has ended, or it has had the time for this.

        The caller, or what has ended the job, calls `end` and `note_end`.

        Returns
        -------
        str
            What has not answered, so that the folder may still change; the log has it, too. Empty otherwise.
        """
        began, state = time.monotonic(), record.checkpoints
        unanswered = await self._await_parts(record)
        if state is None:
            return unanswered
        seconds, now = NOTED_SECONDS, time.monotonic()
        # The end of a job whose workers hang is noted when their leases are over.
        if not (unanswered or self._closing or record.leases.held(now)):
            seconds = max(seconds, SETTLED_SECONDS - (now - began))
        try:
            async with asyncio.timeout(seconds):
                await state.end_noted.wait()
                await state.quiet()
        except TimeoutError:
            unanswered = unanswered or self._unanswered(record, state, time.monotonic() - began)
        return unanswered

    async def _await_parts(self, record: JobRecord) -> str:
        """Return when the parts of a job that has ended have written their last files, and no start makes others.

        Nor is a generation, a manifest or an epoch being written, which would appear later. All of this is not waited
        for longer than `PARTS_SECONDS`.
        """
        state = record.checkpoints
        try:
            async with asyncio.timeout(PARTS_SECONDS):
                await self.started(record)
                if state is not None:
                    await state.parts_ended.wait()
                    await self._end_late(record, state)
                    async with state.reserving, state.publishing:
                        pass
                    await self._committed(record.name)
        except TimeoutError:
            return self._unanswered(record, state, PARTS_SECONDS)
        return self._unanswered(record, state, PARTS_SECONDS) if state is not None and state.late else ""

    async def _end_late(self, record: JobRecord, state: JobCheckpoints) -> None:
        """Ask the nodes again whose storage had not answered when they ended their parts."""
        # What a process was writing ends with it.
        state.late = {node for node in state.late if self.calls.present(record.spec.nodes[node])}
        await asyncio.gather(*(self._end(record, node, part_calls.End(*record.generation_id)) for node in state.late))

    def _unanswered(self, record: JobRecord, state: JobCheckpoints | None, seconds: float) -> str:
        """Log and return what has not answered since the end of a job: the folder may still change."""
        starts = self._starts.get(record) or record.leases.held(time.monotonic())
        what = "its workers" if starts or state is None or not state.parts_ended.is_set() else "its storage"
        logger.warning(
            "job %r: %s: no answer within %.1f s of its end%s",
            record.name, what, seconds, "" if state is None else f", and {shown_url(state.url)} may still change",
        )  # fmt: skip
        return what

    @contextmanager
    def start(self, record: JobRecord) -> Iterator[None]:
        """Have the end of a job wait for a start in the block, which ends the parts of a job that ends meanwhile.

        Workers do not host them yet when the end of the job calls them.
        """
        over = asyncio.get_running_loop().create_future()
        starts = self._starts.setdefault(record, set())
        starts.add(over)
        try:
            yield
        finally:
            starts.discard(over)
            if not over.done():
                over.set_result(None)

    async def started(self, record: JobRecord) -> None:
        """Return when no start of a job that has ended calls workers any more."""
        if starts := self._starts.get(record):
            await asyncio.wait([*starts])

    def close(self) -> None:
        """Let no end wait for a start any more, nor long for storage, because the scheduler closes."""
        self._closing = True
        for starts in self._starts.values():
            for over in starts:
                over.cancel()

    async def before_restart(self, record: JobRecord, lost: Collection[str]) -> None:
        """End the parts of a generation that is halted; returns when they cannot emit, or the job has ended.

        Parameters
        ----------
        record : JobRecord
            The job.
        lost : collection of str
            Addresses of workers that need not be called.
        """
        assert record.checkpoints is not None, "only jobs with checkpoints are restarted"
        ending = [
            asyncio.ensure_future(self._end(record, node, part_calls.Forget(*record.generation_id)))
            for node, address in record.spec.members
            if self.calls.present(address) and address not in lost
        ]
        async with record.checkpoints.halting:
            if ending:
                _, waiting = await asyncio.wait(ending, timeout=ANSWER_SECONDS)
                for call in waiting:
                    call.cancel()
                await asyncio.gather(*ending, return_exceptions=True)
        await self._silence(record)

    async def end(self, record: JobRecord) -> None:
        """End the parts of a job that has ended; errors are logged."""
        record.leases.close()
        nodes = [node for node, address in record.spec.members if self.calls.present(address)]
        hang = [node for node in nodes if reports_no_more(record, node)]
        await asyncio.gather(
            self._end_reporting(record, [node for node in nodes if node not in hang]),
            *(self._end(record, node, part_calls.End(*record.generation_id)) for node in hang),
        )

    async def _end_reporting(self, record: JobRecord, nodes: Collection[int]) -> None:
        """End the parts of nodes that report, and note when these write nothing more."""
        await asyncio.gather(*(self._end(record, node, part_calls.End(*record.generation_id)) for node in nodes))
        if record.checkpoints is not None:
            # Workers that a restart has called first host their parts no longer, and may still write their last files.
            async with record.checkpoints.halting:
                record.checkpoints.parts_ended.set()

    async def note_end(self, record: JobRecord) -> None:
        """Write down that a job that has ended cannot emit any more, once this is certain; `resume` need not wait then.

        The caller has called `end`.
        """
        if record.checkpoints is None:
            return
        await self._silence(record, until_ended=False)
        try:
            await self.write_end(record)
        finally:
            record.checkpoints.end_noted.set()

    @staticmethod
    async def write_end(record: JobRecord) -> None:
        """Write down that no part of the newest generation of a job that has ended emits, also if it never starts."""
        state = record.checkpoints
        assert state is not None, "only jobs with checkpoints have a folder"
        try:
            folder = await in_thread(CheckpointFolder, state.url)
            await in_thread(note_ended, folder, max(record.spec.generation, state.reserved))
        except CheckpointError as error:
            logger.warning("job %r: the next resume will wait for its leases: %s", record.name, error)

    async def _end(self, record: JobRecord, node: int, call: PartCall[Any]) -> None:
        leases, address = record.leases, record.spec.nodes[node]
        try:
            answer = await self.calls.one(address, call)
        except Exception as error:  # whatever it is, the part counts as running
            logger.warning("job %r: %s of %s: %s", record.name, call.operation, address, text_of(error))
            return
        leases.end(node)
        if record.checkpoints is not None and isinstance(call, part_calls.End):
            (record.checkpoints.late.add if answer else record.checkpoints.late.discard)(node)

    async def _silence(self, record: JobRecord, until_ended: bool = True) -> None:
        """Return when no part of a generation holds a lease."""
        leases, spec = record.leases, record.spec
        said = False
        while (held := leases.held(time.monotonic())) and not (until_ended and record.ended_at is not None):
            for node in held:
                if await self._has_died(spec.nodes[node]):
                    leases.end(node)
            if not (held := leases.held(time.monotonic())):
                return
            if not said:
                said = True
                listed = ", ".join(spec.nodes[node] for node in sorted(held))
                logger.warning(
                    "job %r: %s may still run: waiting up to %.1f s until its lease is over",
                    record.name, listed, max(held.values()),
                )  # fmt: skip
            await asyncio.sleep(min(LOOK_SECONDS, *held.values()))

    async def _has_died(self, address: str) -> bool:
        """Return whether the process of a worker has certainly ended.

        Notes
        -----
        Only the kernel of the machine where a process ran knows that. On another machine, a firewall or a proxy may
        refuse connections to a process that lives.
        """
        scheme = address.partition("://")[0]
        if scheme == "inproc":
            return not self.calls.present(address)
        return is_local(get_address_host(address)) and await has_died(address)


def reports_no_more(record: JobRecord, node: int) -> bool:
    """Return whether a node of a job has stopped reporting, so that it probably hangs."""
    last = record.reports.get(node)
    if last is None:
        return False
    timeout = max(SILENT_SECONDS, SILENT_REPORTS * report_seconds(record.spec.options, last.idle))
    return time.time() - last.at > timeout


def is_local(host: str) -> bool:
    """Return whether an IP address is one of this machine.

    Examples
    --------
    >>> is_local("127.0.0.1"), is_local("192.0.2.1"), is_local("worker.example")
    (True, False, False)
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((socket.inet_ntop(family, socket.inet_pton(family, host)), 0))
    except OSError:
        return False
    return True
