"""Byte credits between two instances of a simulated job."""

from __future__ import annotations

from dask_elastic.vocab.errors import ProtocolError


class Credits:
    """Bounds the bytes in flight between one upstream instance and one executor or sink.

    Parameters
    ----------
    window : int
        A sender may pass while fewer bytes than this are unprocessed; one batch may therefore overshoot.
    """

    __slots__ = ("largest", "peak", "used", "window")

    def __init__(self, window: int):
        self.window = window
        self.used = 0
        self.peak = 0
        self.largest = 0

    def has_room(self) -> bool:
        """Return whether a sender may pass."""
        return self.used < self.window

    def acquire(self, nbytes: int) -> None:
        """Take credit; the caller has waited for it."""
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        self.largest = max(self.largest, nbytes)

    def release(self, nbytes: int) -> None:
        """Return credit.

        Raises
        ------
        ProtocolError
            If more comes back than was taken.
        """
        self.used -= nbytes
        if self.used < 0:
            raise ProtocolError(f"{-self.used} bytes of credit more came back than were taken")
