"""The home of an executor on threads: its tasks, and the ways to its remote tasks and back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.keyed_state import read_state
from dask_elastic.executor.point_query import find_key
from dask_elastic.executor.processor import Processor
from dask_elastic.executor.recovery import sent_in_process
from dask_elastic.executor.task_queue import LabelItem, StopItem, Work
from dask_elastic.runtime.transport.doorbell import Doorbell
from dask_elastic.runtime.transport.fence import Fence
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import NodeLost, PlanningError
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    from dask_elastic.runtime.worker.job_part import JobPart
    from dask_elastic.topology.component import Component

logger = logging.getLogger("dask_elastic.home")


class ExecutorDriver:
    """Drives one elastic executor at its home node.

    Parameters
    ----------
    job_part : JobPart
        The job's part on this node: it delivers, gives credit back, and is told of errors.
    executor : ElasticExecutor
        The executor.
    component : Component
        What it runs.
    """

    def __init__(self, job_part: JobPart, executor: ElasticExecutor, component: Component):
        self.job_part = job_part
        self.executor = executor
        self.component = component
        self.identity = executor.identity
        self._bells: dict[int, Doorbell] = {}
        self._remote: dict[int, int] = {}
        self._unsent: dict[int, int] = {}
        self._going: set[int] = set()
        self._change = 0
        self._flushes: dict[int, threading.Event] = {}
        self._tokens = iter(range(1, 2**62))
        self._returns: SimpleQueue[m.ToHome | events.NodeGone | events.NodeBack | None] = SimpleQueue()
        self._fence = Fence(lambda message: executor.links.stamp(message.task))
        self._returning = False
        self._behind = 0
        self._catching_up = threading.Lock()
        # Whoever learns of a new task acts after its start has been carried out: events and their instructions go
        # one after the other. Batches do not take this lock, and nobody waits for credit under it.
        self._control = threading.RLock()

    # entrances

    def start(self) -> None:
        """Start the first tasks."""
        with self._control:
            self.carry_out(self.executor.start())

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int) -> None:
        """Bring a batch; runs in the thread of whoever brings it."""
        self.carry_out(self.executor.offer(origin, batch, nbytes, time.time()))

    def handle(self, event: events.Event) -> None:
        """Tell the executor of an event."""
        with self._control:
            self.carry_out(self.executor.handle(event, time.time()))
        if isinstance(event, events.NodeGone):
            self._going.discard(event.node)

    def set_cores(self, change: int, cores: dict[int, int]) -> None:
        """Have so many cores on each node.

        Raises
        ------
        PlanningError
            If a later `change` was made before: what comes late does not count.
        """
        with self._control:
            if change <= self._change:
                self.job_part.refused += 1
                raise PlanningError(f"{self.identity}: change {change} of its cores came after change {self._change}")
            self._change = change
            self.handle(events.SetCores(cores))

    def done(self, task: int, number: int, busy: float) -> None:
        """Tell the executor that a unit of work is processed at home and its outputs have left."""
        self._settle(self.executor.done(task, number, busy, time.time()))

    def _settle(self, instructions: list[do.Instruction]) -> None:
        if all(isinstance(instruction, do.Wake | do.Release) for instruction in instructions):
            self.carry_out(instructions)
            return
        with self._control:
            self.carry_out(instructions)

    def receive(self, message: m.ToHome) -> None:
        """Take a message of a remote task, in order.

        Outputs may have to wait for credit, which the thread that brings them must not: another one emits them, and
        takes what comes behind them until it has caught up.
        """
        if not self._left_to_emitter(message):
            self._take_back(message)

    def at_hand(self, node: int) -> dict[int, int]:
        """Return the batch that each task on a node is processing, as far as is known; nothing that never got there."""
        with self.executor.lock:
            tasks = [task for task in self.executor.routes.tasks.values() if task.node == node and task.pending]
            found = {task.number: sent.number for task in tasks if (sent := sent_in_process(task)) is not None}
        return {task: number for task, number in found.items() if number < self._unsent.get(task, number + 1)}

    @property
    def has_suspects(self) -> bool:
        """Whether this node has, or is about to get, rows that another may have died of."""
        with self.executor.lock:
            return bool(self._going) or self.executor.recovery.has_suspects()

    def node_gone(self, node: int, died: bool) -> None:
        """Have other tasks do what those on a node had to do; what it sent before counts, what comes later does not.

        Its process has `died` of what it had at hand, perhaps; not of what was never sent, since it had died before.
        """
        self._going.add(node)
        self.executor.links.cut(node)
        self._in_order(events.NodeGone(node, died=died and bool(self.at_hand(node))))

    def node_back(self, node: int) -> None:
        """Let a node that was gone have tasks again."""
        self._in_order(events.NodeBack(node))

    def _in_order(self, event: events.NodeGone | events.NodeBack) -> None:
        if not self._left_to_emitter(event):
            self.handle(event)

    def _left_to_emitter(self, message: m.ToHome | events.NodeGone | events.NodeBack) -> bool:
        with self._catching_up:
            if not (self._behind or isinstance(message, m.Outputs)):
                return False
            self._behind += 1
            self._returns.put(message)
            return True

    def flush(self, timeout: float) -> None:
        """Bring the primary copy up to date, unless the job ends meanwhile.

        Raises
        ------
        TimeoutError
            If a remote task does not answer in time.
        """
        token = next(self._tokens)
        arrived = self._flushes[token] = threading.Event()
        try:
            self.handle(events.FlushDue(token))
            if not (self.job_part.ended or arrived.wait(timeout)):
                raise TimeoutError(f"{self.identity}: remote tasks did not send their state within {timeout:g} s")
        finally:
            del self._flushes[token]

    def read_state(self) -> pa.Table | None:
        """Return the primary copy as users see it."""
        return read_state(self._operator, self.executor.store, now=time.time())

    def find_key(self, key: Sequence[Any]) -> pa.Table | None:
        """One key's row of the primary copy."""
        space = self.executor.routes.space
        return find_key(self._operator, self.executor.store, space, self.identity.index, key, time.time())

    @property
    def _operator(self) -> Compute:
        assert isinstance(self.component.operator, Compute)
        return self.component.operator

    def abort(self) -> None:
        """Wake every thread, so that it sees that the job has ended."""
        for bell in list(self._bells.values()):
            bell.ring()
        for arrived in list(self._flushes.values()):
            arrived.set()
        self._returns.put(None)

    # instructions

    def carry_out(self, instructions: Iterable[do.Instruction]) -> None:
        """Carry out what the executor asks for, in order."""
        for instruction in instructions:
            match instruction:
                case do.Wake(task):
                    self._wake(task)
                case do.Release(origin, nbytes):
                    self.job_part.release(origin, self.identity, nbytes)
                case do.StartTask(task, node, shards):
                    self._start_task(task, node, shards)
                case do.InstallState(shard, task, node, copy):
                    self._install(shard, task, node, copy)
                case do.RequestFlush(task, node, token, shard):
                    self._send(node, m.FlushRequest(task, token, shard))
                case do.FlushComplete(token):
                    # Who asked may have given up.
                    if (arrived := self._flushes.get(token)) is not None:
                        arrived.set()
                case do.EmitWatermark():
                    self.job_part.downstream.emit_watermark(self.executor.watermarks.take())
                case do.Finished():
                    self.job_part.downstream.emit_watermark(self.executor.watermarks.take())
                    self.job_part.executor_finished(self.identity)

    def _send(self, node: int, message: m.ToRemote) -> None:
        """Send a message; to a node that is gone it is not sent, and what it was about goes elsewhere soon."""
        try:
            self.job_part.send_messages(node, self.identity, [message], self._fence)
        except NodeLost as error:
            logger.debug("%s: %s", self.identity, error)
            if isinstance(message, m.SubBatch):
                self._unsent.setdefault(message.task, message.number)

    def _start_task(self, task: int, node: int, shards: tuple[int, ...]) -> None:
        if node == self.executor.home:
            self._bells[task] = Doorbell()
            self._thread(f"task-{task}", lambda: self._run_task(task))
            return
        self._remote[task] = node
        self._send(node, m.StartTask(task, shards))
        if not self._returning:
            self._returning = True
            self._thread("emitter", self._run_returns)
        self._feed(task, node)

    def _wake(self, task: int) -> None:
        node = self._remote.get(task)
        if node is None:
            self._bells[task].ring()
        else:
            self._feed(task, node)

    def _feed(self, task: int, node: int) -> None:
        """Send a remote task its sub-batches and labels, in the order of its queue, until there is nothing to send.

        Whoever is told to wake the task does this: nobody else is told before it has found nothing.
        """
        while not self.job_part.ended and (taken := self.executor.take(task, time.time())) is not None:
            number, item = taken
            match item:
                case Work():
                    self._send(node, m.SubBatch(task, number, item.batch(), item.silent))
                case LabelItem(shard, _, stays):
                    self._send(node, m.Label(task, shard, stays))
                case StopItem():
                    self._send(node, m.StopTask(task))
                    self.handle(events.TaskEnded(task))
                    return

    def _thread(self, name: str, run: Callable[[], None]) -> None:
        self.job_part.thread(f"{self.identity}-{name}", run)

    def _install(self, shard: int, task: int, node: int, copy: bool) -> None:
        state = self.executor.store.extract([shard]) if copy else None
        self._send(node, m.Install(task, shard, state))
        self.handle(events.StateInstalled(shard, task))

    # threads

    def _run_task(self, task: int) -> None:
        """Process what is routed to a task at home."""
        bell = self._bells[task]
        store, home = self.executor.store, self.executor.home
        with closing(self.job_part.processor(self.component, task, store, home)) as processor:
            while not self.job_part.ended:
                taken = self.executor.take(task, time.time())
                if taken is None:
                    bell.wait()
                    continue
                number, item = taken
                if isinstance(item, Work):
                    self._process(processor, task, number, item)
                elif not self._pass_control(task, item):
                    return

    def _process(self, processor: Processor, task: int, number: int, work: Work) -> None:
        began = time.perf_counter()
        deliveries = processor.process(work.batch())
        busy = time.perf_counter() - began
        if not work.silent:
            self.job_part.deliver(self.identity, deliveries)
        self.done(task, number, busy)

    def _pass_control(self, task: int, item: LabelItem | StopItem) -> bool:
        """Pass a control record of a task at home; returns whether the task goes on."""
        if isinstance(item, LabelItem):
            self.handle(events.LabelBack(task, item.shard))
            return True
        self.handle(events.TaskEnded(task))
        return False

    def _run_returns(self) -> None:
        """Emit what remote tasks put out, and take what came behind it."""
        while not self.job_part.ended:
            message = self._returns.get()
            match message:
                case None:
                    return
                case m.Outputs():
                    if self.executor.links.leaves(message):
                        self.job_part.deliver(self.identity, message.deliveries)
                case events.NodeGone() | events.NodeBack():
                    self.handle(message)
                case _:
                    self._take_back(message)
            with self._catching_up:
                self._behind -= 1

    def _take_back(self, message: m.ToHome) -> None:
        """Apply what a remote task reports."""
        assert not isinstance(message, m.Outputs)
        if isinstance(message, m.Done):
            self._settle(self.executor.take_back(message, time.time()))
            return
        with self._control:
            self.carry_out(self.executor.take_back(message, time.time()))
