"""Giving the memory of expired state back, some keys at a time."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.layout import StateLayout
from dask_elastic.state.session import Session
from dask_elastic.state.slots import Column

LEAST_KEYS = 256


class Sweeper:
    """Takes away what has expired of one task's shards; belongs to the task's thread.

    Parameters
    ----------
    session : Session
        The task's session.
    layout : StateLayout
        What is declared.

    Notes
    -----
    What has expired is not seen any more, whether swept or not, so it does not matter when a key's turn comes. A step
    looks at twice as many keys as the batch had (256 at least), so that the round through all of them keeps up with
    the keys that come in. The time is the batch's, which the home gave it: a replay of the batch sweeps the same.
    """

    def __init__(self, session: Session, layout: StateLayout) -> None:
        self._session = session
        self._layout = layout
        self._next = 0
        self._swept = False

    def step(self, now: float, keys: int) -> None:
        """Look at some more keys after a batch that had so many."""
        if not self._layout.expires:
            return
        self._next, swept = self._session.sweep(self._next, max(LEAST_KEYS, 2 * keys), self._left, now)
        self._swept |= swept
        if self._next == 0 and self._swept:
            self._swept = False
            self._session.tidy()

    def _left(self, values: list[Column], count: int, now: float) -> tuple[list[Column], np.ndarray]:
        left = self._layout.unexpired(values, now)
        return left, self._layout.has_any(left, count)
