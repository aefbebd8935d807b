"""What a message between a home and a remote task is stamped with, in the order in which it goes on the wire."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dask_elastic.vocab.messages import Stamp, ToHome, ToRemote


class Fence:
    """Gives stamps to one executor's messages.

    Parameters
    ----------
    stamp : callable
        The stamp of a message that is about to be sent; None if nobody is to get it any more.

    Attributes
    ----------
    lock : threading.Lock
        Held from taking a stamp until the message has its place on the wire, so that both orders are the same.
    """

    __slots__ = ("lock", "stamp")

    def __init__(self, stamp: Callable[[ToRemote | ToHome], Stamp | None]):
        self.stamp = stamp
        self.lock = threading.Lock()
