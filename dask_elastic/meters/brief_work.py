"""Whether the batches of one piece of code are brief, so that threads better process them one after the other."""

from __future__ import annotations

FEW_ROWS = 256
"""Batches of more rows are never brief: they are processed by vectorised code, which runs in parallel."""

BRIEF_SECONDS = 0.003
"""A brief batch takes at most so long."""

COMPUTING = 0.3
"""Share of this time in which it must compute; code that waits for a database may wait in many threads at once."""

WEIGHT = 0.125
"""Weight of the newest batch in the share of batches that were not brief."""

NOTICED = 0.01
"""Share of batches that were not brief above which every batch is measured."""

MEASURED = 4
"""Of so many brief batches, the processor time of one is measured: reading that clock takes microseconds."""

RETRIED = 64
"""After so many batches of code that was not brief, one is measured again."""


class BriefWork:
    """Estimates from measured batches whether the next one is brief.

    Any thread may measure and ask. Measurements that are made at the same time may get lost.

    Attributes
    ----------
    is_brief : bool
        Whether most recent batches were brief.

    Examples
    --------
    >>> work = BriefWork()
    >>> work.expects(rows=10), work.expects(rows=10_000)
    (True, False)
    >>> for _ in range(6):
    ...     work.add(busy=0.02, cpu=0.001)
    >>> work.expects(rows=10)
    False
    """

    __slots__ = ("_asked", "_long", "_refused", "is_brief")

    def __init__(self) -> None:
        # A decaying share of batches that took long, or waited for something.
        self._long = 0.0
        self.is_brief = True
        self._refused = 0
        self._asked = -1

    def measures(self) -> bool:
        """Return whether to measure the next batch: each one after a batch that was not brief, else one of a few."""
        self._asked = (self._asked + 1) % MEASURED
        return self._asked == 0 or self._long > NOTICED

    def add(self, busy: float, cpu: float) -> None:
        """Add the measurement of a batch that was expected to be brief.

        Parameters
        ----------
        busy : float
            Its processing time in seconds.
        cpu : float
            The processor time of its thread in seconds.
        """
        is_long = busy > BRIEF_SECONDS or cpu < COMPUTING * busy
        self._long += WEIGHT * (is_long - self._long)
        self.is_brief = self._long <= 0.5

    def expects(self, rows: int) -> bool:
        """Return whether a batch is expected to be brief; now and then also after long ones, to measure again.

        Parameters
        ----------
        rows : int
            The number of its rows.
        """
        if rows > FEW_ROWS:
            return False
        if self.is_brief:
            return True
        self._refused = (self._refused + 1) % RETRIED
        return self._refused == 0
