"""The scheduler's record of one job."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from dask_elastic.control.lease import GrantedLeases
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.protocol.job_description import (
    ComponentDescription,
    ControlView,
    JobDescription,
    SharingStatus,
)
from dask_elastic.runtime.protocol.job_spec import ELASTIC, VACANT, JobGeneration, JobSpec
from dask_elastic.runtime.protocol.job_status import ENDED, JobEvent, Status, next_status
from dask_elastic.runtime.protocol.reports import EdgeRate, ExecutorReport, PartReport, StalledCall, report_seconds
from dask_elastic.runtime.scheduler.groups.job_groups import JobGroups
from dask_elastic.runtime.scheduler.homes.job_homes import JobHomes
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.vocab.checkpoint import CheckpointStatus
from dask_elastic.vocab.column_types import ColumnTypes
from dask_elastic.vocab.epoch import HandoffProgress

MISSED_REPORTS = 3
"""Reports that have to be missing before a worker is pinged, and before its leases are over."""

ExecutorKey = tuple[str, int]
"""Operator and number of an executor."""


class ReceivedReport(NamedTuple):
    """The newest report of a node.

    Parameters
    ----------
    at : float
        When the scheduler received it, or its repetition, seconds since the epoch.
    report : PartReport
        The report.
    idle : bool
        Whether the node is idle and has repeated it.
    behind : float
        Seconds for which it does not hold any more, because the part is being measured.
    """

    at: float
    report: PartReport
    idle: bool = False
    behind: float = 0.0


class Suspect(NamedTuple):
    """A batch of which a lost worker may have died, and which a home is about to process.

    Parameters
    ----------
    number : int
        `PartReport.absolved` names it when the home has processed the batch.
    operator : str
        The operator.
    batch : str
        A text that describes the batch.
    """

    number: int
    operator: str
    batch: str


class JobRecord:
    """One job on the scheduler.

    Parameters
    ----------
    spec : JobSpec
        The spec with which it was started; its nodes change, its homes do not.
    oversubscribed : bool
        Whether executors share slots.
    components : bytes
        The pickled components, for nodes that join.
    pinned : iterable of (str, int)
        Executors whose cores the user has set.

    Attributes
    ----------
    homes : JobHomes
        Where its executors are now.
    groups : JobGroups
        Which executors own its key groups now.
    chosen_homes : dict
        The address of the home of each executor that was moved; the next generations begin with it.
    cores : dict
        Cores of each executor by node, as its home has confirmed them; changes replace the mapping of an executor.
    pinned : set
        Executors whose cores the control loop does not change.
    pinned_cores : dict
        The cores that the user has set for each of these.
    changing : dict of asyncio.Lock
        Held while the cores of an executor change.
    membership : asyncio.Lock
        Held while nodes join or leave.
    reports : dict of int to ReceivedReport
        The newest report of each node.
    incarnations : dict of int to int
        The number of the joining of each node that was not there from the beginning.
    expelling : set of str
        Lost workers that are about to leave the job.
    suspects : dict of int to Suspect
        For each home, the batch of which a lost node may have died, until the home has processed it.
    refused : int
        Reports of nodes that had left.
    halted : bool
        Whether the job is between two generations: what its parts say is refused.
    checkpoints : JobCheckpoints or None
        Its checkpoints; None for a job without them.
    submitted : Submit or None
        The call with which it was submitted, as long as it may be restarted.
    draining : bool
        Whether its sources are to read no further.
    leases : GrantedLeases
        Until when the parts of this generation may emit.
    sharing : dict of str to SharingStatus
        How windowed computes keep their partials, where that has been set or has changed.
    silent : frozenset of str
        Workers that were left out at the start because they did not answer.
    freed : bool
        Whether its workers were called to drop its state.
    """

    def __init__(
        self, spec: JobSpec, oversubscribed: bool, components: bytes = b"", pinned: Iterable[ExecutorKey] = ()
    ):
        self.spec = spec
        self.oversubscribed = oversubscribed
        self.components = components
        self.pinned = set(pinned)
        self.changing: defaultdict[ExecutorKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.membership = asyncio.Lock()
        self.status = Status.STARTING
        self.finishing = False
        self.error: bytes | None = None
        self.began = self.generation_began = time.time()
        self.ended_at: float | None = None
        self.reports: dict[int, ReceivedReport] = {}
        self.homes = JobHomes(spec)
        self.groups = JobGroups(spec)
        self.chosen_homes: dict[ExecutorKey, str] = {}
        self.cores = _cores_of(spec)
        self.pinned_cores = {key: sum(self.cores[key].values()) for key in self.pinned}
        self.refused = 0
        self.halted = False
        self.draining = False
        self.checkpoints: JobCheckpoints | None = None
        self.submitted: Submit | None = None
        self.silent: frozenset[str] = frozenset()
        self.freed = False
        self.changes = 0
        self.core_changes = 0
        self.joinings = 0
        self.incarnations: dict[int, int] = {}
        self.expelling: set[str] = set()
        self.suspects: dict[int, Suspect] = {}
        self.leases = GrantedLeases()
        self.sharing: dict[str, SharingStatus] = {}
        self._letters: Counter[str] = Counter()
        self._over = asyncio.Event()
        self._started = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.spec.job

    @property
    def generation_id(self) -> JobGeneration:
        """The job and its generation."""
        return self.spec.generation_id

    @property
    def nodes(self) -> list[str]:
        """Addresses of its nodes, in order; `VACANT` for those that have left."""
        return list(self.spec.nodes)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the nodes that have not left."""
        return [address for _, address in self.spec.members]

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status not in ENDED

    @property
    def starting(self) -> bool:
        """Whether its parts are being built, for the first time or again."""
        return self.status in (Status.STARTING, Status.RESTARTING)

    @property
    def elastic(self) -> bool:
        """Whether its cores and homes may change."""
        return self.spec.options.paradigm == ELASTIC

    @property
    def complete(self) -> bool:
        """Whether every node has reported that all of its instances have ended, and none is on its way to another."""
        moving = self.homes.moving
        return (moving is None or moving.waits) and all(
            node in self.reports and self.reports[node].report.complete for node, _ in self.spec.members
        )

    def change(self, event: JobEvent) -> None:
        """Change the status by the table of `job_status`; events after the end are late and change nothing."""
        if not self.live:
            return
        self.status = next_status(self.name, self.status, event)
        if self.status is not Status.STARTING:
            self._started.set()
        if self.status in ENDED:
            self.components = b""
            self.submitted = None
            self.ended_at = time.time()
            self._ended.set()
            self._over.set()

    def receive(self, node: int, report: PartReport, idle: bool = False, behind: float = 0.0) -> None:
        """Keep the newest report of a node that has not left, and drop the suspect batches that it has processed."""
        if self.spec.nodes[node] == VACANT:
            return
        self.reports[node] = ReceivedReport(time.time(), report, idle, behind)
        if node in self.suspects and report.absolved >= self.suspects[node].number:
            del self.suspects[node]

    def require_same_types(self) -> None:
        """Check that all executors of an operator that reads a union get columns of the same types.

        An executor compares what it gets itself; each may have rows of one upstream operator only.

        Raises
        ------
        SchemaMismatch
            If they do not.
        """
        first: dict[str, ColumnTypes] = {}
        for received in self.reports.values():
            for operator, types in received.report.unions:
                first.setdefault(operator, types).require_same(types, operator)

    def holds(self, node: int) -> bool:
        """Return whether a node is, or becomes, a home, runs a source or a sink, or has cores of an executor."""
        return node in self.homes.emitting or any(node in by_node for by_node in self.cores.values())

    def needs(self, address: str) -> bool:
        """Return whether the loss of a worker ends the job, because executors, sources or sinks are at home there."""
        node = self.spec.places.get(address)
        return node is not None and (self.starting or node in self.homes.needed)

    def admits(self, generation: int, node: int, incarnation: int) -> bool:
        """Return whether the sender of a report is part of the job; counts those that are not."""
        present = 0 <= node < len(self.spec.nodes) and self.spec.nodes[node] != VACANT
        if self.runs(generation) and present and self.incarnations.get(node, 0) == incarnation:
            return True
        self.refused += 1
        return False

    def runs(self, generation: int) -> bool:
        """Return whether a generation of the job is the one that runs."""
        return self.spec.generation == generation and not self.halted

    def halt(self) -> None:
        """Refuse from now on what the parts of this generation say; another one follows."""
        self.halted = True
        self._over.set()
        self.leases.close()
        for received in self.reports.values():
            self._letters.update(received.report.dead_letters)
            self.refused += received.report.refused
        self.reports = {}

    def begin_generation(self, spec: JobSpec, oversubscribed: bool) -> None:
        """Take the next generation of the job, after `halt`."""
        separate = tuple(name for name, status in self.sharing.items() if status.partials == "instances")
        self.spec = replace(spec, separate=separate)
        self.oversubscribed = oversubscribed
        self.reports = {}
        self.homes = JobHomes(spec)
        self.groups = JobGroups(spec)
        self.cores = _cores_of(spec)
        self.incarnations = {}
        self.expelling = set()
        self.suspects = {}
        self.leases = GrantedLeases()
        self.finishing = False
        self.generation_began = time.time()
        self._over = asyncio.Event()
        self.halted = False

    def leave(self, address: str) -> None:
        """Remove a node that holds nothing any more; its counts of dead letters and refused messages stay."""
        node = self.spec.places[address]
        # It may have been a home: what it had to emit has left it, and its place goes to another node.
        self.leases.end(node)
        received = self.reports.pop(node, None)
        if received is not None:
            self._letters.update(received.report.dead_letters)
            self.refused += received.report.refused
        self.spec = self.spec.without(address)

    async def started(self) -> None:
        """Return when the job has started, or ended before."""
        await self._started.wait()

    async def ended(self, timeout: float | None = None) -> None:
        """Return when the job has ended, or after `timeout` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout)

    async def over(self) -> None:
        """Return when the generation that runs now is halted, or the job has ended."""
        await self._over.wait()

    def measures(self) -> tuple[ExecutorReport, ...]:
        """Return the newest measures of each executor: those of its home, as far as this has reported them."""
        found: dict[ExecutorKey, ExecutorReport] = {}
        for node in sorted(self.reports):
            for one in self.reports[node].report.executors:
                key = one.operator, one.executor
                if key not in found or self.homes.node(*key) == node:
                    found[key] = one
        return tuple(found.values())

    def cores_by_address(self) -> dict[str, int]:
        """Return the cores that the job holds on each worker."""
        nodes = self.spec.nodes
        held: dict[str, int] = {}
        for by_node in self.cores.values():
            for node, count in by_node.items():
                held[nodes[node]] = held.get(nodes[node], 0) + count
        return held

    def instances_by_address(self) -> dict[ExecutorKey, str]:
        """Return the worker of each executor and of each instance of a source."""
        nodes, tables = self.spec.nodes, self.homes.tables
        current = {name: tables[name].homes if name in tables else homes for name, homes in self.spec.homes.items()}
        return {(name, index): nodes[node] for name, homes in current.items() for index, node in enumerate(homes)}

    def staged(self, source: str) -> tuple[int, int]:
        """Return the bytes that the instances of a source have staged in memory, and on disk."""
        staged = (part for received in self.reports.values() for part in received.report.staged)
        held = [part for part in staged if part.source == source]
        return sum(part.memory for part in held), sum(part.spilled for part in held)

    def checkpoint_status(self) -> CheckpointStatus | None:
        """Return where the job stands with its checkpoints; None for a job without them."""
        if self.checkpoints is None:
            return None
        return self.checkpoints.status(self.ended_at or time.time(), ended=self.ended_at is not None)

    def dead_letters(self) -> dict[str, int]:
        """Return the rows for which user code raised, by operator."""
        dead = Counter(self._letters)
        for received in self.reports.values():
            dead.update(received.report.dead_letters)
        return dict(dead)

    def edge_rates(self) -> dict[tuple[str, str], float]:
        """Return the rows per second that each operator passes to each consumer of it."""
        rates = {edge: 0.0 for summary in self.spec.summaries for edge in summary.edges}
        for received in self.reports.values():
            for producer, consumer, rate in received.report.edges:
                rates[producer, consumer] = rates.get((producer, consumer), 0.0) + rate
        return rates

    def stalled(self) -> tuple[StalledCall, ...]:
        """Return the calls of user code that do not return, oldest first; none of a job that has ended."""
        found = [call for received in self.reports.values() for call in received.report.stalled]
        return tuple(sorted(found, key=lambda call: call.since)) if self.live else ()

    def description(self, handoffs: Iterable[HandoffProgress], control: ControlView) -> JobDescription:
        """Return the description of the job for clients.

        Parameters
        ----------
        handoffs : iterable of HandoffProgress
            How far Spark's handoff to each source is.
        control : ControlView
            The control loop's view.
        """
        reports = [self.reports[node].report for node in sorted(self.reports)]
        options = self.spec.options
        return JobDescription(
            name=self.name,
            generation=self.spec.generation,
            status=self.status,
            error=self.error,
            began=self.began,
            ended=self.ended_at,
            oversubscribed=self.oversubscribed,
            latency_target=options.latency_target,
            planner=options.planner,
            paradigm=options.paradigm,
            dry_run=options.dry_run,
            pinned=tuple(sorted(self.pinned)),
            nodes=self.spec.nodes,
            silent=tuple(sorted(self.silent.difference(self.spec.nodes))),
            components=tuple(
                ComponentDescription(
                    s.name, s.kind, s.inputs, s.operators, s.pushed, s.kinds, s.windowings, s.configuration
                )
                for s in self.spec.summaries
            ),
            executors=self.measures(),
            sources=tuple(part for report in reports for part in report.sources),
            sinks=tuple(part for report in reports for part in report.sinks),
            event_times=tuple(part for report in reports for part in report.event_times),
            dead_letters=self.dead_letters(),
            refused=self.refused + sum(report.refused for report in reports),
            handoffs=tuple(handoffs),
            control=control,
            checkpoints=self.checkpoint_status(),
            edges=tuple(EdgeRate(*edge, rate) for edge, rate in self.edge_rates().items()),
            stalled=self.stalled(),
            run=self.spec.run,
            sharing=tuple(self.sharing.values()),
        )


def lease_seconds(record: JobRecord, timeout: float) -> float:
    """Return the length of the leases of a job's parts: those of workers that hang are over when this is noticed.

    Parameters
    ----------
    record : JobRecord
        The job.
    timeout : float
        The timeout of heartbeats, seconds.
    """
    return max(timeout, MISSED_REPORTS * report_seconds(record.spec.options, idle=True))


def _cores_of(spec: JobSpec) -> dict[ExecutorKey, Mapping[int, int]]:
    return {(name, index): dict(by_node) for name, parts in spec.cores.items() for index, by_node in enumerate(parts)}
