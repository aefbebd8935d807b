"""The part of an executor on a remote node: its tasks there, and the state of their shards."""

from __future__ import annotations

from collections import deque

import numpy as np

from dask_elastic.executor.limits import ExecutorLimits, Haste
from dask_elastic.executor.link import Link
from dask_elastic.meters import InlineCost
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.fused.component_store import ComponentStore
from dask_elastic.vocab.batch import Delivery
from dask_elastic.vocab.compute_measure import flattened
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.lock import MakeLock, NoLock
from dask_elastic.vocab.messages import (
    ALL_SHARDS,
    Done,
    Flush,
    FlushRequest,
    Install,
    Label,
    LabelReturned,
    Outputs,
    Stamp,
    StartTask,
    StopTask,
    SubBatch,
    ToHome,
    ToRemote,
)


class RemoteTask:
    """A task on a remote node: a FIFO of messages of its home."""

    __slots__ = ("flushed", "number", "processed", "queue", "sleeping", "waited")

    def __init__(self, number: int):
        self.number = number
        self.queue: deque[tuple[float, ToRemote]] = deque()
        self.sleeping = False
        self.processed = self.flushed = -1
        self.waited = 0.0


class RemotePart:
    """All tasks of one executor on one remote node; they share one store, as the tasks at home do.

    The driver calls `admit` and then `receive` for each message of the home, in order. In the thread of each task it
    calls `take`, processes a `SubBatch` and then calls `processed`, or calls `control` for any other message. It sends
    the messages that these return home in order, each with its `stamp`.

    A home that gave the node up and returns to it uses a higher incarnation. The part of the earlier incarnation is
    closed then, and another one starts with an empty store.

    Parameters
    ----------
    identity : ExecutorId
        The executor.
    space : KeySpace
        The component's key space.
    make_lock : callable
        Makes locks.
    incarnation : int
        Incarnation of the link to the home, from the stamp of its first message, a `StartTask`.
    limits : ExecutorLimits
        Which sub-batches are processed by the thread that reads the connection, and by one that runs idle tasks.

    Attributes
    ----------
    closed : bool
        Whether the home has begun another incarnation: the tasks end, and nothing is sent home.

    Notes
    -----
    Elasticutor, section 3.1. Dirty marks never move: a label flushes the shard's state, and the target is installed
    from the primary copy.
    """

    def __init__(
        self,
        identity: ExecutorId,
        space: KeySpace,
        make_lock: MakeLock = NoLock,
        incarnation: int = 0,
        limits: ExecutorLimits | None = None,
    ):
        self.identity = identity
        self._inline = InlineCost()
        self._limits = limits or ExecutorLimits()
        self.closed = False
        self.store = ComponentStore(space.shards, space.shard_of, make_lock)
        self.store.track_dirty = True
        self.lock = make_lock()
        self.tasks: dict[int, RemoteTask] = {}
        self._link = Link(incarnation)
        self._leaving: set[int] = set()
        # Installing and dropping state takes long, and `receive` must not: it runs on an event loop.
        self._moving = make_lock()

    @property
    def incarnation(self) -> int:
        """Incarnation of the link to the home."""
        return self._link.incarnation

    @property
    def refused(self) -> int:
        """Messages that were refused."""
        return self._link.refused

    @property
    def is_busy(self) -> bool:
        """Whether any task has messages or processes one."""
        with self.lock:
            return any(not task.sleeping for task in self.tasks.values())

    def admit(self, stamp: Stamp) -> bool:
        """Whether a message of the home is accepted; called for each of them, in the order of arrival."""
        with self.lock:
            return self._link.admit(stamp)

    def stamp(self) -> Stamp:
        """Return the stamp of the next message to the home; messages are sent in the order of their stamps."""
        with self.lock:
            return self._link.stamp()

    def close(self) -> None:
        """End all tasks at once; the home has given them up."""
        with self.lock:
            self.closed = True
            self.tasks.clear()

    def receive(self, message: ToRemote, now: float = 0.0) -> bool:
        """Put a message in its task's FIFO; a `StartTask` starts the task instead.

        Parameters
        ----------
        message : ToRemote
            A message of the home that `admit` has accepted.
        now : float
            The time of its arrival, seconds.

        Returns
        -------
        bool
            Whether the task sleeps and must be woken.

        Raises
        ------
        ProtocolError
            If the message needs a task that does not exist here.
        """
        with self.lock:
            if self.closed:
                # The home sent it before it gave the node up.
                return False
            if isinstance(message, StartTask):
                self.tasks[message.task] = RemoteTask(message.task)
                for shard in message.shards:
                    self.store.grant(shard, message.task)
                return False
            task = self.tasks.get(message.task)
            if task is None and isinstance(message, FlushRequest):
                # The task was drained before the request arrived; its labels have flushed everything.
                return False
            if task is None:
                raise ProtocolError(
                    f"{self.identity}: a message for task {message.task}, which does not exist on this node"
                )
            task.queue.append((now, message))
            wake, task.sleeping = task.sleeping, False
            return wake

    def take(self, number: int, now: float = 0.0) -> ToRemote | None:
        """Return a task's next message; None when there is none, and `receive` tells when to wake the task."""
        with self.lock:
            if self.closed:
                return None
            task = self.tasks[number]
            if task.queue:
                arrived, message = task.queue.popleft()
                task.waited = now - arrived
                return message
            task.sleeping = True
            return None

    def is_short(self, message: ToRemote) -> bool:
        """Whether a message for an idle task takes so little time that the thread that brings it carries it out."""
        if isinstance(message, SubBatch):
            return self._takes(message, Haste.READS)
        return not isinstance(message, StopTask)

    def is_brief(self, message: ToRemote) -> bool:
        """Whether a message for an idle task is a sub-batch that another thread may process in place of the task's."""
        return isinstance(message, SubBatch) and self._takes(message, Haste.RUNS)

    def _takes(self, message: SubBatch, haste: Haste) -> bool:
        return message.batch.record is None and self._limits.allows(self._inline, message.batch.rows.num_rows, haste)

    def end_run(self, number: int) -> bool:
        """End a run by another thread after its sub-batch is processed; returns whether to wake the task."""
        with self.lock:
            task = self.tasks.get(number)
            if task is None:
                return False
            task.sleeping = not task.queue
            return not task.sleeping

    def processed(self, message: SubBatch, deliveries: list[Delivery], busy: float) -> list[ToHome]:
        """Return the messages to the home about a processed sub-batch.

        Parameters
        ----------
        message : SubBatch
            The sub-batch.
        deliveries : list of Delivery
            All of its outputs.
        busy : float
            Seconds for which it kept the core busy.

        Returns
        -------
        list of ToHome
            The outputs, unless the sub-batch is silent, then `Done`; nothing if the part is closed.
        """
        task = self.tasks.get(message.task)
        if task is None:
            return self._no_reply(message.task)
        task.processed = message.number
        with self.lock:
            # Every task of this part calls this in its own thread.
            if message.batch.record is None:
                self._inline.add(message.batch.rows.num_rows, busy)
        sent: list[ToHome] = []
        if deliveries and not message.silent:
            sent.append(Outputs(message.task, message.number, tuple(deliveries)))
        counts = flattened(self.store.take_tallies(message.task).values())
        tally = self.store.window_costs.pop(message.task, None)
        costs = () if tally is None else tuple(tally.costs())
        return [*sent, Done(message.task, message.number, busy, task.waited, counts, costs)]

    def _no_reply(self, task: int) -> list[ToHome]:
        if not self.closed:
            raise ProtocolError(
                f"{self.identity}: a message of task {task} was carried out, but the task does not exist on this node"
            )
        return []

    def control(self, message: Label | Install | FlushRequest | StopTask) -> list[ToHome]:
        """Carry out a control record when `take` has returned it.

        Parameters
        ----------
        message : Label, Install, FlushRequest or StopTask
            The control record.

        Returns
        -------
        list of ToHome
            The messages to the home.
        """
        target = self.tasks.get(message.task)
        if target is None:
            return self._no_reply(message.task)
        match message:
            case Label(_, shard, stays):
                return [self._label(target, shard, stays)]
            case Install(task, shard, state, fresh):
                with self._moving:
                    self._leaving.discard(shard)
                    if state is not None or fresh:
                        self.store.drop([shard])
                    if state is not None:
                        self.store.install(state)
                    self.store.grant(shard, task)
                return []
            case FlushRequest(_, token, shard):
                return [self._flush(target, token, shard)]
            case StopTask(task):
                with self.lock:
                    self.tasks.pop(task, None)
                return []

    def _label(self, task: RemoteTask, shard: int, stays: bool) -> LabelReturned:
        self.store.revoke(shard)
        state = self.store.extract([shard], dirty_only=True)
        if not stays:
            with self._moving:
                self._leaving.add(shard)
        # Only this shard is flushed: `processed` is no flush of the task's other shards.
        return LabelReturned(task.number, shard, task.processed, state)

    def settle(self) -> None:
        """Drop the state of shards that have left; called after `control`'s messages are sent, which must not wait."""
        with self._moving:
            if self._leaving:
                self.store.drop(self._leaving)
                self._leaving.clear()

    def flush_due(self) -> list[FlushRequest]:
        """Return the requests of a periodic flush, for the FIFOs of the tasks that have processed something since."""
        with self.lock:
            return [FlushRequest(task.number, -1) for task in self.tasks.values() if task.processed > task.flushed]

    def _flush(self, task: RemoteTask, token: int, shard: int) -> Flush:
        owned = np.flatnonzero(self.store.owner == task.number).tolist()
        shards = owned if shard == ALL_SHARDS else [shard]
        if shard == ALL_SHARDS:
            task.flushed = task.processed
        state = self.store.extract(shards, dirty_only=True)
        return Flush(task.number, task.processed, state, token, shard)
