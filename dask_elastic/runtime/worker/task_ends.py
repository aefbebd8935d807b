"""An event for the ends of tasks: threads note it, coroutines wait until a condition holds that depends on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class TaskEnds:
    """Wakes coroutines of one event loop when a task of some executor at home on this node has ended.

    Parameters
    ----------
    loop : callable
        Returns the event loop.

    Examples
    --------
    >>> left = ["task"]
    >>> async def run():
    ...     ends = TaskEnds(asyncio.get_running_loop)
    ...     waiting = asyncio.ensure_future(ends.wait_for(lambda: not left, timeout=10.0))
    ...     await asyncio.sleep(0)
    ...     left.clear()
    ...     ends.note()
    ...     await waiting
    >>> asyncio.run(run())
    """

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]):
        self._loop = loop
        self._noted = asyncio.Event()

    def note(self) -> None:
        """Note that a task has ended; called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no coroutine waits any more
            self._loop().call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._noted.set()
        self._noted = asyncio.Event()

    async def wait_for(self, condition: Callable[[], bool], timeout: float) -> None:
        """Return when a condition holds, or after `timeout` seconds; it is checked after each end of a task."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not condition():
                    await self._noted.wait()
