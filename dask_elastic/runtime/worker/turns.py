"""Brief work takes turns: one thread of the process at a time processes a small batch, instead of all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dask_elastic.meters import BriefWork, ComputingShare
from dask_elastic.meters.brief_work import BRIEF_SECONDS

T = TypeVar("T")

LONGEST_TURN = 0.005
"""Seconds after which a thread that has the turn is assumed to be blocked; others then work without."""

LONGEST_WAIT = 0.05
"""Seconds for which a thread waits for its turn at most, although others have one after the other."""


class Turns:
    """Lets one thread at a time do brief work.

    Notes
    -----
    Only one thread at a time runs Python code anyway. Threads that compete for the interpreter are switched whenever
    one of them releases it for a moment, as Arrow, NumPy and files do many times per batch. Each switch costs more than
    what was released for, and after it all code runs from cold caches: on two cores a dozen threads with small batches
    used twice the processor time of one thread with the same work. A thread that waits for its turn sleeps until then.

    Examples
    --------
    >>> result, seconds = Turns().run(BriefWork(), 3, lambda: "done")
    >>> result
    'done'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = _OfThread()
        self._number = 0

    @property
    def may_wait(self) -> bool:
        """Whether this thread may wait; see `without_waiting`."""
        return self._thread.may_wait

    def is_free(self) -> bool:
        """Return whether no thread has the turn at this moment."""
        return not self._lock.locked()

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Let this thread do brief work without a turn if another one has it: it also reads credit and heartbeats."""
        thread = self._thread
        before, thread.may_wait = thread.may_wait, False
        try:
            yield
        finally:
            thread.may_wait = before

    def run(
        self, work: BriefWork, rows: int, act: Callable[[], T], share: ComputingShare | None = None
    ) -> tuple[T, float]:
        """Process a batch; if it is expected to be brief, in turn with the brief batches of other threads.

        Parameters
        ----------
        work : BriefWork
            What is known of this code; it is measured in its turns, since others would distort the measurement.
        rows : int
            The number of rows.
        act : callable
            Processes the batch. What it does may have turns of its own: they are part of this one.
        share : ComputingShare, optional
            Takes for how long the batch kept a processor busy.

        Returns
        -------
        object
            What `act` returned.
        float
            The seconds that it took, without the wait for the turn.
        """
        clock, thread = time.perf_counter, self._thread
        if thread.is_at_work or not work.expects(rows):
            measured = None if share is None or not share.measures(rows) else share
            began_cpu = time.thread_time() if measured is not None else 0.0
            began = clock()
            result = act()
            busy = clock() - began
            if measured is not None:
                measured.add(busy, time.thread_time() - began_cpu)
            return result, busy
        has_turn = self._wait() if thread.may_wait else self._lock.acquire(blocking=False)
        thread.is_at_work = True
        began_turn = time.thread_time() if has_turn and work.measures() else None
        began = clock()
        try:
            result = act()
        finally:
            thread.is_at_work = False
            if has_turn:
                self._lock.release()
        busy = clock() - began
        if began_turn is not None:
            cpu = time.thread_time() - began_turn
            work.add(busy, cpu)
            if share is not None:
                share.add(busy, cpu)
        elif has_turn and busy > BRIEF_SECONDS:
            work.add(busy, busy)
        return result, busy

    def _wait(self) -> bool:
        """Wait for the turn; returns False if the thread that has it seems to be blocked, or the wait is too long."""
        until = time.monotonic() + LONGEST_WAIT
        number = self._number
        while not self._lock.acquire(timeout=LONGEST_TURN):
            if number == self._number or time.monotonic() > until:
                return False
            number = self._number
        self._number += 1
        return True


class _OfThread(threading.local):
    """What one thread may and does."""

    may_wait = True
    is_at_work = False


TURNS = Turns()
"""The turns of this process, whose threads share one interpreter."""
