"""One move of key groups as far as executors on one node take part, and what waits for its progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from dask_elastic.runtime.protocol.group_calls import GroupsMoved
from dask_elastic.vocab.errors import ElasticError
from dask_elastic.vocab.identity import ExecutorId


class Share(NamedTuple):
    """The part of one executor in a move of groups.

    Parameters
    ----------
    gains : tuple of int
        The groups that it is to get.
    loses : dict of int to int
        The next executor of each group that it is to give.
    """

    gains: tuple[int, ...]
    loses: dict[int, int]


class LocalMove:
    """The part of one node in a move of groups; threads of executors, of channels and of calls use it.

    Parameters
    ----------
    operator : str
        The operator.
    version : int
        The version of the table of groups that the move leads to.
    drains : bool
        Whether the executors process everything before any group moves.
    shares : mapping of ExecutorId to Share
        The executors here that take part.
    clock : callable
        Returns seconds.

    Examples
    --------
    >>> one = ExecutorId("per_key", 0)
    >>> move = LocalMove("per_key", 1, False, {one: Share((5,), {})}, clock=iter([0.0, 0.25]).__next__)
    >>> waited = move.wait_for_exchanged()
    >>> move.sent(4096)
    >>> move.got(512)
    >>> move.exchanged(one)
    >>> waited.result()
    GroupsMoved(nbytes=4608, pause=0.25, paused_bytes=512)
    """

    def __init__(
        self,
        operator: str,
        version: int,
        drains: bool,
        shares: Mapping[ExecutorId, Share],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.operator = operator
        self.version = version
        self.drains = drains
        self.shares = dict(shares)
        self._clock = clock
        self._lock = threading.Lock()
        self._uncopied = {executor for executor, share in self.shares.items() if share.loses}
        self._unheld, self._undrained, self._unexchanged = (set(self.shares) for _ in range(3))
        self._unpassed: dict[ExecutorId, set[int]] = {}
        self._passed: dict[ExecutorId, threading.Event] = {}
        self._began: float | None = None
        self._pause, self._copied, self._got = 0.0, 0, 0
        self._waited: list[tuple[set[ExecutorId], Future[GroupsMoved]]] = []
        self._error: ElasticError | None = None

    def wait_for_copied(self) -> Future[GroupsMoved]:
        """Return what is done when all executors here have copied the state of the groups that they are to give."""
        return self._wait_for(self._uncopied)

    def wait_for_held(self) -> Future[GroupsMoved]:
        """Return what is done when all executors here hold what arrives for the groups that they are to get."""
        return self._wait_for(self._unheld)

    def wait_for_drained(self) -> Future[GroupsMoved]:
        """Return what is done when all executors here have processed everything."""
        self._begin()
        return self._wait_for(self._undrained)

    def wait_for_exchanged(self) -> Future[GroupsMoved]:
        """Return what is done when all executors here have given and got their groups."""
        self._begin()
        return self._wait_for(self._unexchanged)

    def _begin(self) -> None:
        with self._lock:
            if self._began is None:
                self._began = self._clock()

    def _wait_for(self, left: set[ExecutorId]) -> Future[GroupsMoved]:
        result: Future[GroupsMoved] = Future()
        with self._lock:
            self._waited.append((left, result))
        self._settle()
        return result

    def _settle(self) -> None:
        """End the waits for which nothing is left."""
        with self._lock:
            error, moved = self._error, GroupsMoved(self._copied + self._got, self._pause, self._got)
            over = [one for left, one in self._waited if not left or error is not None]
            self._waited = [(left, one) for left, one in self._waited if left and error is None]
        for result in over:
            if error is None:
                result.set_result(moved)
            else:
                result.set_exception(error)

    def copied(self, executor: ExecutorId) -> None:
        """Note that an executor has copied the state of the groups that it is to give."""
        with self._lock:
            self._uncopied.discard(executor)
        self._settle()

    def held(self, executor: ExecutorId) -> None:
        """Note that an executor holds what arrives for the groups that it is to get."""
        with self._lock:
            self._unheld.discard(executor)
        self._settle()

    def drained(self, executor: ExecutorId) -> None:
        """Note that an executor has processed everything."""
        with self._lock:
            self._undrained.discard(executor)
        self._settle()

    def sent(self, nbytes: int) -> None:
        """Note the size of state that was copied before groups leave an executor here."""
        with self._lock:
            self._copied += nbytes

    def got(self, nbytes: int) -> None:
        """Note the size of state that has come to an executor here while rows waited."""
        with self._lock:
            self._got += nbytes

    def exchanged(self, executor: ExecutorId) -> None:
        """Note that an executor has given and got all groups."""
        with self._lock:
            self._unexchanged.discard(executor)
            # Rows wait where groups come.
            if self.shares[executor].gains and self._began is not None:
                self._pause = self._clock() - self._began
        self._settle()

    @property
    def seconds(self) -> float:
        """Seconds since the instances here have begun to switch or to pause."""
        with self._lock:
            return 0.0 if self._began is None else self._clock() - self._began

    # fences

    def fence(self, executor: ExecutorId, nodes: Collection[int]) -> None:
        """Note the nodes to which an executor sends its fence."""
        with self._lock:
            passed = self._passed[executor] = threading.Event()
            self._unpassed[executor] = set(nodes)
            if not nodes or self._error is not None:
                passed.set()

    def await_fence(self, executor: ExecutorId) -> None:
        """Return when the fence of an executor has come back from all nodes, or the job has ended."""
        self._passed[executor].wait()

    def fence_passed(self, executor: ExecutorId, node: int) -> None:
        """Note that the fence of an executor has come back from a node."""
        with self._lock:
            unpassed = self._unpassed[executor]
            unpassed.discard(node)
            if not unpassed:
                self._passed[executor].set()

    def abort(self, error: ElasticError) -> None:
        """End every wait: the job has ended here, or groups stay."""
        with self._lock:
            self._error = error
            waits = list(self._passed.values())
        for passed in waits:
            passed.set()
        self._settle()
