"""The newest number of each sender, by which repeated batches are recognised."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

MOST_SENDERS = 10_000
"""Senders that are remembered. One that others have displaced, and that then repeats a batch, is not recognised."""


class SenderTable:
    """The newest sequence number of each sender; each numbers its batches from 1.

    Parameters
    ----------
    newest : mapping of str to int, optional
        The senders so far, in the order in which they were last seen.
    most : int, optional
        Senders to remember.

    Examples
    --------
    >>> senders = SenderTable()
    >>> senders.admit("a", 1), senders.admit("a", 2), senders.admit("a", 1), senders.last("a")
    (True, True, False, 2)
    """

    def __init__(self, newest: Mapping[str, int] | None = None, most: int = MOST_SENDERS):
        self._newest: OrderedDict[str, int] = OrderedDict(newest or {})
        self._most = most

    def admit(self, sender: str, sequence: int) -> bool:
        """Return whether a batch is new, and note its number."""
        if not sender:
            return True
        if sequence <= self._newest.get(sender, 0):
            return False
        self._newest[sender] = sequence
        self._newest.move_to_end(sender)
        if len(self._newest) > self._most:
            self._newest.popitem(last=False)
        return True

    def last(self, sender: str) -> int:
        """Return the newest number of a sender; 0 for an unknown one."""
        return self._newest.get(sender, 0)

    def copy(self) -> SenderTable:
        """Return a copy that changes on its own."""
        return SenderTable(self._newest, self._most)

    def to_dict(self) -> dict[str, int]:
        """Return the senders with their newest numbers, in the order in which they were last seen."""
        return dict(self._newest)
