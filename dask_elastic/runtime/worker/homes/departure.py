"""The move of an executor's home away from this node, as its old home sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import Future

from dask_elastic.migration.home_move import HomeAction, HomeEvent, HomeMove
from dask_elastic.routing.home_table import HomeTable
from dask_elastic.runtime.protocol.home_calls import HomeMoved
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.homes.awaited_answers import AwaitedAnswers
from dask_elastic.vocab.errors import ElasticError
from dask_elastic.vocab.identity import ExecutorId


class Departure:
    """One move, and what waits for its progress; threads of the executor, of channels and of calls use it.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    source : int
        This node.
    table : HomeTable
        Where the operator's executors are after the move.
    cores : int
        Cores with which the executor begins there.

    Attributes
    ----------
    result : Future of HomeMoved
        The end of the move; `MoveRefused` if the executor stays.
    answers : AwaitedAnswers
        Waits for the new home; raises `Aborted` if the job ends meanwhile.
    """

    def __init__(self, executor: ExecutorId, source: int, table: HomeTable, cores: int):
        self.executor = executor
        self.source = source
        self.target = table.homes[executor.index]
        self.table = table
        self.cores = cores
        self.result: Future[HomeMoved] = Future()
        self._move = HomeMove(executor, source, self.target)
        self._lock = threading.Lock()
        self._passed = threading.Event()
        self.answers = AwaitedAnswers()
        self._began = time.monotonic()

    def handle(self, event: HomeEvent) -> HomeAction:
        """Note an event; returns what to do."""
        with self._lock:
            return self._move.handle(event)

    def cancels(self, event: HomeEvent) -> bool:
        """Note an event that may cancel the move; returns False for a move that has ended already."""
        with self._lock:
            return not self._move.has_ended and self._move.handle(event) is HomeAction.CANCEL

    def fence(self, nodes: Collection[int]) -> None:
        """Note the nodes to which the fence is sent."""
        with self._lock:
            self._move.fence(nodes)

    def passed(self, node: int) -> None:
        """Note that the fence has come back from a node; from others than `fence` has named, nothing is awaited."""
        with self._lock:
            if node in self._move.unpassed and self._move.passed(node) is HomeAction.HAND_OVER:
                self._passed.set()

    def wait_for_fences(self) -> None:
        """Return when the fence has come back from all nodes.

        Raises
        ------
        Aborted
            If the job ends meanwhile.
        """
        self._passed.wait()
        if self.answers.error is not None:
            raise self.answers.error

    @property
    def seconds(self) -> float:
        """Seconds since the move began."""
        return time.monotonic() - self._began

    def end(self, result: HomeMoved | ElasticError) -> None:
        """Tell who waits for the end of the move."""
        with self._lock:
            if self.result.done():
                return
            if isinstance(result, ElasticError):
                self.result.set_exception(result)
            else:
                self.result.set_result(result)

    def abort(self, error: ElasticError) -> None:
        """End every wait: the job has ended here."""
        self.answers.end(Aborted())
        self._passed.set()
        self.end(error)
