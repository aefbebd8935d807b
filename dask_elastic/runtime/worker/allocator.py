"""Settings of the worker's C allocator, for arrays that live as long as one batch."""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import sys

logger = logging.getLogger("dask_elastic.node")

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEPT_BYTES = 32 * 2**20
"""The largest mmap threshold that glibc accepts; allocations above it are mapped one by one."""


_PART = 64
"""Of the memory of a worker, a larger array is no part of what is kept."""


def keep_pages(memory: int = 0) -> bool:
    """Keep the pages of freed arrays in the process instead of returning them to the system after every batch.

    Parameters
    ----------
    memory : int, optional
        Bytes that the worker may have; 0 for no limit. Of little memory, less is kept.

    Returns
    -------
    bool
        Whether the allocator accepted it; only glibc has such settings.

    Notes
    -----
    A batch of 65,536 rows allocates some twenty arrays of 512 KiB. By default each of them is mapped, faulted in page
    by page and unmapped again, which costs more than the computation on it; Dask's nanny makes this worse by a trim
    threshold of 64 KiB.
    """
    name = ctypes.util.find_library("c") if sys.platform == "linux" else None
    if name is None:
        return False
    mallopt = getattr(ctypes.CDLL(name), "mallopt", None)
    if mallopt is None:
        return False
    kept = min(KEPT_BYTES, memory // _PART or KEPT_BYTES)
    accepted = bool(mallopt(_M_MMAP_THRESHOLD, kept)) and bool(mallopt(_M_TRIM_THRESHOLD, 4 * kept))
    if not accepted:
        logger.info("the C allocator refused its settings; large batches will cost more page faults")
    return accepted
