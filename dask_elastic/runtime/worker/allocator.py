"""The C allocator of a worker, set for arrays that live for one batch."""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import sys

logger = logging.getLogger("dask_elastic.node")

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEPT_BYTES = 32 * 2**20
"""The most that glibc accepts as the size from which an allocation gets pages of its own."""


def keep_pages() -> bool:
    """Let freed arrays' pages stay with the process instead of going back to the system after every batch.

    Returns
    -------
    bool
        Whether the allocator took it; only glibc has such settings.

    Notes
    -----
    A batch of 65,536 rows makes some twenty arrays of 512 KiB. By default, and the more so under Dask's nanny, which
    sets a trim threshold of 64 KiB, each of them is mapped, faulted in page by page and unmapped again; that costs
    more than what is computed on it.
    """
    name = ctypes.util.find_library("c") if sys.platform == "linux" else None
    if name is None:
        return False
    mallopt = getattr(ctypes.CDLL(name), "mallopt", None)
    if mallopt is None:
        return False
    taken = bool(mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, 4 * KEPT_BYTES))
    if not taken:
        logger.info("the C allocator did not take its settings; large batches will cost more page faults")
    return taken
