"""Marks of partials that are of instances, where others are of slices, in the field with the begin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SIGN = np.int64(-(2**63))
"""The upper two bits of a time are equal, since times are below 2**62. A mark flips the first one."""


def marked(starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the begins of instances as they are stored beside slices.

    Parameters
    ----------
    starts : ndarray of int64
        The begins, in microseconds since the Unix epoch.

    Returns
    -------
    ndarray of int64
        Numbers that are the begin of no slice.

    Examples
    --------
    >>> stored = np.append(marked(np.array([-5, 0, 10])), 10)
    >>> has_mark(stored).tolist(), unmarked(stored).tolist()
    ([True, True, True, False], [-5, 0, 10, 10])
    """
    return starts ^ _SIGN


def has_mark(starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which partials are of instances, given their stored begins; see `marked`."""
    found: npt.NDArray[np.bool_] = (starts ^ (starts << 1)) < 0
    return found


def unmarked(starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the begins of slices and instances, given the stored ones; see `marked`."""
    return np.where(has_mark(starts), starts ^ _SIGN, starts)
