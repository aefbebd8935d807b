"""Drives one executor at its home: carries out its instructions, and keeps the order between them.

The runtime and the simulator run the same code; see `dask_elastic.executor.drivers.steps`.

Notes
-----
The rules of order, each of which a mutant of the simulator's tests breaks:

- Events are handled one at a time, the instructions of one before the next event. Batches are accepted and settled
  beside events. What settling returns waits for its turn, unless it only wakes tasks and returns credit.
- A message that a remote task sent after outputs is handled after these have been delivered.
- A node's link is cut before its loss is handled, and the loss is handled after the outputs that arrived before.
- A shard counts as installed once its state has been sent.
- One thread at a time feeds a remote task: the one that started it, later the one that got its `Wake`. No further
  `Wake` comes before `take` has returned None.
- One thread at a time runs a task at home: its own, or while it sleeps, the one that got its `Run`. Outputs that lack
  credit pass to the task's own thread, which delivers them before it takes anything else.
- A change of cores that is older than the newest one is refused.
- What an input sends behind a barrier is held until the state is cut and the barrier sent on, then handled in order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.control_records.alignment import Alignment
from dask_elastic.executor.drivers.emitter import Emitter
from dask_elastic.executor.drivers.host import Bell, ExecutorHost, ring
from dask_elastic.executor.drivers.processing import processed
from dask_elastic.executor.drivers.steps import Steps, nothing
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.limits import Haste
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.recovery import sent_in_process
from dask_elastic.executor.task_queue import LabelItem, StopItem, Work
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.barrier import Barrier
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock

ControlRecord = Barrier | events.InputWatermark | events.InputEnded | events.EndMark
"""What an input sends beside batches, in one order with them."""
Held = tuple[Batch, int] | ControlRecord

_BESIDE_EVENTS = frozenset({do.Wake, do.Release})


class ExecutorDriver:
    """Runs one elastic executor on a host.

    The caller runs the `Steps` that methods return: in a thread with `steps.run`.

    Parameters
    ----------
    executor : ElasticExecutor
        The executor.
    host : ExecutorHost
        Threads and channels, or their simulation.
    make_lock : callable
        Makes the lock of the queue between the emitter and the threads that receive messages.

    Attributes
    ----------
    refused : int
        Changes of cores that were refused because a newer one had been made.
    """

    def __init__(self, executor: ElasticExecutor, host: ExecutorHost, make_lock: MakeLock = NoLock):
        self.executor = executor
        self.host = host
        self.identity = executor.identity
        self.refused = 0
        self._bells: dict[int, Bell] = {}
        self._processors: dict[int, Processor] = {}
        # Sub-batches that another thread processed for a task: number, busy seconds, and outputs that lacked credit.
        self._undelivered: dict[int, tuple[int, float, list[Delivery]]] = {}
        self._node_of: dict[int, int] = {}
        # The first sub-batch of each remote task that could not be sent, and the nodes whose loss is not handled yet.
        self._unsent: dict[int, int] = {}
        self._leaving: set[int] = set()
        self._newest_change = 0
        self._control = host.lock()
        self._alignment: Alignment[Held] = Alignment(executor.inputs.open, make_lock)
        self._emitter = Emitter(executor, host, make_lock, self._take_back, self._handle_node)

    # entrances

    def start(self) -> Steps[None]:
        """Start the first tasks."""
        yield from self._exclusively(self.executor.start)

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> Steps[None]:
        """Take a batch; the calling thread splits it by task, without a lock."""
        return self._offer(origin, batch, nbytes) if self._alignment.admit(origin, (batch, nbytes)) else nothing()

    def receive_record(self, origin: ExecutorId, record: ControlRecord) -> Steps[None]:
        """Take a control record of an input, behind what it has sent before."""
        if self._alignment.admit(origin, record):
            yield from self._handle_record(origin, record)

    def _handle_record(self, origin: ExecutorId, record: ControlRecord) -> Steps[None]:
        match record:
            case Barrier(_, checkpoint):
                yield from self._begin(checkpoint)
                yield from self._aligned(self._alignment.barrier(record))
            case events.InputEnded():
                yield from self.handle(record)
                yield from self._aligned(self._alignment.ended(origin))
            case events.InputWatermark():
                yield from self.handle(record)

    def begin_checkpoint(self, checkpoint: int) -> Steps[None]:
        """Begin a checkpoint; its barriers may have arrived before, and none will if all inputs have ended."""
        yield from self._begin(checkpoint)
        yield from self._aligned(self._alignment.completed())

    def _aligned(self, checkpoint: int | None) -> Steps[None]:
        if checkpoint is not None:
            yield from self.handle(events.BarriersAligned(checkpoint))

    def _begin(self, checkpoint: int) -> Steps[None]:
        before = self._alignment.begin(checkpoint)
        if before is not None:
            yield from self.handle(events.CheckpointAbandoned(before))
            self._start_release()

    def abandon_checkpoint(self, checkpoint: int) -> Steps[None]:
        """Give up a checkpoint; what is held for it may pass."""
        yield from self._exclusively(lambda: self._abandoned(checkpoint))
        self._start_release()

    def _abandoned(self, checkpoint: int) -> list[do.Instruction]:
        instructions = self.executor.handle(events.CheckpointAbandoned(checkpoint), self.host.now())
        self._alignment.passed(checkpoint)
        return instructions

    def _offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> Steps[None]:
        if batch.rows.num_rows == 0:
            if nbytes:
                yield partial(self.host.release, origin, nbytes)
            return
        block = yield partial(self.executor.split, batch)
        instructions = yield partial(self.executor.accept, block, origin, batch, nbytes, self.host.now())
        yield from self._carry_out(instructions)

    def handle(self, event: events.Event) -> Steps[None]:
        """Let the executor handle an event, and carry out its instructions."""
        yield from self._exclusively(lambda: self.executor.handle(event, self.host.now()))

    def set_cores(self, change: int, cores: dict[int, int]) -> Steps[None]:
        """Change the executor's cores, given by node; newer changes have higher numbers.

        Raises
        ------
        PlanningError
            If the same or a newer change has been made, or the executor refuses these cores.
        """
        yield self._control.acquire
        try:
            if change <= self._newest_change:
                self.refused += 1
                raise PlanningError(
                    f"{self.identity}: core change {change} is stale, core change {self._newest_change} came before it"
                )
            self._newest_change = change
            yield from self.handle(events.SetCores(cores))
        finally:
            self._control.release()

    def receive(self, message: m.ToHome) -> Steps[None]:
        """Take a message of a remote task that `Links.admit` let pass, in the order of arrival.

        The thread that reads a channel must not wait, but delivering outputs may wait for credit. So another thread
        handles outputs, and all messages behind them until it has caught up: as long as there is credit, one that runs
        idle tasks as well, otherwise the emitter's.
        """
        yield from self._emitter.receive(message)

    def node_left(self, node: int, died: bool) -> None:
        """Let other tasks replay the pending sub-batches of the tasks on a node; messages admitted before still count.

        If its process is known to have ended, perhaps because of the rows that it was processing, these are suspect.
        Sub-batches that were never sent to it are not.
        """
        self._leaving.add(node)
        self.executor.links.cut(node)
        self._emitter.put(events.NodeLeft(node, died=died and bool(self.processing_on(node))))

    def node_returned(self, node: int) -> None:
        """Allow tasks again on a node that had left."""
        self._emitter.put(events.NodeReturned(node))

    def _handle_node(self, event: events.NodeLeft | events.NodeReturned) -> Steps[None]:
        yield from self.handle(event)
        if isinstance(event, events.NodeLeft):
            self._leaving.discard(event.node)
            # No task begins there before the node has returned, which is handled behind this.
            for task in [task for task, node in list(self._node_of.items()) if node == event.node]:
                self._forget_remote(task)

    def wake_all(self) -> None:
        """Wake every task and the emitter, so that they see that the job has ended."""
        for bell in [*self._bells.values(), self._emitter.bell]:
            bell.ring()

    def processing_on(self, node: int) -> dict[int, str]:
        """Return the sub-batch that each task on a node is processing, as far as the home knows: a text by task.

        Sub-batches that could not be sent are left out.
        """
        with self.executor.lock:
            tasks = [task for task in self.executor.routes.tasks.values() if task.node == node and task.pending]
            found = {task.number: sent for task in tasks if (sent := sent_in_process(task)) is not None}
            was_sent = {task: sent for task, sent in found.items() if sent.number < self._unsent.get(task, math.inf)}
            return {task: self.executor.recovery.described(sent) for task, sent in was_sent.items()}

    @property
    def has_suspects(self) -> bool:
        """Whether rows that may have killed a lost node wait here for replay, or will once its loss is handled."""
        with self.executor.lock:
            return bool(self._leaving) or self.executor.recovery.has_suspects()

    # instructions

    def _exclusively(self, decide: Callable[[], list[do.Instruction]]) -> Steps[None]:
        """Carry out the instructions that `decide` returns before any other event is handled."""
        yield self._control.acquire
        try:
            yield from self._carry_out(decide())
        finally:
            self._control.release()

    def _start_release(self) -> None:
        """Handle what a checkpoint held, in a thread of its own: the calling one may read a connection."""
        if self._alignment.has_released:
            self.host.start("release", self._release_held())

    def _release_held(self) -> Steps[None]:
        """Handle what was held behind barriers that have passed; not under the control lock, since it may run tasks."""
        for origin, item in self._alignment.released():
            if isinstance(item, tuple):
                yield from self._offer(origin, *item)
            else:
                yield from self._handle_record(origin, item)

    def _settle(self, instructions: list[do.Instruction]) -> Steps[None]:
        """Carry out the instructions of settled work: as an event's, unless they only wake tasks and return credit."""
        if _BESIDE_EVENTS.issuperset(map(type, instructions)):
            yield from self._carry_out(instructions)
        else:
            yield from self._exclusively(lambda: instructions)

    def _carry_out(self, instructions: Iterable[do.Instruction]) -> Steps[None]:
        # A queue instead of recursion: each installed shard may begin the next move, for all shards of a task.
        pending = deque(instructions)
        while pending:
            match pending.popleft():
                case do.Wake(task):
                    yield from self._wake(task)
                case do.Run(task):
                    steps = self._run_inline(task)
                    if not (yield partial(self.host.defer, steps)):
                        yield from steps
                case do.Release(origin, nbytes, wanted_more, is_part):
                    yield partial(self.host.release, origin, nbytes, wanted_more, is_part)
                case do.StartTask(task, node, shards):
                    yield from self._start_task(task, node, shards)
                case do.InstallState() | do.OpenShard() as install:
                    pending.extend((yield from self._install(install)))
                case do.SetAside(shard):
                    self.host.start(f"set-aside-{shard}", self._set_aside(shard))
                case do.RequestFlush(task, node, token, shard):
                    yield from self._send(node, m.FlushRequest(task, token, shard))
                case do.FlushComplete(token):
                    self.host.flushed(token)
                case do.EmitWatermark():
                    yield from self._emit_watermark()
                case do.Cut(checkpoint):
                    self.host.start(f"cut-{checkpoint}", self._run_cut(checkpoint))
                case do.Finished():
                    yield from self._emit_watermark()
                    yield self.host.finished

    def _emit_watermark(self) -> Steps[None]:
        watermark = self.executor.watermarks.take()
        if watermark is not None:
            yield partial(self.host.emit_watermark, watermark)

    def _run_cut(self, checkpoint: int) -> Steps[None]:
        """Cut the state, unless the checkpoint was given up; in a thread of its own, since copies take long."""
        yield self._control.acquire
        try:
            if self._alignment.checkpoint == checkpoint:
                yield from self._cut(checkpoint)
        finally:
            self._control.release()
        yield from self._release_held()

    def _cut(self, checkpoint: int) -> Steps[None]:
        yield partial(self.host.cut, checkpoint)
        self.executor.cuts.made()
        yield partial(self.host.emit_barrier, Barrier(self.identity, checkpoint))
        self._alignment.passed(checkpoint)

    def _start_task(self, task: int, node: int, shards: tuple[int, ...]) -> Steps[None]:
        if node == self.executor.home:
            self._bells[task] = self.host.bell()
            self.host.start(f"task-{task}", self._run_task(task))
            return
        self._node_of[task] = node
        self._emitter.start()
        yield from self._send(node, m.StartTask(task, shards))
        yield from self._feed(task, node)

    def _install(self, install: do.InstallState | do.OpenShard) -> Steps[list[do.Instruction]]:
        """Send a shard's state, or the shard without it, to a node; returns the instructions that follow."""
        shard, task = install.shard, install.task
        if isinstance(install, do.InstallState):
            state = self.executor.store.extract([shard]) if install.copy else None
            yield from self._send(install.node, m.Install(task, shard, state))
        elif self.executor.moves.instant.open(shard, task) and install.node != self.executor.home:
            yield from self._send(install.node, m.Install(task, shard, None, fresh=True))
        return self.executor.handle(events.StateInstalled(shard, task), self.host.now())

    def _set_aside(self, shard: int) -> Steps[None]:
        """Take a shard's state out of the primary copy, portion by portion: other events are handled in between."""
        has_more = True
        while has_more and not self.host.ended:
            yield self._control.acquire
            began = self.host.now()
            try:
                has_more = self.executor.moves.instant.set_portion_aside(shard)
            finally:
                self._control.release()
            # The lock is not fair: others get it in as much time as the portion took.
            yield partial(self.host.rest, self.host.now() - began)
        if not self.host.ended:
            yield from self.handle(events.StateSetAside(shard))

    def _send(self, node: int, message: m.ToRemote) -> Steps[None]:
        """Send a message; without a connection it is dropped, since the loss of the node will be handled."""
        sent = yield partial(self.host.send, node, message)
        if not sent and isinstance(message, m.SubBatch):
            self._unsent.setdefault(message.task, message.number)

    def _wake(self, task: int) -> Steps[None]:
        node = self._node_of.get(task)
        if node is None:
            yield from ring(self._bells.get(task))
        elif not self.host.leave(steps := self._feed(task, node)):
            yield from steps

    def _forget_remote(self, task: int) -> None:
        """Drop what is known of a remote task that has ended."""
        self._node_of.pop(task, None)
        self._unsent.pop(task, None)

    def _run_inline(self, task: int) -> Steps[None]:
        """Process one sub-batch of an idle task in the calling thread, which brought it and must not wait.

        The task's thread continues when outputs lack credit, or when more waits for the task.
        """
        haste = self.host.haste()
        taken = None if self.host.ended else self.executor.begin_run(task, self.host.now(), haste)
        if taken is None and haste is not Haste.RUNS and self._left(task):
            return
        if taken is not None:
            number, work = taken
            processor, batch = self._processors[task], work.batch(copied=False)
            outputs, busy = yield partial(processed, self.host, processor, batch, lambda: self.host.ended)
            left: list[Delivery] = []
            if outputs and not work.silent:
                left = yield partial(self.host.deliver_now, outputs)
            if left:
                self._undelivered[task] = (number, busy, left)
                yield from ring(self._bells.get(task))
                return
            yield from self._settle(self.executor.done(task, number, busy, self.host.now()))
        if self.executor.end_run(task):
            yield from ring(self._bells.get(task))

    def _left(self, task: int) -> bool:
        """Leave a run to a thread that does nothing but run idle tasks."""
        return self.executor.may_leave(task) and self.host.leave_run(self._run_inline(task))

    def _feed(self, task: int, node: int) -> Steps[None]:
        """Send a remote task its sub-batches and labels, in the order of its queue, until `take` returns None."""
        while not self.host.ended and (taken := self.executor.take(task, self.host.now())) is not None:
            number, item = taken
            match item:
                case Work():
                    yield from self._send(node, m.SubBatch(task, number, item.batch(), item.silent))
                case LabelItem(shard, _, stays):
                    yield from self._send(node, m.Label(task, shard, stays))
                case StopItem():
                    yield from self._send(node, m.StopTask(task))
                    yield from self.handle(events.TaskEnded(task))
                    self._forget_remote(task)
                    return

    # threads

    def _run_task(self, task: int) -> Steps[None]:
        """Process what is routed to a task at home."""
        with self.host.processor(task) as processor:
            self._processors[task] = processor
            while not self.host.ended:
                if task in self._undelivered:
                    yield from self._finish_inline(task)
                taken = self.executor.take(task, self.host.now())
                if taken is None:
                    yield self._bells[task].wait
                    continue
                number, item = taken
                match item:
                    case Work():
                        yield from self._process(processor, task, number, item)
                    case LabelItem(shard):
                        yield from self.handle(events.LabelBack(task, shard))
                    case StopItem():
                        del self._processors[task]
                        yield from self.handle(events.TaskEnded(task))
                        del self._bells[task]
                        return

    def _process(self, processor: Processor, task: int, number: int, work: Work) -> Steps[None]:
        outputs, busy = yield partial(self.host.process, processor, work.batch(copied=False))
        if not work.silent:
            yield partial(self.host.deliver, outputs)
        yield from self._settle(self.executor.done(task, number, busy, self.host.now()))

    def _finish_inline(self, task: int) -> Steps[None]:
        """Finish a sub-batch whose outputs lacked credit when another thread processed it."""
        number, busy, left = self._undelivered.pop(task)
        yield partial(self.host.deliver, left)
        yield from self._settle(self.executor.done(task, number, busy, self.host.now()))

    def _take_back(self, message: m.Done | m.Flush | m.LabelReturned) -> Steps[None]:
        """Take a report of a remote task; one with state is applied like an event, one at a time."""
        if isinstance(message, m.Done):
            yield from self._settle(self.executor.take_back(message, self.host.now()))
        else:
            yield from self._exclusively(lambda: self.executor.take_back(message, self.host.now()))
