"""The part of an executor that runs on a remote node: its tasks, and the state of the shards that they own there."""

from __future__ import annotations

from collections import deque

import numpy as np

from dask_elastic.executor.link import Link
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.state.store import KeyedStore
from dask_elastic.vocab.batch import Delivery
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
    """A task on a remote node: a FIFO of what its home sent."""

    __slots__ = ("number", "processed", "queue", "sleeping", "waited")

    def __init__(self, number: int):
        self.number = number
        self.queue: deque[tuple[float, ToRemote]] = deque()
        self.sleeping = False
        self.processed = -1
        self.waited = 0.0


class RemotePart:
    """All tasks of one executor on one remote node; they share the state of their shards as tasks at home do.

    The driver calls `admit` and then `receive` for each message from the home, in order, and for each task in a thread
    `take`; a `SubBatch` it processes and then calls `processed`, for anything else `control`. What these return goes
    home in order, each message with its `stamp`.

    A home that gave the node up and comes back to it says so by a higher incarnation. The part that it knew then is
    closed, and another begins with an empty store.

    Parameters
    ----------
    identity : ExecutorId
        The executor.
    space : KeySpace
        The component's key space.
    make_lock : callable
        Makes locks.
    incarnation : int
        Which life of the link to the home this is; the first message, a `StartTask`, tells.

    Attributes
    ----------
    closed : bool
        Whether the home has begun another life: the tasks are to end, and nothing goes home any more.

    Notes
    -----
    Elasticutor, section 3.1. Dirty marks never move: a label sends everything before it home, and the target is
    installed from the primary copy.
    """

    def __init__(self, identity: ExecutorId, space: KeySpace, make_lock: MakeLock = NoLock, incarnation: int = 0):
        self.identity = identity
        self.closed = False
        self.store = KeyedStore(space.shards, space.shard_of, make_lock)
        self.store.track_dirty = True
        self.lock = make_lock()
        self.tasks: dict[int, RemoteTask] = {}
        self._link = Link(incarnation)
        self._leaving: set[int] = set()
        # Installing and forgetting state takes its time, and `receive` must not: it runs on an event loop.
        self._moving = make_lock()

    @property
    def incarnation(self) -> int:
        """Which life of the link to the home this is."""
        return self._link.incarnation

    @property
    def refused(self) -> int:
        """Messages that did not pass."""
        return self._link.refused

    def admit(self, stamp: Stamp) -> bool:
        """Say whether a message of the home may pass; called for each of them, in the order in which they come."""
        with self.lock:
            return self._link.admit(stamp)

    def stamp(self) -> Stamp:
        """Return the stamp of the next message to the home; messages are sent in the order of their stamps."""
        with self.lock:
            return self._link.stamp()

    def close(self) -> None:
        """End all tasks as they are; the home does not know them any more."""
        with self.lock:
            self.closed = True
            self.tasks.clear()

    def receive(self, message: ToRemote, now: float = 0.0) -> bool:
        """Put a message in its task's FIFO; returns whether the task sleeps and must be woken."""
        with self.lock:
            if self.closed:
                # On its way when the end came; the home will notice, if it has not.
                return False
            if isinstance(message, StartTask):
                self.tasks[message.task] = RemoteTask(message.task)
                for shard in message.shards:
                    self.store.grant(shard, message.task)
                return False
            task = self.tasks.get(message.task)
            if task is None and isinstance(message, FlushRequest):
                # The task was drained while the request was on its way; its labels have flushed everything.
                return False
            if task is None:
                raise ProtocolError(f"{self.identity}: a message for task {message.task}, which is not here")
            task.queue.append((now, message))
            wake, task.sleeping = task.sleeping, False
            return wake

    def take(self, number: int, now: float = 0.0) -> ToRemote | None:
        """Return the next message of a task; None when there is none, and then `receive` says when to wake it."""
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

    def processed(self, message: SubBatch, deliveries: list[Delivery], busy: float) -> list[ToHome]:
        """Return what goes home of a sub-batch that was processed as one unit; `deliveries` are all of its outputs."""
        task = self.tasks.get(message.task)
        if task is None:
            return self._nothing(message.task)
        task.processed = message.number
        sent: list[ToHome] = []
        if deliveries and not message.silent:
            sent.append(Outputs(message.task, message.number, tuple(deliveries)))
        return [*sent, Done(message.task, message.number, busy, task.waited)]

    def _nothing(self, task: int) -> list[ToHome]:
        if not self.closed:
            raise ProtocolError(f"{self.identity}: something was done for task {task}, which is not here")
        return []

    def control(self, message: Label | Install | FlushRequest | StopTask) -> list[ToHome]:
        """Carry out a control record when it is the task's turn."""
        mine = self.tasks.get(message.task)
        if mine is None:
            return self._nothing(message.task)
        match message:
            case Label(_, shard, stays):
                return [self._label(mine, shard, stays)]
            case Install(task, shard, state):
                with self._moving:
                    self._leaving.discard(shard)
                    if state is not None:
                        self.store.drop([shard])
                        self.store.install(state)
                    self.store.grant(shard, task)
                return []
            case FlushRequest(_, token, shard):
                return [self._flush(mine, token, shard)]
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
        # Only this shard is brought home, so the task's other shards are not flushed through here.
        return LabelReturned(task.number, shard, task.processed, state)

    def settle(self) -> None:
        """Forget the shards that have left; called once what `control` returned has been sent, which must not wait."""
        with self._moving:
            if self._leaving:
                self.store.drop(self._leaving)
                self._leaving.clear()

    def flush_due(self, number: int) -> FlushRequest:
        """Return the request that a periodic flush puts in a task's FIFO."""
        return FlushRequest(number, -1)

    def _flush(self, task: RemoteTask, token: int, shard: int) -> Flush:
        owned = np.flatnonzero(self.store.owner == task.number).tolist()
        shards = owned if shard == ALL_SHARDS else [shard]
        state = self.store.extract(shards, dirty_only=True)
        return Flush(task.number, task.processed, state, token, shard)
