"""Incremental removal of expired state, to free its memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dask_elastic.state.expiry.times import ExpiryTimes
from dask_elastic.state.layout import StateLayout
from dask_elastic.state.session import Session
from dask_elastic.state.slots import Column

LEAST_KEYS = 256
LEAST_KEYS_OF_RECORD = 1_024
"""The least keys to visit when event time advances, which is less frequent than batches are."""


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

    What has expired in event time is removed when a state record arrives, from the shards that it is addressed to: the
    rows that these process later are not older, also in a replay, while rows of other shards may be.
    """

    def __init__(self, session: Session, layout: StateLayout) -> None:
        self._session = session
        self._layout = layout
        self._next = 0
        self._deleted = False
        self._keys = 0

    def step(self, now: float, keys: int) -> None:
        """Sweep the next keys.

        Parameters
        ----------
        now : float
            The batch's time, in seconds since 1970.
        keys : int
            The number of distinct keys in the batch.
        """
        self._keys += keys
        if self._layout.expires:
            self._step(max(LEAST_KEYS, 2 * keys), ExpiryTimes(now))

    def event_step(self, reached: float, now: float, shards: npt.NDArray[np.bool_]) -> None:
        """Sweep the next keys when event time advances.

        Parameters
        ----------
        reached : float
            The event time, in microseconds since 1970.
        now : float
            The time by which state has expired that expires in processing time, in seconds since 1970.
        shards : ndarray of bool
            The shards that have reached the event time.
        """
        keys, self._keys = self._keys, 0
        self._step(max(LEAST_KEYS_OF_RECORD, 2 * keys), ExpiryTimes(now, reached), shards)

    def _step(self, keys: int, times: ExpiryTimes, shards: npt.NDArray[np.bool_] | None = None) -> None:
        self._next, deleted = self._session.sweep(self._next, keys, self._unexpired, times, shards)
        self._deleted |= deleted
        if self._next == 0 and self._deleted:
            self._deleted = False
            self._session.tidy()

    def _unexpired(self, values: list[Column], count: int, times: ExpiryTimes) -> tuple[list[Column], np.ndarray]:
        left = self._layout.unexpired(values, times)
        return left, self._layout.has_any(left, count)
