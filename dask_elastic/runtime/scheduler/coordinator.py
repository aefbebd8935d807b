"""The scheduler's side of jobs: it places, starts, watches and ends them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dask_elastic._version import __version__
from dask_elastic.planning.initial import InitialPlacement, place
from dask_elastic.runtime.config.control_options import ControlOptions, control_options
from dask_elastic.runtime.config.tls_policy import check_exposure
from dask_elastic.runtime.protocol.answers import Handler, answered
from dask_elastic.runtime.protocol.job_spec import ComponentSummary, JobOptions, JobSpec, summaries_from
from dask_elastic.runtime.protocol.job_status import JobEvent
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error
from dask_elastic.runtime.scheduler.control_driver import ControlDriver
from dask_elastic.runtime.scheduler.core_changes import CoreChanges
from dask_elastic.runtime.scheduler.epoch_commits import EpochCommits
from dask_elastic.runtime.scheduler.job_queries import JobQueries
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.load_jumps import has_jumped
from dask_elastic.runtime.scheduler.membership import Membership
from dask_elastic.runtime.scheduler.output_queues import OutputQueues
from dask_elastic.runtime.scheduler.paradigm import demands
from dask_elastic.runtime.scheduler.pushed_sources import PushedSources
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab.errors import (
    ElasticError,
    NodeLost,
    NoWorkers,
    PlanningError,
    PoisonBatch,
    SubmitError,
    VersionMismatch,
)

if TYPE_CHECKING:
    from distributed import Scheduler

logger = logging.getLogger("dask_elastic.scheduler")

KEPT_JOBS = 16
"""Ended jobs beyond this number are forgotten, oldest first."""


class Coordinator:
    """Knows every job of a cluster.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler that we are part of.

    Attributes
    ----------
    jobs : JobTable
        The jobs.
    controller : ControlDriver
        Moves their cores; knows what was measured and decided.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.jobs = JobTable()
        self.workers = Workers(scheduler)
        self.calls = WorkerCalls(scheduler)
        self.cores = CoreChanges(self.workers, self.jobs, self.calls)
        self.membership = Membership(self.workers, self.jobs, self.calls, self.cores)
        self.questions = JobQueries(self.jobs, self.calls)
        self.epochs = EpochCommits(scheduler, self.jobs, self.calls, self._fail)
        self.outgoing = OutputQueues(scheduler, self.jobs, self.calls)
        self.pushed = PushedSources(self.jobs, self.calls, self.epochs)
        self._misconfigured: SubmitError | None = None
        self.controller = ControlDriver(scheduler, self.membership, self.cores, self._control_options())
        self._background: set[asyncio.Task[Any]] = set()
        self._starting: set[str] = set()
        self._generations = itertools.count(1)

    def _control_options(self) -> ControlOptions:
        try:
            return control_options()
        except SubmitError as error:  # said when somebody submits a job
            logger.error("%s", error)
            self._misconfigured = error
            return ControlOptions()

    def handlers(self) -> dict[str, Handler]:
        """Handlers by the name of their operation; none raises into Dask."""
        ask, pushed, control = self.questions, self.pushed, self.controller
        commands: list[Handler] = [
            self.submit, self.known, self.describe, self.wait, self.drain, self.stop, self.forget, self.version,
            self.set_cores, self.cores.move_shard, self.membership.retire, pushed.send, pushed.close_source,
            ask.moves, ask.recoveries, ask.assignment, ask.state, ask.collect, ask.dead_letters, control.decisions,
            control.snapshots,
        ]  # fmt: skip
        made = {f"elastic_{command.__name__}": answered(command) for command in commands}
        told: dict[str, Handler] = {"elastic_report": self.report, "elastic_suspects": self.suspects}
        return {**made, **self.epochs.handlers(), **self.outgoing.handlers(), **told}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something beside the handler at hand."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # starting a job

    async def version(self) -> str:
        """Return the version that runs here."""
        return __version__

    async def submit(
        self,
        name: str,
        version: str,
        summaries: list[dict[str, Any]],
        options: dict[str, Any],
        cores: dict[str, int],
        components: bytes,
    ) -> dict[str, Any]:
        """Place a job on the workers of this moment and start it."""
        if self._misconfigured is not None:
            raise self._misconfigured
        if name in self._starting or (name in self.jobs and self.jobs[name].live):
            raise SubmitError(f"a job {name!r} is running already: stop it, or submit under another name=")
        self._starting.add(name)
        try:
            return await self._submit(name, version, summaries, options, cores, components)
        finally:
            self._starting.discard(name)

    async def _submit(
        self,
        name: str,
        version: str,
        summaries: list[dict[str, Any]],
        options: dict[str, Any],
        cores: dict[str, int],
        components: bytes,
    ) -> dict[str, Any]:
        nodes = await self.workers.ready()
        if not nodes:
            raise NoWorkers("the cluster has no workers that stay: add some, then submit again")
        check_exposure(nodes)
        await self._check_versions(version, nodes)
        if name in self.jobs:
            await self.forget(name)
        # Some may have been told to leave meanwhile.
        nodes = [address for address in nodes if address in self.workers.usable()] or nodes
        record = self._placed(name, nodes, summaries_from(summaries), JobOptions(**options), cores, components)
        self.jobs[name] = record
        try:
            await self._start(record)
        except BaseException:
            await self.calls.tell(record, "forget")
            self.jobs.pop(name, None)
            raise
        if not record.live:
            # Whoever ended it while it started did not reach what was not there yet.
            await self.calls.tell(record, "end" if self.jobs.get(name) is record else "forget")
        self._forget_old()
        self.controller.wake()
        return self._description(record)

    def _placed(
        self,
        name: str,
        nodes: list[str],
        summaries: tuple[ComponentSummary, ...],
        options: JobOptions,
        cores: dict[str, int],
        components: bytes,
    ) -> JobRecord:
        placement = self._place(summaries, nodes, options, cores)
        run = next(self._generations)
        spec = JobSpec(name, run, tuple(nodes), 0, summaries, placement.homes, placement.cores, options)
        pinned = [(operator, index) for operator in cores for index in range(len(placement.homes[operator]))]
        return JobRecord(spec, placement.oversubscribed, components, pinned)

    def _place(
        self, summaries: tuple[ComponentSummary, ...], nodes: list[str], options: JobOptions, cores: dict[str, int]
    ) -> InitialPlacement:
        held = self.jobs.held()
        free = [self.workers.slots(address) - held.get(address, 0) for address in nodes]
        try:
            return place(demands(options.paradigm, summaries, cores, free), free)
        except PlanningError as error:
            raise SubmitError(str(error)) from error

    async def _start(self, record: JobRecord) -> None:
        spec = record.spec
        prepared = (
            self.calls.one(address, "prepare", spec=replace(spec, node=node).to_message(), components=record.components)
            for node, address in enumerate(spec.nodes)
        )
        # All of them have answered before any is told to forget the job.
        for result in await asyncio.gather(*prepared, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        await self.calls.all(record, "start_executors")
        record.change(JobEvent.STARTED)
        await self.calls.all(record, "start_sources")

    async def _check_versions(self, version: str, nodes: list[str]) -> None:
        calls = (self.calls.one(address, "version") for address in nodes)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        seen = {"client": version, "scheduler": __version__}
        for address, answer in zip(nodes, answers, strict=True):
            seen[address] = str(answer) if isinstance(answer, str) else f"no dask_elastic ({answer})"
        if len(set(seen.values())) > 1:
            listed = ", ".join(f"{where}: {what}" for where, what in seen.items())
            raise VersionMismatch(f"dask_elastic differs: {listed}. Install one version everywhere.")

    # watching a job

    async def known(self) -> list[dict[str, Any]]:
        """All jobs, oldest first."""
        return [self._description(record) for record in self.jobs.values()]

    async def describe(self, job: str) -> dict[str, Any]:
        """One job with its newest measures."""
        return self._description(self.jobs.record(job))

    def _description(self, record: JobRecord) -> dict[str, Any]:
        handoffs = [progress.to_message() for progress in self.epochs.progress(record)]
        return {**record.description(), **self.controller.says(record), "handoffs": handoffs}

    async def wait(self, job: str, timeout: float) -> dict[str, Any]:
        """One job, once it has ended or `timeout` seconds have passed."""
        record = self.jobs.record(job)
        await record.ended(timeout)
        return self._description(record)

    async def report(self, job: str, generation: int, node: int, report: dict[str, Any], incarnation: int = 0) -> None:
        """Take a worker's report; a stale one changes nothing."""
        record = self.jobs.get(job)
        if record is None or not record.admits(generation, node, incarnation):
            return
        if has_jumped(report, record.reports.get(node)):
            self.controller.look_soon()
        record.reports[node] = {**report, "at": time.time()}
        if node in record.suspects and report["absolved"] >= record.suspects[node][0]:
            del record.suspects[node]
        if not record.live:
            return
        if report["error"] is not None:
            self._fail(record, report["error"])
        elif record.complete:
            self._finish_once(record)
        for address in report["lost"]:
            self._out_of_reach(record, address)

    async def suspects(
        self, job: str, generation: int, node: int, number: int, batches: list[tuple[str, int]], incarnation: int = 0
    ) -> None:
        """Remember which rows a home is about to process that another worker may have died of."""
        record = self.jobs.get(job)
        if record is not None and record.admits(generation, node, incarnation):
            operator, batch = batches[0]
            record.suspects[node] = number, operator, batch

    def _out_of_reach(self, record: JobRecord, address: str) -> None:
        """One node of a job has lost touch with another."""
        if address not in record.spec.nodes:
            return
        if not record.needs(address):
            self.spawn(self.membership.expel(record, address))
        elif self._silent(record, address):
            self._lose(record, f"worker {address} of job {record.name!r} does not answer.")

    @staticmethod
    def _silent(record: JobRecord, address: str) -> bool:
        """Return whether a node reports no more; one that does is merely cut off from the other, which is out then."""
        last = record.reports.get(record.spec.nodes.index(address))
        patience = max(2.0, 3 * record.spec.options.report_interval)
        return last is None or time.time() - last["at"] > patience

    def _finish_once(self, record: JobRecord) -> None:
        if not record.finishing:
            record.finishing = True
            self.spawn(self._finish(record))

    async def _finish(self, record: JobRecord) -> None:
        """Take the last reports: a node that has but remote tasks sent its own before these were done."""
        try:
            reports = await self.calls.by_node(record, "report")
        except (ElasticError, Relayed) as error:
            self._fail(record, dump_error(error))
            return
        for node, report in reports.items():
            record.reports[node] = {**report, "at": time.time()}
        record.change(JobEvent.COMPLETED)
        # Nothing is left to do: threads end, state and measures stay readable.
        await self.calls.tell(record, "end")

    def _fail(self, record: JobRecord, error: bytes) -> None:
        if not record.live:
            return
        record.error = error
        record.change(JobEvent.ERROR)
        self.spawn(self.calls.tell(record, "end"))

    def node_lost(self, address: str) -> None:
        """Note that a worker has left; the jobs that cannot do without it fail, the others go on."""
        for record in self.membership.lost(address):
            if record.needs(address):
                logger.error("job %r lost worker %s", record.name, address)
                if (suspect := record.suspects.get(record.spec.nodes.index(address))) is not None:
                    self._fail(record, dump_error(PoisonBatch(*suspect[1:])))
                self._lose(record, f"worker {address} of job {record.name!r} is gone.")
            else:
                self.spawn(self.membership.expel(record, address))

    def _lose(self, record: JobRecord, what: str) -> None:
        """Fail a job whose home is lost."""
        where = "It was home of executors, sources or sinks, which a job does not survive yet: submit it again."
        self._fail(record, dump_error(NodeLost(f"{what} {where}")))

    @property
    def running(self) -> list[JobRecord]:
        """The jobs that have not ended."""
        return self.jobs.running

    def needed_workers(self) -> set[str]:
        """Addresses of the workers without which some job would fail."""
        return {address for record in self.running for address in record.addresses if record.needs(address)}

    async def set_cores(self, job: str, operator: str, cores: Any, executor: int | None = None) -> dict[str, Any]:
        """Give each executor so many cores; see `CoreChanges.set_cores`."""
        await self.cores.set_cores(job, operator, cores, executor)
        return await self.describe(job)

    # ending a job

    async def drain(self, job: str) -> None:
        """Read no further; the job ends once it has processed what it read."""
        record = self.jobs.record(job)
        if not record.live:
            return
        record.change(JobEvent.DRAIN_REQUESTED)
        self.epochs.close_all(record)
        await self.calls.all(record, "drain")

    async def stop(self, job: str) -> None:
        """End a job at once; its state stays readable."""
        record = self.jobs.record(job)
        if not record.live:
            return
        record.change(JobEvent.STOP_REQUESTED)
        await self.calls.tell(record, "end")

    async def forget(self, job: str) -> None:
        """End a job at once and drop its state."""
        record = self.jobs.record(job)
        await self.stop(job)
        await self.calls.tell(record, "forget")
        # Somebody may have submitted a job of this name meanwhile.
        if self.jobs.get(job) is record:
            del self.jobs[job]
            self.controller.history.forget(job)
            self.epochs.forget(job)
            self.outgoing.forget(job)

    def _forget_old(self) -> None:
        ended = [record.name for record in self.jobs.values() if not record.live]
        for name in ended[: max(0, len(ended) - KEPT_JOBS)]:
            self.spawn(self.forget(name))

    async def close(self) -> None:
        """Forget every job, and leave nothing under way that asks a worker afterwards."""
        self.controller.stop()
        self._cancel()
        for name in [*self.jobs]:
            await self.forget(name)
        self._cancel()

    def _cancel(self) -> None:
        for task in [*self._background]:
            task.cancel()


def hold(scheduler: Any, coordinator: Coordinator) -> Callable[[], None]:
    """Return what to call often: while jobs run, the scheduler does not count as idle."""

    def tick() -> None:
        if coordinator.running:
            scheduler.idle_since = None

    return tick
