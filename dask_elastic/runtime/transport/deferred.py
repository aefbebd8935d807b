"""What a thread puts off while it hands over batches that belong together: writes to peers, and runs of idle tasks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

DEFERRED_SECONDS = 0.0003
"""Seconds after which messages that wait for others are written; they never wait for anything but this thread."""


class Writer(Protocol):
    """A connection whose messages can wait."""

    def write_deferred(self) -> None:
        """Write the messages that wait, if another thread has not written them."""
        ...


class Deferred:
    """Writes and runs that a thread puts off while it is within a ``with`` block.

    At the end of the outermost block the messages are written, one packet per peer, so that other nodes work on them
    while this thread carries out the runs, one after the other. What the runs defer comes behind them.

    Parameters
    ----------
    clock : callable
        Returns the time, seconds.

    Notes
    -----
    A block must not contain waits for other threads or nodes: they might wait for what is deferred. A run must not
    raise. An error in the block drops nothing, since runs of other jobs may be deferred as well.

    Examples
    --------
    >>> deferred = Deferred()
    >>> deferred.run(lambda: print("not deferred"))
    False
    >>> with deferred:
    ...     is_deferred = deferred.run(lambda: print("second"))
    ...     print("first", is_deferred)
    first True
    second
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._thread = _OfThread()

    def __enter__(self) -> None:
        self._thread.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = self._thread
        if thread.depth > 1:
            thread.depth -= 1
            return
        try:
            self._carry_out(thread)
        finally:
            thread.depth = 0
            if thread.writers:
                self._write(thread)

    def _carry_out(self, thread: _OfThread) -> None:
        last = thread.last
        if thread.writers and (thread.runs or (last is not None and last.runs)):
            self._write(thread)
        self._carry_out_runs(thread)
        if last is not None and last.runs:
            last.begin()
            while (run := last.take()) is not None:
                run()
                self._carry_out_runs(thread)

    def _carry_out_runs(self, thread: _OfThread) -> None:
        while thread.runs:
            thread.runs.popleft()()
            if thread.writers and self._clock() - min(thread.writers.values()) > DEFERRED_SECONDS:
                self._write(thread)

    def write(self, writer: Writer) -> bool:
        """Defer a write, unless messages have waited for long; returns whether it is deferred.

        Parameters
        ----------
        writer : Writer
            The connection on which messages wait. If this returns False, the caller writes them all.
        """
        thread = self._thread
        if not thread.depth:
            return False
        now = self._clock()
        if now - thread.writers.setdefault(writer, now) <= DEFERRED_SECONDS:
            return True
        del thread.writers[writer]
        return False

    def run(self, act: Callable[[], None]) -> bool:
        """Defer a run; returns False outside of a block, where the caller carries it out."""
        if not self._thread.depth:
            return False
        self._thread.runs.append(act)
        return True

    def run_last(self, act: Callable[[], None]) -> bool:
        """Defer a run behind all others of the block, once however often it is deferred until then.

        It may take longer than others, since another thread relieves this one meanwhile. Returns False in a thread that
        no other one relieves, and outside of a block.
        """
        thread = self._thread
        last = thread.last
        if last is None or last.is_over or not thread.depth:
            return False
        if act not in last.runs:
            last.runs.append(act)
        return True

    def relieved(self, begin: Callable[[], None]) -> Callable[[], list[Callable[[], None]]]:
        """Let this thread carry out what `run_last` defers, since another thread relieves it while it is blocked.

        Parameters
        ----------
        begin : callable
            Called before the first of these runs, when all else of a block is done: this thread may be relieved from
            now on.

        Returns
        -------
        callable
            Called by the thread that relieves this one: writes the messages that this one has deferred, and returns
            the runs of `run_last` that wait.
        """
        write, last = self.writing(), _Last(begin)
        self._thread.last = last

        def take_over() -> list[Callable[[], None]]:
            last.is_over = True
            write()
            return list(iter(last.take, None))

        return take_over

    def write_now(self) -> None:
        """Write what this thread has deferred, before it calls code that may take long."""
        if self._thread.writers:
            self._write(self._thread)

    def writing(self) -> Callable[[], None]:
        """Return what writes, in any thread, the messages that this thread has deferred: it may be blocked."""
        writers = self._thread.writers

        def write() -> None:
            for writer in [*writers]:
                writer.write_deferred()

        return write

    @staticmethod
    def _write(thread: _OfThread) -> None:
        writers = [*thread.writers]
        thread.writers.clear()
        for writer in writers:
            writer.write_deferred()


class _Last:
    """The runs of one thread behind all others; another thread may take them."""

    __slots__ = ("begin", "is_over", "runs")

    def __init__(self, begin: Callable[[], None]):
        self.begin = begin
        self.runs: deque[Callable[[], None]] = deque()
        self.is_over = False

    def take(self) -> Callable[[], None] | None:
        """Return the next run; None if there is none."""
        try:
            return self.runs.popleft()
        except IndexError:
            return None


class _OfThread(threading.local):
    """What one thread has deferred."""

    def __init__(self) -> None:
        self.depth = 0
        # Since when messages wait, by connection.
        self.writers: dict[Writer, float] = {}
        self.runs: deque[Callable[[], None]] = deque()
        # None in a thread that no other one relieves.
        self.last: _Last | None = None


DEFERRED = Deferred()
"""Of all threads of this process."""
