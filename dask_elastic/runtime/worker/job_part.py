"""A job's part on one node: builds its sources, executors, remote tasks and sinks, and ends them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from dask_elastic.executor import events
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.source_clock import SourceClock
from dask_elastic.executor.emitter import Emitter
from dask_elastic.executor.error_policy import ErrorPolicy, OnError
from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.meters import CounterRate, EdgeRows
from dask_elastic.meters.edge_rows import Edge
from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.protocol.job_calls import AgreeOnInput
from dask_elastic.runtime.protocol.job_spec import ELASTIC, RESOURCE, JobSpec
from dask_elastic.runtime.worker.buffers.epoch_buffer import EpochBuffer
from dask_elastic.runtime.worker.buffers.mailbox import Mailbox
from dask_elastic.runtime.worker.buffers.output_buffer import OutputBuffer
from dask_elastic.runtime.worker.dead_letters import DeadLetters
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.executor_threads import ExecutorThreads
from dask_elastic.runtime.worker.groups.group_exchange import GroupExchange
from dask_elastic.runtime.worker.groups.group_moves import GroupMoves
from dask_elastic.runtime.worker.homes.arrivals import Arrivals
from dask_elastic.runtime.worker.homes.executor_factory import ExecutorFactory
from dask_elastic.runtime.worker.homes.home_moves import HomeMoves
from dask_elastic.runtime.worker.idle_watch import IdleWatch
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.last_report import LastReport
from dask_elastic.runtime.worker.members import Members
from dask_elastic.runtime.worker.node_services import NodeServices
from dask_elastic.runtime.worker.remote_threads import RemoteThreads
from dask_elastic.runtime.worker.sink_thread import SinkThread
from dask_elastic.runtime.worker.sources.source_thread import SourceThread
from dask_elastic.runtime.worker.stores.state_stores import StateStores
from dask_elastic.runtime.worker.user_calls import WatchedErrorPolicy
from dask_elastic.topology.component import Component
from dask_elastic.topology.operators import Compute, SinkOperator, SourceOperator
from dask_elastic.topology.source import Source
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import Stamp, StartTask, ToHome, ToRemote

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.checkpoint_keeper import CheckpointKeeper
    from dask_elastic.runtime.worker.part_checkpoints import PartCheckpoints


class JobPart:
    """What one job runs on this node.

    Parameters
    ----------
    node : NodeServices
        The node: connections, memory, and the way to the scheduler.
    spec : JobSpec
        What to run.
    components : iterable of Component
        The topology's components, user code included.

    Attributes
    ----------
    members : Members
        The job's nodes.
    exchange : Exchange
        Delivers between its instances.
    idle_watch : IdleWatch
        Whether rows, messages or commands have arrived here recently.
    last_report : LastReport
        The last report to the scheduler.
    threads : JobThreads
        Its threads here.
    stores : StateStores
        The state of its executors and remote tasks here.
    edge_rows : EdgeRows
        Rows that its threads here have passed on.
    sources, homes, remotes, sinks : dict
        Its instances here, by id: `homes` are the executors whose home is here, `remotes` the remote tasks of others.
    factory : ExecutorFactory
        Makes executors and remote tasks.
    moves, arrivals : HomeMoves, Arrivals
        The homes that move from here, and those that move here.
    groups : GroupMoves
        The key groups that move from and to executors here.
    """

    def __init__(self, node: NodeServices, spec: JobSpec, components: Iterable[Component]):
        self.job = spec.job
        self.refused = 0
        self.reported_end, self.asked_at = False, 0.0
        self.suspects_reported = self.suspects_cleared = 0
        self.members = Members(spec)
        self.threads = JobThreads(spec.job, self.fail, leased=spec.checkpoint is not None)
        self.dead_letters = DeadLetters()
        self.edge_rows = EdgeRows(threading.Lock())
        self._edge_rates: defaultdict[Edge, CounterRate] = defaultdict(CounterRate)
        self.idle_watch = IdleWatch(node.wake)
        self.last_report = LastReport(self.idle_watch)
        self.sources: dict[ExecutorId, SourceThread] = {}
        self.homes: dict[ExecutorId, ExecutorThreads] = {}
        self.sinks: dict[ExecutorId, SinkThread] = {}
        self.remotes: dict[ExecutorId, RemoteThreads] = {}
        self.stores = StateStores(node.state_files, spec.options, node.memory)
        self.checkpoints: PartCheckpoints | None = None
        if spec.checkpoint is not None:
            from dask_elastic.runtime.worker.part_checkpoints import PartCheckpoints

            self.checkpoints = PartCheckpoints(spec, spec.checkpoint, self.threads, node.ask, self)
        self._node = node
        self.components = {component.name: component for component in components}
        self.exchange: Exchange = (GroupExchange if spec.groups else Exchange)(
            self.members, self.components, self.homes, self.sinks, node.peer, lambda: node.memory.tight,
            self.idle_watch, self.threads.lease,
        )  # fmt: skip
        self.output_buffer = OutputBuffer(node.ask, spec.generation_id, node.address, lambda: self.ended)
        self._lock = threading.Lock()
        # Held while executors learn of nodes that leave or return, so that one that arrives learns of each once.
        self._membership = threading.Lock()
        self.moves, self.arrivals, self.groups = HomeMoves(self, node), Arrivals(self, node), GroupMoves(self, node)
        self.factory = ExecutorFactory(
            self.members, self.components, self.stores, self.threads, self.exchange, self.checkpoints, self.edge_rows,
            self._error_policy, node.task_ends.note, self._instance_ended, self.moves.depart, self.groups,
        )  # fmt: skip
        self._build()
        self._remaining: set[ExecutorId] = {*self.sources, *self.homes, *self.sinks}

    @property
    def spec(self) -> JobSpec:
        """The job, with the nodes that it has now."""
        return self.members.spec

    @property
    def ended(self) -> bool:
        """Whether the job has ended here, by itself or not."""
        return self.threads.ended

    @property
    def error(self) -> BaseException | None:
        """The error that the job has ended with here, if any."""
        return self.threads.error

    @property
    def complete(self) -> bool:
        """Whether every instance here has ended by itself."""
        return not self._remaining

    # building

    def _build(self) -> None:
        for name, component in self.components.items():
            match component.operator:
                case SourceOperator() as operator:
                    self._build_sources(name, component, operator)
                case SinkOperator() as operator:
                    self._build_sink(name, operator)
                case Compute():
                    self._build_executors(name, component)

    def _build_sources(self, name: str, component: Component, operator: SourceOperator) -> None:
        instances = self.spec.instances(name)
        for identity in instances:
            if self.spec.node_of(identity) == self.spec.node:
                tier, place = self.members.tier, (self._error_policy(), self.spec.node)
                emitter = Emitter(name, component.outputs, tier.spaces, *place, tables=tier.groups_of)
                self.edge_rows.join(emitter.edge_rows)
                self.sources[identity] = SourceThread(
                    identity, operator.source, len(instances), emitter, self._mailbox(identity, operator.source),
                    self._clock(identity, operator.source), self.threads, self.exchange, self._node.queue_reader,
                    self._node.client, self._instance_ended,
                    None if self.checkpoints is None else self.checkpoints.keeper.reached, self._position(identity),
                    lambda found: self._node.ask(AgreeOnInput(*self.spec.generation_id, name, found)),
                    self.spec.options.longest_tick,
                )  # fmt: skip

    @property
    def _keeper(self) -> CheckpointKeeper | None:
        return None if self.checkpoints is None else self.checkpoints.keeper

    def _position(self, source: ExecutorId) -> SourcePosition:
        return SourcePosition() if self.checkpoints is None else self.checkpoints.position(source)

    def _mailbox(self, identity: ExecutorId, source: Source) -> Mailbox | EpochBuffer:
        if not source.epochs:
            spool = None if self.checkpoints is None else self.checkpoints.spool(identity, source)
            return Mailbox(spool=spool)
        kept = None if self.checkpoints is None else self.checkpoints.epoch_spool(identity)
        return EpochBuffer.of(self._node, self.spec, identity, source.staging_bytes, kept)

    def _clock(self, identity: ExecutorId, source: Source) -> SourceClock | None:
        if source.event_time is None:
            return None
        options = self.spec.options
        interval, idle = options.watermark_interval, options.idle_timeout
        clock = SourceClock(identity, source.event_time, source.slack, interval, idle, time.monotonic())
        clock.newest = self._position(identity).event_time
        return clock

    def _build_sink(self, name: str, operator: SinkOperator) -> None:
        upstream = self.spec.sink_inputs(name, self.spec.node)
        if upstream:
            identity = ExecutorId(name, self.spec.node)
            inputs = Inputs(identity, upstream, self._with_event_time(upstream))
            self.sinks[identity] = SinkThread(
                self.spec,
                identity,
                operator.sink,
                inputs,
                self.threads,
                self.exchange,
                self.output_buffer,
                self.discard,
                self._keeper,
                None if self.checkpoints is None else self.checkpoints.recovered(identity),
            )

    def _build_executors(self, name: str, component: Component) -> None:
        for identity in self.spec.instances(name):
            if self.spec.node_of(identity) == self.spec.node:
                cores = self.spec.cores[name][identity.index]
                # Tasks on other nodes start without state: with a restored one they get their shards by moves.
                restores = self.checkpoints is not None and self.checkpoints.restores
                first = {self.spec.node: max(1, cores.get(self.spec.node, 0))} if restores else cores
                executor = self.factory.executor(identity, first)
                if self.checkpoints is not None:
                    self.checkpoints.restore(identity, component, executor.store)
                executor.sharing.change(identity.component in self.spec.separate, None)
                self.homes[identity] = self.factory.home(executor)

    def _with_event_time(self, instances: Iterable[ExecutorId]) -> list[ExecutorId]:
        return [instance for instance in instances if instance.component in self.factory.timed]

    def _error_policy(self) -> ErrorPolicy:
        on_error: OnError = "skip" if self.spec.options.on_error == "skip" else "fail"
        return WatchedErrorPolicy(on_error, self.dead_letters.add, self.threads.user_calls)

    # from start to end

    def start_executors(self) -> None:
        """Start everything but the sources: all nodes do this before any source starts."""
        if self.checkpoints is not None:
            self.checkpoints.keeper.start()
        for sink in self.sinks.values():
            sink.start()
        for identity, home in list(self.homes.items()):
            home.begin()
            restores = self.checkpoints is not None and self.checkpoints.restores
            if restores and self.spec.options.paradigm != RESOURCE:
                home.handle(events.SetCores(self.spec.cores[identity.component][identity.index]))

    def start_sources(self) -> None:
        """Start the sources, once all nodes have started everything else."""
        for source in self.sources.values():
            source.start()
        if not self._remaining:
            self._node.job_part_ended(self.job)

    def drain(self) -> None:
        """Stop reading; rows that were read are processed."""
        for source in self.sources.values():
            source.stop()

    def end(self, error: BaseException | None = None) -> bool:
        """Stop at once; state and measures stay readable. Returns False if the job had ended before."""
        if not self.threads.end(error):
            return False
        self.exchange.abort()
        self.moves.abort()
        self.groups.abort()
        parts: list[SourceThread | ExecutorThreads | RemoteThreads | SinkThread] = [
            *self.sources.values(),
            *list(self.homes.values()),
            *list(self.remotes.values()),
            *self.sinks.values(),
        ]
        for part in parts:
            part.abort()
        if self.checkpoints is not None:
            self.checkpoints.abort()
        return True

    def fail(self, error: BaseException) -> None:
        """End the job everywhere because of an error."""
        if self.end(error):
            self._node.job_failed(self.job, error)

    def _instance_ended(self, identity: ExecutorId) -> None:
        """Tell the next receivers that an instance has delivered its last batch."""
        self.exchange.end(identity)
        self.moves.finished(identity)
        self.discard(identity)

    def expect(self, identity: ExecutorId) -> None:
        """Note that the part is not complete before an executor that comes here has ended."""
        with self._lock:
            self._remaining.add(identity)

    def discard(self, identity: ExecutorId) -> None:
        """Note that an instance has ended, or is here no longer; reports the end of the last one."""
        with self._lock:
            self._remaining.discard(identity)
            last = not self._remaining
        if last:
            self._node.job_part_ended(self.job)

    # messages between homes and remote tasks

    def receive_message(self, executor: ExecutorId, node: int, stamp: Stamp, message: ToRemote | ToHome) -> None:
        """Take a message between an executor's home and its remote tasks; a stale one changes nothing."""
        self.idle_watch.note()
        if isinstance(message, ToHome):
            home = self.homes.get(executor)
            if home is None:
                # It has left: its tasks have nothing to say any more that counts.
                self.refused += 1
            elif home.executor.links.admit(node, stamp):
                home.receive(message)
            return
        remote = self.remotes.get(executor)
        if isinstance(message, StartTask) and (remote is None or stamp.incarnation > remote.part.incarnation):
            if remote is not None:
                remote.close()
            remote = self.factory.remote(executor, node, stamp.incarnation)
            with self._lock:
                self.remotes[executor] = remote
        if remote is None or not remote.part.admit(stamp):
            self.refused += 1
            return
        remote.receive(message)

    @property
    def messages_refused(self) -> int:
        """Stale core changes, and stale or repeated messages; executors' measures count those to homes."""
        changes = sum(home.driver.refused for home in list(self.homes.values()))
        return self.refused + changes + sum(remote.part.refused for remote in list(self.remotes.values()))

    # nodes that join, leave and fail

    def node_lost(self, address: str, error: BaseException, died: bool) -> None:
        """Fail over from a node that was given up; fail the job if both nodes hold instances.

        Homes here let other tasks replay the pending sub-batches of their tasks on that node. Remote tasks here whose
        home is on that node end.
        """
        node = self.members.place_of(address)
        if self.ended or node is None:
            return
        if self.members.both_hold_instances(node):
            if not self.complete:
                self.fail(error)
            return
        with self._membership:
            if self.members.lose(node):
                self._node_left(node, died)
        for remote in list(self.remotes.values()):
            if remote.home == node:
                self.end_remote(remote)

    def end_remote(self, remote: RemoteThreads) -> None:
        """End the remote tasks here of an executor; others that have been started since go on."""
        executor = remote.part.identity
        remote.close()
        with self._lock:
            if self.remotes.get(executor) is remote:
                del self.remotes[executor]
        self.stores.remove(executor, remote.part.store)

    def change_members(
        self, change: int, nodes: tuple[str, ...], guests: tuple[int, ...], died: Collection[str] = ()
    ) -> None:
        """Take the nodes that the scheduler announced; see `Members.update`. The caller has connected the new ones."""
        with self._membership:
            for place in self.members.update(change, nodes, guests, died):
                if place.left:
                    self._node_left(place.node, place.died)
                if place.returned:
                    for home in list(self.homes.values()):
                        home.driver.node_returned(place.node)

    def add_home(self, home: ExecutorThreads) -> None:
        """Take an executor that has come, and let it fail over from the nodes that have left."""
        with self._membership:
            self.homes[home.identity] = home
            for node in self.members.left:
                home.driver.node_left(node, died=False)

    def _node_left(self, node: int, died: bool) -> None:
        self.moves.copies.node_left(node)
        for home in list(self.homes.values()):
            home.driver.node_left(node, died)

    def processing_on(self, address: str) -> list[tuple[str, str]]:
        """Return what remote tasks on another node are processing: operators, and texts that describe sub-batches."""
        node = self.members.place_of(address)
        if self.ended or node is None:
            return []
        return [
            (home.identity.component, batch)
            for home in list(self.homes.values())
            for batch in home.driver.processing_on(node).values()
        ]

    def clear_suspects(self) -> bool:
        """Check whether all sub-batches that lost nodes were processing are settled; returns True once after a report.

        `suspects_reported` is the number of the newest report of such sub-batches to the scheduler.
        """
        reported = self.suspects_reported
        if reported == self.suspects_cleared or any(home.driver.has_suspects for home in list(self.homes.values())):
            return False
        self.suspects_cleared = reported
        return True

    # upkeep

    def is_busy(self) -> bool:
        """Return whether rows waited or were processed here at the last report, or are now at remote tasks here."""
        return self.last_report.has_backlog or any(remote.part.is_busy for remote in list(self.remotes.values()))

    def balance_due(self) -> None:
        """Balance every executor at home here, if the paradigm lets its cores change."""
        for home in list(self.homes.values()) if self.spec.options.paradigm == ELASTIC else ():
            home.balance()

    def flush_due(self) -> None:
        """Let remote tasks here send their dirty state home."""
        for remote in list(self.remotes.values()):
            remote.flush_due()

    def measures(self) -> list[ExecutorMeasure]:
        """Return the measures of every executor at home here."""
        now = time.time()
        return [home.executor.measure(now) for home in list(self.homes.values())]

    def edge_rates(self) -> dict[Edge, float]:
        """Return the rows per second that threads here pass from each operator to each consumer of it.

        Called for each report of the worker.
        """
        now = time.monotonic()
        return {edge: self._edge_rates[edge].per_second(rows, now) for edge, rows in self.edge_rows.totals().items()}
