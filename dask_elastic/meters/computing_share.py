"""Share of the time that code takes for which it keeps a processor busy, instead of waiting."""

from __future__ import annotations

from dask_elastic.meters.brief_work import FEW_ROWS

MEASURED = 4
"""Of so many batches of a few rows one is measured: reading the processor time of a thread takes microseconds."""


class ComputingShare:
    """Sums up the time that batches take, and the processor time of it.

    Any thread may measure. Measurements that are made at the same time may get lost.

    Examples
    --------
    >>> share = ComputingShare()
    >>> share.add(busy=0.02, cpu=0.01)
    >>> share.take(), share.take()
    (0.5, None)
    """

    __slots__ = ("_asked", "_busy", "_cpu")

    def __init__(self) -> None:
        self._busy = 0.0
        self._cpu = 0.0
        self._asked = -1

    def measures(self, rows: int) -> bool:
        """Return whether to measure a batch of so many rows."""
        if rows > FEW_ROWS:
            return True
        self._asked = (self._asked + 1) % MEASURED
        return self._asked == 0

    def add(self, busy: float, cpu: float) -> None:
        """Add a batch.

        Parameters
        ----------
        busy : float
            Seconds that it took.
        cpu : float
            The processor time of its thread in seconds.
        """
        self._busy += busy
        self._cpu += cpu

    def take(self) -> float | None:
        """Return the share since the last call; None if no batch was measured."""
        busy, cpu = self._busy, self._cpu
        self._busy = self._cpu = 0.0
        return min(cpu / busy, 1.0) if busy > 0 else None
