"""An event loop in a background thread, one per process: lets Spark's blocking calls run Dask's coroutines."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for threads without an event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="elastic-spark", daemon=True).start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine, and return its future at once."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return its result."""
        return self.begin(work).result()


_LOCK = threading.Lock()
# By process: Spark forks its Python workers, and threads do not survive a fork.
_LOOPS: dict[int, BackgroundLoop] = {}


def background_loop() -> BackgroundLoop:
    """Return this process's loop.

    Examples
    --------
    >>> async def answer():
    ...     return 42
    >>> background_loop().run(answer())
    42
    """
    process = os.getpid()
    # Two loops would share their connections, of which each belongs to one loop.
    with _LOCK:
        if process not in _LOOPS:
            _LOOPS.clear()
            _LOOPS[process] = BackgroundLoop()
        return _LOOPS[process]


def _renew_lock() -> None:
    """Replace the lock in a forked process, whose parent may have held it."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
