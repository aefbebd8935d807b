"""Restarts of jobs whose sources and sinks are to leave workers: behind a checkpoint at which sources wait.

Notes
-----
Decision 93. Nothing is lost or shown twice: the sources send nothing behind the barrier of the checkpoint, all sinks
commit it, and only then does the job restart. An ordinary checkpoint comes first, while rows are processed: little is
new for the second one, and a sink that cannot commit, as its readers take nothing, is found before anything waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints, take_committed
from dask_elastic.runtime.scheduler.core_changes import CoreChanges
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.membership import places_of
from dask_elastic.vocab.errors import CheckpointError
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.scheduler")

PAUSE_SECONDS = 60.0
"""Sources wait no longer for a checkpoint; then the job goes on, and the restart fails."""


class PlannedRestarts:
    """Restarts jobs so that what cannot move while they run leaves workers.

    Parameters
    ----------
    cores : CoreChanges
        Has the workers and the calls.
    checkpoints : Checkpoints
        Takes the checkpoints from which jobs restart.
    restart : callable
        ``restart(record, reason)`` restarts a job on the workers that are not to leave, or fails it.
    note : callable
        ``note(record, what, reason)`` keeps a restart among the job's decisions, in a few words and as a sentence.
    """

    def __init__(
        self,
        cores: CoreChanges,
        checkpoints: Checkpoints,
        restart: Callable[[JobRecord, str], Awaitable[None]],
        note: Callable[[JobRecord, str, str], None],
    ):
        self.workers, self.calls = cores.workers, cores.calls
        self.checkpoints = checkpoints
        self._restart = restart
        self._note = note
        self._running: dict[JobRecord, asyncio.Task[None]] = {}

    async def leave(self, record: JobRecord) -> None:
        """Restart a job without the workers that are to leave, unless it has left them or is not running.

        Calls for one job share a restart. It goes on when a caller is cancelled.

        Raises
        ------
        CheckpointError
            If a checkpoint is given up, or sinks do not commit it in time; the job goes on where it is.
        JobEnded
            If the job ends meanwhile.
        """
        running = self._running.get(record)
        if running is None:
            running = self._running[record] = asyncio.ensure_future(self._leave(record))
            running.add_done_callback(lambda done: self._ended(record, done))
        await asyncio.shield(running)

    def cancel(self) -> None:
        """End all restarts that have not begun."""
        for running in [*self._running.values()]:
            running.cancel()

    def _ended(self, record: JobRecord, done: asyncio.Task[None]) -> None:
        del self._running[record]
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("job %r stays on workers that are to leave: %s", record.name, error)

    async def _leave(self, record: JobRecord) -> None:
        state = record.checkpoints
        if state is None or not self._may(record, state):
            return
        await take_committed(self.checkpoints.take, record)
        if not self._may(record, state):
            return
        state.leaving = True
        began = time.monotonic()
        try:
            number, generation = await self._halted(record)
            if self._may(record, state) and record.runs(generation):
                await self._restart_behind(record, number, began)
        finally:
            state.leaving = False
            # The next generation has nothing to wait for.
            if record.live and not (record.halted or state.stopping):
                await self.calls.tell(record, part_calls.ContinueSources(*record.generation_id, state.last))

    def _may(self, record: JobRecord, state: JobCheckpoints) -> bool:
        """Return whether a job runs, and has something on workers that are to leave that does not move."""
        runs = record.status is Status.RUNNING and not (record.halted or record.finishing)
        return runs and not (state.stopping or state.held) and bool(fixed_at(record, self.workers.retiring))

    async def _halted(self, record: JobRecord) -> tuple[int, int]:
        """Take the checkpoint behind which sources wait; returns its number, and the generation that took it."""
        try:
            taken, generation = await asyncio.wait_for(take_committed(self.checkpoints.take, record), PAUSE_SECONDS)
        except TimeoutError as error:
            raise CheckpointError(
                f"job {record.name!r} goes on where it is: the checkpoint for which its sources wait was not committed "
                f"within {PAUSE_SECONDS:g} s. See the workers' logs for what it waits for, then try again."
            ) from error
        return taken.number, generation

    async def _restart_behind(self, record: JobRecord, number: int, began: float) -> None:
        """Restart a job from a checkpoint behind which it has read nothing."""
        left = sorted(address for address in self.workers.retiring if address in record.nodes)
        what = ", ".join(map(str, fixed_at(record, left)))
        reason = f"Worker{'s' if len(left) > 1 else ''} {', '.join(left)} {'are' if len(left) > 1 else 'is'} to leave."
        await self._restart(record, f"{what} must leave. {reason}")
        if record.status is not Status.RUNNING:
            return
        self._note(
            record,
            f"restarted from checkpoint {number}",
            f"{reason} The job was restarted from checkpoint {number} elsewhere with {what}; it paused for "
            f"{time.monotonic() - began:.1f} s.",
        )


def fixed_nodes(record: JobRecord) -> frozenset[int]:
    """Return the nodes on which a job has something that cannot move while it runs."""
    return record.homes.fixed if record.elastic else record.homes.needed


def fixed_at(record: JobRecord, workers: Iterable[str]) -> list[ExecutorId]:
    """Return what a job has on workers and cannot move while it runs: sources, sinks, and executors if it is static."""
    spec, found = record.spec, []
    sources = [name for name in spec.homes if name not in spec.cores]
    sinks = [summary.name for summary in spec.summaries if summary.kind == "sink"]
    for node in sorted(fixed_nodes(record) & places_of(record, workers)):
        found += [] if record.elastic else record.homes.at(node)
        found += [one for name in sources for one in spec.instances(name) if spec.node_of(one) == node]
        found += [ExecutorId(name, node) for name in sinks if spec.sink_inputs(name, node)]
    return found


def obstacle(record: JobRecord) -> str:
    """Return why a job cannot be restarted so that sources and sinks leave a worker; empty if it can."""
    if record.checkpoints is None:
        return "it takes no checkpoints: submit it with checkpoint=, a folder that all workers reach"
    lossy = [summary.name for summary in record.spec.summaries if summary.lossy]
    if lossy:
        return f"rows of {', '.join(lossy)}, which promises at-most-once, would be lost"
    return ""
