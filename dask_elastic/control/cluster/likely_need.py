"""How many workers jobs are likely to need soon, from what they needed before."""

from __future__ import annotations

from collections import deque

from dask_elastic.planning.intervals.transition_matrix import transition_matrix

KEPT = 1_000
"""Intervals that are remembered."""

LEAST = 4
"""Intervals after which a number of workers must have been seen before anything is expected of it."""


class LikelyNeed:
    """Learns which need follows which, one interval after the other.

    Parameters
    ----------
    interval : float
        Seconds of an interval, for which workers would have to be kept; with 0 nothing is learnt.

    Notes
    -----
    State migration, sections 5 and 5.2: the transition matrix of the numbers of nodes says which migration is likely
    next, and a plan that foresees it migrates less. Here an interval that needs as many workers as the one before
    counts, too: what it makes likely is that fewer workers go on being enough.

    Examples
    --------
    >>> need = LikelyNeed(10.0)
    >>> for interval in range(20):
    ...     need.observe(10.0 * interval, workers=1 if interval % 2 else 4)
    >>> need.after(1), need.after(4), need.after(3)
    (4, 1, 3)
    """

    def __init__(self, interval: float):
        self.interval = interval
        self._needs: deque[int] = deque(maxlen=KEPT)
        self._began: float | None = None

    def observe(self, now: float, workers: int) -> None:
        """Take in what is needed now; the largest need of an interval is that of the interval.

        Parameters
        ----------
        now : float
            The time in seconds; later than in the previous call.
        workers : int
            The workers that jobs need.
        """
        if self.interval <= 0:
            return
        if self._began is None or now - self._began >= self.interval:
            self._began = now
            self._needs.append(workers)
        else:
            self._needs[-1] = max(self._needs[-1], workers)

    def after(self, workers: int) -> int:
        """Return how many workers are enough for the next interval in half of the cases, if so many are needed now.

        Parameters
        ----------
        workers : int
            The workers that jobs need.

        Returns
        -------
        int
            The median; the same number if too little is known.
        """
        complete = [*self._needs][:-1]
        if complete.count(workers) <= LEAST:
            return workers
        # Numbers of nodes begin with 1 there, and a cluster may need none.
        row = transition_matrix([one + 1 for one in complete], drop_self=False).get(workers + 1, {})
        reached = 0.0
        for count, probability in row.items():
            reached += probability
            if reached >= 0.5:
                return count - 1
        return workers
