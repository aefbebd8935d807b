"""Long arrays whose memory is taken page by page, as they are written."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

_NORESERVE = {"linux": 0x4000, "darwin": 0x40}
"""The flag of mmap for address space without memory, which has no name in Python before version 3.13."""


HUGE_FROM = 4 << 20
"""Bytes of an array from which the system is advised to use huge pages, as NumPy does."""


def reserved_array(dtype: np.dtype[Any], length: int, huge_pages: bool = False) -> npt.NDArray[Any] | None:
    """Return zeros for which only address space is reserved; the system allocates each page when it is first written.

    Parameters
    ----------
    dtype : dtype
        The type of the elements; not `object`.
    length : int
        The number of elements.
    huge_pages : bool, optional
        Whether to advise huge pages behind the first `HUGE_FROM` bytes: access to random elements is faster with them,
        and the first write to each takes as long as clearing two megabytes.

    Returns
    -------
    ndarray or None
        The array, of shape (length,); None if the system has no such arrays or refuses one of this length, for example
        by a limit of the address space.

    Examples
    --------
    >>> array = reserved_array(np.dtype(np.int64), 1 << 20)
    >>> array is None or int(array[:10].sum())
    0
    """
    flag = _NORESERVE.get(sys.platform)
    nbytes = dtype.itemsize * length
    if flag is None or nbytes == 0:
        return None
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flag)
    except (OSError, OverflowError):
        return None
    if huge_pages and nbytes > HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        # Advice that the system does not know or want changes nothing.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE, HUGE_FROM, nbytes - HUGE_FROM)
    # The array keeps the mapping as long as it, or a part of it, exists.
    return np.frombuffer(memory, dtype)
