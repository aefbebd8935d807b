"""An elastic executor at its home: the single entrance, the tasks, and the state they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.cores import Cores
from dask_elastic.executor.flushes import TRIM, Flushes
from dask_elastic.executor.inputs import Inputs
from dask_elastic.executor.limits import ExecutorLimits
from dask_elastic.executor.link import Links
from dask_elastic.executor.measures import RECENT_SECONDS, ExecutorMeasure, Measures
from dask_elastic.executor.moves import MoveRecord, Moves
from dask_elastic.executor.piece import Block, Receipt, Replay
from dask_elastic.executor.primary_state import PrimaryState
from dask_elastic.executor.recovery import Recovery, RecoveryRecord
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task import REMOTE_WINDOW, Task
from dask_elastic.executor.task_queue import Item, Work
from dask_elastic.executor.watermarks import Watermarks
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock
from dask_elastic.vocab.messages import ALL_SHARDS, Done, Flush, LabelReturned

FIRST_ROWS = 64
"""Size of the first joined batch, before the service rate is known."""

FINAL_FLUSH = -2
"""Token of the flush that ends an executor."""


class ElasticExecutor:
    """One of the fixed parts of a component's key space, on as many cores as it is given.

    The data path is `offer` (called by whichever thread brings a batch), `take` and `done` (called by a task's
    thread, or by the thread that feeds a remote task); control is `handle`. What remote tasks send goes through `admit`
    as it arrives, then in this order through `leaves` or `take_back`. All return instructions for the driver.

    Parameters
    ----------
    identity : ExecutorId
        Which part of which component.
    space : KeySpace
        The component's key space.
    home : int
        The node where the primary copy lives.
    cores : mapping of int to int
        Cores at the start, by node.
    inputs : iterable of ExecutorId
        The upstream instances; when all have ended and nothing is left to do, the executor has finished.
    make_lock : callable
        Makes the executor's one short lock.
    limits : ExecutorLimits
        Bounds.
    timed : iterable of ExecutorId
        Those of the inputs whose tuples have event time.

    Attributes
    ----------
    task_ended : callable
        Called, without the lock, when a task has ended or was lost with its node.

    Notes
    -----
    Elasticutor, sections 3.1 and 3.2.
    """

    def __init__(
        self,
        identity: ExecutorId,
        space: KeySpace,
        home: int,
        cores: Mapping[int, int],
        inputs: Iterable[ExecutorId],
        make_lock: MakeLock = NoLock,
        limits: ExecutorLimits | None = None,
        timed: Iterable[ExecutorId] = (),
    ):
        self.identity = identity
        self.home = home
        self.limits = limits or ExecutorLimits()
        self.lock = make_lock()
        self.store = PrimaryState(space.shards, space.shard_of, make_lock)
        self.routes = Routes(space, self._first_tasks(home, cores))
        self.moves = Moves(self.routes, self.store, self.limits.patience)
        self.cores = Cores(self.routes, self.moves, home, self.limits.threshold, self.limits.pending_bytes)
        self.recovery = Recovery(identity, self.routes)
        self.measures = Measures(space.shards)
        self.flushes = Flushes()
        self.finished = False
        self.task_ended: Callable[[], None] = lambda: None
        self.links = Links(self.routes, self.lock)
        self._time = 0.0
        self.inputs = Inputs(identity, inputs, timed)
        self.watermarks = Watermarks(self.inputs, self.lock)
        self._pending_rows = 0
        self._final_flush_asked = False
        for shard, owner in enumerate(self.routes.table.owner.tolist()):
            if self.routes.tasks[owner].at_home:
                self.store.grant(shard, owner)

    def _first_tasks(self, home: int, cores: Mapping[int, int]) -> list[Task]:
        nodes = sorted((node for node in cores if cores[node]), key=lambda node: (node != home, node))
        places = [node for node in nodes for _ in range(cores[node])] or [home]
        limit = self.limits.pending_bytes
        return [Task(number, node, node == home, limit) for number, node in enumerate(places)]

    def start(self) -> list[do.Instruction]:
        """Start the first tasks, each with the shards that it begins with."""
        with self.lock:
            table = self.routes.table
            return [
                do.StartTask(task.number, task.node, tuple(table.shards_of(task.number).tolist()))
                for task in self.routes.tasks.values()
            ]

    # data path

    def offer(self, origin: ExecutorId, batch: Batch, nbytes: int, now: float) -> list[do.Instruction]:
        """Take a batch in. The sender got `nbytes` of credit for it, which come back when it is processed."""
        if batch.rows.num_rows == 0:
            return [do.Release(origin, nbytes)] if nbytes else []
        return self.accept(self.split(batch), origin, batch, nbytes, now)

    def split(self, batch: Batch) -> Block:
        """Sort a batch for the tasks, without the lock: the first half of `offer`, for a batch that has rows."""
        return self.routes.split(batch)

    def accept(self, block: Block, origin: ExecutorId, batch: Batch, nbytes: int, now: float) -> list[do.Instruction]:
        """Put what `split` made of a batch where the table of this moment says: the second half of `offer`."""
        receipt = Receipt(origin, nbytes, batch.rows.num_rows, batch.stamp, now)
        with self.lock:
            if origin not in self.inputs.open:
                raise ProtocolError(f"{self.identity} got a batch of {origin}, which has ended or is no input of it")
            self.store.note_input(batch.rows.schema)
            self._pending_rows += receipt.rows
            receipt.span = self.watermarks.arrived()
            before = self._queued()
            wakes: list[do.Instruction] = [do.Wake(task) for task in self.routes.enqueue(block, receipt)]
            self.measures.arrived(receipt.rows, nbytes, self._queued() - before, now)
            return wakes

    def _queued(self) -> int:
        """Return how many items wait for tasks: what a batch adds is the number of sub-batches it was cut into."""
        return sum(len(task.queue) for task in self.routes.tasks.values())

    def take(self, task: int, now: float = 0.0) -> tuple[int, Item] | None:
        """Return what the task does next, numbered; None when there is nothing, a `Wake` then follows when there is.

        There is never anything for a task that is lost.
        """
        with self.lock:
            mine = self.routes.tasks.get(task)
            if mine is None:
                return None
            item = mine.queue.take_control() if mine.is_full else mine.queue.take(self._limit(mine))
            if item is None:
                mine.sleeping = True
                return None
            if not isinstance(item, Work):
                return mine.sent, item
            # Never back: a shard's rows are taken one after the other, by whichever tasks, so its time only goes on.
            if (taken := item.pieces[0].taken) is not None:
                item.now = taken
            else:
                item.now = self._time = max(self._time, now)
            return mine.send(item, now), item

    def _limit(self, task: Task) -> int:
        seconds = self.limits.inbox_time if task.at_home else self.limits.inbox_time / REMOTE_WINDOW
        return self.measures.cost.rows_within(seconds) or FIRST_ROWS

    def done(self, task: int, number: int, busy: float, now: float, waited: float = 0.0) -> list[do.Instruction]:
        """Settle a unit of work whose outputs have left.

        Parameters
        ----------
        task, number : int
            The task, and the number that `take` gave the unit.
        busy : float
            Seconds for which it kept the core busy.
        now : float
            The time in seconds.
        waited : float
            Seconds for which it waited for the core at a remote node.
        """
        mine = self.routes.tasks.get(task)
        work = None if mine is None else mine.in_flight.get(number)
        if mine is not None and work is None:
            raise ProtocolError(f"{self.identity}: task {task} finished work {number}, which it does not have")
        by_shard = None if work is None else work.rows_by_shard(self.routes.space)
        with self.lock:
            if work is None or by_shard is None or self.routes.tasks.get(task) is not mine or mine is None:
                self.links.late += 1
                return []
            self.measures.settled(work, by_shard, busy, now)
            instructions = self._receipts(work)
            mine.settle(number, busy, waited, now, self.limits.inbox_time / REMOTE_WINDOW)
            mine.busy.add(busy, now)
            self._pending_rows -= work.rows
            moves = len(self.moves)
            instructions += self.moves.work_done(task, now)
            if len(self.moves) < moves:
                # A move came to nothing, since its target is about to go.
                instructions += self._proceed(now)
            if not mine.at_home:
                instructions += [do.Wake(t) for t in self.routes.wake(mine)]
                instructions += self._shorten(mine)
            if work.replay is not Replay.NONE and self.recovery.done(work.rows, now):
                instructions += self._flush_progress(self.flushes.replayed(self.routes.tasks.values()))
            return instructions + self._finish()

    def emitted(self, nbytes: int, now: float) -> None:
        """Note that outputs of so many bytes have left."""
        with self.lock:
            self.measures.left(nbytes, now)

    @staticmethod
    def _receipts(work: Work) -> list[do.Instruction]:
        released: list[do.Instruction] = []
        for piece in work.pieces:
            piece.receipt.rows -= piece.length
            if piece.receipt.rows:
                continue
            Watermarks.settled(piece.receipt.span)
            if piece.receipt.nbytes:
                released.append(do.Release(piece.receipt.origin, piece.receipt.nbytes))
        return released

    # remote tasks

    def take_back(self, message: Done | Flush | LabelReturned, now: float) -> list[do.Instruction]:
        """Take what a remote task reports, and state into the primary copy; nothing of a task that was lost.

        State is applied in the same order as events are handled, and not beside them.
        """
        if isinstance(message, Done):
            return self.done(message.task, message.number, message.busy, now, message.waited)
        with self.lock:
            mine = self.routes.tasks.get(message.task)
            if mine is None or mine.pending is None:
                self.links.late += 1
                return []
        if message.state is not None:
            # Not under the lock that every batch takes.
            self.store.install(message.state)
        with self.lock:
            if isinstance(message, LabelReturned):
                mine.pending.leave(message.shard, message.through)
                return self.moves.label_returned(message.task, message.shard, now) + self._proceed(now)
            if message.shard != ALL_SHARDS:
                mine.pending.leave(message.shard, message.through)
                return self.moves.brought_ahead(message.shard, now) + self._proceed(now)
            mine.pending.trim(message.through)
            if message.token == TRIM:
                mine.pending.answered()
            wakes: list[do.Instruction] = [do.Wake(task) for task in self.routes.wake(mine)]
            progress = self._flush_progress(self.flushes.arrived(message.task, message.token))
            return wakes + self._shorten(mine) + progress

    @staticmethod
    def _shorten(task: Task) -> list[do.Instruction]:
        """Ask for a flush before the pending queue of a remote task is full."""
        if task.pending is None or not task.pending.ask():
            return []
        return [do.RequestFlush(task.number, task.node, TRIM)]

    def _node_gone(self, event: events.NodeGone, now: float) -> list[do.Instruction]:
        """Let other tasks do what those on a lost node had to do, and do again what they had not flushed."""
        node = event.node
        if node == self.home:
            raise ProtocolError(f"{self.identity} cannot outlive its home, node {node}")
        if not self.links.is_cut(node):
            raise ProtocolError(f"{self.identity}: node {node} is gone, but it was not cut off before")
        self.cores.gone.add(node)
        tasks = [task for task in self.routes.tasks.values() if task.node == node]
        if not tasks:
            return []
        loads = self._loads(now)
        orphans = self.moves.orphans({task.number for task in tasks})
        self._pending_rows += self.recovery.lose(node, tasks, now, event.died)
        self.flushes.lost(task.number for task in tasks)
        instructions = self.cores.replace(event.replacements)
        instructions += self.moves.inherit(self.cores.heirs(orphans, loads), now)
        if not self.recovery.rows:
            instructions += self._flush_progress(self.flushes.replayed(self.routes.tasks.values()))
        return instructions + self._proceed(now)

    def recoveries(self) -> list[RecoveryRecord]:
        """Return the newest losses of remote tasks, oldest first."""
        with self.lock:
            return list(self.recovery.records)

    # control

    def handle(self, event: events.Event, now: float) -> list[do.Instruction]:
        """Take an event.

        Raises
        ------
        MoveRefused, PlanningError
            If a command cannot be carried out; nothing is changed then.
        ProtocolError
            If the event is illegal at this point.
        """
        with self.lock:
            instructions = self._handle(event, now) + self._finish()
        if isinstance(event, events.TaskEnded | events.NodeGone):
            self.task_ended()
        return instructions

    def _handle(self, event: events.Event, now: float) -> list[do.Instruction]:
        match event:
            case events.BalanceDue():
                loads = self._loads(now)
                return self.cores.drain(loads, now) + self.cores.balance(loads, now)
            case events.LabelBack(task, shard):
                return self.moves.label_returned(task, shard, now) + self._proceed(now)
            case events.StateInstalled(shard, task):
                return self.moves.installed(shard, task, now) + self._proceed(now)
            case events.MoveShard(shard, target):
                return self.moves.begin(shard, target, now)
            case events.SetCores(by_node):
                return self.cores.set(by_node, self._loads(now), now)
            case events.TaskEnded(task):
                self.cores.forget(task)
                return self._flush_progress(self.flushes.ended(task))
            case events.FlushDue(token):
                return self._flush(token)
            case events.NodeGone():
                return self._node_gone(event, now)
            case events.NodeBack(node):
                self.cores.gone.discard(node)
                self.links.mend(node)
                return []
            case events.InputEnded(origin):
                self.inputs.end(origin)
            case events.InputWatermark(said):
                self.inputs.hear(said)
        self.watermarks.heard()
        return []

    def _flush(self, token: int) -> list[do.Instruction]:
        if self.recovery.rows:
            # What a lost task had done may be missing in the primary copy until it is done again.
            self.flushes.hold(token)
            return []
        return self._flush_progress(self.flushes.request(token, self.routes.tasks.values()))

    def _loads(self, now: float) -> np.ndarray:
        """Return the work that there is for each shard."""
        return self.measures.work_by_shard(self.routes.backlog(), self.routes.in_flight(), now)

    def _proceed(self, now: float) -> list[do.Instruction]:
        """Go on with draining and balancing after a move has come a step further."""
        if any(task.draining and not task.stopping for task in self.routes.tasks.values()):
            return self.cores.drain(self._loads(now), now) + self.cores.proceed(now)
        return self.cores.proceed(now)

    def _finish(self) -> list[do.Instruction]:
        """Pass on what is due; once all inputs have ended and every row is processed, bring the state home."""
        due = self.watermarks.due()
        if self.inputs.open or self._pending_rows or self._final_flush_asked:
            return due
        self._final_flush_asked = True
        return due + self._flush(FINAL_FLUSH)

    def _flush_progress(self, instructions: Sequence[do.Instruction]) -> list[do.Instruction]:
        final = do.FlushComplete(FINAL_FLUSH)
        if final not in instructions:
            return list(instructions)
        self.finished = True
        return [i for i in instructions if i != final] + [do.Finished()]

    # measures

    def measure(self, now: float) -> ExecutorMeasure:
        """Return what there is to say of the executor at this moment."""
        # Sizing the state waits for the tasks to finish their batch: not under the lock that every batch takes.
        shard_bytes = self.store.shard_bytes()
        with self.lock:
            measures = self.measures
            return ExecutorMeasure(
                executor=self.identity,
                node=self.home,
                cores=self.cores.by_node(),
                arrival_rate=measures.arrivals.per_second(now),
                throughput=measures.processed.per_second(now),
                service_rate=measures.service.per_second(),
                customer_rows=measures.customer_rows(now),
                bytes_in=measures.bytes_in.per_second(now),
                bytes_out=measures.bytes_out.per_second(now),
                queue_rows=self._pending_rows,
                sojourn=measures.sojourn.mean(now),
                latency=measures.latency.recent(now),
                latency_now=measures.latency.recent(now, RECENT_SECONDS),
                latency_mean=measures.latency_mean.mean(now),
                latency_rows=measures.latency_mean.weight(now),
                state_bytes=int(shard_bytes.sum()),
                shard_load=measures.loads.loads(now),
                shard_bytes=shard_bytes,
                rows=measures.rows,
                moves=self.moves.finished,
                moves_across=self.moves.finished_across,
                pending_bytes=self.routes.pending_bytes,
                refused=self.links.refused,
                recovered=self.recovery.losses,
                recovery=self.recovery.seconds_to_first(),
                event_time=self.watermarks.now.time,
                jumps=measures.demand.jumps,
            )

    def finished_moves(self) -> list[MoveRecord]:
        """Return the newest finished shard moves, oldest first."""
        with self.lock:
            return list(self.moves.recent)

    def assignment(self) -> tuple[np.ndarray, dict[int, int]]:
        """Return the task of each shard, and the node of each task."""
        with self.lock:
            return self.routes.table.owner.copy(), {t.number: t.node for t in self.routes.tasks.values()}

    def task_nodes(self) -> set[int]:
        """Return the nodes of all tasks, those about to stop included."""
        with self.lock:
            return {task.node for task in self.routes.tasks.values()}
