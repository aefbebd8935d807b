"""The number of workers of a cluster: more as soon as jobs need them, fewer after they were not needed for a while."""

from __future__ import annotations

import math
from collections import deque

from dask_elastic.control.cluster.likely_need import LikelyNeed
from dask_elastic.vocab.errors import PlanningError

ROOM = 0.1
"""Part of the slots of a smaller cluster that is to be free, so that it does not grow again at once."""


class ClusterSize:
    """Turns the slots that jobs need into a number of workers.

    Parameters
    ----------
    cooldown : float
        Seconds for which fewer workers must have been enough before the cluster shrinks.

    Raises
    ------
    PlanningError
        If the cooldown is negative or not finite.

    Notes
    -----
    The cluster shrinks to the largest number of workers that was needed within the cooldown, so that a load that comes
    and goes does not change it. It shrinks less if more workers are likely to be needed within the next cooldown, see
    `LikelyNeed`: a worker that is emptied and started again moves its state twice. All decisions depend on the times
    that `workers` gets alone.

    Examples
    --------
    >>> size = ClusterSize(cooldown=30.0)
    >>> size.workers(0.0, slots=7.0, per_worker=2, present=1)
    4
    >>> size.workers(20.0, slots=1.0, per_worker=2, present=4), size.workers(60.0, slots=1.0, per_worker=2, present=4)
    (4, 1)
    """

    def __init__(self, cooldown: float):
        if not (math.isfinite(cooldown) and cooldown >= 0):
            raise PlanningError(f"the cooldown is {cooldown!r}: give seconds, 0 or more")
        self.cooldown = cooldown
        self._needs: deque[tuple[float, int]] = deque()
        self._since: float | None = None
        self._likely = LikelyNeed(cooldown)

    def workers(self, now: float, slots: float, per_worker: int, present: int) -> int:
        """Return the number of workers that the cluster should have.

        Parameters
        ----------
        now : float
            The time in seconds; later than in the previous call.
        slots : float
            Thread slots that jobs need.
        per_worker : int
            Thread slots of a worker.
        present : int
            The workers that the cluster has.

        Returns
        -------
        int
            The workers; 0 if nothing needs any.
        """
        if self._since is None:
            self._since = now
        fewer = _workers(slots * (1 + ROOM), per_worker)
        self._needs.append((now, fewer))
        while self._needs[0][0] < now - self.cooldown:
            self._needs.popleft()
        more = _workers(slots, per_worker)
        self._likely.observe(now, fewer)
        if more >= present:
            return more
        known = now - self._since >= self.cooldown
        enough = max(needed for _, needed in self._needs)
        return min(present, max(enough, self._likely.after(enough))) if known else present


def _workers(slots: float, per_worker: int) -> int:
    # Measured loads that fill a worker exactly need no second one.
    return math.ceil(slots / max(per_worker, 1) - 1e-6)
