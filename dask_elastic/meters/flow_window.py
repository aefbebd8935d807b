"""Flow control window: large enough to keep the receiver busy, small enough to keep its queue short."""

from __future__ import annotations

from collections import deque

FIRST_BYTES = 64 * 2**10
SPANS = 5
"""Number of last spans that are kept."""

SHRINK = 0.25
"""The window shrinks by at most this fraction of the bytes processed meanwhile, so that the sender never stops."""


class FlowWindow:
    """A window in bytes that follows the receiver's throughput.

    Parameters
    ----------
    limit : int
        The maximum of the window in bytes.
    queue_time : float
        Seconds of the receiver's work that may be queued.

    Attributes
    ----------
    nbytes : int
        The window: bytes that the sender may have in flight.

    Notes
    -----
    The window is the maximum of recent bytes processed within `queue_time` seconds. A window that is too small to keep
    the receiver busy grows repeatedly, since its bytes are processed in less than `queue_time`; a window that is too
    large shrinks to what the receiver processes. A fixed bound in bytes would not do: one that suits ten million rows
    per second would be minutes of work for an operator that needs a millisecond per row.

    Credit returns in bursts: a batch is processed when its last row is, and while a shard moves, each batch with a row
    of that shard waits. Rates over short spans would mistake a burst for throughput and admit so much that one receiver
    blocks a sender with several receivers for seconds. Spans as long as `queue_time` avoid this, since a burst is at
    most what was in flight, which is the window.

    Examples
    --------
    >>> window = FlowWindow(limit=2**25, queue_time=0.1)
    >>> window.nbytes
    65536
    >>> for tick in range(51):
    ...     window.released(100_000, now=tick / 100)
    >>> window.nbytes
    1000000
    """

    def __init__(self, limit: int, queue_time: float):
        self.limit = limit
        self.queue_time = queue_time
        self.nbytes = min(FIRST_BYTES, limit)
        self._spans: deque[float] = deque(maxlen=SPANS)
        self._since: float | None = None
        self._bytes = 0

    def released(self, nbytes: int, now: float) -> None:
        """Update the window with returned credit.

        Parameters
        ----------
        nbytes : int
            The returned credit in bytes.
        now : float
            The time in seconds, on a monotonic clock.
        """
        if self._since is None:
            # Credit of bytes sent before the first span would count as processed in no time.
            self._since = now
            return
        self._bytes += nbytes
        took, released = now - self._since, self._bytes
        if took < self.queue_time:
            self._grow_to(released)
            return
        # The initial window is a guess, which the first measured span replaces.
        self.nbytes = max(self.nbytes - int(SHRINK * released), 1) if self._spans else 1
        self._spans.append(released * self.queue_time / took)
        self._since, self._bytes = now, 0
        self._grow_to(max(self._spans))

    def _grow_to(self, nbytes: float) -> None:
        self.nbytes = min(max(self.nbytes, int(nbytes)), self.limit)
