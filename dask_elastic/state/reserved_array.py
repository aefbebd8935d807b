"""Long arrays whose memory is taken page by page, as they are written."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_NORESERVE = {"linux": 0x4000, "darwin": 0x40}
"""The flag of mmap for address space without memory, which has no name in Python before version 3.13."""

_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_STRICT = "2"
"""The mode of Linux in which address space counts as memory, with that flag or without."""

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
        The array, of shape (length,); None if the system has no such arrays, refuses one of this length, or limits the
        address space of the process, of which other arrays would lack what is reserved.

    Examples
    --------
    >>> array = reserved_array(np.dtype(np.int64), 1 << 20)
    >>> array is None or int(array[:10].sum())
    0
    """
    flag = _NORESERVE.get(sys.platform)
    nbytes = dtype.itemsize * length
    if flag is None or nbytes == 0 or _is_limited():
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


def _is_limited() -> bool:
    """Return whether what is reserved counts against a limit before it is written."""
    import resource  # which Windows lacks

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if any(limit != resource.RLIM_INFINITY for limit in limits):
        return True
    try:
        return _OVERCOMMIT.read_text().strip() == _STRICT
    except OSError:
        return False
