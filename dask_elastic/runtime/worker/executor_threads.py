"""Hosts the driver of one executor on threads of its home."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.executor import events
from dask_elastic.executor.drivers.home_driver import HomeDriver
from dask_elastic.executor.drivers.steps import Steps, run
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.keyed_state import read_state
from dask_elastic.executor.limits import Haste
from dask_elastic.executor.point_query import find_key
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.processor import Processor
from dask_elastic.meters import BriefWork, ComputingShare
from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.doorbell import Doorbell
from dask_elastic.runtime.transport.fence import Fence
from dask_elastic.runtime.worker.exchange import Exchange
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.turns import TURNS
from dask_elastic.state.fused.fused_store import FusedStore
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import MoveRefused, NodeLost
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.checkpoint_keeper import CheckpointKeeper

logger = logging.getLogger("dask_elastic.node")

MakeProcessor = Callable[..., Processor]

TICK = 0.05
"""Seconds between two ticks of the clock by which timers in processing time fire."""

LEAST_REST = 0.0005
"""Seconds that a thread lets others go on, at least: less is no longer than a lock takes to change hands."""


class ExecutorThreads:
    """One elastic executor at its home: its driver, and the threads and channels that the driver asks for.

    Parameters
    ----------
    executor : ElasticExecutor
        The executor.
    computes : sequence of Compute
        What its tasks compute, the first operator first.
    make_processor : callable
        ``make_processor(task, store, sinks)`` returns the logic of a task.
    threads : JobThreads
        Runs the tasks.
    exchange : Exchange
        Carries batches, credit, watermarks and messages.
    finished : callable
        Called when the executor has delivered its last output.
    keeper : CheckpointKeeper or None
        Writes the state for checkpoints; None for a job without them.
    depart : callable or None
        Hands the executor over to its next home, when it is drained; None where homes do not move.
    sinks : int or None
        The node whose sinks get its outputs; None for its home.
    """

    def __init__(
        self,
        executor: ElasticExecutor,
        computes: Sequence[Compute],
        make_processor: MakeProcessor,
        threads: JobThreads,
        exchange: Exchange,
        finished: Callable[[ExecutorId], None],
        keeper: CheckpointKeeper | None = None,
        depart: Callable[[ExecutorThreads], None] | None = None,
        sinks: int | None = None,
    ):
        self.executor = executor
        self.identity = executor.identity
        self.threads = threads
        self.exchange = exchange
        self._computes = {compute.name: compute for compute in computes}
        self._make_processor = make_processor
        self._finished = finished
        self._keeper = keeper
        self._depart = depart
        self._sinks = executor.home if sinks is None else sinks
        # The checkpoint whose barriers are awaited, and since when.
        self._awaited = 0, 0.0
        # The clock fires nothing after checkpoint `_halts` has begun, until `_continued` is at least that number.
        self._halts = self._continued = 0
        self._brief_work = BriefWork()
        self._computing = ComputingShare()
        self._flushes: dict[int, threading.Event] = {}
        self._tokens = iter(range(1, 2**62))
        self._aborted = threading.Event()
        self._fence = Fence(lambda message: executor.links.stamp(message.task))
        self.driver = self._make_driver()

    def _make_driver(self) -> HomeDriver:
        return HomeDriver(self.executor, self, threading.Lock)

    # entrances, each run by the calling thread

    def begin(self) -> None:
        """Start the first tasks."""
        run(self.driver.start())
        self._start_clock()

    def resume(self, over: int, newest_change: int) -> None:
        """Start the first tasks of an executor that another home has handed over; see `HomeDriver.resume`."""
        run(self.driver.resume(over, newest_change))
        self._start_clock()

    def _start_clock(self) -> None:
        if "processing" in self.executor.records.clocks:
            self.threads.start(f"{self.identity}-clock", self._tick)

    def _tick(self) -> None:
        """Let timers in processing time fire, until the input or the job has ended."""
        while not (self._aborted.wait(TICK) or self.ended) and self.executor.inputs.open:
            # What timers do is to be reported, although no rows arrive.
            self.exchange.idle_watch.note()
            if self._halts <= self._continued:
                self.handle(events.ClockTicked())

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Take a batch."""
        run(self.driver.offer(origin, batch, nbytes))

    def receive_watermark(self, watermark: Watermark, version: int) -> None:
        """Take a watermark of an upstream instance."""
        run(self.driver.receive_record(watermark.origin, events.InputWatermark(watermark, version)))

    def input_ended(self, origin: ExecutorId, version: int) -> None:
        """Take the end of an upstream instance."""
        run(self.driver.receive_record(origin, events.InputEnded(origin, version)))

    def receive_end_mark(self, mark: events.EndMark) -> None:
        """Take the end mark of an upstream instance, which uses the executor's next home."""
        run(self.driver.receive_record(mark.origin, mark))

    def receive_barrier(self, barrier: Barrier) -> None:
        """Take a barrier of an upstream instance."""
        self._note_begin(barrier.checkpoint)
        run(self.driver.receive_record(barrier.origin, barrier))

    def begin_checkpoint(self, checkpoint: int, halts: bool = False) -> None:
        """Begin a checkpoint, whose barriers may have arrived before; the clock may halt until `go_on` is called."""
        if halts:
            self._halts = max(checkpoint, self._halts)
        self._note_begin(checkpoint)
        run(self.driver.begin_checkpoint(checkpoint))

    def _note_begin(self, checkpoint: int) -> None:
        if checkpoint > self._awaited[0]:
            self._awaited = checkpoint, time.monotonic()

    def go_on(self, checkpoint: int) -> None:
        """Let the clock fire timers again, also if the checkpoint is still to begin: calls may overtake each other."""
        self._continued = max(checkpoint, self._continued)

    def abandon_checkpoint(self, checkpoint: int) -> None:
        """Give up a checkpoint."""
        run(self.driver.abandon_checkpoint(checkpoint))

    def handle(self, event: events.Event) -> None:
        """Let the executor handle an event."""
        run(self.driver.handle(event))

    def balance(self) -> None:
        """Balance the shards over the tasks."""
        run(self.driver.handle(events.BalanceDue(self._computing.take())))

    def set_cores(self, change: int, cores: dict[int, int]) -> None:
        """Change the executor's cores; see `ExecutorDriver.set_cores`."""
        run(self.driver.set_cores(change, cores))

    def receive(self, message: m.ToHome) -> None:
        """Take a message of a remote task, in order."""
        run(self.driver.receive(message))

    def flush(self, timeout: float) -> None:
        """Bring the primary copy up to date, unless the job ends meanwhile.

        Raises
        ------
        MoveRefused
            If the executor leaves this home meanwhile.
        TimeoutError
            If a remote task does not answer within `timeout` seconds.
        """
        token = next(self._tokens)
        arrived = self._flushes[token] = threading.Event()
        try:
            self.handle(events.FlushDue(token))
            came = self.ended or arrived.wait(timeout)
            if self.driver.departed and not self.threads.ended:
                raise MoveRefused(f"{self.identity} has moved to another worker: ask for its state there")
            if not came:
                raise TimeoutError(f"{self.identity}: remote tasks did not send their state within {timeout:g} s")
        finally:
            del self._flushes[token]

    def store_of(self, operator: str) -> PrimaryState | FusedStore:
        """Return the primary copy of the state of one of its computes."""
        store = self.executor.store
        return store if operator == self.identity.component else store.behind(operator)

    def read_state(self, shards: Iterable[int] | None = None, operator: str | None = None) -> pa.Table | None:
        """Return the primary copy of a compute, by default of the first, as users see it, of all or some shards."""
        name = operator or self.identity.component
        return read_state(self._computes[name], self.store_of(name), shards, time.time())

    def find_key(self, key: Sequence[Any], operator: str | None = None) -> pa.Table | None:
        """Return one key's row of the primary copy of a compute, by default of the first."""
        name, space = operator or self.identity.component, self.executor.routes.space
        found = self._computes[name], self.store_of(name)
        return find_key(*found, space, self.identity.index, key, time.time(), self.executor.store.groups)

    def abort(self) -> None:
        """Wake every thread, so that it sees that the job has ended, or that the executor has left."""
        self._aborted.set()
        self.driver.wake_all()
        for arrived in list(self._flushes.values()):
            arrived.set()

    # what the driver asks for (ExecutorHost)

    @property
    def ended(self) -> bool:
        """Whether the job has ended, or the executor has left this home."""
        return self.threads.ended or self.driver.departed

    now = staticmethod(time.time)

    def bell(self) -> Doorbell:
        """Make a bell."""
        return Doorbell()

    def lock(self) -> threading.RLock:
        """Make the lock that serialises events and their instructions."""
        return threading.RLock()

    def start(self, name: str, steps: Steps[None]) -> None:
        """Run steps in a thread of their own."""
        self.threads.start(f"{self.identity}-{name}", functools.partial(run, steps))

    def rest(self, seconds: float) -> None:
        """Let other threads go on for some time."""
        time.sleep(min(max(seconds, LEAST_REST), TICK))

    def processor(self, task: int) -> AbstractContextManager[Processor]:
        """Return the logic of a task."""
        return closing(self._make_processor(task, self.executor.store, self._sinks))

    def process(self, processor: Processor, batch: Batch) -> tuple[list[Delivery], float]:
        """Process a batch."""
        return TURNS.run(self._brief_work, batch.rows.num_rows, lambda: processor.process(batch), self._computing)

    def send(self, node: int, message: m.ToRemote) -> bool:
        """Send a message to a remote task."""
        try:
            self.exchange.send_messages(node, self.identity, [message], self._fence)
        except NodeLost as error:
            logger.debug("%s: %s", self.identity, error)
            return False
        return True

    def defer(self, steps: Steps[None]) -> bool:
        """Leave an inline run, or defer it to the end of the `DEFERRED` block; an error in it fails this job."""
        act = self.threads.guarded(functools.partial(run if TURNS.may_wait else _run_without_waiting, steps))
        return self.threads.last_sender.leave(act) or DEFERRED.run(act)

    def leave(self, steps: Steps[None]) -> bool:
        """Leave the feed of a remote task to another source that is still to send."""
        return self.threads.last_sender.leave(self.threads.guarded(functools.partial(run, steps)))

    def leave_run(self, steps: Steps[None]) -> bool:
        """Leave brief work to the thread that runs idle tasks, unless the logic may wait for something."""
        return self._brief_work.is_brief and self.threads.leave_run(functools.partial(run, steps))

    def haste(self) -> Haste:
        """Return how long the calling thread may run an idle task."""
        if not (TURNS.may_wait and self._brief_work.is_brief):
            return Haste.READS
        return Haste.RUNS if self.threads.runs.is_current else Haste.BRINGS

    def deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Deliver outputs; blocks while the receivers' credit is used up."""
        if nbytes := self.exchange.deliver(self.identity, deliveries):
            self.executor.emitted(nbytes, time.time())

    def deliver_now(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Deliver outputs as long as there is credit; returns the others."""
        nbytes, left = self.exchange.deliver_now(self.identity, deliveries)
        if nbytes:
            self.executor.emitted(nbytes, time.time())
        return left

    def release(self, origin: ExecutorId, nbytes: int, wanted_more: bool = False, is_part: bool = False) -> None:
        """Return credit to an upstream instance."""
        self.exchange.release(origin, self.identity, nbytes, wanted_more, is_part)

    def emit_watermark(self, watermark: Watermark) -> None:
        """Send a watermark to the next receivers."""
        self.exchange.emit_watermark(watermark)

    def cut(self, checkpoint: int) -> None:
        """Copy the changed state for a checkpoint."""
        assert self._keeper is not None, "barriers are sent in jobs with checkpoints"
        held = time.monotonic() - self._awaited[1]
        first = self.executor.store
        for operator, store in first.stores(self.identity.component).items():
            executor = ExecutorId(operator, self.identity.index)
            self._keeper.cut(checkpoint, executor, store, held, first.event_time, first.groups)

    def emit_barrier(self, barrier: Barrier) -> None:
        """Send a barrier to the next receivers."""
        self.exchange.emit_barrier(barrier)

    def finished(self) -> None:
        """Tell the next receivers that this executor has delivered its last output."""
        self._finished(self.identity)

    def depart(self) -> None:
        """Hand the executor over to its next home; called in a thread of its own."""
        assert self._depart is not None, "end marks are sent in jobs whose homes move"
        # Wakes threads that wait for a flush, which the next home does not answer.
        self.abort()
        self._depart(self)

    def pass_on(self, event: events.Event) -> None:
        """Ignore an event that came too late: no checkpoint is in progress, and who asked for a flush asks again."""

    def flushed(self, token: int) -> None:
        """Wake the thread that waits for a flush, unless it has timed out."""
        if (arrived := self._flushes.get(token)) is not None:
            arrived.set()


def _run_without_waiting(steps: Steps[None]) -> None:
    with TURNS.without_waiting():
        run(steps)
