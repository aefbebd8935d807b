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

HELP_SECONDS = 0.003
"""Seconds after which a thread that reads a connection leaves the runs that still wait to the job's own thread."""


class Starter(Protocol):
    """Starts threads of a job, and knows whether the job has ended."""

    ended: bool

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Run something on a thread of its own; an error in it fails the job."""
        ...

    def guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs something; an error in it fails the job."""
        ...


def always() -> bool:
    """Return True: nothing else keeps a thread from carrying out runs."""
    return True


class RunThread:
    """Carries out runs that are left to it, one after the other; its own thread starts when it is first needed.

    A packet of another node often has rows for several idle tasks. The thread that reads it must not run them before it
    has handled the whole packet. Then it carries them out itself, if no other thread carries out runs of the job:
    another one reads on if it is blocked. In all other cases one thread of the job is woken for all of them, and runs
    them without competition for the interpreter, which the tasks' own threads have.

    Parameters
    ----------
    threads : Starter
        Starts the thread.
    clock : callable
        Returns the time, seconds.
    may_help : callable
        Returns whether a thread that reads a connection may carry out runs now.

    Notes
    -----
    A run must not raise. While one is blocked in user code, no more are left to it; those that wait behind it are
    carried out by whichever thread calls `overdue`.
    """

    def __init__(
        self,
        threads: Starter,
        clock: Callable[[], float] = time.monotonic,
        may_help: Callable[[], bool] = always,
    ):
        self._threads = threads
        self._clock = clock
        self._may_help = may_help
        # Both may start a thread, which may fail.
        self._help, self._leave_rest = threads.guarded(self._help_out), threads.guarded(self._wake_own)
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._runs: deque[Callable[[], None]] = deque()
        self._bell = Doorbell()
        # Whether the own thread is still to be started, and whether it waits for its bell.
        self._starts, self._idle = True, False
        # Which thread carries out runs; 0 for none. One that reads a connection does so only for a short time.
        self._ident = 0
        self._helps_until: float | None = None
        self._write_deferred: Callable[[], None] = lambda: None
        # When the run in progress began; what it has deferred is part of it.
        self._began: float | None = None

    def leave(self, run: Callable[[], None]) -> bool:
        """Leave a run to the thread; returns False if the thread is blocked, or the job has ended."""
        with self._lock:
            if self._threads.ended or self._is_blocked():
                return False
            self._runs.append(run)
            if self._ident:
                # That thread sees it before it ends.
                return True
        if not DEFERRED.run_last(self._help):
            self._wake_own()
        return True

    def overdue(self) -> list[Callable[[], None]]:
        """Return the runs that wait behind one that is blocked; called from time to time.

        Messages to other nodes that the thread has deferred are written then. Runs that no thread has begun to carry
        out pass to the own thread: the one that reads a connection may be blocked in what it does before them.
        """
        if not self._is_blocked():
            if self._runs and not self._ident:
                self._leave_rest()
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
        """Whether the calling thread carries out runs."""
        return threading.get_ident() == self._ident

    def wake(self) -> None:
        """Wake the thread, so that it sees that the job has ended."""
        self._bell.ring()

    def join(self, timeout: float) -> bool:
        """Wait until no thread carries out runs; returns False if one still does after so many seconds."""
        with self._free:
            return self._free.wait_for(lambda: not self._ident, timeout)

    def _is_blocked(self) -> bool:
        began = self._began
        return began is not None and self._clock() - began > BLOCKED_SECONDS

    def _wake_own(self) -> None:
        """Wake the own thread, or start it, unless it is awake."""
        with self._lock:
            starts, self._starts = self._starts, False
            wakes, self._idle = self._idle, False
        if starts:
            self._threads.start("runs", self._run)
        elif wakes:
            self._bell.ring()

    def _run(self) -> None:
        while not self._threads.ended:
            if self._begins():
                try:
                    with DEFERRED:
                        DEFERRED.run(self._run_next)
                finally:
                    with self._lock:
                        if self.is_current:
                            self._end()
            elif self._idle:
                self._bell.wait()

    def _help_out(self) -> None:
        """Carry out runs in a thread that reads a connection, after all else that it has deferred."""
        if not self._may_help():
            self._wake_own()
        elif self._begins(self._clock() + HELP_SECONDS):
            DEFERRED.run(self._run_next)

    def _begins(self, helps_until: float | None = None) -> bool:
        """Return whether runs wait and no other thread carries them out: this one does from now on."""
        with self._lock:
            begins = bool(self._runs) and not self._ident
            if begins:
                self._ident = threading.get_ident()
                self._helps_until = helps_until
                self._write_deferred = DEFERRED.writing()
            elif helps_until is None:
                self._idle = True
        return begins

    def _run_next(self) -> None:
        """Carry out the next run, and defer the one behind it: other nodes get the outputs of several in one packet."""
        run, leaves_rest = self._next()
        if run is not None:
            run()
            DEFERRED.run(self._run_next)
        elif leaves_rest:
            self._leave_rest()

    def _next(self) -> tuple[Callable[[], None] | None, bool]:
        """Return the next run; at the end None, and whether runs are left for the own thread."""
        with self._lock:
            now = self._clock()
            stops = self._threads.ended or (self._helps_until is not None and now > self._helps_until)
            if stops or not self._runs:
                self._end()
                return None, bool(self._runs) and not self._threads.ended
            self._began = now
            return self._runs.popleft(), False

    def _end(self) -> None:
        self._ident, self._began = 0, None
        self._free.notify_all()
