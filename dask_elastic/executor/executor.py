"""An elastic executor at its home: its receiver, its routing, its tasks, and the primary copy of its state."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dask_elastic.executor import events
from dask_elastic.executor import instructions as do
from dask_elastic.executor.control_records.state_records import RECORD_BYTES
from dask_elastic.executor.control_records.watermarks import Watermarks
from dask_elastic.executor.executor_parts import ExecutorParts
from dask_elastic.executor.flushes import TRIM, trim_request
from dask_elastic.executor.limits import Haste
from dask_elastic.executor.piece import Block, Receipt, Replay
from dask_elastic.executor.task import REMOTE_WINDOW, Task
from dask_elastic.executor.task_queue import Item, Work
from dask_elastic.executor.task_status import TaskStatus
from dask_elastic.vocab.batch import Batch
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.messages import ALL_SHARDS, Done, Flush, LabelReturned
from dask_elastic.vocab.state_record import PartialsMoved, TimersDue

FIRST_ROWS = 64
"""Rows of a joined batch while the service rate is unknown."""

FINAL_FLUSH = -2
"""Token of an executor's last flush."""


class ElasticExecutor(ExecutorParts):
    """One of the fixed parts of a component's key space, on as many cores as it is given.

    The data path is `split` and `accept` (called by any thread that delivers a batch), `take` and `done` (called by the
    thread that runs or feeds a task); control is `handle`. The driver passes each message of a
    remote task to `links.admit` when it arrives, then in the same order to `links.leaves` (outputs) or `take_back` (all
    else). Methods of the data path, `handle` and `take_back` return instructions for the driver.

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
        The upstream instances; the executor has finished when all have ended and every row is processed and flushed.
    make_lock : callable
        Makes the executor's lock.
    limits : ExecutorLimits
        Bounds.
    timed : iterable of ExecutorId
        The inputs whose tuples have event time.
    clocks : collection of str
        The clocks of the component's timers.
    grid : Grid, optional
        The event times at which windows close; by default any.
    delay : int
        Microseconds by which times in the output may be older than the watermark of the inputs.
    store : PrimaryState, optional
        Its state, if it was copied before; no task uses it yet.

    Notes
    -----
    Elasticutor, sections 3.1 and 3.2. The owner may set `task_ended`: it is called, without the lock, when a task has
    ended or was lost with its node.
    """

    def start(self) -> list[do.Instruction]:
        """Start the first tasks, each with its first shards."""
        with self.lock:
            table = self.routes.table
            return [
                do.StartTask(task.number, task.node, tuple(table.shards_of(task.number).tolist()))
                for task in self.routes.tasks.values()
            ]

    # data path

    def split(self, batch: Batch) -> Block:
        """Sort a batch that has rows by task, without the lock."""
        block, sides = self.routes.split(batch), self.routes.shared.sides
        if sides is None or not isinstance(batch.rows, pa.RecordBatch):
            return block
        return block._replace(latest=sides.latest(batch.rows))

    def accept(self, block: Block, origin: ExecutorId, batch: Batch, nbytes: int, now: float) -> list[do.Instruction]:
        """Enqueue a split batch as the current table says; its credit is released when all of its rows are processed.

        Raises
        ------
        ProtocolError
            If `origin` is no input of the executor, or has ended.
        """
        with self.lock:
            if origin not in self.inputs.open:
                raise ProtocolError(f"{self.identity} got a batch from {origin}, which has ended or is no input of it")
            return self._accept(block, origin, batch, nbytes, now, self.store.event_time)

    def _accept(
        self, block: Block, origin: ExecutorId, batch: Batch, nbytes: int, now: float, event_time: int | None,
        is_part: bool = False,
    ) -> list[do.Instruction]:  # fmt: skip
        receipt = Receipt(origin, nbytes, batch.rows.num_rows, batch.stamp, now, is_part)
        self.store.note_input(batch.rows.schema, origin.component)
        self._pending_rows += receipt.rows
        receipt.span = self.watermarks.arrived()
        receipt.reached = self.records.stamp(event_time)
        receipt.separate = self.sharing.separate(event_time)
        before = self.routes.sub_batches
        self.routes.shared.note(block.latest)
        woken = self.routes.enqueue(block, receipt)
        self._pending_rows += self.routes.shared.take_added()
        self.measures.arrived(origin, receipt.rows, nbytes, self.routes.sub_batches - before, now)
        inline = [task for task in woken if self._may_run(self.routes.tasks[task])]
        # Other tasks are woken first: they run in the meantime.
        return [*(do.Wake(task) for task in woken if task not in inline), *map(do.Run, inline)]

    def take(self, task: int, now: float = 0.0) -> tuple[int, Item] | None:
        """Return a task's next item with its number, or None when there is none.

        The caller runs the task: its own thread, the one that feeds it, or the one that carries out its `Run`. After
        None the task sleeps, until a `Wake` or `Run`. A lost task gets no item.
        """
        with self.lock:
            taker = self.routes.tasks.get(task)
            if taker is None:
                return None
            self.moves.instant.feed(taker, now)
            item: Item | None = None
            if taker.queue:
                only_control = taker.is_full or self.moves.stops(task)
                item = taker.queue.take_control() if only_control else taker.queue.take(self._limit(taker))
            if isinstance(item, Work):
                return self._sent(taker, item, now)
            taker.sleeping = item is None
            return None if item is None else (taker.sent, item)

    def begin_run(self, task: int, now: float, haste: Haste = Haste.BRINGS) -> tuple[int, Work] | None:
        """Return the sub-batch of a `Run` with its number; None if it would take too long, or nothing waits."""
        with self.lock:
            taker = self.routes.tasks[task]
            if not self._runs(taker, haste):
                return None
            item = taker.queue.take(self._limit(taker))
            return self._sent(taker, item, now) if isinstance(item, Work) else None

    def may_leave(self, task: int) -> bool:
        """Whether a `Run` may be left to a thread that does nothing but run idle tasks."""
        with self.lock:
            return self._runs(self.routes.tasks[task], Haste.RUNS)

    def _may_run(self, task: Task) -> bool:
        """Whether some thread may run a task that was woken in place of the task's own thread."""
        rows, cost = task.queue.rows, self.measures.inline
        return task.at_home and (
            self.limits.allows(cost, rows, Haste.BRINGS) or self.limits.allows(cost, rows, Haste.RUNS)
        )

    def _runs(self, task: Task, haste: Haste) -> bool:
        # More rows may have arrived since the `Run` was returned.
        if self.moves.stops(task.number) or task.queue.has_control:
            return False
        return self.limits.allows(self.measures.inline, task.queue.rows, haste)

    def end_run(self, task: int) -> bool:
        """End a `Run` after its sub-batch is settled; returns whether to wake the task because more waits for it."""
        with self.lock:
            owner = self.routes.tasks[task]
            more = self.moves.instant.merging.waiting((task,), self.routes.table.owner)
            owner.sleeping = len(owner.queue) == 0 and not more
            return not owner.sleeping

    def _sent(self, task: Task, work: Work, now: float) -> tuple[int, Work]:
        # The processing time of a shard never goes back, whichever tasks take its rows.
        if (taken := work.pieces[0].taken) is not None:
            work.now = taken
        else:
            work.now = self.time_taken = max(self.time_taken, now)
        return task.send(work, now), work

    def _limit(self, task: Task) -> int:
        seconds = self.limits.inbox_time if task.at_home else self.limits.inbox_time / REMOTE_WINDOW
        return self.measures.cost.rows_within(seconds) or FIRST_ROWS

    def done(
        self, task: int, number: int, busy: float, now: float, waited: float = 0.0, counts: tuple[int, ...] = ()
    ) -> list[do.Instruction]:
        """Settle a sub-batch that is processed and whose outputs have left; ignored when its task is lost.

        Parameters
        ----------
        task, number : int
            The task, and the number that `take` gave the sub-batch.
        busy : float
            Seconds for which it kept the core busy.
        now : float
            The time in seconds.
        waited : float
            Seconds for which it waited for the core at a remote node.
        counts : tuple of int
            What became of its rows at a remote node, see `flattened`.

        Returns
        -------
        list of Instruction
            What the driver carries out.

        Raises
        ------
        ProtocolError
            If the task has no such sub-batch in flight.
        """
        owner = self.routes.tasks.get(task)
        work = None if owner is None else owner.in_flight.get(number)
        if owner is not None and work is None:
            raise ProtocolError(f"{self.identity}: task {task} settled sub-batch {number}, which is not in flight")
        by_shard = None if work is None else work.by_shard(self.routes.space)
        with self.lock:
            if work is None or by_shard is None or self.routes.tasks.get(task) is not owner or owner is None:
                self.links.late += 1
                return []
            self.measures.settled(work, by_shard, busy, now)
            if counts and not work.pieces[0].receipt.settled:
                self.store.add_counts(counts)
            merged = isinstance(work.record, PartialsMoved) and not work.pieces[0].receipt.settled
            instructions = self._receipts(work)
            moves = len(self.moves) if self.moves.under_way else 0
            if merged and isinstance(work.record, PartialsMoved):
                self.moves.choice.merged(work.nbytes, busy)
                self.moves.instant.merging.merged(work.record.shard, busy, now)
            owner.settle(number, busy, waited, now, self.limits.inbox_time / REMOTE_WINDOW)
            owner.busy.add(busy, now)
            if isinstance(work.record, TimersDue) and work.side is not None and not work.side.later:
                instructions += self.moves.instant.closed(task, work.record, now)
            self._pending_rows -= work.rows
            instructions += self.moves.work_done(task, now)
            if moves and len(self.moves) < moves:
                # A move has arrived at once, or was cancelled because its target is draining.
                instructions += self._proceed(now) + self._held_flushes()
            if not owner.at_home:
                instructions += [do.Wake(t) for t in self.routes.wake(owner)]
                instructions += trim_request(owner)
            if work.replay is not Replay.NONE:
                self.recovery.done(work.rows, now)
            if merged or work.replay is not Replay.NONE:
                instructions += self._held_flushes()
            return instructions + self._finish()

    def emitted(self, nbytes: int, now: float) -> None:
        """Count `nbytes` of outputs that have left."""
        with self.lock:
            self.measures.left(nbytes, now)

    def _receipts(self, work: Work) -> list[do.Instruction]:
        released: list[do.Instruction] = []
        for piece in work.pieces:
            piece.receipt.rows -= piece.length
            if piece.receipt.rows:
                continue
            Watermarks.settled(piece.receipt.span)
            if credit := piece.receipt.nbytes:
                released.append(do.Release(piece.receipt.origin, credit, work.wanted_more, piece.receipt.is_part))
        return released

    # remote tasks

    def take_back(self, message: Done | Flush | LabelReturned, now: float) -> list[do.Instruction]:
        """Handle a report of a remote task and apply its state to the primary copy; ignored when the task is lost.

        The caller calls this and `handle` one after the other, never at the same time.
        """
        if isinstance(message, Done):
            with self.lock:
                self.store.add_costs(message.costs)
            return self.done(message.task, message.number, message.busy, now, message.waited, message.counts)
        with self.lock:
            sender = self.routes.tasks.get(message.task)
            if sender is None or sender.pending is None:
                self.links.late += 1
                return []
        if message.state is not None:
            # Installing takes long: not under the lock that every batch takes.
            labelled = message.shard if isinstance(message, LabelReturned) else None
            self.moves.instant.install(message.task, message.state, labelled)
        with self.lock:
            if isinstance(message, LabelReturned):
                sender.pending.leave(message.shard, message.through)
                instructions = self.moves.label_returned(message.task, message.shard, now) + self._proceed(now)
                return instructions + self._held_flushes() + self._finish()
            if message.shard != ALL_SHARDS:
                sender.pending.leave(message.shard, message.through)
                return self.moves.flush_arrived(message.shard, now) + self._proceed(now)
            sender.pending.trim(message.through)
            if message.token == TRIM:
                sender.pending.flush_arrived()
            wakes: list[do.Instruction] = [do.Wake(task) for task in self.routes.wake(sender)]
            progress = self._flush_progress(self.flushes.arrived(message.task, message.token))
            return wakes + trim_request(sender) + progress

    def _node_left(self, event: events.NodeLeft, now: float) -> list[do.Instruction]:
        """Fail over the tasks of a lost node: other tasks get their shards and replay what was not flushed."""
        node = event.node
        if node == self.home:
            raise ProtocolError(f"{self.identity} cannot lose its home, node {node}")
        if not self.links.is_cut(node):
            raise ProtocolError(f"{self.identity}: node {node} is lost, but its link was not cut before")
        self.cores.lost_nodes.add(node)
        tasks = [task for task in self.routes.tasks.values() if task.node == node]
        if not tasks:
            return []
        loads = self._loads(now)
        orphans = self.moves.orphans({task.number for task in tasks})
        self._pending_rows += self.recovery.lose(node, tasks, now, event.died)
        self.flushes.lost(task.number for task in tasks)
        instructions = self.cores.replace(event.replacements)
        instructions += self.moves.inherit(self.cores.heirs(orphans, loads), now)
        return instructions + self._held_flushes() + self._proceed(now)

    # control

    def handle(self, event: events.Event, now: float) -> list[do.Instruction]:
        """Handle an event and return what the driver carries out.

        Raises
        ------
        MoveRefused, PlanningError
            If a command cannot be carried out; nothing is changed.
        ProtocolError
            If the event is illegal now.
        """
        with self.lock:
            instructions = self._handle(event, now) + self._finish()
        if isinstance(event, events.TaskEnded | events.NodeLeft):
            self.task_ended()
        return instructions

    def _handle(self, event: events.Event, now: float) -> list[do.Instruction]:
        match event:
            case events.BalanceDue(computing):
                return self._balance(computing, now)
            case events.LabelBack(task, shard):
                return self.moves.label_returned(task, shard, now) + self._proceed(now)
            case events.StateInstalled(shard, task):
                return self.moves.installed(shard, task, now) + self._proceed(now) + self._held_flushes()
            case events.StateSetAside(shard):
                return self.moves.instant.set_aside(shard, now) + self._proceed(now) + self._held_flushes()
            case events.MoveShard(shard, target):
                return self.cores.command_move(shard, target, now)
            case events.SetCores(by_node):
                return self.cores.set(by_node, self._looked(now), now)
            case events.TaskEnded(task):
                self.cores.forget(task)
                return self._flush_progress(self.flushes.ended(task))
            case events.FlushDue(token):
                return self._flush(token)
            case events.NodeLeft():
                return self._node_left(event, now)
            case events.NodeReturned(node):
                self.cores.lost_nodes.discard(node)
                self.links.restore(node)
                return []
            case events.BarriersAligned(checkpoint):
                self.cuts.begin(checkpoint)
                return self.moves.instant.cut_due(now)
            case events.CheckpointAbandoned(checkpoint):
                self.cuts.give_up(checkpoint)
            case events.ChangeSharing(separate, since):
                self.sharing.change(separate, since)
            case events.ClockTicked():
                # After the barriers nothing may change the state before it is copied; and the end fires all timers.
                idle = self.cuts.under_way or not self.inputs.open
                return [] if idle else self._enter(self.records.ticked(now), now)
            case events.InputEnded(origin):
                self.inputs.end(origin)
                return self._advanced(now)
            case events.InputWatermark(watermark):
                self.inputs.advance(watermark)
                return self._advanced(now)
        return []

    def _advanced(self, now: float) -> list[do.Instruction]:
        """Let the standing of the inputs pass behind the rows that arrived before, and behind what it fires."""
        record = self.records.reached(self.inputs.time) if self.inputs.open else self.records.ended()
        instructions = self._enter(record, now)
        self.watermarks.inputs_advanced()
        return instructions

    def _enter(self, record: TimersDue | None, now: float) -> list[do.Instruction]:
        """Route a state record behind the rows that arrived before; it counts as rows do until it is settled."""
        if record is None:
            return []
        self.moves.instant.is_last |= record.last
        instructions = self.moves.instant.record_enters(now)
        block = self.records.block(record, self.routes.table, self.store.input_schema)
        receipt = Receipt(self.identity, 0, len(block.hashes), now, now)
        receipt.row_bytes = RECORD_BYTES
        self.records.entered(record, receipt)
        receipt.reached = self.records.stamp(self.store.event_time)
        self._note_event_time(record, now)
        self._pending_rows += receipt.rows
        receipt.span = self.watermarks.arrived()
        return instructions + [do.Wake(task) for task in self.routes.enqueue(block, receipt)]

    def _flush(self, token: int) -> list[do.Instruction]:
        if self._lacks_state:
            # Until the replay is done the primary copy may lack what a lost task had processed.
            self.flushes.hold(token)
            return []
        return self._flush_progress(self.flushes.request(token, self.routes.tasks.values()))

    def _held_flushes(self) -> list[do.Instruction]:
        """Make the flush requests that waited for a replay, or for partials that are handed over."""
        if self._lacks_state:
            return []
        return self._flush_progress(self.flushes.replayed(self.routes.tasks.values()))

    def _proceed(self, now: float) -> list[do.Instruction]:
        """Continue draining and balancing after the progress of a move."""
        if any(task.status is TaskStatus.DRAINING for task in self.routes.tasks.values()):
            return self.cores.drain(self._loads(now), now) + self.cores.proceed(now)
        return self.cores.proceed(now)

    def _finish(self) -> list[do.Instruction]:
        """Emit the watermark that is due; once no row is left, request the flush for a cut, and at the end the last."""
        self._pending_rows += self.routes.shared.take_added()
        due = self.watermarks.due()
        unsettled = self._pending_rows + self.moves.instant.has_partials
        if (token := self.cuts.flush_due(unsettled)) is not None:
            due += self._flush(token)
        if self.inputs.open or unsettled or self._final_flush_requested:
            return due
        self._final_flush_requested = True
        return due + self._flush(FINAL_FLUSH)

    def _flush_progress(self, instructions: Sequence[do.Instruction]) -> list[do.Instruction]:
        return [self._after_flush(i) if isinstance(i, do.FlushComplete) else i for i in instructions]

    def _after_flush(self, complete: do.FlushComplete) -> do.Instruction:
        if complete.token == FINAL_FLUSH:
            self.finished = True
            return do.Finished()
        checkpoint = self.cuts.flushed(complete.token)
        return complete if checkpoint is None else do.Cut(checkpoint)
