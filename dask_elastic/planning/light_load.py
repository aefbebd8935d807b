"""Whether an executor's shards stay at its home because its load is light.

Goal
    Rows of a remote task cross the network twice. A load that keeps a small part of a core busy is cheaper at home; a
    higher one needs all cores.
Heuristic
    Shards may leave as soon as the load is above a bound. They return when it has been below a lower bound for some
    time, which doubles with each return: a load that comes and goes moves them ever more rarely. While all are at home
    they stay as long as the load is not above the bound, whatever it was before.
Not done
    The load is that of the executor alone: whether others overload the same node is left to the control loop.
"""

from __future__ import annotations

import math

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import is_number

RETURN_SHARE = 0.5
"""Shards return below this share of the bound. Over several tasks the same rows make more batches, which cost more."""

FIRST_PATIENCE = 5.0
"""Seconds for which the load must be low before the first return."""

LONGEST_PATIENCE = 600.0
"""Seconds up to which this time doubles."""


class LightLoad:
    """Decides from successive loads whether an executor's shards belong at its home.

    Parameters
    ----------
    bound : float
        Busy cores up to which the load is light; 0 if no load is.
    at_home : bool
        Whether the shards are at home in the beginning.

    Raises
    ------
    PlanningError
        If the bound is negative or no number.

    Attributes
    ----------
    at_home : bool
        Whether the shards belong at home.

    Examples
    --------
    >>> light = LightLoad(bound=0.3, at_home=True)
    >>> light.look(0.4, now=1.0)
    >>> light.at_home
    False
    >>> for second in range(2, 8):
    ...     light.look(0.1, now=second)
    >>> light.at_home
    True
    """

    def __init__(self, bound: float, at_home: bool):
        if not (is_number(bound) and math.isfinite(bound) and bound >= 0):
            raise PlanningError(f"bound is {bound!r}: give busy cores, a number of 0 or more.")
        self.bound = bound
        self.at_home = at_home and bound > 0
        self._patience = FIRST_PATIENCE
        self._low_since: float | None = None

    def look(self, load: float | None, now: float, away: bool = True) -> None:
        """Take note of the load.

        Parameters
        ----------
        load : float or None
            Busy cores that the executor requires; None, which changes nothing, while that is unknown.
        now : float
            The time in seconds.
        away : bool
            Whether there are shards that would have to return.
        """
        if load is None or not self.bound:
            return
        if not away and load <= self.bound:
            self.at_home = True
        elif self.at_home:
            if load > self.bound:
                self.leave()
        elif load > RETURN_SHARE * self.bound:
            self._low_since = None
        elif self._low_since is None:
            self._low_since = now
        elif now - self._low_since >= self._patience:
            self.at_home = True
            self._patience = min(2 * self._patience, LONGEST_PATIENCE)

    def leave(self) -> None:
        """Let the shards leave, whatever the load is."""
        self.at_home = False
        self._low_since = None
