"""How much a sender may have unprocessed: enough to keep the receiver busy, little enough to keep the queue short."""

from __future__ import annotations

from collections import deque

FIRST_BYTES = 64 * 2**10
SAMPLE_SECONDS = 0.02
SAMPLES = 25


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
    The window is `queue_time` times the highest rate at which credit came back over the last samples. A window that
    is too small to keep the receiver busy doubles and doubles again, since what it lets through comes back in less
    than `queue_time`; one that is too large shrinks to what the receiver gets done. Without it, a byte bound that
    suits ten million rows a second would be minutes of work for an operator that needs a millisecond a row.

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
        self._rates: deque[float] = deque(maxlen=SAMPLES)
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
            # What was under way before the first sample began would count as if it took no time.
            self._since = now
            return
        self._bytes += nbytes
        took = now - self._since
        if took < SAMPLE_SECONDS:
            return
        self._rates.append(self._bytes / took)
        self._since, self._bytes = now, 0
        self.nbytes = int(min(max(max(self._rates) * self.queue_time, 1), self.limit))
