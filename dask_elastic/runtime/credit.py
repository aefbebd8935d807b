"""Byte credits: a sender blocks while too much of what it sent is unprocessed."""

from __future__ import annotations

import threading


class Aborted(Exception):
    """The job has ended while this thread was waiting; the thread ends quietly."""


class CreditGate:
    """Bounds the bytes between one upstream instance and one executor or sink.

    Parameters
    ----------
    window : int
        A sender may pass while fewer bytes than this are unprocessed; one batch may therefore overshoot, so that a
        batch larger than the window passes too.
    """

    def __init__(self, window: int):
        self.window = window
        self.used = 0
        self._aborted = False
        self._changed = threading.Condition(threading.Lock())

    def acquire(self, nbytes: int) -> None:
        """Wait for room, then take it.

        Raises
        ------
        Aborted
            If the job ends meanwhile.
        """
        with self._changed:
            while self.used >= self.window and not self._aborted:
                self._changed.wait()
            if self._aborted:
                raise Aborted
            self.used += nbytes

    def release(self, nbytes: int) -> None:
        """Give credit back."""
        with self._changed:
            self.used -= nbytes
            self._changed.notify_all()

    def abort(self) -> None:
        """Let nobody pass any more; who waits is sent away."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
