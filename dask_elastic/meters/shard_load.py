"""Load of each shard: the busy time of tasks, attributed to shards by their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dask_elastic.meters.ring import MeterError, SlotRing

Integers: TypeAlias = NDArray[np.signedinteger] | NDArray[np.unsignedinteger]
Floats: TypeAlias = NDArray[np.float64]


class ShardLoad:
    """Busy seconds per second of each shard of an executor, over a sliding window.

    Parameters
    ----------
    shards : int
        The number of shards of the executor.
    window : float
        The length of the window in seconds.
    slots : int
        Number of slots of the window.

    Raises
    ------
    MeterError
        If there is no shard, or the window is not a positive number.

    Attributes
    ----------
    rows : float64 array
        Rows of each shard since the start.

    Notes
    -----
    Elasticutor, section 3.1, balances on the loads of the last second. All rows of one batch are assumed to cost the
    same. Use one meter per task and add the vectors: concurrent writers of one meter may lose counts.

    Examples
    --------
    >>> import numpy as np
    >>> load = ShardLoad(shards=4)
    >>> load.add(np.array([30, 0, 10, 0]), busy_seconds=0.4, now=10.0)
    >>> load.add(np.array([5]), busy_seconds=0.2, now=10.5, shards=np.array([3]))
    >>> load.loads(now=11.0).round(3).tolist()
    [0.3, 0.0, 0.1, 0.2]
    >>> load.seconds_per_row(now=11.0, otherwise=0.5).round(3).tolist()
    [0.01, 0.5, 0.01, 0.04]
    """

    def __init__(self, shards: int, window: float = 1.0, slots: int = 10):
        if shards < 1:
            raise MeterError(f"shards is {shards!r}: an executor has at least 1.")
        self.shards = shards
        self.rows = np.zeros(shards, dtype=np.float64)
        self._ring: SlotRing[Floats] = SlotRing(window, slots, self._fresh)

    @property
    def window(self) -> float:
        """The length of the window in seconds."""
        return self._ring.window

    def add(self, rows: Integers, busy_seconds: float, now: float, shards: Integers | None = None) -> None:
        """Attribute the processing time of one batch to the shards of its rows.

        Parameters
        ----------
        rows : int array
            Number of rows per shard in the batch: one entry per shard of the executor or, with `shards`, one entry per
            shard listed there.
        busy_seconds : float
            The processing time of the batch; ignored if the batch has no rows.
        now : float
            The time in seconds.
        shards : int array, optional
            The shards of the entries of `rows`; a shard may occur more than once.

        Raises
        ------
        MeterError
            If the lengths differ or the executor has no such shard.
        """
        counts = self._dense(rows, shards)
        total = float(counts.sum())
        self.rows += counts
        if total > 0 and busy_seconds > 0:
            slot = self._ring.at(now)
            slot[0] += counts * (busy_seconds / total)
            slot[1] += counts

    def add_rows(self, shards: Sequence[int], busy_seconds: float, now: float) -> None:
        """Attribute the processing time of one batch of a few rows; for these faster than `add`.

        Parameters
        ----------
        shards : sequence of int
            The shard of each row.
        busy_seconds : float
            The processing time of the batch; ignored if the batch has no rows.
        now : float
            The time in seconds.
        """
        for shard in shards:
            self.rows[shard] += 1
        if shards and busy_seconds > 0:
            slot = self._ring.at(now)
            each = busy_seconds / len(shards)
            for shard in shards:
                slot[0, shard] += each
                slot[1, shard] += 1

    def add_busy(self, shards: Integers | Sequence[int], busy_seconds: float, now: float) -> None:
        """Attribute processing time that no rows have caused to shards, in equal parts.

        Parameters
        ----------
        shards : int array or sequence of int
            The shards, as in `add_rows`; or an array with a positive number for each of them, as in `add`.
        busy_seconds : float
            The processing time.
        now : float
            The time in seconds.
        """
        chosen = shards if isinstance(shards, list) else np.flatnonzero(shards).tolist()
        if chosen and busy_seconds > 0:
            self._ring.at(now)[0][chosen] += busy_seconds / len(chosen)

    def loads(self, now: float) -> Floats:
        """Return the load of each shard over the window that ends at `now`.

        Parameters
        ----------
        now : float
            The time in seconds.

        Returns
        -------
        float64 array
            Busy seconds per second, one number per shard; the sum is the mean number of busy cores.
        """
        busy: Floats = self._sums(now)[0] / self._ring.span(now)
        return busy

    def seconds_per_row(self, now: float, otherwise: float) -> Floats:
        """Return the mean processing time per row of each shard over the window that ends at `now`.

        Parameters
        ----------
        now : float
            The time in seconds.
        otherwise : float
            The value for shards without rows in the window.

        Returns
        -------
        float64 array
            Busy seconds per row, one number per shard.
        """
        busy, rows = self._sums(now)
        cost: Floats = np.divide(busy, rows, out=np.full(self.shards, otherwise), where=rows > 0)
        return cost

    def _sums(self, now: float) -> Floats:
        """Return busy seconds and rows of each shard."""
        self._ring.follow(now)
        total = self._fresh()
        for slot, share in self._ring.read(now):
            total += slot * share
        return total

    def _fresh(self) -> Floats:
        return np.zeros((2, self.shards), dtype=np.float64)

    def _dense(self, rows: Integers, shards: Integers | None) -> Integers | Floats:
        expected = self.shards if shards is None else len(shards)
        if len(rows) != expected:
            raise MeterError(f"{len(rows)} row counts for {expected} shards: give one per shard.")
        if shards is None:
            return rows
        if len(shards) and (int(shards.min()) < 0 or int(shards.max()) >= self.shards):
            named = f"shards {shards.min()} to {shards.max()}"
            raise MeterError(f"{named} are out of range: shards are numbered from 0 to {self.shards - 1}.")
        counts = np.bincount(shards.astype(np.intp), weights=rows.astype(np.float64), minlength=self.shards)
        return counts.astype(np.float64, copy=False)
