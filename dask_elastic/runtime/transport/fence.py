"""Stamps the messages between a home and its remote tasks in the order in which they go on the wire."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dask_elastic.vocab.messages import Stamp, ToHome, ToRemote


class Fence:
    """Stamps one executor's messages.

    Parameters
    ----------
    stamp : callable
        Returns the stamp of a message that is about to be sent; None if the message is to be dropped.

    Attributes
    ----------
    lock : threading.Lock
        Held from stamping a message until it is queued for the wire, so that both orders are the same.
    """

    __slots__ = ("lock", "stamp")

    def __init__(self, stamp: Callable[[ToRemote | ToHome], Stamp | None]):
        self.stamp = stamp
        self.lock = threading.Lock()
