"""Quantiles of the χ² distribution. SciPy has them too, but its import takes longer than all that is computed here."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

STEPS = 100
"""Newton's method needs four or five steps; the bound ends a search at the limits of floating point."""

TERMS = 10_000
ACCURACY = 1e-13


@functools.lru_cache(maxsize=1024)
def chi_squared_above(chance: float, freedom: int) -> float:
    """Return the value that a χ²-distributed number exceeds with a given probability.

    Parameters
    ----------
    chance : float
        The probability, between 0 and 1.
    freedom : int
        The degrees of freedom, 1 or more.

    Returns
    -------
    float
        The value.

    Notes
    -----
    Newton's method, from the approximation of Wilson and Hilferty, on the regularised incomplete gamma function: a
    series below its turning point, a continued fraction above.

    Examples
    --------
    >>> round(chi_squared_above(0.05, 1), 3), round(chi_squared_above(0.5, 10), 3)
    (3.841, 9.342)
    """
    spread = 2 / (9 * freedom)
    first = freedom * (1 - spread + NormalDist().inv_cdf(1 - chance) * math.sqrt(spread)) ** 3
    shape, value = freedom / 2, max(first, ACCURACY) / 2
    for _ in range(STEPS):
        density = math.exp((shape - 1) * math.log(value) - value - math.lgamma(shape))
        step = (_gamma_above(shape, value) - chance) / density
        # A step from far below must not leap over zero.
        value = max(value + step, value / 2)
        if abs(step) <= ACCURACY * value:
            break
    return 2 * value


def _gamma_above(shape: float, value: float) -> float:
    """Return the regularised upper incomplete gamma function."""
    scale = math.exp(shape * math.log(value) - value - math.lgamma(shape))
    return 1 - scale * _series(shape, value) if value < shape + 1 else scale * _fraction(shape, value)


def _series(shape: float, value: float) -> float:
    term = total = 1 / shape
    for place in range(1, TERMS):
        term *= value / (shape + place)
        total += term
        if term < ACCURACY * total:
            break
    return total


def _fraction(shape: float, value: float) -> float:
    """Evaluate the continued fraction by the method of Lentz."""
    lower = value + 1 - shape
    upper, below = math.inf, 1 / lower
    result = below
    for place in range(1, TERMS):
        factor = -place * (place - shape)
        lower += 2
        below = 1 / (factor * below + lower)
        upper = lower + factor / upper
        change = upper * below
        result *= change
        if abs(change - 1) < ACCURACY:
            break
    return result
