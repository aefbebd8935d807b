"""Who reads a connection: one thread, until it is blocked in what it runs between two reads; then another thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dask_elastic.runtime.transport.deferred import DEFERRED
from dask_elastic.runtime.transport.doorbell import Doorbell
from dask_elastic.runtime.transport.error_log import ErrorLog
from dask_elastic.runtime.transport.program_end import program_ends

logger = logging.getLogger("dask_elastic.lanes")

BLOCKED_SECONDS = 0.01
"""Seconds after which a thread that has not come back to its connection is relieved."""

CHECK_SECONDS = 0.01
"""Seconds between two looks at the threads, while any of them runs something between its reads."""

IDLE_CHECKS = 100
"""After so many looks in a row at which no thread had run anything since the last one, none follows until one does."""


class Reading:
    """The right to read one connection, which one thread at a time has.

    Parameters
    ----------
    read : callable
        Reads the connection with the turn of a thread, if `begins` returns True, until `goes_on` returns False, or the
        connection ends.
    watch : ReadingWatch, optional
        Relieves the thread if it is blocked. Without it the thread runs nothing between two reads.
    clock : callable
        Returns the time, seconds.

    Notes
    -----
    The thread handles what it has read, in order, and may then run code that is expected to take little time. Only
    meanwhile is it relieved, so what has been read is always handled in order.
    """

    __slots__ = ("_clock", "_lock", "_read", "_since", "_take_over", "_turn", "_watch")

    def __init__(
        self,
        read: Callable[[int], None],
        watch: ReadingWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._read = read
        self._watch = watch
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = 0
        # Takes over what the thread whose turn it is has put off, see `Deferred.relieved`.
        self._take_over: Callable[[], list[Callable[[], None]]] = list
        # Since when the thread whose turn it is runs something; None while it reads, or handles what it has read.
        self._since: float | None = None

    def start(self) -> None:
        """Start a thread that reads."""
        if self._watch is not None:
            self._watch.add(self)
        try:
            self._start_thread(0)
        except RuntimeError:  # the process has too many threads, or too little memory
            self.end()
            raise

    def end(self) -> None:
        """Note that the connection has ended."""
        if self._watch is not None:
            self._watch.remove(self)

    def begins(self, turn: int) -> bool:
        """Take over what the thread before has put off; returns whether this one reads. A thread calls this first."""
        # The turn is that of this thread once the one that has started it releases the lock.
        with self._lock:
            take_over = self._take_over
            if self._watch is not None:
                self._take_over = DEFERRED.relieved(self.begin_runs)
        with DEFERRED:
            for run in take_over():
                DEFERRED.run_last(run)
        return self.goes_on(turn)

    def begin_runs(self) -> None:
        """Note that the thread whose turn it is has handled what it has read, and runs other code before it goes on."""
        self._since = self._clock()
        if self._watch is not None:
            self._watch.note()

    def goes_on(self, turn: int) -> bool:
        """Return whether the thread with a turn reads again; False if it has been relieved."""
        if self._since is None:
            return turn == self._turn
        with self._lock:
            if turn == self._turn:
                self._since = None
            return turn == self._turn

    def relieve(self) -> bool:
        """Let another thread read on if the present one is blocked; returns whether it is."""
        if not self._is_blocked():
            return False
        with self._lock:
            if not self._is_blocked():
                return False
            turn = self._turn + 1
            # Before the turn changes: if it cannot be started, the present thread goes on later.
            self._start_thread(turn)
            self._turn, self._since = turn, None
        return True

    def _is_blocked(self) -> bool:
        since = self._since
        return since is not None and self._clock() - since > BLOCKED_SECONDS

    def _start_thread(self, turn: int) -> None:
        threading.Thread(target=self._read, args=(turn,), name="elastic-reader", daemon=True).start()


class ReadingWatch:
    """Relieves the threads of this process that read connections and are blocked.

    Its thread starts with the first run between two reads, sleeps while there are none, and ends with the last
    connection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: set[Reading] = set()
        self._bell = Doorbell()
        self._errors = ErrorLog(logger)
        self._starts, self._sleeps, self._noted = True, False, False

    def add(self, reading: Reading) -> None:
        """Watch a connection's threads."""
        with self._lock:
            self._readings.add(reading)

    def remove(self, reading: Reading) -> None:
        """Watch the threads of a connection no longer."""
        with self._lock:
            self._readings.discard(reading)
            is_last = not self._readings
        if is_last:
            self._wake()

    def note(self) -> None:
        """Note that a thread runs something between two reads."""
        self._wake()
        if self._starts:
            self._start()

    def _wake(self) -> None:
        self._noted = True
        if self._sleeps:
            # Once: a second ring would keep it awake later, although no thread runs anything.
            self._sleeps = False
            self._bell.ring()

    def _start(self) -> None:
        with self._lock:
            if not self._starts:
                return
            try:
                threading.Thread(target=self._run, name="elastic-reader-watch", daemon=True).start()
            except RuntimeError as error:  # the next run tries it again; this one is not relieved
                self._errors.note("starting the thread that relieves those that read connections", error)
                return
            self._starts = False

    def _run(self) -> None:
        idle = 0
        while not program_ends() and self._continues():
            time.sleep(CHECK_SECONDS)
            idle += 1
            # Not otherwise: that would undo what is noted meanwhile.
            if self._noted:
                self._noted, idle = False, 0
            self._look()
            if idle >= IDLE_CHECKS:
                self._sleep()
                idle = 0

    def _continues(self) -> bool:
        """Return whether there are connections; without any, the next run between two reads starts another thread."""
        with self._lock:
            self._starts = not self._readings
            return not self._starts

    def _sleep(self) -> None:
        # `_wake` sets `_noted` before it reads `_sleeps`, and this the other way round: one of them sees the other.
        self._sleeps = True
        if not self._noted:
            self._bell.wait()
        self._sleeps = False

    def _look(self) -> None:
        with self._lock:
            readings = list(self._readings)
        for reading in readings:
            try:
                reading.relieve()
            except RuntimeError as error:  # the process has too many threads, or too little memory
                self._errors.note("relieving a thread that reads a connection", error)
                # It is still blocked, so this thread must not sleep.
                self._noted = True
        self._errors.settle()


WATCH = ReadingWatch()
"""Of all connections of this process."""
