"""The messages that wait for one connection; each write takes as many of them as fit into a packet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from dask_elastic.runtime.transport.packet import Packet
from dask_elastic.runtime.transport.wire import Buffers, Header, Message, pack
from dask_elastic.vocab.messages import Stamp


class PacketQueue:
    """Queues messages from any thread, and coalesces them into packets in the order in which they were queued.

    Parameters
    ----------
    coalesced_bytes : int
        A packet carries all queued messages, up to about this size.
    stamp : callable
        Returns the stamp of the next packet; called under the lock under which the packet's messages are taken.

    Notes
    -----
    One thread transmits at a time. `put` makes its caller the transmitter if there is none; the transmitter, or the
    thread that it leaves the work to, calls `next_packet` until that returns None.

    Examples
    --------
    >>> queue = PacketQueue(2**20, lambda: Stamp(0, 0))
    >>> queue.put([(["beat"], [])]), queue.put([(["beat"], [])])
    (True, False)
    >>> len(queue.next_packet().buffers), queue.next_packet(), queue.put([(["beat"], [])])
    (1, None, True)
    """

    __slots__ = ("_coalesced_bytes", "_lock", "_stamp", "_transmitting", "_waiting")

    def __init__(self, coalesced_bytes: int, stamp: Callable[[], Stamp]):
        self._coalesced_bytes = coalesced_bytes
        self._stamp = stamp
        self._lock = threading.Lock()
        self._waiting: deque[Message] = deque()
        self._transmitting = False

    @property
    def is_empty(self) -> bool:
        """Whether no message waits; one that is being written no longer does."""
        return not self._waiting

    def put(self, messages: Iterable[Message]) -> bool:
        """Queue messages, with no others between them; returns whether the caller is to transmit them."""
        with self._lock:
            self._waiting += messages
            if self._transmitting:
                return False
            self._transmitting = True
            return True

    def hold(self, messages: Iterable[Message]) -> None:
        """Queue messages without transmitting them: a message that is put later takes them along."""
        with self._lock:
            self._waiting += messages

    def transmit_held(self) -> bool:
        """Whether the caller is to transmit: messages wait, and no other thread transmits."""
        with self._lock:
            if self._transmitting or not self._waiting:
                return False
            self._transmitting = True
            return True

    def next_packet(self) -> Packet | None:
        """Return the queued messages as one packet; None when there are none, and then the next `put` transmits."""
        headers: list[tuple[Header, int]] = []
        buffers: Buffers = []
        size = 0
        with self._lock:
            while self._waiting and size < self._coalesced_bytes:
                header, parts = self._waiting.popleft()
                headers.append((header, len(parts)))
                buffers += parts
                size += sum(map(len, parts))
            if not headers:
                self._transmitting = False
                return None
            stamp = self._stamp()
        return Packet([pack(headers, stamp), *buffers])
