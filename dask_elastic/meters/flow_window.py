"""Flow control window: large enough to keep the receiver busy, small enough to keep its queue short."""

from __future__ import annotations

from collections import deque

FIRST_BYTES = 64 * 2**10
SPANS = 5
"""Number of last spans that are kept."""

SHRINK = 0.25
"""The window shrinks by at most this fraction of the bytes processed meanwhile, so that the sender never stops."""

JOINS = 4
"""Joined batches that fill a window: the receiver processes one while others travel or wait."""

MOST_STRETCH = 64
"""Limit of the window's time as a multiple of `queue_time`."""

FIRST_PAUSE, LONGEST_PAUSE = 4, 64
"""Spans after which a time that is not needed is halved; longer and longer if it had to be doubled again."""


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
    stretch : int
        Multiple of `queue_time` that may be queued, because a shorter queue makes batches too small.

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

    A receiver whose batches have a fixed cost near `queue_time` would be lost without `stretch`: small batches lower
    its throughput, lower throughput makes the window smaller, and a smaller window makes smaller batches. The receiver
    therefore reports whether it wanted larger batches. If it did while the sender was held back, twice the time is
    queued.

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

    __slots__ = (
        "_bytes", "_fills", "_held_back", "_pause", "_shortened", "_since", "_spans", "_until", "_wanted", "limit",
        "nbytes", "queue_time", "stretch",
    )  # fmt: skip

    def __init__(self, limit: int, queue_time: float):
        self.limit = limit
        self.queue_time = queue_time
        self.nbytes = min(FIRST_BYTES, limit)
        self.stretch = 1
        self._spans: deque[float] = deque(maxlen=SPANS)
        self._since: float | None = None
        self._bytes = 0
        self._held_back = False
        # Bytes of this span whose receiver wanted larger batches.
        self._wanted = 0
        # Whether the queue still fills after the last change, and whether that one was a shorter time.
        self._fills = False
        self._shortened = False
        self._pause = self._until = FIRST_PAUSE

    @property
    def join_bytes(self) -> int:
        """Bytes up to which the sender joins waiting batches: a few batches fill the window."""
        return self.nbytes // JOINS

    def held_back(self) -> None:
        """Note that the sender has waited for credit."""
        self._held_back = True

    def released(self, nbytes: int, now: float, wanted_more: bool = False) -> None:
        """Update the window with returned credit.

        Parameters
        ----------
        nbytes : int
            The returned credit in bytes.
        now : float
            The time in seconds, on a monotonic clock.
        wanted_more : bool
            Whether the receiver has processed these bytes in a smaller batch than it would have, if more had waited.
        """
        if self._since is None:
            # Credit of bytes sent before the first span would count as processed in no time.
            self._since = now
            return
        self._bytes += nbytes
        self._wanted += nbytes if wanted_more else 0
        took, released = now - self._since, self._bytes
        if took < self.queue_time * self.stretch:
            if released > self.nbytes:
                self._grow_to(released)
            return
        # The initial window is a guess, which the first measured span replaces.
        self.nbytes = max(self.nbytes - int(SHRINK * released), 1) if self._spans else 1
        self._adapt_stretch()
        self._spans.append(released / took)
        self._since, self._bytes, self._held_back = now, 0, False
        self._grow_to(max(self._spans) * self.queue_time * self.stretch)

    def _adapt_stretch(self) -> None:
        """Double the time of the window if this makes batches larger; halve it now and then if it is not needed."""
        wanted, self._wanted = 2 * self._wanted > self._bytes, 0
        if self._held_back and wanted:
            if not self._fills and self.stretch < MOST_STRETCH and self.nbytes < self.limit:
                self.stretch *= 2
                self._fills = True
                # Shortening it again would not last longer than it did before.
                self._pause = min(2 * self._pause, LONGEST_PAUSE) if self._shortened else self._pause
                self._shortened, self._until = False, self._pause
                return
        elif self.stretch > 1:
            self._until -= 1
            if self._until <= 0:
                self.stretch //= 2
                self._shortened, self._until = True, self._pause
                # The throughput of longer queues would keep the window as large as it was.
                self._spans.clear()
        self._fills = False

    def _grow_to(self, nbytes: float) -> None:
        self.nbytes = min(max(self.nbytes, int(nbytes)), self.limit)
