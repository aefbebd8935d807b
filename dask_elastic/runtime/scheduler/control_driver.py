"""The control loop on the scheduler: takes snapshots, plans in a thread, and has the homes change their cores."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from dask_elastic.control.cluster.slots_needed import NeededSlots
from dask_elastic.control.history import History
from dask_elastic.control.keys import job_key
from dask_elastic.control.loop import ControlLoop
from dask_elastic.runtime.config.control_options import ControlOptions
from dask_elastic.runtime.protocol import job_calls
from dask_elastic.runtime.protocol.background_tasks import BackgroundTasks
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.codec import Payload
from dask_elastic.runtime.protocol.job_description import ControlView
from dask_elastic.runtime.protocol.job_spec import JobGeneration
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import Relayed, load_error, text_of
from dask_elastic.runtime.scheduler.cluster.occupant import occupants
from dask_elastic.runtime.scheduler.control.decision_texts import decisions_text, recording_text
from dask_elastic.runtime.scheduler.control.published_decisions import PublishedDecisions
from dask_elastic.runtime.scheduler.core_changes import CoreChanges
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.membership import Membership
from dask_elastic.runtime.scheduler.snapshot_builder import STALE_PERIODS, ClusterView, SnapshotBuilder
from dask_elastic.runtime.scheduler.snapshot_log import SnapshotLog, bytes_of
from dask_elastic.runtime.transport.error_log import ErrorLog
from dask_elastic.runtime.transport.program_end import is_shut_down
from dask_elastic.runtime.transport.switching import ShortTurns, responsive
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.errors import ElasticError, NodeLost, PlanningError
from dask_elastic.vocab.plan import Decision, HomeChange, Outlook, Plan
from dask_elastic.vocab.snapshot import Snapshot

if TYPE_CHECKING:
    from distributed import Scheduler

logger = logging.getLogger("dask_elastic.scheduler")

ANSWER_SECONDS = 5.0
"""The control loop waits so long for a home; the change goes on in the background after that."""

CHANGES_AT_ONCE = 8
"""Each call takes a fraction of a millisecond of the event loop; the bound lets other work run in between."""

EVIDENCE_SNAPSHOTS = 300
"""A loop that decides on as many snapshots again has nearly the same memory as the running one."""

EVIDENCE_BYTES = 4 * 2**20
"""Of snapshots, approximately: the client decides on all of them again, within a second or two."""

EVIDENCE_DECISIONS = 100

LOOK_SECONDS = 0.05
"""Workers report at whole multiples of their interval; a period begins so much later, when the reports have come."""

IDLE_PERIODS = 5
"""While all jobs are idle and nothing changes, the loop plans in one of so many periods."""

RESTLESS_PERIODS = 2
"""Periods after a jump of some load during which the loop runs twice as often."""

Failures = dict[JobGeneration, str]
"""Errors of changes that could not be carried out."""


class ControlDriver:
    """Runs the control loop while there are jobs.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Publishes the decisions.
    membership : Membership
        Lets new workers join.
    cores : CoreChanges
        Carries the changes out.
    options : ControlOptions
        The period, and the settings of the planner.
    look : callable, optional
        Called once a period; a slow call goes on in the background.

    Attributes
    ----------
    history : History
        The last minutes of each job.
    decisions : PublishedDecisions
        The newest decisions.
    snapshot_log : SnapshotLog
        The newest snapshots.
    error : str or None
        The error of the last period.
    slots_needed : float
        Thread slots that all jobs need, as of the last period; 0 once no job runs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        membership: Membership,
        cores: CoreChanges,
        options: ControlOptions | None = None,
        look: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ):
        self.membership = membership
        self.cores = cores
        self.options = options or ControlOptions()
        self.history = History()
        self.decisions = PublishedDecisions(scheduler)
        self.error: str | None = None
        self._errors = ErrorLog(logger)
        self._needed, self.slots_needed = NeededSlots(), 0.0
        self.snapshot_builder = SnapshotBuilder(membership, STALE_PERIODS * self.options.period)
        self.snapshot_log = SnapshotLog()
        self._pause = ShortTurns()
        self._loop = ControlLoop(self.options.settings, clock=time.perf_counter, pause=self._pause)
        self._outlook: Mapping[str, Outlook] = {}
        self._slots = asyncio.Semaphore(CHANGES_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._changes: set[asyncio.Task[None]] = set()
        self._beside = BackgroundTasks(logger)
        self._joining: asyncio.Task[None] | None = None
        self._look = look
        self._looking: asyncio.Task[None] | None = None
        self._planned: ClusterView | None = None
        self._skipped = 0
        self._homes_moved = 0
        self._hurry = asyncio.Event()
        self._restless_until = -math.inf

    # life

    def wake(self) -> None:
        """Start the loop, unless it runs."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    def look_soon(self) -> None:
        """Run twice as often for a while, because some load has jumped and the measured rates still change."""
        self._restless_until = time.monotonic() + RESTLESS_PERIODS * self.options.period
        self._hurry.set()

    def stop(self) -> None:
        """Stop the loop and the changes in flight."""
        for task in (self._task, self._joining, *self._changes):
            if task is not None:
                task.cancel()
        self._beside.cancel()

    async def _run(self) -> None:
        """Run a period after the other, until no job runs."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="elastic-control-loop")
        try:
            while self.cores.jobs.running and await self._guarded_period(pool):
                await self._next_look()
        finally:
            self._errors.settle(ends=True)
            # The next job needs nothing of what the last ones needed, and begins before it is measured.
            self.slots_needed = 0.0
            pool.shutdown(wait=False)

    async def _next_look(self) -> None:
        """Wait until the next period is due, which is earlier after a load has jumped."""
        period = self.options.period
        self._hurry.clear()
        if time.monotonic() >= self._restless_until:
            try:
                await asyncio.wait_for(self._hurry.wait(), until_look(time.time(), period))
            except TimeoutError:
                return
        await asyncio.sleep(until_look(time.time(), period / 2))

    async def _guarded_period(self, pool: ThreadPoolExecutor) -> bool:
        """Run a period; returns whether others can follow: not once the program has shut the pool down."""
        try:
            await self.period(pool)
        except Exception as error:  # an error of any kind ends this period only
            if isinstance(error, RuntimeError) and is_shut_down(pool):
                return False
            self._errors.note("the control loop", error)
            self.error = f"{type(error).__name__}: {error}"
        else:
            self.error = None
        self._errors.settle()
        return True

    # one period

    async def period(self, pool: ThreadPoolExecutor) -> None:
        """Take a snapshot, plan, carry the plan out, and record it; while all jobs are idle, not in every period."""
        await self._let_join()
        self._look_beside()
        view = self.snapshot_builder.view(time.time())
        await asyncio.sleep(0)
        if self._skips(view):
            return
        snapshot, size, plan = await asyncio.get_running_loop().run_in_executor(pool, self._decide, view)
        failed = await self._carry_out(snapshot, plan.changes)
        amended = tuple(self._amended(one, failed) for one in plan.decisions)
        await self._remember(snapshot, size, replace(plan, decisions=amended))
        self._planned = view

    def _skips(self, view: ClusterView) -> bool:
        """Return whether a plan would be made from what the last one was made from; time alone changes few plans."""
        if self._planned is not None and view.holds(self._planned) and self._skipped < IDLE_PERIODS - 1:
            self._skipped += 1
            return True
        self._planned, self._skipped = None, 0
        return False

    def _decide(self, view: ClusterView) -> tuple[Snapshot, int, Plan]:
        with responsive():
            snapshot = view.snapshot(self._pause)
            return snapshot, bytes_of(snapshot, self._pause), self._loop.tick(snapshot)

    def _look_beside(self) -> None:
        if self._look is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.ensure_future(self._look())
            # The next period looks again.
            self._beside.keep(self._looking, "a look beside the control loop")

    async def _let_join(self) -> None:
        """Let new workers join, for half a period at most; a slow one joins in the background."""
        if self._joining is None or self._joining.done():
            self._joining = asyncio.ensure_future(self.membership.join_new())
        await asyncio.wait([self._joining], timeout=self.options.period / 2)
        if self._joining.done():
            self._joining.result()

    async def _remember(self, snapshot: Snapshot, size: int, plan: Plan) -> None:
        """Keep what a period has found; in a large cluster each part takes milliseconds, and others run in between."""
        addresses = [node.address for node in snapshot.nodes]
        self.decisions.log.observe(snapshot)
        self.decisions.keep(plan.decisions, addresses)
        self.snapshot_log.add(snapshot, size)
        self._outlook = plan.outlook
        await asyncio.sleep(0)
        self.history.add(snapshot, plan)
        await asyncio.sleep(0)
        restarting = {record.name for record in self.cores.jobs.running if record.status is Status.RESTARTING}
        self.slots_needed = self._needed.after(snapshot, plan, restarting)
        for decision in plan.decisions:
            await asyncio.sleep(0)
            self.decisions.publish(decision, addresses)
        self._note_sharing()

    def _note_sharing(self) -> None:
        """Clear the `oversubscribed` flag of jobs that no longer share slots."""
        sharing = [record for record in self.cores.jobs.running if record.oversubscribed]
        held = self.cores.jobs.held() if sharing else {}
        for record in sharing:
            record.oversubscribed = any(held[a] > self.cores.workers.slots(a) for a in record.cores_by_address())

    # carrying out

    async def _carry_out(self, snapshot: Snapshot, changes: Iterable[CoreChange]) -> Failures:
        """Have the homes change cores, those that only release cores first; returns the errors by job generation."""
        waves: tuple[list[CoreChange], list[CoreChange]] = [], []
        for change in changes:
            takes = any(count > change.before.get(node, 0) for node, count in change.after.items())
            waves[takes].append(change)
        failed: Failures = {}
        for wave in waves:
            if wave:
                tasks = [self._begin(snapshot, change, failed) for change in wave]
                done, late = await asyncio.wait(tasks, timeout=ANSWER_SECONDS)
                for task in late:
                    self._beside.keep(task, "a change of cores that takes long")
                for task in done:
                    task.result()
        return failed

    def _begin(self, snapshot: Snapshot, change: CoreChange, failed: Failures) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._change(snapshot, change, failed))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return task

    async def _change(self, snapshot: Snapshot, change: CoreChange, failed: Failures) -> None:
        try:
            async with self._slots:
                # The wait may last longer than a restart, which numbers the nodes anew.
                record = self.cores.jobs.record(change.job)
                if record.spec.generation != change.generation:
                    raise PlanningError(f"job {change.job!r} has been submitted again")
                before, after = (_by_node(record, snapshot, cores) for cores in (change.before, change.after))
                await self._enact(record, change, before, after)
        except (ElasticError, Relayed) as error:
            cause = text_of(error)
            # What was decided about a job that has restarted or ended meanwhile is of no use: nothing is wrong.
            found = self.cores.jobs.get(change.job)
            holds = found is not None and found.live and found.runs(change.generation)
            level = logging.WARNING if holds else logging.INFO
            logger.log(level, "job %r: %s keeps its cores: %s", change.job, change.executor, cause)
            failed[JobGeneration(change.job, change.generation)] = f"{change.executor}: {cause}"

    async def _enact(
        self, record: JobRecord, change: CoreChange, before: Mapping[int, int], after: Mapping[int, int]
    ) -> None:
        planned = occupants(record, after)
        try:
            await self.cores.change(record, (change.executor.component, change.executor.index), before, after)
        except Relayed as error:
            if isinstance(load_error(error.data), NodeLost):
                self.membership.lost_touch(record, planned)
            raise

    def _amended(self, decision: Decision, failed: Failures) -> Decision:
        """Return a decision with its number among those of users; not applied, with the error, if it failed."""
        numbered = replace(decision, number=decision.number + self._homes_moved)
        problem = failed.get(JobGeneration(decision.job, decision.generation))
        if problem is None:
            return numbered
        return replace(numbered, applied=False, reason=f"{decision.reason} It could not be carried out: {problem}")

    def note_homes(
        self, record: JobRecord, changes: tuple[HomeChange, ...], reason: str, *, applied: bool = True
    ) -> None:
        """Keep moves of homes among the decisions about their job, also those that were not carried out."""
        moved = sum(change.moved_bytes for change in changes)
        self._note(replace(self._noted(record, reason), applied=applied, moved_bytes=moved, homes=changes), [])

    def note_others(self, record: JobRecord, what: str, reason: str, moved_bytes: float = 0.0) -> None:
        """Keep a change of another kind, with what has changed as text, among the decisions about its job."""
        self._note(replace(self._noted(record, reason), moved_bytes=moved_bytes, others=(what,)), [])

    def note_cores(self, record: JobRecord, change: CoreChange, reason: str) -> None:
        """Keep a change of the cores of one executor, with its nodes numbered as in the job, among the decisions."""
        decision = replace(self._noted(record, reason), moved_bytes=change.moved_bytes, changes=(change,))
        self._note(decision, record.nodes)

    def _noted(self, record: JobRecord, reason: str) -> Decision:
        """Return a decision about where executors are, without its changes."""
        self._homes_moved += 1
        newest = self.decisions.log.all()[-1:]
        return Decision(
            number=max(one.number for one in newest) + 1 if newest else self._homes_moved,
            time=time.time(),
            job=record.name,
            generation=record.spec.generation,
            target=record.spec.options.latency_target,
            measured=self._measured(record),
            predicted=None,
            feasible=True,
            wanted={},
            changes=(),
            applied=True,
            reason=reason,
        )

    def _note(self, decision: Decision, addresses: list[str]) -> None:
        self.decisions.keep((decision,), addresses)
        self.decisions.publish(decision, addresses)

    # questions

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [
            job_calls.Decisions.handled_by(self.decided),
            job_calls.Snapshots.handled_by(self.snapshots),
            job_calls.Evidence.handled_by(self.evidence),
        ]

    def view(self, record: JobRecord) -> ControlView:
        """Return the control loop's view of a job."""
        outlook = self._outlook.get(record.name, Outlook()) if record.live else Outlook()
        newest = self.decisions.newest(*record.generation_id)
        return ControlView(
            predicted=outlook.predicted,
            feasible=outlook.feasible,
            starved=outlook.starved,
            bound=tuple(outlook.bound),
            decided=newest.reason if newest else None,
            decided_at=newest.time if newest else None,
            control_error=self.error if record.live else None,
            measured=self._measured(record),
        )

    def _measured(self, record: JobRecord) -> float | None:
        """Return the newest measured mean latency of a job."""
        if record.name not in self.history.jobs():
            return None
        latest = self.history.job(record.name).latest()
        return latest.latency if latest.generation == record.spec.generation else None

    async def decided(self, call: job_calls.Decisions) -> Payload:
        """Return the newest decisions about a job as a JSON list, oldest first; nodes by their addresses."""
        generation = self.cores.jobs.record(call.job).spec.generation
        known = self.decisions.with_addresses(call.job, generation, call.last)
        return await asyncio.get_running_loop().run_in_executor(None, decisions_text, known)

    async def snapshots(self, call: job_calls.Snapshots) -> Payload:
        """Return the newest snapshots in which a job is as a recording."""
        generation = self.cores.jobs.record(call.job).spec.generation
        found = self.snapshot_log.of(call.job, generation, call.last)
        return await asyncio.get_running_loop().run_in_executor(None, recording_text, found)

    async def evidence(self, call: job_calls.Evidence) -> job_calls.EvidenceAnswer:
        """Return the newest snapshots in which a job is, a present one included, and the decisions about it."""
        generation = self.cores.jobs.record(call.job).spec.generation
        found = self.snapshot_log.of(call.job, generation, EVIDENCE_SNAPSHOTS, EVIDENCE_BYTES)
        known = self.decisions.with_addresses(call.job, generation, EVIDENCE_DECISIONS)
        view = self.snapshot_builder.view(time.time())

        def answer() -> job_calls.EvidenceAnswer:
            with responsive():
                present = view.snapshot(ShortTurns())
            if (call.job, generation) in map(job_key, present.jobs):
                found.append(present)
            settings, placement = asdict(self.options.settings), asdict(self.options.placement)
            return job_calls.EvidenceAnswer(settings, placement, recording_text(found), decisions_text(known))

        return await asyncio.get_running_loop().run_in_executor(None, answer)


def until_look(now: float, period: float) -> float:
    """Return the seconds until the next period begins: just after a whole multiple of the period."""
    return period - (now - LOOK_SECONDS) % period


def _by_node(record: JobRecord, snapshot: Snapshot, cores: Mapping[int, int]) -> dict[int, int]:
    """Return cores by a job's own numbers of its nodes."""
    found, places = {snapshot.nodes[place].address: count for place, count in cores.items()}, record.spec.places
    if gone := [address for address in found if address not in places]:
        raise PlanningError(f"{gone[0]} is no longer a node of job {record.name!r}")
    return {places[address]: count for address, count in found.items()}
