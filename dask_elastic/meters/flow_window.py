"""How much a sender may have unprocessed: enough to keep the receiver busy, little enough to keep the queue short."""

from __future__ import annotations

from collections import deque

FIRST_BYTES = 64 * 2**10
SPANS = 5
"""So many of the last spans count."""

SHRINK = 0.25
"""A window shrinks by no more than such a part of what is processed meanwhile, so that the sender is never stopped."""


class FlowWindow:
    """A window in bytes that follows the receiver's throughput.

    Parameters
    ----------
    limit : int
        The window is never larger than this many bytes.
    queue_time : float
        Seconds of the receiver's work that may wait.

    Notes
    -----
    The window is the most that came back within `queue_time` seconds of late. A window that is too small to keep the
    receiver busy grows and grows, since what it lets through comes back in less than `queue_time`; one that is too
    large shrinks to what the receiver gets done. Without it, a byte bound that suits ten million rows a second would be
    minutes of work for an operator that needs a millisecond a row.

    Credit comes back in bursts: a batch is done when its last row is, and while a shard moves, every batch with a row
    of it waits. Rates of short moments would take a burst for speed, and let so much wait that a sender with several
    receivers is held up by one of them for seconds. Spans as long as `queue_time` do not: what comes back in a burst
    was under way, and that is the window already.

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
        """Credit came back.

        Parameters
        ----------
        nbytes : int
            How much.
        now : float
            The time in seconds, on a clock that never goes back.
        """
        if self._since is None:
            # What was under way before the first span began would count as if it took no time.
            self._since = now
            return
        self._bytes += nbytes
        took, released = now - self._since, self._bytes
        if took < self.queue_time:
            self._grow_to(released)
            return
        # The first window was a guess: what is measured first replaces it.
        self.nbytes = max(self.nbytes - int(SHRINK * released), 1) if self._spans else 1
        self._spans.append(released * self.queue_time / took)
        self._since, self._bytes = now, 0
        self._grow_to(max(self._spans))

    def _grow_to(self, nbytes: float) -> None:
        self.nbytes = min(max(self.nbytes, int(nbytes)), self.limit)
