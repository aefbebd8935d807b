"""Starts of jobs: version checks, the initial placement, and the calls that start the parts on the workers."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from dask_elastic._version import __version__
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import may_run
from dask_elastic.control.lease import CLOCK_ERROR
from dask_elastic.control.placement.choices import SPREAD
from dask_elastic.planning.initial import InitialPlacement, place
from dask_elastic.runtime.config.tls_policy import check_exposure
from dask_elastic.runtime.protocol import part_calls
from dask_elastic.runtime.protocol.calls import Call, Version
from dask_elastic.runtime.protocol.concurrent_calls import all_of
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.protocol.job_spec import RESOURCE, CheckpointPlan, JobSpec
from dask_elastic.runtime.protocol.job_status import JobEvent, Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, dump_error, text_of
from dask_elastic.runtime.scheduler.checkpoint_folders import in_thread, open_checkpoints
from dask_elastic.runtime.scheduler.groups.job_groups import JobGroups
from dask_elastic.runtime.scheduler.groups.saved_groups import with_saved_groups
from dask_elastic.runtime.scheduler.job_queries import is_over
from dask_elastic.runtime.scheduler.job_record import ExecutorKey, JobRecord, lease_seconds
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.paradigm import at_homes, continued_instances, demands, first_groups
from dask_elastic.runtime.scheduler.part_ends import PartEnds
from dask_elastic.runtime.scheduler.worker_calls import NotHosting, WorkerCalls
from dask_elastic.runtime.scheduler.workers import Workers
from dask_elastic.vocab.errors import ElasticError, NodeLost, NoWorkers, PlanningError, SubmitError, VersionMismatch

logger = logging.getLogger("dask_elastic.scheduler")

LOOK_SECONDS = 0.2
"""Seconds between two looks whether an earlier run of a job has ended."""

ROUNDS = 4
"""Rounds of calls if no worker answers: all of a new cluster may be busy with importing code."""

RUN_DIGITS = 12
"""Hexadecimal digits of the random identifier of a run."""

Homes: TypeAlias = Mapping[str, Sequence[int]]
"""The node that is wanted for each executor, by component."""


class Candidates(NamedTuple):
    """Workers for a new job.

    Parameters
    ----------
    nodes : list of str
        Addresses of the workers that can host it.
    silent : list of str
        Addresses of the workers that do not answer and are left out.
    """

    nodes: list[str]
    silent: list[str]


class JobStarts:
    """Places jobs on the workers and starts them.

    Parameters
    ----------
    workers : Workers
        The workers.
    jobs : JobTable
        The jobs; a job that starts is added.
    calls : WorkerCalls
        Calls the workers.
    ends : PartEnds
        Has ends of jobs wait for starts.

    Attributes
    ----------
    newest_generation : int
        The number of the newest start of any job.
    """

    def __init__(self, workers: Workers, jobs: JobTable, calls: WorkerCalls, ends: PartEnds):
        self.workers = workers
        self.jobs = jobs
        self.calls = calls
        self.ends = ends
        self.newest_generation = 0

    async def candidates(self, version: str) -> Candidates:
        """Return the workers for a new job; those that hang are left out.

        Parameters
        ----------
        version : str
            The client's version of dask_elastic.

        Raises
        ------
        NoWorkers
            If there are none that stay, or none of them answers.
        SubmitError
            If they listen without TLS and the configuration refuses that.
        VersionMismatch
            If client, scheduler and workers do not run one version.
        """
        nodes = await self.workers.ready()
        if not nodes:
            raise NoWorkers("the cluster has no workers that stay: add some, then submit again")
        check_exposure(nodes)
        found = await self._versions(nodes)
        silent = [address for address, answer in found.items() if answer is None]
        if len(silent) == len(nodes):
            raise NoWorkers(f"no worker answers, neither {' nor '.join(nodes)}: restart them, then submit again")
        seen = {"client": version, "scheduler": __version__, **{a: v for a, v in found.items() if v is not None}}
        if len(set(seen.values())) > 1:
            listed = ", ".join(f"{where}: {what}" for where, what in seen.items())
            raise VersionMismatch(f"dask_elastic differs: {listed}. Install one version everywhere.")
        if silent:
            logger.warning("a job starts without %s: no answer within %g s", ", ".join(silent), self.calls.timeout)
        return Candidates([address for address in nodes if address not in silent], silent)

    async def _versions(self, nodes: list[str]) -> dict[str, str | None]:
        """Return the version of each worker, None for those that do not answer."""
        found: dict[str, str | None] = {}
        for _ in range(ROUNDS):
            found = dict(zip(nodes, await all_of(map(self._version, nodes)), strict=True))
            if any(version is not None for version in found.values()):
                break
        return found

    async def _version(self, address: str) -> str | None:
        """Return the version that runs on a worker, or why it has none; None if it does not answer."""
        try:
            return await asyncio.wait_for(self.calls.one(address, Version()), self.calls.timeout)
        except NotHosting as error:
            return f"no dask_elastic ({error})"
        except (NodeLost, TimeoutError):
            return None
        except (ElasticError, Relayed) as error:
            return f"no dask_elastic ({error})"

    async def start(
        self, call: Submit, candidates: Candidates, make_room: Callable[[JobRecord], Awaitable[None]]
    ) -> JobRecord:
        """Place a job on workers and start it.

        Parameters
        ----------
        call : Submit
            The job.
        candidates : Candidates
            What `candidates` returned.
        make_room : callable
            Called with the ended job of its name, if there is one, to free it: once the job has its place and its
            folder, and the workers have its code. A submit that is refused before leaves the ended job as it is.

        Raises
        ------
        SubmitError
            If the cores that the user has set do not fit.
        Exception
            The error of a worker that cannot host the job; the others have forgotten it.

        Notes
        -----
        A job with checkpoints whose executors have started restarts when it loses a worker. The record is returned
        then, and an error of a call to the first generation is logged: the restart decides whether the job goes on.
        """
        # Workers may have been retired meanwhile.
        usable = self.workers.usable()
        nodes = [address for address in candidates.nodes if address in usable] or candidates.nodes
        resumed = {s.name: s.instances or 1 for s in call.summaries} if call.resume is not None else None
        homes = await self._planned(call, nodes, resumed)
        usable = self.workers.usable()
        if homes is not None and not all(address in usable for address in nodes):
            # Workers have left while the planner decided.
            nodes, homes = [address for address in nodes if address in usable] or nodes, None
        record = self._placed(call, nodes, resumed, homes)
        record.submitted = call = replace(call, run=record.spec.run)
        if call.options.checkpoint is not None:
            await self._open_checkpoints(record, call.options.checkpoint)
            record = await self._without_leaving(record, call, resumed)
        record.silent = frozenset(candidates.silent)
        generation, replaced, code = record.spec.generation, self.jobs.get(call.name), memoryview(call.components)
        self.jobs[call.name] = record
        with self.ends.start(record):
            try:
                if replaced is not None:
                    await self._on_all(record, lambda node: part_calls.CheckCode(call.name, code))
                    await make_room(replaced)
                    # The newest job is the last one.
                    self.jobs.pop(call.name, None)
                    self.jobs[call.name] = record
                await self._start(record)
            except BaseException as error:
                started = isinstance(error, Exception) and record.status is not Status.STARTING
                if started and await is_over(record, generation, isinstance(error, NodeLost)):
                    text = text_of(error)
                    logger.warning("job %r has restarted while its sources started: %s", call.name, text)
                    return record
                await self._discard(record, replaced, error)
                raise
        return record

    async def _discard(self, record: JobRecord, replaced: JobRecord | None, error: BaseException) -> None:
        """Fail a job that cannot start, and free its parts; the ended job of its name stays unless it is freed."""
        if record.live:
            record.error = dump_error(error)
            # Before the calls: a loss that is noticed meanwhile would restart the job.
            record.change(JobEvent.ERROR)
        await self.calls.tell(record, part_calls.Forget(*record.generation_id))
        if record.checkpoints is not None:
            record.checkpoints.no_parts()
        if self.jobs.get(record.name) is record:
            if replaced is not None and not replaced.freed:
                self.jobs[record.name] = replaced
            else:
                del self.jobs[record.name]

    async def _end_again(self, record: JobRecord) -> None:
        """End the parts of a job that was stopped or forgotten when some nodes did not host them yet."""
        kept = self.jobs.get(record.name) is record and not record.freed
        await self.calls.tell(record, (part_calls.End if kept else part_calls.Forget)(*record.generation_id))

    def _placed(self, call: Submit, nodes: list[str], resumed: dict[str, int] | None, homes: Homes | None) -> JobRecord:
        placement = self._place(call, nodes, resumed, homes)
        generation = self.next_generation()
        spec = JobSpec(
            call.name, generation, tuple(nodes), 0, call.summaries, placement.homes, placement.cores, call.options,
            run=call.run or uuid.uuid4().hex[:RUN_DIGITS],
            groups=first_groups(call.options.paradigm, call.summaries, placement.homes),
        )  # fmt: skip
        pinned = [(operator, index) for operator in call.cores for index in range(len(placement.homes[operator]))]
        return JobRecord(spec, placement.oversubscribed, call.components, pinned)

    def next_generation(self) -> int:
        """Return the number of the next start of any job."""
        self.newest_generation += 1
        return self.newest_generation

    async def _open_checkpoints(self, record: JobRecord, url: str) -> None:
        """Open the folder of a job's checkpoints, and reserve the job's generation there.

        Raises
        ------
        CheckpointError
            If it cannot be written.
        SubmitError
            If it has the checkpoints of another run.
        """
        call = record.submitted
        assert call is not None, "the call is kept before"
        opened = await in_thread(open_checkpoints, url, call, self.newest_generation)
        state, generation = opened.checkpoints, opened.generation
        self.newest_generation = max(self.newest_generation, generation)
        if opened.awaits_leases:
            await self._await_leases(record, url, generation)
        record.checkpoints = state
        state.resumed = call.resume is not None
        state.restarts = int(state.resumed)
        await self._continue(record, generation, CheckpointPlan(url, state.newest, state.restarts))

    @staticmethod
    async def _continue(record: JobRecord, generation: int, plan: CheckpointPlan | None) -> None:
        """Let a job begin as a generation, from a checkpoint if there is one."""
        record.spec = replace(record.spec, generation=generation, checkpoint=plan)
        record.spec = await in_thread(with_saved_groups, record.spec)
        record.groups = JobGroups(record.spec)

    async def _without_leaving(self, record: JobRecord, call: Submit, resumed: dict[str, int] | None) -> JobRecord:
        """Place a job again whose workers leave while its folder is opened: retirement does not know the job yet."""
        while stay := [address for address in record.nodes if address in self.workers.usable()]:
            if stay == record.nodes:
                break
            spec, state = record.spec, record.checkpoints
            record = self._placed(call, stay, resumed, None)
            record.submitted, record.checkpoints = call, state
            await self._continue(record, spec.generation, spec.checkpoint)
        return record

    async def _await_leases(self, record: JobRecord, url: str, generation: int) -> None:
        """Wait until no part of an earlier run of a job can emit, perhaps on another cluster whose scheduler is lost.

        The earlier run writes it down when this is certain; otherwise its last leases began before now.
        """
        seconds = (1 + CLOCK_ERROR) * lease_seconds(record, self.calls.timeout)
        logger.warning(
            "job %r: parts of an earlier run may still emit: waiting up to %.1f s until their leases are over",
            record.name, seconds,
        )  # fmt: skip
        deadline = time.monotonic() + seconds
        folder = await in_thread(CheckpointFolder, url)
        while time.monotonic() < deadline:
            await asyncio.sleep(min(LOOK_SECONDS, seconds))
            if not await in_thread(may_run, folder, generation):
                return

    async def restart(self, record: JobRecord, nodes: list[str], generation: int, *, stays: bool = False) -> None:
        """Start the next generation of a job from its newest checkpoint, unless the job has ended.

        Parameters
        ----------
        record : JobRecord
            The job, which is halted.
        nodes : list of str
            Addresses of the workers that can host it.
        generation : int
            The generation, which is reserved.
        stays : bool
            Whether executors and sources on these workers stay there, also those that were not moved.

        Raises
        ------
        ElasticError, Relayed
            If it cannot start; the workers have forgotten it.
        """
        state, call = record.checkpoints, record.submitted
        assert state is not None, "only jobs with checkpoints are restarted"
        assert call is not None, "a job keeps its call until it ends"
        running = {name: len(homes) for name, homes in record.spec.homes.items()}
        # What leaves goes where slots are free, as homes that leave one by one: the pause does not wait for a planner.
        wanted = None if stays else await self._planned_again(call, nodes, running)
        if not record.live:
            return
        stay = [address for address in nodes if not self.workers.leaving(address)]
        if stay and stay != nodes:
            # Workers have left, or are to leave, since they were chosen.
            nodes, wanted = stay, None
        instances = continued_instances(call.options.paradigm, call.summaries, running, self._slots(nodes, record))
        if instances != running:
            logger.info("job %r: its executors change with the slots of its workers: %s", record.name, instances)
        moved = record.chosen_homes | record.instances_by_address() if stays else record.chosen_homes
        placement = self._place(call, nodes, instances, wanted, moved, record)
        plan = CheckpointPlan(state.url, state.newest, state.restarts, tuple(sorted(state.opened)))
        spec = JobSpec(
            call.name, generation, tuple(nodes), 0, call.summaries, placement.homes, placement.cores, call.options,
            run=record.spec.run, checkpoint=plan,
            groups=first_groups(call.options.paradigm, call.summaries, placement.homes),
        )  # fmt: skip
        spec = await in_thread(with_saved_groups, spec)
        if record.ended_at is not None:
            return
        record.begin_generation(spec, placement.oversubscribed)
        with self.ends.start(record):
            try:
                await self._start(record)
            except BaseException:
                await self.calls.tell(record, part_calls.Forget(*record.generation_id))
                raise

    async def _planned_again(self, call: Submit, nodes: list[str], instances: dict[str, int]) -> Homes | None:
        """Return as `_planned`; a job that runs already is restarted without a plan rather than not at all."""
        try:
            return await self._planned(call, nodes, instances, self.jobs.get(call.name))
        except SubmitError as error:
            logger.warning("job %r: its homes are placed by free slots: %s", call.name, error)
            return None

    def _free(self, nodes: list[str], restarted: JobRecord | None = None) -> list[int]:
        """Return the free slots of each node, besides those of a job that restarts; below 0 where jobs share slots."""
        held = self.jobs.held(restarted)
        return [self.workers.slots(address) - held.get(address, 0) for address in nodes]

    def _slots(self, nodes: list[str], restarted: JobRecord) -> int:
        """Return the slots that a job may use after a restart: the free ones, and at least those that it has used."""
        own = restarted.cores_by_address()
        used = (min(own.get(address, 0), self.workers.slots(address)) for address in nodes)
        return sum(map(max, self._free(nodes, restarted), used))

    def _place(
        self,
        call: Submit,
        nodes: list[str],
        instances: dict[str, int] | None = None,
        wanted: Homes | None = None,
        moved: Mapping[ExecutorKey, str] = MappingProxyType({}),
        restarted: JobRecord | None = None,
    ) -> InitialPlacement:
        slots = {address: self.workers.slots(address) for address in nodes}
        for operator, cores in call.cores.items():
            if cores > (most := sum(slots.values())):
                raise SubmitError(
                    f"cores={{{operator!r}: {cores}}}: each executor would have more cores than the cluster has slots, "
                    f"which are {most}. Give at most {most}, or add workers; tasks that share a slot gain nothing."
                )
        free = self._free(nodes, restarted)
        requests = demands(call.options.paradigm, call.summaries, call.cores, free, instances)
        try:
            requests = [at_homes(request, nodes, moved) for request in requests]
            return place(requests, free, wanted, self.workers.growth.workers)
        except PlanningError as error:
            raise SubmitError(str(error)) from error

    async def _planned(
        self, call: Submit, nodes: list[str], instances: dict[str, int] | None, restarted: JobRecord | None = None
    ) -> Homes | None:
        """Return the homes that the planner of a job's placement wants; None if slots alone decide.

        Slots may be taken by other jobs meanwhile: the placement itself is made afterwards.
        """
        if call.options.placement == SPREAD or call.options.paradigm == RESOURCE:
            # Where key groups move, the planner decides about these.
            return None
        spread = self._place(call, nodes, instances, restarted=restarted)
        free = self._free(nodes, restarted)
        try:
            return await in_thread(_planned_homes, call, spread, free)
        except PlanningError as error:
            raise SubmitError(f"placement={call.options.placement!r}: {error}") from error

    async def _start(self, record: JobRecord) -> None:
        """Start a generation; drain it if this was requested, also earlier; end its parts if the job ends meanwhile."""
        spec, generation = record.spec, record.generation_id
        await self._on_all(record, part_calls.Prepare.for_nodes(spec, record.components))
        if record.live:
            await self.calls.all(record, part_calls.StartExecutors(*generation))
            record.change(JobEvent.STARTED)
        if record.live:
            if record.draining:
                # At once: no epoch may be committed that no source reads any more.
                record.change(JobEvent.DRAIN_REQUESTED)
            await self.calls.all(record, part_calls.StartSources(*generation))
        if record.draining and record.live and record.runs(spec.generation):
            await self.calls.all(record, part_calls.Drain(*generation))
        if not record.live:
            await self._end_again(record)

    async def _on_all(self, record: JobRecord, call: Callable[[int], Call[None]]) -> None:
        """Call each worker of a job; raises the first error once all have answered."""
        answers = (self.calls.one(address, call(node)) for node, address in enumerate(record.spec.nodes))
        # Every worker has answered before any is called to forget the job.
        for result in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


def _planned_homes(call: Submit, spread: InitialPlacement, free: list[int]) -> Homes:
    # It imports SciPy, which takes long and which a scheduler without such jobs does not need.
    from dask_elastic.control.placement.initial_homes import ComponentFlow, initial_homes

    flows = [ComponentFlow(s.name, s.inputs, s.rate) for s in call.summaries if s.kind != "sink"]
    return initial_homes(call.options.placement, flows, spread, free)
