"""All jobs of a cluster on the scheduler: the components that start, watch, change and end them, and their handlers."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from dask_elastic._version import __version__
from dask_elastic.runtime.config.control_options import ControlOptions, control_options
from dask_elastic.runtime.config.worker_options import WorkerOptions, worker_options
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import HandledCall, Handler, Version, handlers_of
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_status import JobEvent
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.runtime.scheduler.checkpoint_folders import in_thread, place_of
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints
from dask_elastic.runtime.scheduler.cluster.cluster_needs import ClusterNeeds
from dask_elastic.runtime.scheduler.control.published_decisions import TOPIC
from dask_elastic.runtime.scheduler.control_driver import ControlDriver
from dask_elastic.runtime.scheduler.core_changes import CoreChanges
from dask_elastic.runtime.scheduler.epoch_commits import EpochCommits
from dask_elastic.runtime.scheduler.groups.group_moves import GroupMoves
from dask_elastic.runtime.scheduler.groups.planning_driver import GroupPlanningDriver
from dask_elastic.runtime.scheduler.heartbeats import Heartbeats
from dask_elastic.runtime.scheduler.homes.home_moves import HomeMoves
from dask_elastic.runtime.scheduler.homes.placement_driver import PlacementDriver
from dask_elastic.runtime.scheduler.homes.planned_restarts import PlannedRestarts
from dask_elastic.runtime.scheduler.homes.retirement import Retirement
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.scheduler.job_health import JobHealth
from dask_elastic.runtime.scheduler.job_queries import JobQueries
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_starts import Candidates, JobStarts
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.membership import Membership
from dask_elastic.runtime.scheduler.output_queues import OutputQueues
from dask_elastic.runtime.scheduler.part_ends import PartEnds
from dask_elastic.runtime.scheduler.pushed_sources import PushedSources
from dask_elastic.runtime.scheduler.restarts import Restarts
from dask_elastic.runtime.scheduler.savepoints import Savepoints
from dask_elastic.runtime.scheduler.windows.sharing_changes import SharingChanges
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab.errors import CheckpointSuperseded, SubmitError
from dask_elastic.vocab.plan import HomeChange
from dask_elastic.vocab.text.shown_url import shown_url

if TYPE_CHECKING:
    from distributed import Scheduler

logger = logging.getLogger("dask_elastic.scheduler")

T = TypeVar("T")

KEPT_JOBS = 16
"""Ended jobs that are kept; the oldest beyond them are forgotten."""


class Coordinator:
    """Hosts all jobs of a cluster.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler of the cluster.

    Attributes
    ----------
    jobs : JobTable
        The jobs.
    controller : ControlDriver
        The control loop, with its history and decisions.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.jobs = JobTable()
        self.workers = Workers(scheduler)
        # Of jobs that run, start or have ended, by name.
        self._folders: dict[str, str] = {}
        self._misconfigured: SubmitError | None = None
        control = self._configured(control_options, ControlOptions)
        worker = self._configured(worker_options, WorkerOptions)
        self.calls = WorkerCalls(scheduler, worker.heartbeat_timeout, lambda *lost: self.health.part_lost(*lost))
        self.cores = CoreChanges(self.workers, self.jobs, self.calls)
        self.membership = Membership(self.workers, self.jobs, self.calls, self.cores)
        self.sharing = SharingChanges(self.jobs, self.calls, functools.partial(scheduler.log_event, TOPIC))
        self.controller = ControlDriver(scheduler, self.membership, self.cores, control, self.sharing.look)
        self.ends = PartEnds(self.calls, lambda job: self.epochs.settled(job))
        self.starts = JobStarts(self.workers, self.jobs, self.calls, self.ends)
        self.checkpoints = Checkpoints(self.jobs, self.calls)
        self.restarts = Restarts(self.starts, self.calls, self.ends, self.cores, self._runs)
        self.health = JobHealth(
            self.jobs,
            self.calls,
            self.membership,
            self.controller.look_soon,
            self.restarts,
            self.ends,
            self.checkpoints,
            functools.partial(scheduler.log_event, TOPIC),
        )
        self.homes = HomeMoves(self.cores, self.membership, self.checkpoints, self.health.move_failed, self._home_moved)
        self.leaving = PlannedRestarts(
            self.cores, self.checkpoints, self.health.restart_elsewhere, self.controller.note_others
        )
        self.groups = GroupMoves(
            self.jobs, self.calls, self.checkpoints, self.health.group_move_failed, self.controller.note_others
        )
        self.group_planning = GroupPlanningDriver(self.groups, self.controller)
        self.retirement = Retirement(self.membership, self.homes, self.leaving, control.retire_timeout)
        self.placement = PlacementDriver(self.homes, self.retirement, self.controller)
        self.heartbeats = Heartbeats(self.jobs, self.calls, worker, self.health.hung)
        self.queries = JobQueries(self.jobs, self.calls)
        self.epochs = EpochCommits(scheduler, self.jobs, self.calls, self.health.fail)
        self.savepoints = Savepoints(self.jobs, self.calls, self.checkpoints, self._stop, self.epochs.settled)
        self.queues = OutputQueues(scheduler, self.jobs, self.calls)
        self.pushed = PushedSources(self.workers, worker.max_frame, self.jobs, self.calls, self.epochs)
        self.cluster = ClusterNeeds(self.workers, self.jobs, self.controller)

    def _configured(self, read: Callable[[], T], default: Callable[[], T]) -> T:
        try:
            return read()
        except SubmitError as error:  # raised when a job is submitted
            logger.error("%s", error)
            self._misconfigured = error
            return default()

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by operation; none raises into Dask."""
        own: list[HandledCall] = [
            Version.handled_by(self.version),
            job_calls.Submit.handled_by(self.submit),
            job_calls.ListJobs.handled_by(self.list_jobs),
            job_calls.Describe.handled_by(self.describe),
            job_calls.Wait.handled_by(self.wait),
            job_calls.Drain.handled_by(self.drain),
            job_calls.Stop.handled_by(self.stop),
            job_calls.Forget.handled_by(self.forget),
            job_calls.SetCores.handled_by(self.set_cores),
            job_calls.MoveShard.handled_by(self.cores.move_shard),
        ]
        parts = (
            self.health, self.retirement, self.controller, self.queries, self.pushed, self.epochs, self.queues,
            self.checkpoints, self.savepoints, self.homes, self.groups, self.sharing, self.cluster,
        )  # fmt: skip
        return handlers_of(*own, *(handled for part in parts for handled in part.handlers()))

    async def version(self, call: Version) -> str:
        """Return the version that runs here."""
        return __version__

    async def submit(self, call: job_calls.Submit) -> JobDescription:
        """Place a job on the workers and start it.

        Raises
        ------
        SubmitError
            If a job of the name or with the folder runs, or the job cannot start.
        """
        if self._misconfigured is not None:
            raise self._misconfigured
        name = call.name
        if self._is_taken(name):
            await self._refuse_folder(call)  # another name would not help then
            raise SubmitError(f"a job {name!r} is running already: stop it, or submit under another name=")
        self.workers.growth.starting.add(name)
        try:
            await self._take_folder(call)
            candidates = await self.starts.candidates(call.version)
            record = await self._start(call, candidates)
        finally:
            self.workers.growth.starting.discard(name)
            left = self.jobs.get(name)
            if left is None:
                self._folders.pop(name, None)
            elif left.freed:
                # `forget` leaves a record whose name is reserved: that of the job that starts, or of an ended one.
                self._drop(left)
        self._forget_old()
        if record.checkpoints is None or not record.checkpoints.restarted:
            # Otherwise the restart does this: each checkpoint would be taken twice.
            self._runs(record)
        return self._description(record)

    def _is_taken(self, name: str) -> bool:
        return name in self.workers.growth.starting or (name in self.jobs and self.jobs[name].live)

    async def _take_folder(self, call: job_calls.Submit) -> None:
        """Reserve the checkpoint folder for a job, whose name is reserved before."""
        self._folders.pop(call.name, None)
        place = await self._refuse_folder(call)
        if place is not None:
            self._folders[call.name] = place

    async def _refuse_folder(self, call: job_calls.Submit) -> str | None:
        """Return the place of the checkpoint folder; raise if it is that of a live job, which the new one would end."""
        url = call.options.checkpoint
        if url is None:
            return None
        place = await in_thread(place_of, url)
        taken = [name for name, folder in self._folders.items() if folder == place and self._is_taken(name)]
        if taken:
            raise SubmitError(
                f"checkpoint={shown_url(url)!r}: job {taken[0]!r} is running with this folder: stop it first, or give "
                "this job another folder. To run both, take a savepoint with Job.savepoint and resume that."
            )
        return place

    async def _start(self, call: job_calls.Submit, candidates: Candidates) -> JobRecord:
        """Start a job in place of the ended one of its name, which stays if the new one is refused."""
        replaced = self.jobs.get(call.name)
        if replaced is not None:
            await self._stop(replaced)
        return await self.starts.start(call, candidates, self._make_room)

    async def _make_room(self, replaced: JobRecord) -> None:
        self._clear(replaced)
        await self._drop_state(replaced)

    def _runs(self, record: JobRecord) -> None:
        """Watch a job that has started, or was restarted, and take its checkpoints."""
        self.controller.wake()
        self.placement.wake()
        self.group_planning.wake()
        self.heartbeats.wake()
        if record.checkpoints is not None:
            self.health.spawn(record, "taking checkpoints", self._take_checkpoints(record))

    def _home_moved(self, record: JobRecord, changes: tuple[HomeChange, ...], reason: str) -> None:
        self.controller.note_homes(record, changes, reason)
        self.placement.note_moves(changes)

    async def _take_checkpoints(self, record: JobRecord) -> None:
        generation = record.spec.generation
        try:
            await self.checkpoints.run(record)
        except CheckpointSuperseded as error:
            # Sinks would never commit again.
            self.health.fail(record, dump_error(error))
        except Exception as error:  # becomes the job's error, for the same reason
            logger.exception("job %r takes no more checkpoints", record.name)
            if record.runs(generation):
                self.health.fail(record, dump_error(error))

    # descriptions

    async def list_jobs(self, call: job_calls.ListJobs) -> tuple[JobDescription, ...]:
        """Describe all jobs, oldest first."""
        return tuple(self._description(record) for record in self.jobs.values())

    async def describe(self, call: job_calls.Describe) -> JobDescription:
        """Describe a job with its newest measures."""
        return self._description(self.jobs.record(call.job))

    async def wait(self, call: job_calls.Wait) -> JobDescription:
        """Describe a job once it has ended, or after the timeout.

        Once the description is settled, the client may delete the folder of its checkpoints: nothing more is changed
        there, unless storage hangs or a part may still run.
        """
        record = self.jobs.record(call.job)
        deadline = time.monotonic() + call.timeout
        await record.ended(call.timeout)
        if record.live or record.checkpoints is None:
            return self._description(record)
        settling = self._settling(record, record.checkpoints)
        await asyncio.wait([settling], timeout=max(0.0, deadline - time.monotonic()))
        if not settling.done() or settling.cancelled():
            return replace(self._description(record), settled=False)
        return self._description(record, settling.result())

    def _settling(self, record: JobRecord, state: JobCheckpoints) -> asyncio.Task[str]:
        """Return what waits until nothing changes the folder of a job that has ended, see `PartEnds.settle`.

        It is the same for all calls, so that a client that calls often waits no longer than others; once something has
        not answered, later calls wait anew.
        """
        settling = state.settling
        if settling is None or (settling.done() and (settling.cancelled() or settling.result())):
            settling = state.settling = asyncio.ensure_future(self.ends.settle(record))
            self.health.keep(record, "the wait for the last files of its folder", settling)
        return settling

    def _description(self, record: JobRecord, unanswered: str = "") -> JobDescription:
        described = record.description(self.epochs.progress(record), self.controller.view(record))
        return replace(described, settled=False, unanswered=unanswered) if unanswered else described

    # lost workers, and workers that jobs need

    def node_lost(self, address: str) -> None:
        """Handle a worker that has left the cluster."""
        self.health.node_lost(address)

    @property
    def running(self) -> list[JobRecord]:
        """The jobs that have not ended."""
        return self.jobs.running

    def needed_workers(self) -> set[str]:
        """Return the addresses of the workers without which some job would fail."""
        return {address for record in self.running for address in record.addresses if record.needs(address)}

    def used_workers(self) -> set[str]:
        """Return the addresses of the workers that running jobs need, or on which they have cores."""
        if self.cluster.counts_tasks:
            return set()
        used = {a for record in self.running for node, a in record.spec.members if record.holds(node)}
        return used | self.needed_workers()

    async def set_cores(self, call: job_calls.SetCores) -> JobDescription:
        """Set the cores of an operator's executors; see `CoreChanges.set_cores`."""
        await self.cores.set_cores(call.job, call.operator, call.cores, call.executor)
        return self._description(self.jobs.record(call.job))

    # ends

    async def drain(self, call: job_calls.Drain) -> None:
        """Have the sources read no further; the job finishes when the rows that were read are processed."""
        record = self.jobs.record(call.job)
        if not record.live:
            return
        record.draining = True
        self.epochs.close_all(record)
        if not record.starting:
            # Workers may not host the job yet: the start drains the sources once they have started.
            record.change(JobEvent.DRAIN_REQUESTED)
            await self.calls.all(record, part_calls.Drain(*record.generation_id))

    async def stop(self, call: job_calls.Stop) -> JobDescription:
        """End a job at once; its state stays readable."""
        record = self.jobs.record(call.job)
        return self._description(record, await self._stop(record))

    async def _stop(self, record: JobRecord) -> str:
        """End a job; return what has not answered since, see `PartEnds.settle`."""
        if record.live:
            record.change(JobEvent.STOP_REQUESTED)
            await self.ends.end(record)
            ended = asyncio.ensure_future(self.ends.note_end(record))
            self.health.keep(record, "the note of its end", ended)
        return await self.ends.settle(record)

    async def forget(self, call: job_calls.Forget) -> JobDescription:
        """End a job at once and free its state."""
        record = self.jobs.record(call.job)
        return self._description(record, await self._forget(record))

    async def _forget(self, record: JobRecord) -> str:
        unanswered = await self._free(record)
        if record.name not in self.workers.growth.starting:
            self._drop(record)
        return unanswered

    def _drop(self, record: JobRecord) -> None:
        """Drop the record of a job and all that is kept under its name, unless another job has the name by now."""
        if self.jobs.get(record.name) is record:
            del self.jobs[record.name]
            self._folders.pop(record.name, None)
            self._clear(record)

    async def _free(self, record: JobRecord) -> str:
        unanswered = await self._stop(record)
        await self._drop_state(record)
        return unanswered

    async def _drop_state(self, record: JobRecord) -> None:
        record.freed = True
        await self.calls.tell(record, part_calls.Forget(*record.generation_id))

    def _clear(self, record: JobRecord) -> None:
        self.controller.history.forget(record.name)
        self.epochs.forget(record.name)
        self.queues.forget(record.name, record.error)

    def _forget_old(self) -> None:
        starting = self.workers.growth.starting
        ended = [record for record in self.jobs.values() if not record.live and record.name not in starting]
        for record in ended[: max(0, len(ended) - KEPT_JOBS)]:
            self.health.spawn(record, "dropping its state", self._forget(record))

    def abandon(self) -> None:
        """Plan, watch, restart and save no job any more, because the scheduler closes.

        In a process that goes on, jobs would otherwise wait for workers of a cluster that is closed.
        """
        self.controller.stop()
        self.placement.stop()
        self.group_planning.stop()
        self.heartbeats.stop()
        self.leaving.cancel()
        self.membership.stop()
        self.health.stop()
        self.ends.close()

    async def close(self) -> None:
        """Forget every job; no call to a worker is in flight afterwards."""
        self.abandon()
        for name in [*self.jobs]:
            # A client may forget one at the same time.
            if name in self.jobs:
                record = self.jobs[name]
                if record.checkpoints is not None and not record.live:
                    # What would end its parts is cancelled.
                    record.checkpoints.no_parts()
                await self._forget(record)
        self.health.stop()


def hold(scheduler: Any, coordinator: Coordinator) -> Callable[[], None]:
    """Return a function to call periodically: while jobs run, it keeps Dask from seeing the scheduler as idle."""

    def tick() -> None:
        if coordinator.running:
            scheduler.idle_since = None

    return tick
