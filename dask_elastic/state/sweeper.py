"""Incremental removal of expired state, to free its memory."""

from __future__ import annotations

import numpy as np

from dask_elastic.state.layout import StateLayout
from dask_elastic.state.session import Session
from dask_elastic.state.slots import Column

LEAST_KEYS = 256


class Sweeper:
    """Removes expired state of one task's shards; used by the task's thread.

    Parameters
    ----------
    session : Session
        The task's session.
    layout : StateLayout
        The declared state.

    Notes
    -----
    Reads never return expired state, so the time of its removal does not matter. Each step visits twice as many keys
    as the batch had (at least 256), so that rounds over all keys keep up with new keys. The time is the batch's, which
    the home assigned: a replay of the batch sweeps the same state.
    """

    def __init__(self, session: Session, layout: StateLayout) -> None:
        self._session = session
        self._layout = layout
        self._next = 0
        self._deleted = False

    def step(self, now: float, keys: int) -> None:
        """Sweep the next keys.

        Parameters
        ----------
        now : float
            The batch's time, in seconds since 1970.
        keys : int
            The number of distinct keys in the batch.
        """
        if not self._layout.expires:
            return
        self._next, deleted = self._session.sweep(self._next, max(LEAST_KEYS, 2 * keys), self._unexpired, now)
        self._deleted |= deleted
        if self._next == 0 and self._deleted:
            self._deleted = False
            self._session.tidy()

    def _unexpired(self, values: list[Column], count: int, now: float) -> tuple[list[Column], np.ndarray]:
        left = self._layout.unexpired(values, now)
        return left, self._layout.has_any(left, count)
