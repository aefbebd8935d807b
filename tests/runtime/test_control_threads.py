"""Calls that wait hold up neither others nor reports, and user code that exits does not end the worker."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from dask_elastic.runtime.worker.control_threads import THREADS, ControlThreads
from dask_elastic.vocab.errors import JobFailed


@pytest.fixture
def threads():
    made = ControlThreads()
    yield made
    made.close()


def test_reports_and_short_calls_return_while_others_wait(threads):
    blocked = threading.Event()

    async def test():
        waiting = [asyncio.ensure_future(threads.wait_for(blocked.wait, 100)) for _ in range(2 * THREADS)]
        assert await asyncio.wait_for(threads.run(sum, [1, 2]), 100) == 3
        assert await asyncio.wait_for(threads.report(sum, [3, 4]), 100) == 7
        assert await asyncio.wait_for(threads.read(sum, [5, 6]), 100) == 11
        assert not any(one.done() for one in waiting)
        blocked.set()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 100) == [True] * (2 * THREADS)

    asyncio.run(test())


@pytest.mark.parametrize("kind", ["run", "wait_for", "read", "report"])
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_exit_of_user_code_is_an_error_of_the_call(threads, kind, raised):
    def leave():
        raise raised(3)

    with pytest.raises(JobFailed, match=rf"user code has ended its thread.*{raised.__name__}"):
        asyncio.run(getattr(threads, kind)(leave))
    assert asyncio.run(threads.run(sys.getrefcount, 0))
