"""Time that never runs backwards, for loops that compare the times of snapshots."""

from __future__ import annotations

import math
from dataclasses import replace

from dask_elastic.vocab.snapshot import Snapshot


class SteadyTime:
    """Seconds that never run backwards: a clock that is set back stands still for one snapshot, and goes on.

    Attributes
    ----------
    now : float
        The steady time of the last snapshot; ``-inf`` before the first one.
    behind : float
        Seconds by which the clock has been set back in all.

    Examples
    --------
    >>> time = SteadyTime()
    >>> [time.seen(Snapshot(now, (), ())).now for now in (10.0, 11.0, 4.0, 5.5)]
    [10.0, 11.0, 11.0, 12.5]
    """

    def __init__(self) -> None:
        self.now = -math.inf
        self.behind = 0.0

    def seen(self, snapshot: Snapshot) -> Snapshot:
        """Return the next snapshot at its steady time.

        Parameters
        ----------
        snapshot : Snapshot
            The snapshot, at the time of the clock.
        """
        self.behind = max(self.behind, self.now - snapshot.now)
        self.now = snapshot.now + self.behind
        return replace(snapshot, now=self.now) if self.behind else snapshot
