"""Histogram of latencies in logarithmic buckets: small, fast to update, mergeable, accurate to 2 %."""

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
# Bucket 0 holds all durations up to the first edge, the last bucket all beyond the last edge.
_BUCKETS = _STEPS + 2
# The value of a bucket has the same relative distance from both of its edges.
_VALUES: NDArray[np.float64] = np.concatenate(([SHORTEST], 2 * _EDGES[1:] / (1 + _GROWTH), [_EDGES[-1]]))
_HEADER = struct.Struct("<4sI")
_MAGIC = b"dlh1"


class LatencyHistogram:
    """Counts of durations in buckets that grow by a constant factor.

    Quantiles are within 2 % of the exact ones for durations from one microsecond to 1,000 seconds. Shorter durations,
    negative ones and NaN count as one microsecond; longer ones count as 1,000 seconds.

    Notes
    -----
    The buckets are those of DDSketch (Masson, Rim, Lee, 2019) over a fixed range: bucket `i` ends at
    ``1e-6 * growth ** i`` with ``growth = 1.02 / 0.98``, which gives 520 buckets.

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
        """The sum of the weights of all recorded durations."""
        return int(self._counts.sum())

    def record(self, seconds: float, weight: int = 1) -> None:
        """Record one duration.

        Parameters
        ----------
        seconds : float
            The duration.
        weight : int
            How often it counts, such as the number of rows in a batch.
        """
        self._counts[bisect_left(_EDGE_TUPLE, seconds)] += weight

    def record_many(self, seconds: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Record many durations at once.

        Parameters
        ----------
        seconds : array of float
            The durations.
        weights : array of int, optional
            How often each counts; once if not given.
        """
        # fmax replaces NaN by 0, and so puts it into the same bucket as `record` does.
        buckets = np.searchsorted(_EDGES, np.fmax(np.asarray(seconds, dtype=np.float64), 0.0), side="left")
        added = np.bincount(buckets, None if weights is None else np.asarray(weights), minlength=_BUCKETS)
        self._counts += added.astype(np.int64)

    def quantile(self, q: float) -> float | None:
        """Return a quantile of the recorded durations.

        Parameters
        ----------
        q : float
            From 0 to 1: 0.5 is the median, 0.99 the 99th percentile.

        Returns
        -------
        float or None
            Seconds; None if nothing was recorded.

        Raises
        ------
        MeterError
            If `q` is not from 0 to 1.
        """
        return self.quantiles((q,))[0]

    def quantiles(self, qs: Iterable[float]) -> list[float | None]:
        """Return several quantiles of the same state of the histogram.

        Parameters
        ----------
        qs : iterable of float
            Each from 0 to 1.

        Returns
        -------
        list of (float or None)
            Seconds, in the order of `qs`; None if nothing was recorded.

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
            Seconds, within 2 %; None if nothing was recorded.
        """
        counts = self._counts.copy()
        total = int(counts.sum())
        return float(counts @ _VALUES) / total if total > 0 else None

    def merge(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram.

        Parameters
        ----------
        other : LatencyHistogram
            The other histogram; not modified.
        """
        self._counts += other._counts

    def merge_bytes(self, data: bytes) -> None:
        """Add the counts of a histogram that `to_bytes` has serialised, without those of its empty buckets.

        Parameters
        ----------
        data : bytes
            The other histogram.

        Raises
        ------
        MeterError
            If the bytes are not a histogram of this version.

        Examples
        --------
        >>> one, all_of_them = LatencyHistogram(), LatencyHistogram()
        >>> one.record(0.01, weight=3)
        >>> for _ in range(2):
        ...     all_of_them.merge_bytes(one.to_bytes())
        >>> all_of_them.count
        6
        """
        buckets, counts = _parsed(data)
        self._counts[buckets] += counts

    def snapshot(self) -> LatencyHistogram:
        """Return a copy that is independent of later recording.

        Returns
        -------
        LatencyHistogram
            The copy.
        """
        return _with_counts(self._counts.copy())

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """Return a histogram of the durations recorded since an earlier snapshot.

        Parameters
        ----------
        earlier : LatencyHistogram
            A snapshot of this histogram.

        Returns
        -------
        LatencyHistogram
            The difference; no count is negative.
        """
        return _with_counts(np.maximum(self._counts - earlier._counts, 0))

    def to_bytes(self) -> bytes:
        """Serialise the histogram.

        Returns
        -------
        bytes
            The nonempty buckets: 10 bytes each, and a header of 8 bytes; independent of the platform.
        """
        counts = self._counts.copy()
        used = np.flatnonzero(counts)
        return _HEADER.pack(_MAGIC, len(used)) + used.astype("<u2").tobytes() + counts[used].astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> LatencyHistogram:
        """Deserialise a histogram.

        Parameters
        ----------
        data : bytes
            A histogram serialised by `to_bytes`.

        Returns
        -------
        LatencyHistogram
            The histogram.

        Raises
        ------
        MeterError
            If the bytes are not a histogram of this version.
        """
        buckets, found = _parsed(data)
        counts = np.zeros(_BUCKETS, dtype=np.int64)
        counts[buckets] = found
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


def _parsed(data: bytes) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """Return the nonempty buckets of a serialised histogram, each once, and their counts."""
    magic, used = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0)
    if magic != _MAGIC or len(data) != _HEADER.size + 10 * used:
        raise MeterError(
            f"{len(data)} bytes are not a latency histogram of this version: run the same version on all nodes."
        )
    buckets = np.frombuffer(data, dtype="<u2", count=used, offset=_HEADER.size)
    if used and int(buckets.max()) >= _BUCKETS:
        raise MeterError(
            f"bucket {buckets.max()} in a latency histogram of {_BUCKETS}: run the same version on all nodes."
        )
    return buckets, np.frombuffer(data, dtype="<i8", count=used, offset=_HEADER.size + 2 * used)
