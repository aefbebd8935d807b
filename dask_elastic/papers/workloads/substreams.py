"""Counts of tuples per window and substream: the workloads of ELB and CLB, and recordings in the same form.

Notes
-----
ELB/CLB, section 5: 100 substreams of keys 1 to 100, Gaussian or Zipf with the same mean; Poisson arrivals with a rate
of 10,000; 120 windows of a minute; a state of a tenth of the load. The paper gives neither the deviation nor the
exponent, nor the unit of the rate, which is taken as tuples per second. The recording of tweets is not public; a
stream of changing topics replaces it. No erratum bears on the streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from dask_elastic.papers.workloads.popularity import gaussian_shares, mean_key, zipf_shares
from dask_elastic.planning.placement.consistent_hash import hashed
from dask_elastic.planning.placement.problem import Floats, PlacementProblem
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.vocab.errors import PlanningError

SUBSTREAMS, WINDOWS, RATE, WINDOW_SECONDS = 100, 120, 10_000.0, 60.0
"""The paper's setting; the rate in tuples per second."""

STATE_SHARE = 0.1
"""The state of a substream, in tuples, for each tuple of a window."""

_EXPONENT, _DEVIATION = 0.5, 15.0


def gaussian_counts(seed: int, windows: int = WINDOWS, rate: float = RATE) -> Floats:
    """Count the tuples of a stream of Gaussian keys, with the same mean key as `zipf_counts`.

    Parameters
    ----------
    seed : int
        Seeds the arrivals.
    windows : int
        The number of windows.
    rate : float
        Tuples per second.

    Returns
    -------
    array of float, windows × substreams
        Tuples.

    Examples
    --------
    >>> counts = gaussian_counts(seed=1)
    >>> counts.shape, bool(abs(counts.sum() / (120 * 600_000) - 1) < 0.001)
    ((120, 100), True)
    """
    mean = mean_key(zipf_shares(SUBSTREAMS, _EXPONENT))
    return poisson_counts(seed, np.tile(gaussian_shares(SUBSTREAMS, mean, _DEVIATION), (windows, 1)), rate)


def zipf_counts(seed: int, windows: int = WINDOWS, rate: float = RATE) -> Floats:
    """Count the tuples of a stream of Zipf keys.

    Parameters
    ----------
    seed : int
        Seeds the arrivals.
    windows : int
        The number of windows.
    rate : float
        Tuples per second.

    Returns
    -------
    array of float, windows × substreams
        Tuples.

    Examples
    --------
    >>> zipf_counts(seed=1, windows=2).argmax(axis=1).tolist()
    [0, 0]
    """
    return poisson_counts(seed, np.tile(zipf_shares(SUBSTREAMS, _EXPONENT), (windows, 1)), rate)


def topical_counts(
    seed: int, windows: int = WINDOWS, rate: float = 100.0, topics: int = 8, change: float = 0.1, exponent: float = 0.5
) -> Floats:
    """Count the tuples of a stream of Zipf keys with changing topics, such as short messages.

    Parameters
    ----------
    seed : int
        Seeds topics, their popularity and arrivals.
    windows : int
        The number of windows.
    rate : float
        Tuples per second.
    topics : int
        The number of topics, assigned to substreams at random; substreams of a topic rise and fall together.
    change : float
        The standard deviation of the change of a topic's log-popularity per window; that of a single substream is half
        as large.
    exponent : float
        The skew of the keys at the start.

    Returns
    -------
    array of float, windows × substreams
        Tuples.

    Raises
    ------
    PlanningError
        If a number is out of range.

    Notes
    -----
    Replaces the 10.6 million tweets of 29 hours in ELB/CLB, section 5: about 100 per second. Substreams of many words
    are less skewed than words.

    Examples
    --------
    >>> counts = topical_counts(seed=1)
    >>> first, last = (counts[at] / counts[at].sum() for at in (0, -1))
    >>> bool(abs(first - last).sum() > 0.3)
    True
    """
    if topics < 1 or not (change >= 0 and math.isfinite(change)):
        raise PlanningError(f"topics is {topics!r}, change {change!r}: give 1 or more, and 0 or more.")
    random = np.random.default_rng([seed, 1])
    topic = random.integers(0, topics, SUBSTREAMS)
    course = np.cumsum(random.normal(0.0, change, (windows, topics)), axis=0)[:, topic]
    own = np.cumsum(random.normal(0.0, change / 2, (windows, SUBSTREAMS)), axis=0)
    heights = random.permutation(zipf_shares(SUBSTREAMS, exponent)) * np.exp(course + own)
    return poisson_counts(seed, heights / heights.sum(axis=1, keepdims=True), rate)


def poisson_counts(seed: int, shares: ArrayLike, rate: float = RATE, seconds: float = WINDOW_SECONDS) -> Floats:
    """Count the tuples of a Poisson process in each window and substream.

    Parameters
    ----------
    seed : int
        Seeds the arrivals.
    shares : array of float, windows × substreams
        The share of each substream in the tuples.
    rate : float
        Tuples per second.
    seconds : float
        Seconds per window.

    Returns
    -------
    array of float, windows × substreams
        Tuples.

    Raises
    ------
    PlanningError
        If a number is negative or not finite.

    Notes
    -----
    ELB/CLB, section 5. A Poisson process that is split at random is Poisson in each substream.

    Examples
    --------
    >>> poisson_counts(1, [[0.5, 0.5], [1.0, 0.0]]).round(-4).tolist()
    [[300000.0, 300000.0], [600000.0, 0.0]]
    """
    parts = np.asarray(shares, dtype=np.float64)
    if parts.ndim != 2 or not (np.isfinite(parts) & (parts >= 0)).all():
        raise PlanningError(f"shares has shape {parts.shape}: give windows × substreams of finite numbers, 0 or more.")
    if not (rate >= 0 and seconds > 0 and math.isfinite(rate * seconds)):
        raise PlanningError(f"rate is {rate!r}, seconds {seconds!r}: give 0 or more, and above 0.")
    return np.random.default_rng(seed).poisson(parts * rate * seconds).astype(np.float64)


def recorded_counts(moments: Any, keys: Any, substreams: int = SUBSTREAMS, seconds: float = WINDOW_SECONDS) -> Floats:
    """Count the rows of a recording in each window and substream.

    Parameters
    ----------
    moments : pyarrow.Array or ChunkedArray of timestamps
        The time of each row, in any order.
    keys : pyarrow.Array or ChunkedArray
        The key of each row; nulls are a key of their own.
    substreams : int
        The number of substreams; the hash of a key decides its substream, as in the engine.
    seconds : float
        Seconds per window.

    Returns
    -------
    array of float, windows × substreams
        Rows, from the window of the earliest moment to that of the latest.

    Raises
    ------
    PlanningError
        If there are no rows, lengths differ, a moment is null, or a number is out of range.

    Examples
    --------
    >>> moments = pa.array([0, 30, 61, 200], pa.timestamp("s"))
    >>> recorded_counts(moments, pa.array(["a", "b", "a", "a"]), substreams=3).sum(axis=1).tolist()
    [2.0, 1.0, 0.0, 1.0]
    """
    if len(moments) != len(keys) or not len(moments) or moments.null_count:
        raise PlanningError(
            f"{len(moments)} moments, {moments.null_count} of them null, and {len(keys)} keys: give one of each."
        )
    if substreams < 1 or not (seconds > 0 and math.isfinite(seconds)):
        raise PlanningError(f"substreams is {substreams!r}, seconds {seconds!r}: give 1 or more, and above 0.")
    nanoseconds = np.asarray(pc.cast(moments, pa.timestamp("ns")).cast(pa.int64()))
    window = (nanoseconds - nanoseconds.min()) // round(seconds * 1e9)
    rows = pa.Table.from_arrays([keys], ["key"]).combine_chunks().to_batches()[0]
    place = (hash_columns(rows, ["key"]) % np.uint64(substreams)).astype(np.int64)
    windows = int(window.max()) + 1
    counts = np.bincount(window * substreams + place, minlength=windows * substreams)
    return counts.reshape(windows, substreams).astype(np.float64)


def problems(counts: ArrayLike, instances: int = 10, memory: int = 1, seed: int = 0) -> Iterator[PlacementProblem]:
    """Make a problem from each window.

    Parameters
    ----------
    counts : array of float, windows × substreams
        The load of each substream in each window.
    instances : int
        The number of instances, which are the bins.
    memory : int
        The number of windows in the history, including the current one; fewer at the start.
    seed : int
        Seeds the hash function.

    Yields
    ------
    PlacementProblem
        Groups are substreams; state is a tenth of the load.

    Raises
    ------
    PlanningError
        If a number is out of range.

    Notes
    -----
    ELB/CLB, section 5.1.

    Examples
    --------
    >>> first, *_, last = problems(zipf_counts(seed=1, windows=5), memory=3)
    >>> first.history.shape, last.history.shape, last.bins
    ((1, 100), (3, 100), 10)
    """
    if memory < 1:
        raise PlanningError(f"memory is {memory!r}: give 1 window or more.")
    series = np.asarray(counts, dtype=np.float64)
    if series.ndim != 2:
        raise PlanningError(f"counts has shape {series.shape}: give windows × substreams.")
    if instances < 1:
        raise PlanningError(f"instances is {instances!r}: give 1 or more.")
    places = (hashed(np.arange(series.shape[1]), seed) % np.uint64(instances)).astype(np.int64)
    for window, load in enumerate(series):
        yield PlacementProblem(
            load,
            places,
            instances,
            state_bytes=STATE_SHARE * load,
            history=series[max(0, window + 1 - memory) : window + 1],
        )
