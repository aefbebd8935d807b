"""A saturated job on a virtual clock: the engine's executors, meters, credit windows and control loop, without threads.

Only time is emulated: service, the hop between nodes, the due times of reports, balancing and decisions. A minute of
sixteen cores therefore takes some seconds of one, and two runs differ only in what was changed between them.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dask_elastic.control.loop import ControlLoop
from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.measures import ExecutorMeasure
from dask_elastic.executor.task_queue import LabelItem, StopItem, Work
from dask_elastic.meters import FlowWindow
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot

OPERATOR = "per_key"
SOURCE = ExecutorId("stream", 0)
HOP = 1e-3
"""Seconds from one node to another."""

ORDER_SECONDS = 0.02
"""Seconds from a decision until the home applies it."""

LOOK_SECONDS = 0.05
"""Seconds from the reports to the control loop's tick."""

RESTLESS_PERIODS = 2
"""Periods after a jump of the load in which the control loop runs twice."""

PIPELINED = 2

Keys = Callable[[float], np.ndarray]
"""Returns the key hashes of the next batch, given the time."""


@dataclass(frozen=True)
class Options:
    """Options of the job, as those of `submit`; the defaults are those of the configuration."""

    nodes: int = 4
    threads: int = 4
    executors: int = 4
    shards: int = 256
    service: float = 1e-3
    service_deviation: float = 0.0
    latency_target: float = 0.2
    inbox_time: float = 0.005
    queue_time: float = 0.2
    channel_window: int = 32 * 2**20
    balance_threshold: float = 1.05
    balance_interval: float = 0.5
    report_interval: float = 0.5
    control_period: float = 1.0
    elastic: bool = True


class Gate:
    """The window of credit of the source at one executor."""

    def __init__(self, options: Options):
        self.window = FlowWindow(options.channel_window, options.queue_time)
        self.used = 0
        self.batches = 0

    @property
    def full(self) -> bool:
        """Whether the window is full."""
        return self.batches >= PIPELINED and self.used >= self.window.nbytes


@dataclass
class Core:
    """A thread that runs one task."""

    node: int
    busy: bool = False
    inbox: deque[m.ToRemote] = field(default_factory=deque)


class VirtualJob:
    """A source that saturates all cores, and one keyed operator.

    Parameters
    ----------
    keys : callable
        Returns the hashes of the keys of the next batch, given the time.
    options : Options
        How it runs.
    loop : ControlLoop, optional
        Decides about cores; by default one with default settings.

    Attributes
    ----------
    done : list of (float, int)
        When how many rows were processed.
    """

    def __init__(self, keys: Keys, options: Options, loop: ControlLoop | None = None):
        self.keys = keys
        self.options = options
        self.loop = loop or ControlLoop()
        self.now = 0.0
        self.done: list[tuple[float, int]] = []
        self.snapshots: list[Snapshot] = []
        self.decisions: list[str] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._random = np.random.default_rng(5)
        self.space = self.make_space()
        self.homes = [self._home(index) for index in range(options.executors)]
        self.cores = [self._first_cores(index) for index in range(options.executors)]
        self.gates = [Gate(options) for _ in self.homes]
        self._threads: dict[tuple[int, int], Core] = {}
        self._reports: dict[int, ExecutorMeasure] = {}
        self._restless_until = 0.0
        self._waiting: Iterator[int] | None = None
        limits = ExecutorLimits(options.inbox_time, options.balance_threshold)
        self.executors = [self.make_executor(index, limits) for index in range(options.executors)]

    def make_space(self) -> KeySpace:
        """Return the key space."""
        return KeySpace(self.options.executors, self.options.shards)

    def make_executor(self, index: int, limits: ExecutorLimits) -> ElasticExecutor:
        """Return an executor."""
        place = ExecutorId(OPERATOR, index), self.space, self.homes[index], self.cores[index], [SOURCE]
        return ElasticExecutor(*place, limits=limits)

    def _home(self, index: int) -> int:
        return index * self.options.nodes // self.options.executors

    def _first_cores(self, index: int) -> dict[int, int]:
        own = [j for j, home in enumerate(self.homes) if home == self.homes[index]]
        if not self.options.elastic:
            return {self.homes[index]: 1}
        share, more = divmod(self.options.threads, len(own))
        return {self.homes[index]: share + (own.index(index) < more)}

    # time

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedule a call at a time."""
        heapq.heappush(self._agenda, (when, next(self._numbers), what))

    def every(self, seconds: float, first: float, what: Callable[[], None]) -> None:
        """Schedule a call periodically."""

        def again() -> None:
            what()
            self.at(self.now + seconds, again)

        self.at(first, again)

    def run(self, seconds: float) -> VirtualJob:
        """Run for a number of seconds."""
        options = self.options
        for index, executor in enumerate(self.executors):
            self._carry_out(index, executor.start())
            spread = (index + 1) / (len(self.executors) + 1)
            self.every(options.report_interval, options.report_interval, lambda j=index: self._report(j))
            if options.elastic:
                first = spread * options.balance_interval
                self.every(options.balance_interval, first, lambda j=index: self._handle(j, events.BalanceDue()))
        if options.elastic:
            self.every(options.control_period, options.control_period + LOOK_SECONDS, self._decide)
            self.every(options.control_period, options.control_period * 1.5 + LOOK_SECONDS, self._look_between)
        self.go_on()
        while self._agenda and self._agenda[0][0] <= seconds:
            self.now, _, what = heapq.heappop(self._agenda)
            what()
        return self

    # source

    def go_on(self) -> None:
        """Send batches until a window is full; a full window blocks all later rows, as in the engine."""
        while True:
            if self._waiting is None:
                self._waiting = self.deliver(self.keys(self.now))
            for index in self._waiting:
                if self.blocked(index):
                    return
            self._waiting = None

    def blocked(self, index: int) -> bool:
        """Whether the source waits at an executor."""
        return self.gates[index].full

    def deliver(self, hashes: np.ndarray) -> Iterator[int]:
        """Deliver a batch to its executors in turn; yields each executor until its window has room."""
        executor = self.space.executor_of(hashes).astype(int)
        stamp = self.now
        for index in range(len(self.executors)):
            part = hashes[executor == index]
            if not len(part):
                continue
            while self.gates[index].full:
                self.gates[index].window.held_back()
                yield index
            self.send_to(index, Batch(pa.record_batch({"key": part.view(np.int64)}), part, stamp))

    def send_to(self, index: int, batch: Batch) -> None:
        """Send a batch to an executor, for which there is credit."""
        gate = self.gates[index]
        gate.used += batch.nbytes
        gate.batches += 1
        delay = 0.0 if self.homes[index] == 0 else HOP
        self.at(self.now + delay, lambda: self._offer(index, batch))

    def _offer(self, index: int, batch: Batch) -> None:
        executor = self.executors[index]
        self._carry_out(index, executor.accept(executor.split(batch), SOURCE, batch, batch.nbytes, self.now))

    def _release(self, index: int, released: do.Release) -> None:
        gate = self.gates[index]
        gate.used -= released.nbytes
        gate.batches -= not released.is_part
        gate.window.released(released.nbytes, self.now, released.wanted_more)
        self.go_on()

    # executors

    def _handle(self, index: int, event: events.Event) -> None:
        self._carry_out(index, self.executors[index].handle(event, self.now))

    def _carry_out(self, index: int, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.Wake(task) | do.Run(task):
                    self._feed(index, task)
                case do.Release():
                    delay = 0.0 if self.homes[index] == 0 else HOP
                    self.at(self.now + delay, lambda released=instruction: self._release(index, released))
                case do.StartTask(task, node, _):
                    self._threads[index, task] = Core(node)
                    self._feed(index, task)
                case do.InstallState(shard, task, node, _):
                    self._tell(index, m.Install(task, shard, None))
                    self._handle(index, events.StateInstalled(shard, task))
                case do.RequestFlush(task, _, token, shard):
                    self._tell(index, m.FlushRequest(task, token, shard))

    def _feed(self, index: int, task: int) -> None:
        """Start the next work of a task."""
        core = self._threads[index, task]
        remote = core.node != self.homes[index]
        while (remote or not core.busy) and (taken := self.executors[index].take(task, self.now)) is not None:
            number, item = taken
            if remote:
                self._feed_remote(index, task, number, item)
            elif isinstance(item, Work):
                self._work(index, task, core, number, item.rows)
            elif isinstance(item, LabelItem):
                self._handle(index, events.LabelBack(task, item.shard))
            else:
                self._handle(index, events.TaskEnded(task))
                return

    def _work(self, index: int, task: int, core: Core, number: int, rows: int, waited: float = 0.0) -> None:
        core.busy = True
        seconds = self._service(rows)

        def end() -> None:
            core.busy = False
            self.done.append((self.now, rows))
            if core.node == self.homes[index]:
                self._carry_out(index, self.executors[index].done(task, number, seconds, self.now))
                self._feed(index, task)
            else:
                self._return(index, m.Done(task, number, seconds, waited))
                self._go_on(index, task)

        self.at(self.now + seconds, end)

    def _service(self, rows: int) -> float:
        """Return the time that rows take; that of each is normally distributed, and not negative."""
        mean, deviation = self.options.service, self.options.service_deviation
        if not deviation:
            return rows * mean
        return float(np.maximum(self._random.normal(mean, deviation, rows), 0.0).sum())

    # remote tasks

    def _feed_remote(self, index: int, task: int, number: int, item: Work | LabelItem | StopItem) -> None:
        if isinstance(item, Work):
            self._tell(index, m.SubBatch(task, number, item.batch()))
        elif isinstance(item, LabelItem):
            self._tell(index, m.Label(task, item.shard, item.stays))
        else:
            self._handle(index, events.TaskEnded(task))

    def _tell(self, index: int, message: m.ToRemote) -> None:
        core = self._threads[index, message.task]

        def arrive() -> None:
            core.inbox.append(message)
            self._go_on(index, message.task)

        self.at(self.now + HOP, arrive)

    def _go_on(self, index: int, task: int) -> None:
        core = self._threads[index, task]
        while core.inbox and not core.busy:
            match core.inbox.popleft():
                case m.SubBatch(_, number, batch, _):
                    self._work(index, task, core, number, batch.rows.num_rows)
                case m.Label(_, shard, _):
                    self._return(index, m.LabelReturned(task, shard, self._through(index, task), None))
                case m.FlushRequest(_, token, shard):
                    self._return(index, m.Flush(task, self._through(index, task), None, token, shard))

    def _through(self, index: int, task: int) -> int:
        known = self.executors[index].routes.tasks.get(task)
        flying = list(known.in_flight) if known is not None else []
        return (min(flying) if flying else known.sent if known is not None else 0) - 1

    def _return(self, index: int, message: m.Done | m.Flush | m.LabelReturned) -> None:
        self.at(self.now + HOP, lambda: self._carry_out(index, self.executors[index].take_back(message, self.now)))

    # decisions

    def _report(self, index: int) -> None:
        before, self._reports[index] = self._reports.get(index), self.executors[index].measure(self.now)
        if before is not None and self._reports[index].jumps > before.jumps:
            self._restless_until = self.now + RESTLESS_PERIODS * self.options.control_period

    def _look_between(self) -> None:
        if self.now < self._restless_until:
            self._decide()

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the newest reports."""
        measured = tuple(self.measured(j, self._reports[j]) for j in sorted(self._reports))
        nodes = tuple(NodeSnapshot(f"tcp://n{n}:1", "host", self.options.threads) for n in range(self.options.nodes))
        rows = sum(one.latency_rows for one in self._reports.values())
        total = sum((one.latency_mean or 0.0) * one.latency_rows for one in self._reports.values())
        latency = total / rows if rows else None
        job = JobSnapshot("dynamics", 1, measured, self.options.latency_target, latency=latency)
        return Snapshot(self.now, nodes, (job,))

    def measured(self, index: int, one: ExecutorMeasure) -> ExecutorSnapshot:
        """Return an executor of the snapshot."""
        return ExecutorSnapshot(
            one.executor, self.homes[index], dict(self.cores[index]), one.arrival_rate, one.service_rate,
            one.throughput, one.customer_rows, one.queue_rows, 0, one.bytes_in, one.bytes_out, one.sojourn,
            shard_load=one.shard_load, shard_bytes=one.shard_bytes,
        )  # fmt: skip

    def _decide(self) -> None:
        if len(self._reports) < len(self.executors):
            return
        snapshot = self.snapshot()
        plan = self.loop.tick(snapshot)
        self.snapshots.append(snapshot)
        self.decisions += [f"{self.now:.1f} {one.reason}" for one in plan.decisions if one.applied]
        for change in plan.changes:
            index, after = change.executor.index, dict(change.after)
            self.cores[index] = after
            self.at(self.now + ORDER_SECONDS, lambda j=index, c=after: self._handle(j, events.SetCores(c)))
