"""Delivers the outputs of an executor's remote tasks from its home, and handles what is behind them, in order."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias

from dask_elastic.executor import events
from dask_elastic.executor.drivers.home_backlog import HomeBacklog, Left, Place
from dask_elastic.executor.drivers.host import ExecutorHost
from dask_elastic.executor.drivers.steps import Act, Steps
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.lock import MakeLock

NodeEvent: TypeAlias = events.NodeLeft | events.NodeReturned
Report: TypeAlias = m.Done | m.Flush | m.LabelReturned


class Emitter:
    """Handles what remote tasks send home, in the order of arrival.

    As long as outputs have credit, a thread that runs idle tasks handles them. Its own thread handles outputs that lack
    credit, and what may take long.

    Parameters
    ----------
    executor : ElasticExecutor
        The executor.
    host : ExecutorHost
        Threads and channels, or their simulation.
    make_lock : callable
        Makes locks.
    take_back, handle : callable
        Take a report of a remote task, and handle the loss or the return of a node.

    Attributes
    ----------
    bell : Bell
        Wakes its thread.
    """

    def __init__(
        self,
        executor: ElasticExecutor,
        host: ExecutorHost,
        make_lock: MakeLock,
        take_back: Callable[[Report], Steps[None]],
        handle: Callable[[NodeEvent], Steps[None]],
    ):
        self.bell = host.bell()
        self._executor = executor
        self._host = host
        self._take_back = take_back
        self._handle = handle
        self._backlog = HomeBacklog(make_lock)
        self._starting = make_lock()
        self._has_started = False

    def start(self) -> None:
        """Start its thread, if it has not started."""
        with self._starting:
            starts, self._has_started = not self._has_started, True
        if starts:
            self._host.start("emitter", self._run())

    def receive(self, message: m.ToHome) -> Steps[None]:
        """Take a message; the caller, which must not wait, handles it itself unless outputs wait before it."""
        place = self._backlog.put(message, waits=isinstance(message, m.Outputs))
        if place is Place.PASSES:
            assert not isinstance(message, m.Outputs), "outputs wait"
            yield from self._take_back(message)
        elif place is Place.FIRST and not self._host.leave_run(self._run_inline()):
            self.bell.ring()

    def put(self, event: NodeEvent) -> None:
        """Handle an event behind what has arrived."""
        self.start()
        if self._backlog.put(event) is Place.FIRST:
            self.bell.ring()

    def _run(self) -> Steps[None]:
        while True:
            yield self.bell.wait
            more = True
            while more:
                if self._host.ended:
                    return
                match item := self._backlog.head:
                    case m.Outputs(deliveries=deliveries):
                        if self._executor.links.leaves(item):
                            yield partial(self._host.deliver, deliveries)
                    case Left(deliveries):
                        yield partial(self._host.deliver, deliveries)
                    case events.NodeLeft() | events.NodeReturned():
                        yield from self._handle(item)
                    case _:
                        yield from self._take_back(item)
                more = self._backlog.done()

    def _run_inline(self) -> Steps[None]:
        """Handle what has arrived in a thread that must not wait, until its own thread has to continue."""
        more = True
        while more:
            if self._host.ended or not (yield from self._handled_now()):
                yield self.bell.ring
                return
            more = self._backlog.done()

    def _handled_now(self) -> Generator[Act, Any, bool]:
        """Handle the head without waiting; returns whether nothing of it is left."""
        item = self._backlog.head
        if isinstance(item, m.Done):
            yield from self._take_back(item)
            return True
        if not isinstance(item, m.Outputs):
            return False
        if not self._executor.links.leaves(item):
            return True
        left = yield partial(self._host.deliver_now, item.deliveries)
        if left:
            self._backlog.head = Left(left)
        return not left
