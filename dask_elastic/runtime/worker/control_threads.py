"""The threads in which a worker carries out calls that may block, away from its event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dask_elastic.executor.error_policy import with_trace
from dask_elastic.runtime.transport.program_end import program_ends
from dask_elastic.vocab.errors import JobFailed

T = TypeVar("T")

THREADS = 8


class ControlThreads:
    """Runs calls of five kinds, of which none holds up another: leases depend on reports, and moves on short calls.

    Examples
    --------
    >>> threads = ControlThreads()
    >>> asyncio.run(threads.run(sum, [1, 2]))
    3
    >>> threads.close()
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(THREADS, thread_name_prefix="elastic-control")
        self._waiting = ThreadPoolExecutor(THREADS, thread_name_prefix="elastic-control-waits")
        self._reading = ThreadPoolExecutor(THREADS, thread_name_prefix="elastic-control-reads")
        self._building = ThreadPoolExecutor(THREADS, thread_name_prefix="elastic-control-builds")
        self._reporting = ThreadPoolExecutor(THREADS, thread_name_prefix="elastic-control-reports")

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Run something that may block for a moment.

        Raises
        ------
        JobFailed
            If it raises `SystemExit` or the like, with which the event loop would end the worker.
        """
        return await _run_in(self._short, function, *arguments)

    async def wait_for(self, function: Callable[..., T], *arguments: object) -> T:
        """Run something that may wait for a job, such as for room at a source; raises as `run`."""
        return await _run_in(self._waiting, function, *arguments)

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Run something that reads the state of a job, and may wait for what is on the way to it; raises as `run`."""
        return await _run_in(self._reading, function, *arguments)

    async def build(self, function: Callable[..., T], *arguments: object) -> T:
        """Run something that builds a part of a job: it imports user code and reads checkpoints; raises as `run`."""
        return await _run_in(self._building, function, *arguments)

    async def report(self, function: Callable[..., T], *arguments: object) -> T:
        """Run something that measures a job, and waits while its state is moved or copied; raises as `run`."""
        return await _run_in(self._reporting, function, *arguments)

    def close(self) -> None:
        """Stop; calls that have not begun are dropped."""
        for pool in (self._short, self._waiting, self._reading, self._building, self._reporting):
            pool.shutdown(wait=False, cancel_futures=True)


async def _run_in(pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: object) -> T:
    call = functools.partial(_contained, function, *arguments)
    if program_ends():
        return call()
    return await asyncio.get_running_loop().run_in_executor(pool, call)


def _contained(function: Callable[..., T], *arguments: object) -> T:
    try:
        return function(*arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        raise JobFailed(with_trace("user code has ended its thread", error)) from error
