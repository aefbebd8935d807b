"""Byte credits: a sender blocks while too many of the bytes that it sent are unprocessed."""

from __future__ import annotations

import threading
import time

from dask_elastic.meters import FlowWindow
from dask_elastic.runtime.transport.credit_waits import CreditWaits


class Aborted(Exception):
    """The job has ended while this thread was waiting; the thread ends quietly."""


PIPELINED = 2
"""Batches that may be in flight whatever their size: one is processed while the next is prepared."""


class CreditGate:
    """Bounds the bytes in flight between one upstream instance and one executor or sink.

    Parameters
    ----------
    limit : int
        A sender passes while fewer bytes than this, or fewer batches than `PIPELINED`, are unprocessed.
    queue_time : float
        Seconds of the receiver's work that may be unprocessed; see `FlowWindow`.
    waits : CreditWaits
        Measures how long the upstream instance waits, at all of its gates.

    Notes
    -----
    A sender that passes takes all the credit its batch needs, so a batch larger than the window passes too.
    """

    def __init__(self, limit: int, queue_time: float, waits: CreditWaits | None = None):
        self.used = 0
        self.batches = 0
        self._window = FlowWindow(limit, queue_time)
        self._waits = waits or CreditWaits()
        self._aborted = False
        self._left = False
        # Taken for every batch: without the condition's methods, which are Python code.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0

    @property
    def full(self) -> bool:
        """Whether a sender has to wait."""
        return self.batches >= PIPELINED and self.used >= self._window.nbytes

    @property
    def join_bytes(self) -> int:
        """Bytes up to which a sender joins waiting batches; see `FlowWindow`."""
        return self._window.join_bytes

    def acquire(self, nbytes: int) -> None:
        """Wait for credit, then take it.

        Raises
        ------
        Aborted
            If the job ends in the meantime.
        """
        with self._lock:
            self._wait()
            self.used += nbytes
            self.batches += 1

    def wait(self) -> None:
        """Return when there is credit, without taking any.

        Raises
        ------
        Aborted
            If the job ends in the meantime.
        """
        with self._lock:
            self._wait()

    def _wait(self) -> None:
        if self.full and not self._aborted:
            with self._waits.one():
                while self.full and not self._aborted:
                    self._window.held_back()
                    self._waiting += 1
                    self._changed.wait()
                    self._waiting -= 1
        if self._aborted:
            raise Aborted

    def try_acquire(self, nbytes: int) -> bool:
        """Take credit if there is some; returns whether there was.

        Raises
        ------
        Aborted
            If the job has ended.
        """
        with self._lock:
            if self._aborted:
                raise Aborted
            if self.batches >= PIPELINED and self.full:
                self._window.held_back()
                return False
            self.used += nbytes
            self.batches += 1
            return True

    def release(self, nbytes: int, wanted_more: bool = False, is_part: bool = False) -> bool:
        """Return the credit of one batch; `wanted_more` if its receiver would have processed more rows at once.

        `is_part` if more credit of the batch follows.

        Returns
        -------
        bool
            False if the sender has left: the credit belongs to its next home.
        """
        with self._lock:
            if self._left:
                return False
            self.used -= nbytes
            self.batches -= not is_part
            self._window.released(nbytes, time.monotonic(), wanted_more)
            if self._waiting:
                self._changed.notify_all()
            return True

    def leave(self) -> tuple[int, int]:
        """Return the bytes and batches in flight when the sender leaves; the gate counts nothing from then on."""
        with self._lock:
            self._left = True
            return self.used, self.batches

    def arrive(self, nbytes: int, batches: int) -> None:
        """Add what was in flight when the sender left its home before; some of it may have been released here."""
        with self._lock:
            self.used += nbytes
            self.batches += batches
            self._changed.notify_all()

    def abort(self) -> None:
        """Let no sender pass any more; those that wait raise `Aborted`."""
        with self._lock:
            self._aborted = True
            self._changed.notify_all()
