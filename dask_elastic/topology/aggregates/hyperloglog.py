"""HyperLogLog: how many distinct hashes went by, from the longest runs of zeros in them.

Notes
-----
Flajolet, Fusy, Gandouet, Meunier 2007 for the registers and the error; Ertl 2017, "New cardinality estimation
algorithms for HyperLogLog sketches", algorithm 6, for an estimate that needs no tables to be right for few values.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dask_elastic.topology.aggregates.value_hash import BITS, Words

Registers = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

LEAST_ERROR, MOST_ERROR = 0.005, 0.25
_AT_ONCE = 512


def precision_of(error: float) -> int:
    """Return how many bits choose the register so that the relative standard error is at most `error`.

    Notes
    -----
    The standard error of 2**p registers is 1.04 / sqrt(2**p).

    Examples
    --------
    >>> precision_of(0.03), precision_of(0.02)
    (11, 12)
    """
    return math.ceil(2 * math.log2(1.04 / error))


def places_of(hashes: Words, precision: int) -> tuple[npt.NDArray[np.intp], Registers]:
    """Return the register of each hash, and what it would raise it to: the place of the first 1 in the bits behind.

    Examples
    --------
    >>> places, ranks = places_of(np.array([0b101 << 44, 1, 0], dtype=np.uint64), 4)
    >>> places.tolist(), ranks.tolist()
    ([5, 0, 0], [45, 44, 45])
    """
    behind = BITS - precision
    rest = hashes & np.uint64((1 << behind) - 1)
    # Exact, as no hash has more bits than a float's fraction; the exponent is the number of bits without leading zeros.
    _, used = np.frexp(rest.astype(np.float64))
    return (hashes >> np.uint64(behind)).astype(np.intp), (behind + 1 - used).astype(np.uint8)


def estimated(registers: Registers, precision: int) -> Floats:
    """Return the estimates of several sketches.

    Parameters
    ----------
    registers : ndarray of uint8, shape (sketches, 2**precision)
        The registers of each sketch.
    precision : int
        The bits that chose them.

    Returns
    -------
    ndarray of float64, shape (sketches,)
        How many distinct hashes there were, roughly.
    """
    parts = [_estimated(registers[at : at + _AT_ONCE], precision) for at in range(0, len(registers), _AT_ONCE)]
    return np.concatenate(parts) if parts else np.empty(0)


def _estimated(registers: Registers, precision: int) -> Floats:
    count, size = registers.shape
    longest = BITS - precision + 1
    places = registers + (np.arange(count) * (longest + 1))[:, np.newaxis]
    histogram = np.bincount(places.reshape(-1), minlength=count * (longest + 1)).reshape(count, longest + 1)
    total = size * _tau(1 - histogram[:, longest] / size)
    for rank in range(longest - 1, 0, -1):
        total = 0.5 * (total + histogram[:, rank])
    total += size * _sigma(histogram[:, 0] / size)
    with np.errstate(divide="ignore"):
        estimates: Floats = size * size / (2 * math.log(2) * total)
    return estimates


def _sigma(share: Floats) -> Floats:
    """Return x + x**2 + 2 x**4 + 4 x**8 + …, infinite for 1, the share of registers that are 0."""
    total, power, weight = share.copy(), share.copy(), 1.0
    with np.errstate(under="ignore"):
        while True:
            power = power * power
            after = total + weight * power
            weight *= 2
            going = (after != total) & (share < 1)
            total = after
            if not going.any():
                return np.where(share < 1, total, np.inf)


def _tau(share: Floats) -> Floats:
    """Return the like for registers that are at their greatest, 1 - `share` of them."""
    total, root, weight = 1 - share, share.copy(), 1.0
    while True:
        root = np.sqrt(root)
        weight *= 0.5
        after = total - (1 - root) ** 2 * weight
        going = (after != total) & (share > 0) & (share < 1)
        total = after
        if not going.any():
            return np.where((share > 0) & (share < 1), total / 3, 0.0)
