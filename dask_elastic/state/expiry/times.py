"""The times by which state expires: of all state, and of what one batch reads and writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_elastic.state.slots import Column
from dask_elastic.topology.state_kind import StateKind

Times = npt.NDArray[np.float64]
"""Expiry times: seconds since 1970 of processing time, or microseconds of event time, which are whole numbers."""


LEAST = -(2.0**53)
"""The earliest event time, in 1684: from it on, a float is exact to the microsecond. Older times count as this one."""

Shards = npt.NDArray[np.bool_]
"""Which of the shards of an executor."""


class ExpiryTimes(NamedTuple):
    """What each clock has reached; state expires whose expiry time is not later.

    Parameters
    ----------
    processing : float
        Processing time, in seconds since 1970.
    event : float
        Event time, in microseconds since 1970; nothing has expired in event time by default.
    """

    processing: float
    event: float = -math.inf

    def of(self, kind: StateKind) -> float:
        """Return the time of the clock by which state of a kind expires."""
        return self.event if kind.ttl_clock == "event" else self.processing


RemainingOf = Callable[[list[Column], int, ExpiryTimes], tuple[list[Column], npt.NDArray[np.bool_]]]


class BatchTimes:
    """The times of one batch: by which state has expired for it, and when what it writes expires.

    Parameters
    ----------
    now : float
        Its processing time, in seconds since 1970.
    ordinals : ndarray of intp
        For each row, the position of its key.
    count : int
        The number of keys.
    reached : int, optional
        The event time that the executor had reached before the batch, in microseconds; none by default.
    rows : ndarray of int64, optional
        The event time of each row.

    Attributes
    ----------
    now : float
        As the parameter.
    seen, written : float
        The event times by which state has expired for logic per row and per key, and at which it writes; the engine
        sets them before each call.

    Notes
    -----
    A row that is older than what the executor has reached reads and writes as if it were of that time: its state lives
    as long as that of others. Logic per row sees what has not expired at the row's time. Logic that gets several rows
    sees what had not expired before the batch: what it sees must not depend on how rows are divided into batches, which
    a replay may do differently. Rows of different `reached` are never in one batch.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dask_elastic.topology.state_kind import Value
    >>> times = BatchTimes(0.0, np.array([0, 1, 0]), 2, reached=5, rows=np.array([3, 6, 9]))
    >>> kind = Value(pa.int64(), ttl=1e-5, ttl_clock="event")
    >>> times.of_rows(kind).tolist(), times.of_keys(kind).tolist()
    ([15.0, 16.0, 19.0], [19.0, 16.0])
    """

    def __init__(
        self,
        now: float,
        ordinals: npt.NDArray[np.intp],
        count: int,
        reached: int | None = None,
        rows: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.now = now
        self._ordinals = ordinals
        self._count = count
        self._reached = LEAST if reached is None else max(LEAST, float(reached))
        self._rows = rows
        self.seen = self.written = self._reached

    @cached_property
    def rows(self) -> Times:
        """The event time at which each row writes."""
        if self._rows is None:
            return np.full(len(self._ordinals), self._reached)
        return np.maximum(self._rows.astype(np.float64), self._reached)

    @cached_property
    def keys(self) -> Times:
        """The event time of the latest row of each key."""
        latest = np.full(self._count, LEAST)
        np.maximum.at(latest, self._ordinals, self.rows)
        return latest

    def write_for(self, key: int) -> None:
        """Let logic per key write at the time of a key's latest row."""
        if self._rows is not None:
            self.written = float(self.keys[key])

    def call_at(self, time: float) -> None:
        """Let logic per row, or of a timer, read and write at a time."""
        self.seen = self.written = time

    def expired(self, kind: StateKind) -> float:
        """Return the time by which state of a kind has expired for all rows of the batch."""
        return self._reached if kind.ttl_clock == "event" else self.now

    def of_rows(self, kind: StateKind) -> Times:
        """Return the expiry time of what each row writes."""
        return self._until(kind, self.rows) if kind.ttl_clock == "event" else self._same(kind, len(self._ordinals))

    def of_keys(self, kind: StateKind) -> Times:
        """Return the expiry time of what the batch writes for each key."""
        return self._until(kind, self.keys) if kind.ttl_clock == "event" else self._same(kind, self._count)

    def of_call(self, kind: StateKind) -> float:
        """Return the expiry time of what the present call of logic per row or per key writes."""
        assert kind.ttl is not None
        micros = kind.ttl_micros
        return self.now + kind.ttl if micros is None else self.written + micros

    def _same(self, kind: StateKind, length: int) -> Times:
        assert kind.ttl is not None
        return np.full(length, self.now + kind.ttl)

    @staticmethod
    def _until(kind: StateKind, times: Times) -> Times:
        micros = kind.ttl_micros
        assert micros is not None
        until: Times = times + micros
        return until
