"""The thread of a job that runs idle tasks in place of threads that must not wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.doorbell import Doorbell
from dask_elastic.runtime.transport.last_sender import BLOCKED_SECONDS


class Starter(Protocol):
    """Starts threads of a job, and knows whether the job has ended."""

    ended: bool

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Run something on a thread of its own; an error in it fails the job."""
        ...


class RunThread:
    """Carries out runs that are left to it, one after the other; it starts with the first one.

    A packet of another node often has rows for several idle tasks. The thread that reads it may run them only if that
    takes hardly any time. One thread that is woken for all of them runs them without competition for the interpreter,
    which the tasks' own threads have.

    Parameters
    ----------
    threads : Starter
        Starts the thread.
    clock : callable
        Returns the time, seconds.

    Notes
    -----
    A run must not raise. While one is blocked in user code, no more are left to it; those that wait behind it are
    carried out by whichever thread calls `overdue`.
    """

    def __init__(self, threads: Starter, clock: Callable[[], float] = time.monotonic):
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: deque[Callable[[], None]] = deque()
        self._bell = Doorbell()
        self._starts, self._idle = True, False
        self._ident = 0
        self._write_deferred: Callable[[], None] = lambda: None
        # When the run in progress began; what it has deferred is part of it.
        self._began: float | None = None

    def leave(self, run: Callable[[], None]) -> bool:
        """Leave a run to the thread; returns False if the thread is blocked, or the job has ended."""
        with self._lock:
            if self._threads.ended or self._is_blocked():
                return False
            self._runs.append(run)
            starts, self._starts = self._starts, False
            wakes, self._idle = self._idle, False
        if starts:
            self._threads.start("runs", self._run)
        elif wakes:
            self._bell.ring()
        return True

    def overdue(self) -> list[Callable[[], None]]:
        """Return the runs that wait behind one that is blocked; called from time to time.

        Messages to other nodes that the thread has deferred are written then.
        """
        if not self._is_blocked():
            return []
        self._write_deferred()
        with self._lock:
            if not self._is_blocked():
                return []
            overdue = [*self._runs]
            self._runs.clear()
        return overdue

    @property
    def is_current(self) -> bool:
        """Whether this is the calling thread."""
        return threading.get_ident() == self._ident

    def wake(self) -> None:
        """Wake the thread, so that it sees that the job has ended."""
        self._bell.ring()

    def _is_blocked(self) -> bool:
        began = self._began
        return began is not None and self._clock() - began > BLOCKED_SECONDS

    def _run(self) -> None:
        self._ident = threading.get_ident()
        self._write_deferred = DEFERRED.writing()
        while not self._threads.ended:
            if self._runs:
                try:
                    with DEFERRED:
                        DEFERRED.run(self._run_next)
                finally:
                    self._began = None
                continue
            with self._lock:
                self._idle = not self._runs
            if self._idle:
                self._bell.wait()

    def _run_next(self) -> None:
        """Carry out the next run, and defer the one behind it: other nodes get the outputs of several in one packet."""
        with self._lock:
            run = self._runs.popleft() if self._runs else None
        if run is None or self._threads.ended:
            return
        self._began = self._clock()
        run()
        if self._runs:
            DEFERRED.run(self._run_next)
