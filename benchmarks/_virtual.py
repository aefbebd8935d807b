"""A saturated job on a virtual clock: the engine's executors, meters, credit windows and control loop, without threads.

Only time is emulated: service, messages between nodes (`_network.py`), the due times of reports, balancing and
decisions. A minute of sixteen cores therefore takes some seconds of one, and two runs differ only in what was changed
between them. State has a size, which travels with the shards that move to other nodes, but no contents: all of it
travels each time, where the engine sends what has changed.

All upstream instances share one window of credit per executor, and read batches in turn. So they wait as one, as
instances do that have the same keys, while marks and calls are those of each.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from _network import HOP, Network
from _virtual_options import Options

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

ORDER_SECONDS = 0.02
"""Seconds from a decision until the home applies it."""

LOOK_SECONDS = 0.05
"""Seconds from the reports to the control loop's tick."""

RESTLESS_PERIODS = 2
"""Periods after a jump of the load in which the control loop runs twice."""

PIPELINED = 2

Keys = Callable[[float], np.ndarray]
"""Returns the key hashes of the next batch, given the time when its rows are due."""

Waits = list[tuple[float, int]]
"""When rows were due, and how many they are."""


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
    inbox: deque[tuple[m.ToRemote, Waits]] = field(default_factory=deque)
    told: float = 0.0
    """When its newest message arrives, which later ones do not overtake."""


class VirtualJob:
    """A source that saturates all cores or has a rate, and one keyed operator.

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
    done : array of float
        When rows were processed, how many, and how long that was after they were due, in turns: three numbers each.
    looks : list of (float, list of int, list of int)
        Time, cores and queues of the executors of each snapshot that decisions were made on.
    """

    def __init__(self, keys: Keys, options: Options, loop: ControlLoop | None = None):
        self.keys = keys
        self.options = options
        self.loop = loop or ControlLoop()
        self.now = 0.0
        self.done = array("d")
        self.looks: list[tuple[float, list[int], list[int]]] = []
        self.decisions: list[str] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._random = np.random.default_rng(5)
        self.network = Network(options.nodes, options.costs)
        self.origins = [ExecutorId("stream", j) for j in range(options.instances)]
        self.origin_nodes = [j * options.nodes // options.instances for j in range(options.instances)]
        self.space = self.make_space()
        self.homes = [self._home(index) for index in range(options.executors)]
        self.cores = [self._first_cores(index) for index in range(options.executors)]
        self.gates = [Gate(options) for _ in self.homes]
        self._threads: dict[tuple[int, int], Core] = {}
        self._reports: dict[int, ExecutorMeasure] = {}
        self._restless_until = 0.0
        self._waiting: Iterator[int] | None = None
        self._batches = 0
        self._alarm = 0.0
        limits = ExecutorLimits(options.inbox_time, options.balance_threshold)
        self.executors = [self.make_executor(index, limits) for index in range(options.executors)]

    def make_space(self) -> KeySpace:
        """Return the key space."""
        return KeySpace(self.options.executors, self.options.shards)

    def make_executor(self, index: int, limits: ExecutorLimits) -> ElasticExecutor:
        """Return an executor."""
        place = ExecutorId(OPERATOR, index), self.space, self.homes[index], self.cores[index], self.origins
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
                due = self._next_due()
                if due > self.now:
                    return
                origin = self._batches % len(self.origins)
                self._batches += 1
                self._waiting = self.deliver(self.keys(due), origin, due)
            for index in self._waiting:
                if self.blocked(index):
                    return
            self._waiting = None

    @property
    def lag(self) -> float:
        """Seconds by which the source is behind its rate."""
        return max(0.0, self.now - self._next_due())

    def _next_due(self) -> float:
        """Return when the rows of the next batch are due; the source goes on then."""
        rate = self.options.rate
        if rate is None:
            return self.now
        due = self._batches * self.options.batch_rows / rate
        if self._alarm < due and due > self.now:
            self._alarm = due
            self.at(due, self.go_on)
        return due

    def blocked(self, index: int) -> bool:
        """Whether the source waits at an executor."""
        return self.gates[index].full

    def deliver(self, hashes: np.ndarray, origin: int, due: float) -> Iterator[int]:
        """Deliver a batch of an instance to its executors in turn; yields each executor until its window has room."""
        executor = self.space.executor_of(hashes).astype(int)
        for index in range(len(self.executors)):
            part = hashes[executor == index]
            if not len(part):
                continue
            while self.gates[index].full:
                self.gates[index].window.held_back()
                yield index
            self.send_to(index, Batch(pa.record_batch({"key": part.view(np.int64)}), part, due), origin)

    def send_to(self, index: int, batch: Batch, origin: int) -> None:
        """Send a batch of an instance to an executor, for which there is credit."""
        gate = self.gates[index]
        gate.used += batch.nbytes
        gate.batches += 1
        nbytes = batch.rows.num_rows * self.options.costs.row_bytes
        arrival = self.network.arrival(self.now, self.origin_nodes[origin], self.homes[index], nbytes)
        self.at(arrival, lambda: self._offer(index, batch, self.origins[origin]))

    def _offer(self, index: int, batch: Batch, origin: ExecutorId) -> None:
        executor = self.executors[index]
        self._carry_out(index, executor.accept(executor.split(batch), origin, batch, batch.nbytes, self.now))

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
                case do.Release(origin):
                    delay = 0.0 if self.homes[index] == self.origin_nodes[origin.index] else HOP
                    self.at(self.now + delay, lambda released=instruction: self._release(index, released))
                case do.StartTask(task, node, _):
                    self._threads[index, task] = Core(node)
                    self._feed(index, task)
                case do.InstallState(shard, task, node, copy):
                    self._tell(index, m.Install(task, shard, None), state=self.options.costs.shard_bytes * copy)
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
                self._work(index, task, core, number, _waits(item))
            elif isinstance(item, LabelItem):
                self._handle(index, events.LabelBack(task, item.shard))
            else:
                self._handle(index, events.TaskEnded(task))
                return

    def _work(self, index: int, task: int, core: Core, number: int, waits: Waits) -> None:
        core.busy = True
        seconds = self._service(sum(rows for _, rows in waits))

        def end() -> None:
            core.busy = False
            for due, rows in waits:
                self.done.extend((self.now, rows, self.now - due))
            if core.node == self.homes[index]:
                self._carry_out(index, self.executors[index].done(task, number, seconds, self.now))
                self._feed(index, task)
            else:
                self._return(index, m.Done(task, number, seconds))
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
            waits = _waits(item)
            self._tell(index, m.SubBatch(task, number, item.batch()), waits)
        elif isinstance(item, LabelItem):
            self._tell(index, m.Label(task, item.shard, item.stays))
        else:
            self._handle(index, events.TaskEnded(task))

    def _tell(self, index: int, message: m.ToRemote, waits: Waits | None = None, state: int = 0) -> None:
        core, home = self._threads[index, message.task], self.homes[index]
        if waits is None:
            leaves = self.network.handled(self.now, home, self._handling(state))
            arrival = self.network.state_arrival(leaves, home, core.node, state)
        else:
            nbytes = sum(rows for _, rows in waits) * self.options.costs.row_bytes
            arrival = self.network.arrival(self.now, home, core.node, nbytes)
        core.told = max(core.told, arrival)

        def arrive() -> None:
            core.inbox.append((message, waits or []))
            self._go_on(index, message.task)

        self.at(core.told, arrive)

    def _handling(self, state: int) -> float:
        """Return the seconds for a message, with state that both nodes handle; all are counted at the home."""
        return self.options.costs.mark + 2 * state * self.options.costs.state

    def _go_on(self, index: int, task: int) -> None:
        core = self._threads[index, task]
        while core.inbox and not core.busy:
            message, waits = core.inbox.popleft()
            match message:
                case m.SubBatch(_, number):
                    self._work(index, task, core, number, waits)
                case m.Label(_, shard, stays):
                    state = 0 if stays else self.options.costs.shard_bytes
                    self._return(index, m.LabelReturned(task, shard, self._through(index, task), None), state)
                case m.FlushRequest(_, token, shard):
                    state = self.options.costs.shard_bytes * (shard != m.ALL_SHARDS)
                    self._return(index, m.Flush(task, self._through(index, task), None, token, shard), state)

    def _through(self, index: int, task: int) -> int:
        known = self.executors[index].routes.tasks.get(task)
        flying = list(known.in_flight) if known is not None else []
        return (min(flying) if flying else known.sent if known is not None else 0) - 1

    def _return(self, index: int, message: m.Done | m.Flush | m.LabelReturned, state: int = 0) -> None:
        home = self.homes[index]
        arrival = self.network.state_arrival(self.now, self._threads[index, message.task].node, home, state)
        if not isinstance(message, m.Done):
            arrival = self.network.handled(arrival, home, self._handling(state))
        self.at(arrival, lambda: self._carry_out(index, self.executors[index].take_back(message, self.now)))

    # decisions

    def _report(self, index: int) -> None:
        executor, nbytes = self.executors[index], self.options.costs.shard_bytes
        measured = executor.measure(self.now)
        if nbytes:
            measured = replace(measured, shard_bytes=self.state_of(index))
            executor.moves.choice.shard_bytes = measured.shard_bytes
        before, self._reports[index] = self._reports.get(index), measured
        if before is not None and self._reports[index].jumps > before.jumps:
            self._restless_until = self.now + RESTLESS_PERIODS * self.options.control_period

    def state_of(self, index: int) -> np.ndarray:
        """Return the bytes of each shard at an executor."""
        return np.full(self.options.shards, self.options.costs.shard_bytes)

    def _look_between(self) -> None:
        if self.now < self._restless_until:
            self._decide()

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the newest reports."""
        measured = tuple(self.measured(j, self._reports[j]) for j in sorted(self._reports))
        # Without limits of their links, nodes are processes on one host.
        hosts = [f"host-{n}" if self.options.costs.bandwidth else "host" for n in range(self.options.nodes)]
        nodes = tuple(NodeSnapshot(f"tcp://n{n}:1", host, self.options.threads) for n, host in enumerate(hosts))
        rows = sum(one.latency_rows for one in self._reports.values())
        total = sum((one.latency_mean or 0.0) * one.latency_rows for one in self._reports.values())
        latency = total / rows if rows else None
        job = JobSnapshot("dynamics", 1, measured, self.options.latency_target, latency=latency)
        return Snapshot(self.now, nodes, (job,))

    def looked_at(self, snapshot: Snapshot) -> None:
        """Note the cores and the queues of the executors."""
        executors = snapshot.jobs[0].executors
        self.looks.append((self.now, [one.total_cores for one in executors], [one.queue for one in executors]))

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
        self.looked_at(snapshot)
        self.decisions += [f"{self.now:.1f} {one.reason}" for one in plan.decisions if one.applied]
        for change in plan.changes:
            index, after = change.executor.index, dict(change.after)
            self.cores[index] = after
            self.at(self.now + ORDER_SECONDS, lambda j=index, c=after: self._handle(j, events.SetCores(c)))


def _waits(work: Work) -> Waits:
    return [(piece.receipt.stamp, piece.length) for piece in work.pieces]
