"""Calls of a move of a home, as fakes of workers answer them, and what tests look for."""

from __future__ import annotations

import asyncio

from dask_elastic.runtime.protocol.home_calls import HomeCopied, HomeMoved
from dask_elastic.runtime.protocol.job_calls import MoveExecutor

COPIED = HomeCopied(nbytes=1_900_000, rounds=2)
MOVED = HomeMoved(nbytes=2_000_000, paused_bytes=100_000, pause=0.012, cores={0: 2})
MOVE = MoveExecutor("job", "op0", 0, "b")


async def until(condition):
    """Wait for a condition."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def kinds(scheduler):
    """The calls that a scheduler has made: to whom, and their kinds."""
    return [(address, type(call)) for address, call in scheduler.calls]
