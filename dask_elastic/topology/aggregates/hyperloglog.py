"""HyperLogLog: estimates the number of distinct hashes from their longest runs of zero bits.

Notes
-----
Flajolet, Fusy, Gandouet, Meunier 2007 for the registers and the error; Ertl 2017, "New cardinality estimation
algorithms for HyperLogLog sketches", algorithm 6, for an estimator that is unbiased for few values without tables.
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
    """Return the number of bits that select a register, such that the relative standard error is at most `error`.

    Parameters
    ----------
    error : float
        The relative standard error.

    Returns
    -------
    int
        The precision p; a sketch has 2**p registers.

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
    """Return the register of each hash, and the hash's rank, the value to which it raises the register.

    Parameters
    ----------
    hashes : ndarray of uint64
        Hashes of `BITS` bits.
    precision : int
        The number of leading bits that select the register.

    Returns
    -------
    tuple of (ndarray of intp, ndarray of uint8)
        The registers, and the positions, from 1, of the first 1 in the remaining bits.

    Examples
    --------
    >>> places, ranks = places_of(np.array([0b101 << 44, 1, 0], dtype=np.uint64), 4)
    >>> places.tolist(), ranks.tolist()
    ([5, 0, 0], [45, 44, 45])
    """
    behind = BITS - precision
    rest = hashes & np.uint64((1 << behind) - 1)
    # Exact: a hash has fewer bits than a float's fraction. The exponent is the bit length.
    _, used = np.frexp(rest.astype(np.float64))
    return (hashes >> np.uint64(behind)).astype(np.intp), (behind + 1 - used).astype(np.uint8)


def estimated(registers: Registers, precision: int) -> Floats:
    """Return the estimated counts of several sketches.

    Parameters
    ----------
    registers : ndarray of uint8, shape (sketches, 2**precision)
        The registers of each sketch.
    precision : int
        The number of bits that select a register.

    Returns
    -------
    ndarray of float64, shape (sketches,)
        The estimated number of distinct hashes of each sketch.
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
    """Return Ertl's sigma of the share of registers that are 0: x + x**2 + 2 x**4 + 4 x**8 + …, infinite for 1."""
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
    """Return Ertl's tau, the corresponding term for the 1 - `share` registers that have the greatest rank."""
    total, root, weight = 1 - share, share.copy(), 1.0
    while True:
        root = np.sqrt(root)
        weight *= 0.5
        after = total - (1 - root) ** 2 * weight
        going = (after != total) & (share > 0) & (share < 1)
        total = after
        if not going.any():
            return np.where((share > 0) & (share < 1), total / 3, 0.0)
