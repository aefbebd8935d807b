"""Popularity of keys: the Zipf and Gaussian shares of the papers' streams.

Notes
-----
Elasticutor, section 5.1 (Zipf); ELB/CLB, section 5 (Zipf and Gaussian of the same mean). ELB/CLB gives neither the
exponent nor the deviation. No erratum concerns it.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from dask_elastic.planning.placement.problem import Floats
from dask_elastic.vocab.errors import PlanningError


def zipf_shares(count: int, exponent: float) -> Floats:
    """Return Zipf shares of keys, in proportion to rank ** -exponent.

    Parameters
    ----------
    count : int
        The number of keys, at least 1.
    exponent : float
        The skew, 0 or more; with 0 all shares are equal.

    Returns
    -------
    array of float
        One share for each key, the most popular first; they add up to 1.

    Raises
    ------
    PlanningError
        If a number is out of range.

    Examples
    --------
    >>> (zipf_shares(3, 1.0) * 11).round(6).tolist()
    [6.0, 3.0, 2.0]
    """
    _check_count(count)
    if not exponent >= 0:
        raise PlanningError(f"exponent is {exponent!r}: give 0 or more.")
    heights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: Floats = heights / heights.sum()
    return shares


def gaussian_shares(count: int, mean: float, deviation: float) -> Floats:
    """Return Gaussian shares of the keys 1, 2, … with a given mean.

    Parameters
    ----------
    count : int
        The number of keys, at least 1.
    mean : float
        The mean of the keys, from 1 to `count`, both excluded.
    deviation : float
        The standard deviation before truncation at the first and the last key.

    Returns
    -------
    array of float
        One share for each key; they add up to 1.

    Raises
    ------
    PlanningError
        If a number is out of range, or no truncated Gaussian of this deviation has the mean.

    Notes
    -----
    The mean of a truncated Gaussian differs from its peak, so the peak is searched numerically.

    Examples
    --------
    >>> shares = gaussian_shares(100, mean=30.0, deviation=15.0)
    >>> round(float(shares @ np.arange(1, 101)), 6)
    30.0
    """
    _check_count(count)
    if not (1 < mean < count and deviation > 0):
        raise PlanningError(f"mean is {mean!r}, deviation {deviation!r}: give 1 to {count}, and above 0.")
    keys = np.arange(1, count + 1, dtype=np.float64)

    def bell(peak: float) -> Floats:
        exponent = -((keys - peak) ** 2) / (2 * deviation**2)
        heights = np.exp(exponent - exponent.max())
        shares: Floats = heights / heights.sum()
        return shares

    reach = 50 * deviation
    low, high = 1 - reach, count + reach
    if not bell(low) @ keys < mean < bell(high) @ keys:
        raise PlanningError(
            f"no Gaussian of deviation {deviation!r} on 1 to {count} has mean {mean!r}: give a greater deviation."
        )
    return bell(float(brentq(lambda peak: float(bell(peak) @ keys) - mean, low, high)))


def mean_key(shares: Floats) -> float:
    """Return the mean of the keys 1, 2, … with these shares.

    Examples
    --------
    >>> mean_key(zipf_shares(3, 0.0))
    2.0
    """
    return float(shares @ np.arange(1, len(shares) + 1))


def _check_count(count: int) -> None:
    if count < 1:
        raise PlanningError(f"count is {count!r}: give 1 or more keys.")
