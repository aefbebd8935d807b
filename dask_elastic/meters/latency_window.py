"""Histogram of latencies over a sliding window."""

from __future__ import annotations

from dask_elastic.meters.histogram import LatencyHistogram
from dask_elastic.meters.ring import SlotRing


class LatencyWindow:
    """A histogram of the durations recorded in the last seconds.

    Parameters
    ----------
    window : float
        The length of the window in seconds.
    slots : int
        Number of slots of the window; a read may include one more, since the oldest slot counts as a whole.

    Attributes
    ----------
    overall : LatencyHistogram
        All durations since the start.

    Examples
    --------
    >>> latency = LatencyWindow(window=10.0)
    >>> latency.record(0.5, now=100.0)
    >>> latency.record(0.001, now=111.5, weight=1000)
    >>> latency.recent(now=112.0).count
    1000
    >>> latency.overall.count
    1001
    """

    def __init__(self, window: float = 10.0, slots: int = 10):
        self.overall = LatencyHistogram()
        self._ring: SlotRing[LatencyHistogram] = SlotRing(window, slots, LatencyHistogram)

    @property
    def window(self) -> float:
        """The length of the window in seconds."""
        return self._ring.window

    def record(self, seconds: float, now: float, weight: int = 1) -> None:
        """Record one duration.

        Parameters
        ----------
        seconds : float
            The duration.
        now : float
            The time in seconds.
        weight : int
            How often it counts, such as the number of rows in a batch.
        """
        self._ring.at(now).record(seconds, weight)
        self.overall.record(seconds, weight)

    def recent(self, now: float, window: float | None = None) -> LatencyHistogram:
        """Return the durations of the window that ends at `now`.

        Parameters
        ----------
        now : float
            The time in seconds.
        window : float, optional
            A shorter window in seconds; by default the whole one.

        Returns
        -------
        LatencyHistogram
            A histogram that is independent of later recording.
        """
        self._ring.follow(now)
        total = LatencyHistogram()
        for slot, share in self._ring.read(now, window):
            if share > 0:
                total.merge(slot)
        return total
