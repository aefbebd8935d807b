"""Arrays of integers in as few bytes as they need: cores and nodes are small numbers, and many of them are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def small_integers(values: Sequence[int]) -> NDArray[np.integer]:
    """Return integers of any sign as an array of the smallest type that has room for all of them.

    Parameters
    ----------
    values : sequence of int
        The integers, of 64 bits at most.

    Returns
    -------
    array of int
        The same integers.

    Raises
    ------
    OverflowError
        If one of them needs more than 64 bits.

    Examples
    --------
    >>> small_integers([3, 200]).dtype, small_integers([3, -200]).dtype, small_integers([]).dtype
    (dtype('uint8'), dtype('int16'), dtype('uint8'))
    """
    wide = np.array(values, dtype=np.int64)
    if not len(wide):
        return wide.astype(np.uint8)
    least, most = int(wide.min()), int(wide.max())
    # A signed type has room for the largest one if it has room for the negative number that is as large.
    return wide.astype(np.min_scalar_type(most if least >= 0 else min(least, -most - 1)))
