"""A move of key groups that has ended: what it took."""

from __future__ import annotations

from typing import NamedTuple


class EndedGroupMove(NamedTuple):
    """A move of key groups of a running job.

    Parameters
    ----------
    number : int
        How many moves of the job's generation had ended with it.
    operator : str
        The operator.
    strategy : {"progressive", "synchronised"}
        How the groups moved.
    groups : int
        The number of groups.
    moved_bytes, paused_bytes : int
        Bytes of state that moved, and those that moved while rows waited.
    pause : float
        Seconds for which rows waited at most.
    seconds : float
        Seconds from the request to the end.
    settled : float
        The time from which on measurements are not disturbed by the move, in seconds since the epoch.
    drain : float or None
        Seconds of the pause that were expected for what was queued before the groups; None if nothing was expected,
        because a user asked for the move.

    Examples
    --------
    >>> EndedGroupMove(1, "count", "progressive", 4, 2_000_000, 1_000, 0.08, 0.2, 1_700_000_001.5).pause
    0.08
    """

    number: int
    operator: str
    strategy: str
    groups: int
    moved_bytes: int
    paused_bytes: int
    pause: float
    seconds: float
    settled: float
    drain: float | None = None
