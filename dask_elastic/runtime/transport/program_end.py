"""The end of the program: Python shuts thread pools down while event loops in other threads still run."""

from __future__ import annotations

import threading
from concurrent.futures import Executor


def program_ends() -> bool:
    """Return whether the program's main thread has ended; thread pools take no more work then."""
    return not threading.main_thread().is_alive()


def is_shut_down(pool: Executor) -> bool:
    """Return whether a pool takes no more work, because it or the interpreter was shut down.

    Parameters
    ----------
    pool : Executor
        The pool; otherwise it gets a call without effect.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> pool = ThreadPoolExecutor(1)
    >>> is_shut_down(pool), pool.shutdown(), is_shut_down(pool)
    (False, None, True)

    Notes
    -----
    Python shuts pools down before the main thread counts as ended. Only the text distinguishes this error from that of
    a system that cannot start another thread.
    """
    try:
        pool.submit(int)
    except RuntimeError as error:
        return "shutdown" in str(error)
    return False
