"""Reports of workers and losses of workers: when a job has finished, and when it has failed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from dask_elastic.control.checkpoint_progress import unsaved_ends
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.background_tasks import BackgroundTasks
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.job_status import JobEvent
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error, error_text, load_error, text_of
from dask_elastic.runtime.protocol.reports import Fate, Report, ReportAnswer, StalledCall, Suspects
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints
from dask_elastic.runtime.scheduler.job_record import JobRecord, Suspect, lease_seconds
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.load_jumps import has_jumped
from dask_elastic.runtime.scheduler.membership import Membership
from dask_elastic.runtime.scheduler.part_ends import PartEnds, reports_no_more
from dask_elastic.runtime.scheduler.restarts import Restarts
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.vocab.errors import CheckpointError, ElasticError, JobEnded, NodeLost, PoisonBatch, SchemaMismatch
from dask_elastic.vocab.identity import ExecutorId

logger = logging.getLogger("dask_elastic.scheduler")

RETRY_SECONDS = 1.0
"""Seconds until another last checkpoint of a job follows one that was given up."""

LOST_HOME = (
    "It was home of executors, sources or sinks, which a job without checkpoints does not survive: submit it again, "
    "with checkpoint= a folder that all workers reach."
)

LOST_AT_START = "The job had not started yet, and is not restarted: submit it again."


class JobHealth:
    """Receives reports, finishes jobs whose parts are complete, and fails jobs that cannot go on.

    Parameters
    ----------
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the workers.
    membership : Membership
        Removes lost workers from jobs that survive their loss.
    load_jumped : callable
        Called when the load of some executor's shards has jumped.
    restarts : Restarts
        Restarts jobs with checkpoints.
    ends : PartEnds
        Ends the parts of jobs.
    checkpoints : Checkpoints
        Takes the last checkpoints of jobs.
    log_event : callable
        Takes the events of jobs.
    """

    def __init__(
        self,
        jobs: JobTable,
        calls: WorkerCalls,
        membership: Membership,
        load_jumped: Callable[[], None],
        restarts: Restarts,
        ends: PartEnds,
        checkpoints: Checkpoints,
        log_event: Callable[[dict[str, Any]], Any],
    ):
        self.jobs = jobs
        self.calls = calls
        self.membership = membership
        self.load_jumped = load_jumped
        self.restarts = restarts
        self.ends = ends
        self.checkpoints = checkpoints
        self.log_event = log_event
        self._background = BackgroundTasks(logger)
        self._stopped = False

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [Report.handled_by(self.report), Suspects.handled_by(self.suspects)]

    def spawn(self, record: JobRecord, what: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the background for a job, unless `stop` was called."""
        if self._stopped:
            work.close()
        else:
            self.keep(record, what, asyncio.ensure_future(work))

    def keep(self, record: JobRecord, what: str, task: asyncio.Task[Any]) -> None:
        """Keep a task of a job in the background until it ends; an error is logged."""
        self._background.keep(task, f"job {record.name!r}: {what}")

    def stop(self) -> None:
        """Cancel everything that runs in the background, and begin nothing more."""
        self._stopped = True
        self._background.cancel()

    # reports

    async def report(self, call: Report) -> ReportAnswer:
        """Receive a worker's report, and renew the lease of its part; a stale one changes nothing."""
        record = self.jobs.get(call.job)
        if record is None or not record.admits(call.generation, call.node, call.incarnation):
            return ReportAnswer(fate=self._fate_of_stale(record, call))
        self._take(record, call)
        if not record.live:
            return ReportAnswer(fate=Fate.ENDS)
        if record.checkpoints is None or call.node not in record.homes.emitting:
            return ReportAnswer()
        seconds = lease_seconds(record, self.calls.timeout)
        return ReportAnswer(record.leases.grant(call.node, time.monotonic(), seconds))

    def _fate_of_stale(self, record: JobRecord | None, call: Report) -> Fate:
        """Return what becomes of a part that is not one of its job's; it runs if it may be one yet.

        The call that ends or drops a part is lost if its worker hangs, or the connection breaks.
        """
        if call.job in self.membership.workers.growth.starting:
            # If the job cannot start, the ended one of its name stays.
            return Fate.RUNS
        if record is None or call.generation < record.spec.generation:
            return Fate.DROPPED
        if record.halted:
            # A restart ends the parts of its generation itself, unless the job has ended amid it.
            return Fate.RUNS if record.live else Fate.ENDS
        # One that joins is admitted once all others know it.
        return Fate.DROPPED if record.runs(call.generation) and not record.membership.locked() else Fate.RUNS

    def _take(self, record: JobRecord, call: Report) -> None:
        before = record.reports.get(call.node)
        report = call.report or (before.report if before else None)
        if report is None:
            return
        if has_jumped(report, before.report if before else None):
            self.load_jumped()
        behind = time.time() - before.at + before.behind if before is not None and call.late else 0.0
        record.receive(call.node, report, idle=call.report is None and not call.late, behind=behind)
        if not record.live:
            return
        self._note_stalled(record, before.report.stalled if before else (), report.stalled)
        if report.error is not None:
            self._failed_part(record, report.error)
        elif report.unions and (before is None or report.unions != before.report.unions) and not self._agree(record):
            return
        elif record.complete:
            self._finish_once(record)
        for address in report.lost:
            self._unreachable(record, address)

    def _note_stalled(self, record: JobRecord, before: tuple[StalledCall, ...], now: tuple[StalledCall, ...]) -> None:
        """Log calls of user code that do not return, and those that have returned after all, once each."""
        known, left = {(call.thread, call.since) for call in before}, {(call.thread, call.since) for call in now}
        began = [(call, "stalled") for call in now if (call.thread, call.since) not in known]
        for call, event in [*began, *((call, "resumed") for call in before if (call.thread, call.since) not in left)]:
            worker = record.nodes[call.node]
            if event == "stalled":
                # A source may wait for rows that long.
                level = logging.INFO if call.activity == "read" else logging.WARNING
                what = "job %r: code of %s (%s) has not returned for %.0f s on worker %s, thread %s: it is at %s"
                lasted = time.time() - call.since
                logger.log(
                    level, what, record.name, call.operator, call.activity, lasted, worker, call.thread, call.frame
                )
            else:
                logger.info("job %r: code of %s on worker %s has returned", record.name, call.operator, worker)
            self.log_event({"event": event, "job": record.name, **call._asdict(), "worker": worker})

    async def suspects(self, call: Suspects) -> None:
        """Keep the batch of which another worker may have died and that a home is about to process."""
        record = self.jobs.get(call.job)
        if record is not None and record.admits(call.generation, call.node, call.incarnation):
            record.suspects[call.node] = Suspect(call.number, *call.batches[0])

    def _finish_once(self, record: JobRecord) -> None:
        if not record.finishing:
            record.finishing = True
            self.spawn(record, "its end", self._finish_or_fail(record))

    async def _finish_or_fail(self, record: JobRecord) -> None:
        generation = record.spec.generation
        try:
            await self._finish(record)
        except Exception as error:  # becomes the job's error: it would otherwise count as running for ever
            logger.exception("job %r could not be finished", record.name)
            if record.runs(generation):
                self.fail(record, dump_error(error))

    async def _finish(self, record: JobRecord) -> None:
        """Get the last reports, save the state and end the parts.

        A node with remote tasks only reported before these had ended.
        """
        generation = record.spec.generation
        try:
            reports = await self.calls.by_node(record, part_calls.Report(*record.generation_id))
        except (ElasticError, Relayed) as error:
            if record.runs(generation):
                self._failed_part(record, dump_error(error))
            return
        if not record.runs(generation):
            # A worker was lost after its report: the next generation ends the job.
            return
        for node, report in reports.items():
            record.receive(node, report)
        if not record.complete:
            # A report was stale: an executor has begun there since.
            record.finishing = False
            return
        if not self._agree(record) or not await self._save_end(record):
            return
        record.change(JobEvent.COMPLETED)
        # Threads end; state and measures stay readable.
        await self._end(record)

    async def _save_end(self, record: JobRecord) -> bool:
        """Take a checkpoint behind the last row of a job, unless its sinks have waited for one.

        One that is given up was logged; the next one follows, as when a sink waits for its last commit.

        Returns
        -------
        bool
            Whether the job can finish. If not, it was stopped, has failed or was restarted meanwhile.
        """
        generation, summaries = record.spec.generation, record.spec.summaries
        sinks = {summary.name for summary in summaries if summary.kind == "sink"}
        saved = record.checkpoints is None or not unsaved_ends({one.name: one.inputs for one in summaries}, sinks)
        while not saved and record.live and record.runs(generation):
            try:
                await self.checkpoints.take(record)
                saved = True
            except CheckpointError:
                await asyncio.sleep(RETRY_SECONDS)
            except JobEnded:
                break
        return saved and record.live and record.runs(generation)

    async def _end(self, record: JobRecord) -> None:
        await self.ends.end(record)
        await self.ends.note_end(record)

    def _agree(self, record: JobRecord) -> bool:
        """Fail a job whose executors get different types from the operators of a union; returns False then."""
        try:
            record.require_same_types()
        except SchemaMismatch as error:
            self.fail(record, dump_error(error))
            return False
        return True

    def fail(self, record: JobRecord, error: bytes) -> None:
        """Fail a job with an error, see `dump_error`; a job that has ended stays as it is."""
        if not record.live:
            return
        if record.checkpoints is not None:  # of others, the worker or the loss is logged as an error
            logger.error("job %r failed: %s", record.name, error_text(error))
        record.error = error
        record.change(JobEvent.ERROR)
        self.spawn(record, "the end of its parts", self._end(record))

    def _failed_part(self, record: JobRecord, error: bytes) -> None:
        """Restart a job of which a part has lost a home, if it takes checkpoints; fail it because of other errors."""
        loss = _loss(error, self.restarts.forgives(record)) if self.restarts.can(record) else None
        if loss is None:
            self.fail(record, error)
        else:
            self.spawn(record, "its restart", self._restart(record, loss))

    async def restart_elsewhere(self, record: JobRecord, reason: str) -> None:
        """Restart a job without the workers that are to leave; its newest checkpoint contains all that it has read."""
        await self._restart(record, NodeLost(reason), planned=True)

    async def _restart(
        self, record: JobRecord, loss: NodeLost, lost: Collection[str] = (), planned: bool = False
    ) -> None:
        error: Exception | None
        try:
            error = await self.restarts.restart(record, loss, lost, planned=planned)
        except Exception as failure:  # becomes the job's error: it would otherwise restart for ever
            error = failure
        if error is not None:
            self.fail(record, dump_error(error))

    # losses

    def node_lost(self, address: str) -> None:
        """Handle a worker that has left: jobs that need it fail, the others go on without it."""
        for record in self.membership.lost(address):
            if record.needs(address):
                level = logging.WARNING if self.restarts.can(record) else logging.ERROR
                logger.log(level, "job %r lost worker %s", record.name, address)
                suspect = record.suspects.get(record.spec.nodes.index(address))
                if suspect is not None and not self.restarts.forgives(record):
                    self.fail(record, dump_error(PoisonBatch(suspect.operator, suspect.batch)))
                self._lose(record, address, "has left the cluster")
            else:
                self._expel(record, address)

    def hung(self, address: str) -> None:
        """Handle a worker that neither reports nor answers: jobs that need it fail, the others go on without it."""
        for record in self.jobs.running:
            if record.needs(address):
                self._lose(record, address, "does not answer", [address])
            elif address in record.spec.nodes:
                self._expel(record, address)

    def _expel(self, record: JobRecord, address: str) -> None:
        self.spawn(record, f"the removal of {address}", self._expel_or_fail(record, address))

    async def _expel_or_fail(self, record: JobRecord, address: str) -> None:
        generation = record.spec.generation
        try:
            await self.membership.expel(record, address)
        except Exception as error:  # becomes the job's error: it would otherwise wait for the lost node for ever
            logger.exception("job %r cannot go on without %s", record.name, address)
            if record.runs(generation):
                self.fail(record, dump_error(error))

    def part_lost(self, record: JobRecord, address: str) -> None:
        """Handle a worker that answers, but hosts no part of a job that needs it."""
        others = {*self.membership.workers.usable()} - {address}
        # The process that answers is new, and as good as any other one if it is the only one.
        self._lose(record, address, "hosts no part of it any more", [address] if others else [])

    def move_failed(self, record: JobRecord, executor: ExecutorId, error: Exception) -> None:
        """Handle the failure of a move of a home, at an unknown point of it: the executor may be at neither home."""
        self._fail_move(record, f"the home of {executor}", error)

    def group_move_failed(self, record: JobRecord, operator: str, error: Exception) -> None:
        """Handle the failure of a move of key groups, at an unknown point of it: some may be at no executor."""
        self._fail_move(record, f"key groups of {operator!r}", error)

    def _fail_move(self, record: JobRecord, what: str, error: Exception) -> None:
        text = text_of(error)
        loss = NodeLost(f"{what} of job {record.name!r} could not be moved: {text}")
        if self.restarts.can(record):
            self.spawn(record, "its restart", self._restart(record, loss))
        else:
            self.fail(record, dump_error(loss))

    def _unreachable(self, record: JobRecord, address: str) -> None:
        """Handle a node of a job to which another node has lost the connection."""
        if address not in record.spec.nodes:
            return
        if not record.needs(address):
            self._expel(record, address)
        elif self._silent(record, address):
            self._lose(record, address, "does not answer", [address])

    @staticmethod
    def _silent(record: JobRecord, address: str) -> bool:
        """Return whether a node has stopped reporting; if not, the other one is cut off, and is removed instead."""
        node = record.spec.nodes.index(address)
        return node not in record.reports or reports_no_more(record, node)

    def _lose(self, record: JobRecord, address: str, how: str, lost: Collection[str] = ()) -> None:
        """Restart a job that has lost a home, or fail it if it takes no checkpoints or has not started yet."""
        what = f"worker {address} of job {record.name!r} {how}."
        if self.restarts.can(record):
            self.spawn(record, "its restart", self._restart(record, NodeLost(what), lost))
        else:
            advice = LOST_HOME if record.checkpoints is None else LOST_AT_START
            self.fail(record, dump_error(NodeLost(f"{what} {advice}")))


def _loss(error: bytes, forgiving: bool) -> NodeLost | None:
    """Return an error if it is the loss of a node; the scheduler may lack the classes of others."""
    try:
        found = load_error(error)
    except Exception:  # loading an object of user code may raise any exception
        return None
    if forgiving and isinstance(found, PoisonBatch):
        return NodeLost(str(found))
    return found if isinstance(found, NodeLost) else None
