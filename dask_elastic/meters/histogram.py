"""Latencies in logarithmic buckets: small, quick to record, mergeable, right to two per cent."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_elastic.meters.ring import MeterError

ERROR = 0.02
SHORTEST = 1e-6
LONGEST = 1e3

_GROWTH = (1 + ERROR) / (1 - ERROR)
_STEPS = math.ceil(math.log(LONGEST / SHORTEST) / math.log(_GROWTH))
_EDGES: NDArray[np.float64] = SHORTEST * _GROWTH ** np.arange(_STEPS + 1, dtype=np.float64)
_EDGE_TUPLE: tuple[float, ...] = tuple(_EDGES.tolist())
# Bucket 0 is all up to the first edge, the last bucket all beyond the last edge.
_BUCKETS = _STEPS + 2
# The point of a bucket from which both its edges are away by the same relative error.
_VALUES: NDArray[np.float64] = np.concatenate(([SHORTEST], 2 * _EDGES[1:] / (1 + _GROWTH), [_EDGES[-1]]))
_HEADER = struct.Struct("<4sI")
_MAGIC = b"dlh1"


class LatencyHistogram:
    """Counts of durations in buckets that grow by a constant factor.

    Quantiles are within 2 % of the true ones for durations from one microsecond to 1,000 seconds. A shorter one counts
    as one microsecond, and so does one that is negative or not a number; a longer one counts as 1,000 seconds.

    Notes
    -----
    The buckets are those of DDSketch (Masson, Rim, Lee, 2019) over a fixed range: bucket `i` ends at
    ``1e-6 * growth ** i`` with ``growth = 1.02 / 0.98``, which makes 520 of them.

    Examples
    --------
    >>> latency = LatencyHistogram()
    >>> for milliseconds in range(1, 101):
    ...     latency.record(milliseconds / 1000)
    >>> latency.count
    100
    >>> abs(latency.quantile(0.5) - 0.050) < 0.001
    True
    >>> before = latency.snapshot()
    >>> latency.record(2.0, weight=7)
    >>> latency.since(before).count
    7
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(_BUCKETS, dtype=np.int64)

    @property
    def count(self) -> int:
        """How many durations were recorded, by weight."""
        return int(self._counts.sum())

    def record(self, seconds: float, weight: int = 1) -> None:
        """Count one duration.

        Parameters
        ----------
        seconds : float
            The duration.
        weight : int
            How many times to count it: the rows of a batch that shared it.
        """
        self._counts[bisect_left(_EDGE_TUPLE, seconds)] += weight

    def record_many(self, seconds: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Count many durations at once.

        Parameters
        ----------
        seconds : array of float
            The durations.
        weights : array of int, optional
            How many times to count each; once if not given.
        """
        # fmax takes the number where the other is none, and so sends NaN where `record` sends it.
        buckets = np.searchsorted(_EDGES, np.fmax(np.asarray(seconds, dtype=np.float64), 0.0), side="left")
        added = np.bincount(buckets, None if weights is None else np.asarray(weights), minlength=_BUCKETS)
        self._counts += added.astype(np.int64)

    def quantile(self, q: float) -> float | None:
        """Return the duration that the share `q` of all recorded ones do not exceed.

        Parameters
        ----------
        q : float
            From 0 to 1: 0.5 is the median, 0.99 the 99th percentile.

        Returns
        -------
        float or None
            Seconds; None while nothing was recorded.

        Raises
        ------
        MeterError
            If `q` is not from 0 to 1.
        """
        return self.quantiles((q,))[0]

    def quantiles(self, qs: Iterable[float]) -> list[float | None]:
        """Return several quantiles of one and the same state of the histogram.

        Parameters
        ----------
        qs : iterable of float
            Each from 0 to 1.

        Returns
        -------
        list of (float or None)
            Seconds, in the order of `qs`; None while nothing was recorded.

        Raises
        ------
        MeterError
            If one of `qs` is not from 0 to 1.
        """
        wanted = list(qs)
        for q in wanted:
            if not 0 <= q <= 1:
                raise MeterError(f"quantile {q!r}: give a number from 0 to 1.")
        upto = self._counts.cumsum()
        total = int(upto[-1])
        if total <= 0:
            return [None] * len(wanted)
        ranks = [max(1, math.ceil(q * total)) for q in wanted]
        found = np.minimum(np.searchsorted(upto, ranks, side="left"), _BUCKETS - 1)
        return [float(value) for value in _VALUES[found]]

    def mean(self) -> float | None:
        """Return the mean duration.

        Returns
        -------
        float or None
            Seconds, right to 2 %; None while nothing was recorded.
        """
        counts = self._counts.copy()
        total = int(counts.sum())
        return float(counts @ _VALUES) / total if total > 0 else None

    def merge(self, other: LatencyHistogram) -> None:
        """Add all that another histogram has counted.

        Parameters
        ----------
        other : LatencyHistogram
            Left as it is.
        """
        self._counts += other._counts

    def snapshot(self) -> LatencyHistogram:
        """Return a copy that later recording does not change.

        Returns
        -------
        LatencyHistogram
            The copy.
        """
        return _with_counts(self._counts.copy())

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """Return what was recorded after an earlier snapshot.

        Parameters
        ----------
        earlier : LatencyHistogram
            A snapshot of this histogram.

        Returns
        -------
        LatencyHistogram
            The difference, never below zero.
        """
        return _with_counts(np.maximum(self._counts - earlier._counts, 0))

    def to_bytes(self) -> bytes:
        """Return the histogram as bytes: the buckets that are not empty.

        Returns
        -------
        bytes
            10 for each bucket in use, and 8 more; the same on every machine.
        """
        counts = self._counts.copy()
        used = np.flatnonzero(counts)
        return _HEADER.pack(_MAGIC, len(used)) + used.astype("<u2").tobytes() + counts[used].astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> LatencyHistogram:
        """Return the histogram that `to_bytes` wrote.

        Parameters
        ----------
        data : bytes
            What `to_bytes` returned.

        Returns
        -------
        LatencyHistogram
            Its equal.

        Raises
        ------
        MeterError
            If the bytes are no histogram, or one of another version.
        """
        magic, used = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0)
        if magic != _MAGIC or len(data) != _HEADER.size + 10 * used:
            raise MeterError(f"{len(data)} bytes that are no latency histogram of this version: run one version only.")
        buckets = np.frombuffer(data, dtype="<u2", count=used, offset=_HEADER.size)
        if used and int(buckets.max()) >= _BUCKETS:
            raise MeterError(f"bucket {buckets.max()} in a latency histogram of {_BUCKETS}: run one version only.")
        counts = np.zeros(_BUCKETS, dtype=np.int64)
        counts[buckets] = np.frombuffer(data, dtype="<i8", count=used, offset=_HEADER.size + 2 * used)
        return _with_counts(counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return bool(np.array_equal(self._counts, other._counts))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return LatencyHistogram.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        if not (count := self.count):
            return "<LatencyHistogram: empty>"
        p50, p99 = self.quantiles((0.5, 0.99))
        return f"<LatencyHistogram: {count} recorded, p50 {p50:.3g} s, p99 {p99:.3g} s>"


def _with_counts(counts: NDArray[np.int64]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    histogram._counts = counts
    return histogram
